package main

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/hostengine"
	"github.com/plumbline/plumbline/reconcile/kernel"
)

// TestUplinks uses a namespace as the host: it has a default route of either family over
// two links, a third link that is up, and one that is not.
func TestUplinks(t *testing.T) {
	inMachine(t)
	netns := addNetns(t, "plt-uplinks")
	for _, o := range []netstate.Object{
		netstate.Link{Name: "four0", LinkKind: "dummy", Up: new(true)},
		netstate.Link{Name: "six0", LinkKind: "dummy", Up: new(true)},
		netstate.Link{Name: "idle0", LinkKind: "dummy", Up: new(true)},
		netstate.Link{Name: "down0", LinkKind: "dummy"},
		netstate.Addr{Link: "four0", Address: "192.0.2.2/24"},
		netstate.Addr{Link: "six0", Address: "2001:db8:1::2/64"},
		netstate.Addr{Link: "idle0", Address: "198.51.100.2/24"},
		netstate.Route{Link: "four0", Dst: "0.0.0.0/0", Gateway: "192.0.2.1", Table: netstate.TableMain},
		netstate.Route{Link: "six0", Dst: "::/0", Gateway: "2001:db8:1::1", Table: netstate.TableMain, Metric: 1024},
	} {
		foreignChange(t, "plt-uplinks", netstate.Change{After: o})
	}
	message, failing := 0, 0
	host, err := kernel.Open(kernel.Options{Netns: netns, Disturb: func(m kernel.Message) error {
		if m.Answered {
			return nil
		}
		if message++; message == failing {
			return unix.EMSGSIZE
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	var devices []inventory.Device
	for _, name := range []string{"four0", "six0", "idle0", "down0", "gone0"} {
		devices = append(devices, inventory.Device{ID: "if:" + name, IfName: name, Up: name != "down0"})
	}
	have, err := hostengine.Uplinks(t.Context(), host, devices)
	if err != nil {
		t.Fatal(err)
	}
	routes := slices.Compact(slices.Sorted(slices.Values(have.Routes)))
	if !slices.Equal(routes, []string{"four0", "six0"}) {
		t.Errorf("uplinks %q", have.Routes)
	}
	if got := have.Networks["idle0"]; len(got) != 1 || got[0].String() != "198.51.100.0/24" {
		t.Errorf("networks %v", have.Networks)
	}
	// A link that cannot be read is withheld, and costs no other.
	unread := 0
	for last := message; failing <= last; {
		message, failing = 0, failing+1
		have, err := hostengine.Uplinks(t.Context(), host, devices)
		if err != nil {
			continue // the query was for the best route
		}
		unread += len(have.Unread)
		for _, name := range []string{"four0", "six0"} {
			if !slices.Contains(have.Routes, name) && have.Unread[name] == nil {
				t.Errorf("message %d failed: %q is allocated: %+v", failing, name, have)
			}
		}
		if len(have.Unread) > 1 || (have.Problem() == nil) != (len(have.Unread) == 0 && have.NoNetworks == nil) {
			t.Errorf("message %d failed: %v", failing, have.Problem())
		}
	}
	if unread < 3 {
		t.Errorf("%d times a link could not be read, want each once at least", unread)
	}
}
