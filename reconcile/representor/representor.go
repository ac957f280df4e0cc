package representor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
)

// Host is the network cards of this machine. It is safe for concurrent use.
type Host struct {
	root string
	mode func(bus, device string) (string, error)
}

// switchdev is a mode of devlink for the switch of a card.
const switchdev = "switchdev"

// Open returns the cards below the folder where sysfs of the host's network namespace is
// mounted. Mode returns the mode of the switch of a card, as kernel.SwitchMode does.
func Open(sysfs string, mode func(bus, device string) (string, error)) *Host {
	return &Host{sysfs, mode}
}

// Domain is the part of the engine's options that makes it know representors.
func (h *Host) Domain() reconcile.ExternalDomain {
	return reconcile.ExternalDomain{
		Name: "the network cards", Kinds: []netstate.Kind{netstate.KindRepresentor},
		Open: func(context.Context, reconcile.Sandbox) (reconcile.External, error) { return h, nil },
	}
}

// Extend implements reconcile.External.
func (h *Host) Extend(_ context.Context, s *netstate.Snapshot, queried []netstate.Object) error {
	for _, o := range queried {
		r, there, err := h.read(o.Key().ID)
		switch {
		case err != nil:
			return err
		case there:
			s.Put(r)
		default:
			s.PutAbsent(o.Key())
		}
	}
	return nil
}

// Apply implements reconcile.External.
func (h *Host) Apply(context.Context, netstate.Change) error {
	return fault.New(fault.Invalid, errors.New("representors are made by the driver of the physical function, and not changed"))
}

// Close implements reconcile.External: nothing is held open.
func (h *Host) Close() error { return nil }

// read reads the representor of a PCI function, false when that is not a virtual one.
func (h *Host) read(id string) (r netstate.Representor, there bool, err error) {
	if address, err := contract.PCIAddress.Canonical(id); err != nil || address != id {
		return r, false, nil
	}
	devices := filepath.Join(h.root, "bus/pci/devices")
	r = netstate.Representor{ID: id, PF: target(filepath.Join(devices, id, "physfn"))}
	if r.PF == "" {
		return r, false, nil
	}
	pf := filepath.Join(devices, r.PF)
	functions, err := filepath.Glob(filepath.Join(pf, "virtfn[0-9]*"))
	if err != nil {
		return r, false, err
	}
	r.Index = -1
	for _, f := range functions {
		if target(f) == id {
			if r.Index, err = strconv.Atoi(strings.TrimPrefix(filepath.Base(f), "virtfn")); err != nil {
				return r, false, fmt.Errorf("device %q: number of the virtual function: %w", id, err)
			}
		}
	}
	if r.Index < 0 {
		return r, false, fault.New(fault.NotReady,
			fmt.Errorf("device %q: physical function %q does not have this virtual function (any more)", id, r.PF))
	}
	r.Link = new("")
	mode, err := h.mode("pci", r.PF)
	if err != nil || mode != switchdev {
		return r, err == nil, err
	}
	r.Switchdev = true
	name, err := Find(pf, r.Index)
	if err != nil {
		return r, false, fmt.Errorf("device %q: %w", id, err)
	}
	if name != "" {
		r.Link = new(netstate.HostName(name))
	}
	return r, true, nil
}

var (
	uplinkPort = regexp.MustCompile(`^p[0-9]+(s[0-9]+)?$`)
	// A function of another computer, for which this one is the network card, has a controller
	// before it ("c1pf0vf3"). It is never that of a function here.
	functionPort = regexp.MustCompile(`^pf[0-9]+vf([0-9]+)$`)
)

// Find looks for the representor of a virtual function, by its number, among the links of the
// physical function, whose folder in sysfs it is given. It returns "" if there is none.
//
// The links of one card have a common phys_switch_id: that of the uplink, which the driver names
// p0, and those of the representors, which it names pf0vf3. Names of links are no fact: anybody
// may change them.
func Find(device string, index int) (string, error) {
	links, err := os.ReadDir(filepath.Join(device, "net"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	uplinks := map[string]bool{}          // switches of uplinks
	representors := map[string][]string{} // those of the function, by their switches
	for _, link := range links {
		at := filepath.Join(device, "net", link.Name())
		of, port := text(at, "phys_switch_id"), text(at, "phys_port_name")
		switch m := functionPort.FindStringSubmatch(port); {
		case of == "":
		case uplinkPort.MatchString(port):
			uplinks[of] = true
		case m != nil && m[1] == strconv.Itoa(index):
			representors[of] = append(representors[of], link.Name())
		}
	}
	var found []string
	for of := range uplinks {
		found = append(found, representors[of]...)
	}
	switch slices.Sort(found); len(found) {
	case 0:
		return "", nil
	case 1:
		return found[0], nil
	}
	return "", fault.New(fault.Conflict, fmt.Errorf("links %q all represent virtual function %d", found, index))
}

// text reads an attribute. One that the driver does not have cannot be read (EOPNOTSUPP).
func text(dir, file string) string {
	b, _ := os.ReadFile(filepath.Join(dir, file))
	return strings.TrimSpace(string(b))
}

// target returns the last component of a symbolic link's target, "" without one.
func target(link string) string {
	to, err := os.Readlink(link)
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}
