package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/kernel/ethtoolnl"
	"github.com/plumbline/plumbline/topology/fault"
)

// ethtoolClient returns the client of the namespace. It is opened when it is first
// needed: few sandboxes need it.
func (s *socket) ethtoolClient() (_ *ethtoolnl.Client, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ethtool == nil {
		err = s.enter(func() (err error) {
			s.ethtool, err = ethtoolnl.Dial()
			return err
		})
	}
	return s.ethtool, err
}

// ethtoolSettings reads one class of settings of a link; none for a link that does
// not have the class.
func (c *conn) ethtoolSettings(ctx context.Context, class string, index int) ([]ethtoolnl.Setting, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.count.gets.Add(1)
	client, err := c.ethtoolClient()
	if err != nil {
		return nil, err
	}
	var settings []ethtoolnl.Setting
	err = c.count.send(false, func() (err error) {
		settings, err = client.Get(ctx, ethtoolnl.Class(class), index)
		return err
	})
	if err != nil {
		return nil, ignoreAbsent(err)
	}
	return settings, nil
}

// ethtoolText is the value of a setting as objects have it.
func ethtoolText(class string, value uint32) string {
	if ethtoolnl.Class(class).Switches() {
		return onOff(value != 0)
	}
	return strconv.FormatUint(uint64(value), 10)
}

// ignoreAbsent drops the errors that say that a device has no such settings, or does
// not exist.
func ignoreAbsent(err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

// ethtoolGroup is the link and the class of one message.
type ethtoolGroup struct{ link, class string }

func (o *observer) queryEthtool(ctx context.Context, settings []netstate.Ethtool) error {
	queried := map[ethtoolGroup][]netstate.Ethtool{}
	for _, e := range settings {
		g := ethtoolGroup{e.Link, e.Class}
		queried[g] = append(queried[g], e)
	}
	groups := slices.SortedFunc(maps.Keys(queried), func(a, b ethtoolGroup) int {
		return cmp.Or(cmp.Compare(a.link, b.link), cmp.Compare(a.class, b.class))
	})
	for _, g := range groups {
		have, err := o.readEthtool(ctx, g)
		if err != nil {
			return reading(queried[g][0], err)
		}
		for _, a := range queried[g] {
			if got, ok := have[a.Name]; ok {
				o.snap.Put(got)
			} else {
				o.snap.PutAbsent(a.Key())
			}
		}
	}
	return nil
}

func (s *Sandbox) readEthtool(ctx context.Context, g ethtoolGroup) (map[string]netstate.Ethtool, error) {
	c, index, err := s.existingLink(ctx, g.link)
	if c == nil || err != nil {
		return nil, err
	}
	settings, err := c.ethtoolSettings(ctx, g.class, index)
	if err != nil {
		return nil, err
	}
	out := make(map[string]netstate.Ethtool, len(settings))
	for _, s := range settings {
		value := ethtoolText(g.class, s.Value)
		out[s.Name] = netstate.Ethtool{Link: g.link, Class: g.class, Name: s.Name, Value: &value, Fixed: s.Fixed}
	}
	return out, nil
}

// applyEthtool sets one setting and reads it back: the kernel returns no error if a
// driver does not change a feature.
func (s *Sandbox) applyEthtool(ctx context.Context, c netstate.Change) error {
	_, after := typed[netstate.Ethtool](c)
	if c.After == nil || after.Value == nil {
		return nil // a setting is not created or deleted: it exists with its link
	}
	if err := s.onLink(ctx, after.Link, func(c *conn, index int) error { return c.writeEthtool(ctx, index, after) }); err != nil {
		return explainEthtool(err)
	}
	have, err := s.readEthtool(ctx, ethtoolGroup{after.Link, after.Class})
	if err != nil {
		return err
	}
	got, ok := have[after.Name]
	switch {
	case !ok:
		return fault.New(fault.Unsupported, errors.New("the link does not have it"))
	case got.Fixed && *got.Value != *after.Value:
		return fault.New(fault.Unsupported, fmt.Errorf("it stays %s: its driver does not let it change", *got.Value))
	case *got.Value != *after.Value:
		return fault.New(fault.Unsupported, fmt.Errorf(
			"it reads back as %s instead of %s: the driver refuses it, or another feature forbids or demands it", *got.Value, *after.Value))
	}
	return nil
}

// writeEthtool sets one setting of the link with that index.
func (c *conn) writeEthtool(ctx context.Context, index int, e netstate.Ethtool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.count.writes.Add(1)
	value, err := ethtoolValue(e)
	if err != nil {
		return err
	}
	client, err := c.ethtoolClient()
	if err != nil {
		return err
	}
	return c.count.send(true, func() error { return client.Set(ctx, ethtoolnl.Class(e.Class), index, e.Name, value) })
}

func ethtoolValue(e netstate.Ethtool) (uint32, error) {
	if ethtoolnl.Class(e.Class).Switches() {
		return uint32(bit(*e.Value == "on")), nil
	}
	n, err := strconv.ParseUint(*e.Value, 10, 32)
	if err != nil {
		return 0, invalid("value %q is not a number", *e.Value)
	}
	return uint32(n), nil
}

// explainEthtool keeps the kernel's message, which is more precise than its error number.
func explainEthtool(err error) error {
	var op *netlink.OpError
	if errors.As(err, &op) && op.Message != "" {
		err = fmt.Errorf("%w: %s", op.Err, op.Message)
	}
	switch {
	case errors.Is(err, ethtoolnl.ErrUnknown), errors.Is(err, unix.EOPNOTSUPP):
		return because(fault.Unsupported, err, "the link does not have it")
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE):
		return because(fault.Invalid, err, "the driver refuses the value")
	}
	return err
}
