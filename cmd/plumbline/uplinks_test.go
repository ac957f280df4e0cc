package main

import (
	"slices"
	"testing"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/kernel"
)

// TestUplinks takes a namespace for the host's: it has a default route of either
// family over two links, a third link that is up, and one that is not.
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
		meddle(t, "plt-uplinks", netstate.Change{After: o})
	}
	host, err := kernel.Open(kernel.Options{Netns: netns})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	var devices []inventory.Device
	for _, name := range []string{"four0", "six0", "idle0", "down0", "gone0"} {
		devices = append(devices, inventory.Device{ID: "if:" + name, IfName: name, Up: name != "down0"})
	}
	have, err := uplinksOf(t.Context(), host, devices)
	if err != nil {
		t.Fatal(err)
	}
	routes := slices.Compact(slices.Sorted(slices.Values(have.Routes)))
	if !slices.Equal(routes, []string{"four0", "six0"}) {
		t.Errorf("uplinks %q", have.Routes)
	}
}
