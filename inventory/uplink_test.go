package inventory_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/sysfstest"
)

// routeTable is a host's default routes as data: what carries one by device ID, and
// what cannot be read.
type routeTable struct {
	best     string
	over     map[string]string
	networks map[string][]netip.Prefix
	fails    map[string]error // by device ID, and "" for the best route
	queried  *[]string
}

func (r routeTable) Best(context.Context) (string, error) { return r.best, r.fails[""] }

func (r routeTable) Networks(context.Context) (map[string][]netip.Prefix, error) {
	return r.networks, r.fails["networks"]
}

func (r routeTable) Over(_ context.Context, id string) (string, error) {
	*r.queried = append(*r.queried, id)
	return r.over[id], r.fails[id]
}

// TestQueryUplinks holds which interfaces are queried, and what is withheld when one of
// them or all cannot be.
func TestQueryUplinks(t *testing.T) {
	unreadable := errors.New("message too long")
	devices := []inventory.Device{
		{ID: "0000:03:00.0", IfName: "eth0", Up: true},
		{ID: "0000:04:00.0", IfName: "eth1", Up: true},
		{ID: "0000:05:00.0", IfName: "eth2"}, // down
		{ID: "0000:06:00.0", Up: true},       // in a pod
		{ID: "0000:07:00.0", IfName: "p0", Up: true, OtherIfNames: []string{"pf0vf0"}},
		{ID: "if:team0", IfName: "team0", Up: true},
	}
	all := []string{"0000:03:00.0", "0000:04:00.0", "0000:07:00.0", "if:pf0vf0", "if:team0"}
	for name, c := range map[string]struct {
		table   routeTable
		want    []string
		unread  []string
		problem string
	}{
		"none":                    {},
		"two of them":             {table: routeTable{best: "eth0", over: map[string]string{"0000:03:00.0": "eth0", "0000:04:00.0": "eth1"}}, want: []string{"eth0", "eth0", "eth1"}},
		"over a representor":      {table: routeTable{over: map[string]string{"if:pf0vf0": "pf0vf0"}}, want: []string{"pf0vf0"}},
		"over a virtual device":   {table: routeTable{best: "team0"}, want: []string{"team0"}},
		"one that cannot be read": {table: routeTable{best: "eth0", fails: map[string]error{"if:pf0vf0": unreadable}}, want: []string{"eth0"}, unread: []string{"pf0vf0"}, problem: `withheld "pf0vf0", as it may carry a default route: message too long`},
	} {
		var queried []string
		c.table.queried = &queried
		have, err := inventory.QueryUplinks(t.Context(), devices, c.table)
		if err != nil || !slices.Equal(have.Routes, c.want) || len(have.Unread) != len(c.unread) || !slices.Equal(queried, all) {
			t.Errorf("%s: %+v, %v; queried %q", name, have, err, queried)
		}
		for _, ifName := range c.unread {
			if have.Unread[ifName] == nil {
				t.Errorf("%s: %q is allocated", name, ifName)
			}
		}
		if problem := have.Problem(); (problem == nil) != (c.problem == "") || problem != nil && problem.Error() != c.problem {
			t.Errorf("%s: problem %v", name, problem)
		}
	}
	var queried []string
	if _, err := inventory.QueryUplinks(t.Context(), devices, routeTable{queried: &queried, fails: map[string]error{"": unreadable}}); !errors.Is(err, unreadable) {
		t.Errorf("without the best route: %v", err)
	}
	unknown := routeTable{queried: &queried, fails: map[string]error{"networks": unreadable}}
	if have, err := inventory.QueryUplinks(t.Context(), devices, unknown); err != nil || !errors.Is(have.Problem(), unreadable) {
		t.Errorf("without networks: %+v, %v", have, err)
	}
	have, err := inventory.QueryUplinks(t.Context(), devices, routeTable{queried: &queried, networks: map[string][]netip.Prefix{"eth1": {netip.MustParsePrefix("10.0.1.0/24")}}})
	if guarded := inventory.GuardUplinks(devices, have); err != nil || guarded[0].Networks != nil || fmt.Sprint(guarded[1].Networks) != "[10.0.1.0/24]" {
		t.Errorf("networks of the devices: %+v, %v", guarded, err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if _, err := inventory.QueryUplinks(stopped, devices, routeTable{queried: &queried}); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
}

// TestDiscoverGuarded holds that the devices of a host are listed with those marked that
// carry a default route, and that none is listed when nobody knows which.
func TestDiscoverGuarded(t *testing.T) {
	var text strings.Builder
	for i, name := range []string{"eth0", "eth1", "eth2"} {
		device := fmt.Sprintf("devices/pci0000:00/0000:00:0%d.0", i+3)
		fmt.Fprintf(&text, "-- bus/pci/devices/0000:00:0%d.0 -> ../../../%s --\n-- %s/class --\n0x020000\n", i+3, device, device)
		fmt.Fprintf(&text, "-- class/net/%s -> ../../%s/net/%s --\n-- %s/net/%s/device -> ../.. --\n-- %s/net/%s/flags --\n0x1003\n", name, device, name, device, name, device, name)
		fmt.Fprintf(&text, "-- %s/net/%s/type --\n1\n-- %s/net/%s/address --\n02:00:00:00:00:0%d\n-- %s/net/%s/mtu --\n1500\n", device, name, device, name, i, device, name)
	}
	tree, _ := sysfstest.Unpack(t, txtar.Parse([]byte(text.String())))
	unreadable := errors.New("message too long")
	var queried []string
	table := routeTable{queried: &queried, best: "eth0", fails: map[string]error{"0000:00:04.0": unreadable}}
	uses := func(tree fs.FS, r inventory.Routes) (map[string]inventory.HostUse, error) {
		out := map[string]inventory.HostUse{}
		devices, err := inventory.DiscoverGuarded(t.Context(), tree, inventory.Options{}, r)
		for _, d := range devices {
			out[d.IfName] = d.HostUse
		}
		return out, err
	}
	have, err := uses(tree, table)
	if len(have) != 3 || have["eth0"] != inventory.DefaultRoute || have["eth1"] != inventory.Unread || have["eth2"] != "" || !errors.Is(err, unreadable) {
		t.Errorf("devices %q, %v", have, err)
	}
	table.fails = map[string]error{"": unreadable}
	if have, err := uses(tree, table); len(have) > 0 || !errors.Is(err, unreadable) {
		t.Errorf("while the routes cannot be read: devices %q, %v", have, err)
	}
	blind, err := inventory.DiscoverBlind(tree, inventory.Options{}, unreadable)
	if len(blind) != 3 || !errors.Is(err, unreadable) {
		t.Errorf("without the right to read routes: %d devices, %v", len(blind), err)
	}
	for _, d := range blind {
		if d.HostUse != inventory.Unread {
			t.Errorf("without the right to read routes: device %q is %q", d.IfName, d.HostUse)
		}
	}
}
