package flowcounters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/ports"
)

// Reader reads the counters of rules.
type Reader struct {
	// Dir has the management sockets of bridges.
	Dir string
	// Numbers is openvswitch.Switch.Numbers.
	Numbers func(ctx context.Context, of []netstate.OVSPort) (map[string]uint32, error)
	Timeout time.Duration // of a reading. Default 5 s
}

// DirOf returns the directory of the management sockets by an endpoint of the database of Open vSwitch, ""
// if it is not a socket of this node.
func DirOf(endpoint string) string {
	if path, ok := strings.CutPrefix(endpoint, "unix:"); ok {
		return filepath.Dir(path)
	}
	return ""
}

// Read returns a reading for each rule. One without flows is not known: the port is not bound, or OVN has not
// installed the rule. With an error, readings that were made before it are there.
func (r *Reader) Read(ctx context.Context, rules []ports.LogicalRule) ([]ports.Reading, error) {
	out := make([]ports.Reading, len(rules))
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(r.Timeout, timeout))
	defer cancel()
	of := map[string]map[string][]int{} // rules of links of bridges
	var bound []netstate.OVSPort
	for i := range rules {
		bridge, link := rules[i].Bridge, rules[i].Link
		if bridge == "" || bridge != filepath.Base(bridge) {
			continue
		}
		if of[bridge] == nil {
			of[bridge] = map[string][]int{}
		}
		if of[bridge][link] == nil {
			bound = append(bound, netstate.OVSPort{Link: link, LogicalPort: &rules[i].Port})
		}
		of[bridge][link] = append(of[bridge][link], i)
	}
	if len(bound) == 0 {
		return out, nil
	}
	numbers, err := r.Numbers(ctx, bound)
	if err != nil {
		return out, err
	}
	var errs []error
	for bridge, links := range of {
		if err := r.bridge(ctx, bridge, numbers, links, rules, out); err != nil {
			if ctx.Err() != nil {
				err = fmt.Errorf("ovs-vswitchd does not answer in time: %w", ctx.Err())
			}
			errs = append(errs, fmt.Errorf("bridge %q of Open vSwitch: %w", bridge, err))
		}
	}
	return out, errors.Join(errs...)
}

// bridge reads the rules of the ports of a bridge, over one connection.
func (r *Reader) bridge(ctx context.Context, bridge string, numbers map[string]uint32, links map[string][]int, rules []ports.LogicalRule,
	out []ports.Reading,
) error {
	c, err := dial(ctx, filepath.Join(r.Dir, bridge+".mgmt"))
	if err != nil {
		return err
	}
	defer c.Close()
	table := uint8(allTables)
	for link, of := range links {
		number, ok := numbers[link]
		if !ok {
			continue
		}
		list := make([]ports.LogicalRule, len(of))
		for i, at := range of {
			list[i] = rules[at]
		}
		found, in, err := c.port(number, table, list)
		if err != nil {
			return err
		}
		for i, at := range of {
			out[at] = found[i]
		}
		if in != allTables { // OVN has the rules of all ports in one
			table = in
		}
	}
	return nil
}

// counted is the sum of the counters of a rule's flows.
type counted struct {
	ports.FilterCount
	tables  []uint8
	cookies []uint64
	meters  []uint32
	flows   uint32
	metered uint32 // flows with a meter
}

func (t *counted) add(f *flow) {
	t.Packets += f.packets
	t.Bytes += f.bytes
	t.flows++
	if !slices.Contains(t.tables, f.table) {
		t.tables = append(t.tables, f.table)
	}
	if !slices.Contains(t.cookies, f.cookie) {
		t.cookies = append(t.cookies, f.cookie)
	}
	if len(f.meters) > 0 {
		t.metered++
	}
	for _, m := range f.meters {
		if !slices.Contains(t.meters, m) {
			t.meters = append(t.meters, m)
		}
	}
}

// port reads the rules of a port, and says which table they are in. The flows of a rule have its priority and
// set its DSCP; those of one row have one cookie, which is the beginning of the UUID of a logical flow.
func (c *connection) port(number uint32, table uint8, rules []ports.LogicalRule) ([]ports.Reading, uint8, error) {
	out := make([]ports.Reading, len(rules))
	var to []logicalPort
	if err := c.flows(0, inPort(number), func(f *flow) {
		if f.writesPort && !slices.Contains(to, f.to) {
			to = append(to, f.to)
		}
	}); err != nil {
		return nil, allTables, err
	}
	if len(to) != 1 {
		return out, allTables, nil // not bound yet
	}
	type key struct {
		priority uint16
		dscp     int
	}
	found := map[key]*counted{}
	for _, r := range rules {
		found[key{r.Priority, int(r.DSCP)}] = &counted{}
	}
	if err := c.flows(table, to[0].fields(), func(f *flow) {
		if t := found[key{f.priority, f.dscp}]; t != nil {
			t.add(f)
		}
	}); err != nil {
		return nil, allTables, err
	}
	in := uint8(allTables)
	for i, r := range rules {
		t := found[key{r.Priority, int(r.DSCP)}]
		if len(t.tables) != 1 || len(t.cookies) != 1 {
			continue // not installed yet, or another row has the same
		}
		in = t.tables[0]
		dropped, known, err := c.dropped(t, r.Limited)
		if err != nil {
			return nil, allTables, err
		}
		out[i] = ports.Reading{
			Filters: map[ports.FilterKey]ports.FilterCount{{Pref: r.Priority, Handle: uint32(t.cookies[0])}: t.FilterCount},
			Dropped: dropped, DropsUnknown: !known,
		}
	}
	return out, in, nil
}

// dropped reads what the meter of a rule has dropped. That is known if no flow but those of the rule uses it.
func (c *connection) dropped(t *counted, limited bool) (n uint64, known bool, err error) {
	switch {
	case len(t.meters) == 0:
		return 0, !limited, nil // earlier versions of OVN have meters in a table of their own
	case len(t.meters) > 1 || t.metered != t.flows:
		return 0, false, nil
	}
	m, found, err := c.meter(t.meters[0])
	if err != nil || !found || m.flows != t.flows {
		return 0, false, err
	}
	return m.dropped, true, nil
}
