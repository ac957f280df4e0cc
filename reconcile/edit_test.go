package reconcile_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
)

// counting is a sandbox whose links have indexes.
type counting struct {
	*sandbox
	made *int
}

func (c counting) Apply(ctx context.Context, change netstate.Change) error {
	if err := c.sandbox.Apply(ctx, change); err != nil {
		return err
	}
	if l, ok := change.After.(netstate.Link); ok && (change.Before == nil || change.Recreate) {
		have, _ := c.Link(l.Name)
		*c.made++
		have.Index = *c.made
		c.Put(have)
	}
	return nil
}

// dyingStore is a journal to which a dead process writes nothing.
type dyingStore struct {
	reconcile.Store
	dead *bool
}

func (s dyingStore) Put(rec reconcile.Record) error {
	if *s.dead {
		return errDead
	}
	return s.Store.Put(rec)
}

func (s dyingStore) Settle(rec reconcile.Record) error {
	if *s.dead {
		return errDead
	}
	return s.Store.Settle(rec)
}

func (s dyingStore) Remove(id reconcile.SandboxID) error {
	if *s.dead {
		return errDead
	}
	return s.Store.Remove(id)
}

type editPair struct {
	*pair
	dead *bool
}

func newEditPair(t *testing.T) *editPair {
	t.Helper()
	store, err := journal.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	e, made := &editPair{newPair(t, "128"), new(bool)}, 100
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	e.Reconciler = reconcile.New(reconcile.Options{Registry: registry, Store: dyingStore{store, e.dead}, BootID: "boot", Open: func(string) (reconcile.Domain, error) {
		return counting{e.k, &made}, nil
	}})
	return e
}

// TestEditLeavesNothing: an edit that leaves out what was set on links that we made leads to what a new attachment makes, also after
// a crash before any change; a check afterwards finds nothing to do, and changes nothing that the pod has set since.
func TestEditLeavesNothing(t *testing.T) {
	const link = "    - {name: d, type: dummy, config: {name: LINK}}\n"
	bond := func(options string) string {
		return "    - {name: d, type: dummy, config: {name: LINK}}\n    - {name: e, type: dummy, config: {name: e0}}\n" +
			"    - {name: m, type: bond, dependOn: [d, e], config: {name: bond0, mode: active-backup, " + options + "addresses: [192.0.2.5/24]}}\n"
	}
	for name, c := range map[string]struct{ before, after string }{
		"tuning": {link + `    - {name: t, type: tuning, dependOn: [d], config: {mtu: 1400, txQLen: 300, promisc: true, allmulti: true, sysctl: {net.ipv4.conf.IFNAME.rp_filter: "2"}}}` + "\n", link},
		"VRF":    {link + "    - {name: v, type: vrf, dependOn: [d], config: {vrfname: red, table: 1001}}\n", link},
		"bond":   {bond("updelay: 300, xmitHashPolicy: layer3+4, mtu: 1400, "), bond("")},
		"VLAN": {
			link + "    - {name: w, type: vlan, dependOn: [d], config: {id: 7, name: w0, mtu: 1400, mac: \"02:00:00:00:00:07\"}}\n",
			link + "    - {name: w, type: vlan, dependOn: [d], config: {id: 7, name: w0}}\n",
		},
	} {
		for _, beside := range []bool{false, true} {
			start := func() *editPair {
				e := newEditPair(t)
				if beside {
					e.ensure(t, e.a) // has the VRF too
				}
				return e
			}
			fresh := start()
			fresh.ensure(t, shared(t, "second", "b0", c.after))
			for dies := 0; ; dies++ {
				e := start()
				before, after := shared(t, "second", "b0", c.before), shared(t, "second", "b0", c.after)
				e.ensure(t, before)
				n := 0
				e.k.dead = func(c *netstate.Change) bool {
					if c != nil {
						n++
					}
					*e.dead = dies > 0 && n >= dies
					return *e.dead
				}
				_, err := e.Ensure(t.Context(), after)
				died := *e.dead
				e.k.dead, *e.dead = nil, false
				if died {
					if rep, err := e.Repair(t.Context(), after.ID); err != nil {
						t.Errorf("%s: repair after it died before change %d: %v, %v", name, dies, err, rep.Changes)
					}
				} else if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				e.unchanged(t, after)
				diff := slices.DeleteFunc(netstatetest.Differences(fresh.k.Snapshot, e.k.Snapshot), func(line string) bool {
					return strings.Contains(line, " mac: ") || strings.Contains(line, "sysctl net/ipv") // see below
				})
				for _, s := range netstate.All[netstate.Sysctl](e.k.Snapshot) { // as a new link has it, and as every step wants it
					if s.Link() != "" && *s.Value != "0" {
						diff = append(diff, s.Path+" = "+*s.Value)
					}
				}
				if len(diff) > 0 {
					t.Errorf("%s, dies before change %d, beside another: %t: as newly attached / now:\n%s", name, dies, beside, strings.Join(diff, "\n"))
				}
				if l, there := e.k.Link("b0"); there {
					e.k.Put(netstate.Merge(l, netstate.Link{Promisc: new(true), TxQueueLen: new(uint32(7))})) // the pod's
					e.unchanged(t, after)
				}
				if beside {
					e.unchanged(t, e.a)
				}
				if dies > 0 && !died {
					break
				}
			}
		}
	}
}
