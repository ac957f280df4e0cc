package reconcile_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// bus holds the drivers of the functions of a sandbox's host, as package netstate models
// them.
type bus struct{ *sandbox }

func (b bus) Extend(_ context.Context, seen *netstate.Snapshot, queried []netstate.Object) error {
	for _, o := range queried {
		if have, ok := b.Get(o.Key()); ok {
			seen.Put(have)
		} else {
			seen.PutAbsent(o.Key())
		}
	}
	return nil
}

func (b bus) Apply(_ context.Context, c netstate.Change) error {
	if err := b.died(&c); err != nil {
		return err
	}
	b.Snapshot.Apply(c)
	return nil
}

const (
	function = "0000:01:10.0"
	ownName  = "host:enp1s0v0"
)

// withFunction is an engine on a host with a virtual function, the sandbox that prepares
// it, and the pod's sandbox.
func withFunction(t *testing.T) (boot func(id string) *reconcile.Reconciler, k *sandbox, prepared, pod reconcile.Sandbox) {
	t.Helper()
	store, err := journal.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	k = &sandbox{Snapshot: netstate.NewSnapshot(
		netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), Master: new("")},
		netstate.Link{Name: ownName, LinkKind: "device", DeviceID: function, MAC: new("02:00:00:00:00:01"), MTU: new(uint32(1500)), Up: new(true), Master: new(""), TxQueueLen: new(uint32(1000))},
		netstate.Device{ID: function, At: new(ownName), MAC: new("02:00:00:00:00:01"), MTU: new(uint32(1500)), Up: new(true), AltNames: []string{}, Driver: "igbvf"},
		netstate.Binding{ID: function, Driver: new("igbvf"), Override: new(""), PF: "0000:01:00.0", Group: "42"},
		netstate.VF{ID: function, VLAN: new(uint16(0)), QoS: new(uint8(0)), Protocol: new("802.1q"), PF: "0000:01:00.0"},
	), foreign: netstate.KindBinding, t: t}
	boot = func(id string) *reconcile.Reconciler {
		return reconcile.New(reconcile.Options{
			Registry: registry, Store: store, BootID: id, Now: time.Now, Patience: time.Millisecond,
			Open: func(string) (reconcile.Domain, error) { return k, nil },
			External: []reconcile.ExternalDomain{{
				Name: "the PCI bus", Kinds: []netstate.Kind{netstate.KindBinding},
				Open: func(context.Context, reconcile.Sandbox) (reconcile.External, error) { return bus{k}, nil },
			}},
		})
	}
	steps := []topology.Step{{Name: "d", Type: "vfio-pci"}, {Name: "a", Type: "dummy", Config: map[string]any{"name": "a0"}}}
	given := ops.Givens{}.WithDevices(map[string]string{"d": function})
	prepared = reconcile.Sandbox{ID: reconcile.IDOfPreparation("claim", "t"), Given: given, Topology: &topology.Topology{Name: "t", DriftPolicy: topology.Repair, Steps: steps[:1]}}
	pod = reconcile.Sandbox{
		ID: reconcile.IDOfClaim("s1", "claim", "t"), Netns: "/run/netns/pod", Given: given, Prepared: prepared.ID,
		Topology: &topology.Topology{Name: "t", DriftPolicy: topology.Repair, Steps: steps},
	}
	return boot, k, prepared, pod
}

func (s *sandbox) driver() string {
	b, _ := netstate.Lookup(s.Snapshot, netstate.Binding{ID: function})
	return *b.Driver
}

// TestPrepared: what needs no sandbox is applied before there is one, verified in it,
// checked and repaired by itself, and restored last.
func TestPrepared(t *testing.T) {
	boot, k, prepared, pod := withFunction(t)
	r := boot("boot")
	if _, err := r.Ensure(t.Context(), pod); fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), "is not prepared: binding 0000:01:10.0: driver is igbvf, not vfio-pci") || k.has("a0") {
		t.Errorf("not prepared: %v", err)
	}
	if _, err := r.Ensure(t.Context(), prepared); err != nil || k.driver() != "vfio-pci" || k.has(ownName) {
		t.Fatalf("prepare: %v, driver %s", err, k.driver())
	}
	if rep, err := r.Ensure(t.Context(), prepared); err != nil || !rep.Unchanged {
		t.Errorf("again: %v, %v", err, rep.Changes)
	}
	rep, err := r.Ensure(t.Context(), pod)
	if err != nil || len(rep.Changes) != 4 || !k.has("a0") {
		t.Fatalf("attach: %v, %v", err, rep.Changes)
	}
	if d := rep.Results[0].Result.Devices; d == nil || len(d.DeviceNodes) != 2 || d.DeviceNodes[0] != "/dev/vfio/42" {
		t.Errorf("results: %+v", rep.Results)
	}
	other := pod
	other.ID, other.Netns, other.Prepared = "blue/t", "/run/netns/blue", ""
	if _, err := r.Ensure(t.Context(), other); fault.Of(err) != fault.Conflict {
		t.Errorf("another sandbox with the device: %v", err)
	}

	k.Snapshot.Apply(netstate.Change{After: netstate.Binding{ID: function, Driver: new("igbvf")}})
	if st, err := r.Check(t.Context(), pod.ID); err != nil || st.State != reconcile.InSync {
		t.Errorf("check of the pod's: %v, %+v", err, st)
	}
	if st, err := r.Check(t.Context(), prepared.ID); err != nil || len(st.Drift) != 1 || st.Drift[0].Field != "driver" {
		t.Errorf("check of what is prepared: %v, %+v", err, st)
	}
	if _, err := r.Repair(t.Context(), prepared.ID); err != nil || k.driver() != "vfio-pci" {
		t.Errorf("repair: %v, driver %s", err, k.driver())
	}

	if _, err := r.Release(t.Context(), pod.ID); err != nil || k.has("a0") || k.driver() != "vfio-pci" {
		t.Errorf("release of the pod's: %v, driver %s", err, k.driver())
	}
	if _, err := r.Release(t.Context(), prepared.ID); err != nil || k.driver() != "igbvf" || !k.has(ownName) {
		t.Errorf("release: %v, driver %s, links %v", err, k.driver(), netstate.All[netstate.Link](k.Snapshot))
	}
}

// TestPreparedDeath: the process ends at any change of preparing, of an edit of what is
// prepared, and of its release. If the claim is then prepared again, it is complete; if it
// is withdrawn, the original state is restored.
func TestPreparedDeath(t *testing.T) {
	with := func(sb reconcile.Sandbox, vlan int) reconcile.Sandbox {
		top := *sb.Topology
		top.Steps = slices.Clone(top.Steps)
		top.Steps[0].Config = map[string]any{"vlan": vlan}
		sb.Topology = &top
		return sb
	}
	for _, act := range []string{"prepare", "edit", "release"} {
		for _, then := range []string{"prepared again", "withdrawn"} {
			reached := 0
			for n := 1; reached == n-1; n++ {
				boot, k, prepared, pod := withFunction(t)
				hostName := netstate.NewSnapshot(netstate.All[netstate.Object](k.Snapshot)...)
				first, later := with(prepared, 7), with(prepared, 8)
				do := func() (err error) {
					switch act {
					case "prepare":
						_, err = boot("boot").Ensure(t.Context(), first)
					case "edit":
						_, err = boot("boot").Ensure(t.Context(), later)
					default:
						_, err = boot("boot").Release(t.Context(), prepared.ID)
					}
					return err
				}
				if act != "prepare" {
					if _, err := boot("boot").Ensure(t.Context(), first); err != nil {
						t.Fatal(err)
					}
				}
				made, over := 0, false
				k.dead = func(c *netstate.Change) bool {
					if c != nil {
						made++
					}
					over = over || made >= n
					return over
				}
				err := do()
				if k.dead = nil; over {
					reached = n
				}
				if over != (err != nil) {
					t.Fatalf("%s, dead at change %d (%v): %v", act, n, over, err)
				}
				when := fmt.Sprintf("%s, dead at change %d, %s", act, n, then)
				r := boot("boot")
				if then == "prepared again" {
					if _, err := r.Ensure(t.Context(), later); err != nil {
						t.Fatalf("%s: %v", when, err)
					}
					if vf, _ := netstate.Lookup(k.Snapshot, netstate.VF{ID: function}); k.driver() != "vfio-pci" || *vf.VLAN != 8 {
						t.Errorf("%s: driver %q, VLAN %d", when, k.driver(), *vf.VLAN)
					}
					if rep, err := r.Ensure(t.Context(), with(pod, 8)); err != nil || len(rep.Changes) != 4 {
						t.Errorf("%s: attached: %v, %v", when, err, rep.Changes)
					}
					if _, err := r.Release(t.Context(), pod.ID); err != nil {
						t.Errorf("%s: detached: %v", when, err)
					}
				}
				if _, err := r.Release(t.Context(), prepared.ID); err != nil {
					t.Fatalf("%s: %v", when, err)
				}
				if diff := netstatetest.Differences(hostName, k.Snapshot); len(diff) > 0 {
					t.Errorf("%s: in the end: %v", when, diff)
				}
			}
			if reached == 0 {
				t.Errorf("%s: no change", act)
			}
		}
	}
}

// TestPreparedBeforeReboot: a boot undoes a binding, so it is prepared again, and the
// record of an earlier boot restores nothing.
func TestPreparedBeforeReboot(t *testing.T) {
	boot, k, prepared, _ := withFunction(t)
	reboot := func() {
		k.Snapshot.Apply(netstate.Change{After: netstate.Binding{ID: function, Driver: new("igbvf"), Override: new("")}})
	}
	if _, err := boot("first").Ensure(t.Context(), prepared); err != nil {
		t.Fatal(err)
	}
	reboot()
	if _, err := boot("second").Ensure(t.Context(), prepared); err != nil || k.driver() != "vfio-pci" {
		t.Errorf("prepared again: %v, driver %s", err, k.driver())
	}
	reboot()
	if rep, err := boot("third").Release(t.Context(), prepared.ID); err != nil || len(rep.Changes) > 0 || k.driver() != "igbvf" {
		t.Errorf("release: %v, %v", err, rep.Changes)
	}
}
