package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/pod/attachment"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/gate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// updateCase is an edit of a topology that a pod runs.
type updateCase struct {
	name          string
	devices       []string // root steps that have a VF
	before, after string   // steps
	// check compares the pod before and after.
	check func(t *testing.T, before, after *netstate.Snapshot)
}

func updateCases() []updateCase {
	vlan := func(t *testing.T, s *netstate.Snapshot, name string, id uint16, mtu uint32) {
		t.Helper()
		l, ok := s.Link(name)
		if !ok || l.VLAN == nil || *l.VLAN.ID != id || *l.MTU != mtu {
			t.Errorf("%s: %+v, want VLAN %d and MTU %d", name, l, id, mtu)
		}
	}
	absent := func(t *testing.T, s *netstate.Snapshot, name string) {
		t.Helper()
		if l, ok := s.Link(name); ok {
			t.Errorf("%s is there: %+v", name, l)
		}
	}
	out := []updateCase{{
		name: "live, replaced, removed, added",
		before: `
- {name: d, type: dummy, config: {name: d0, mac: "02:00:00:00:00:01"}}
- {name: v, type: vlan, dependOn: [d], config: {id: 100, name: data0, addresses: [192.0.2.5/24], routes: [{dst: 198.51.100.0/24, gw: 192.0.2.1}]}}
- {name: inner, type: vlan, dependOn: [v], config: {id: 7, name: inner0}}
- {name: w, type: vlan, dependOn: [d], config: {id: 200, name: mgmt0}}
- {name: tune, type: tuning, dependOn: [v], config: {mtu: 2000}}
`,
		after: `
- {name: d, type: dummy, config: {name: d0, mac: "02:00:00:00:00:01"}}
- {name: v, type: vlan, dependOn: [d], config: {id: 101, name: data0, addresses: [192.0.2.6/24], routes: [{dst: 198.51.100.0/24, gw: 192.0.2.1}]}}
- {name: inner, type: vlan, dependOn: [v], config: {id: 7, name: inner0}}
- {name: tune, type: tuning, dependOn: [v], config: {mtu: 3000}}
- {name: e, type: dummy, config: {name: extra0, mac: "02:00:00:00:00:02"}}
`,
		check: func(t *testing.T, _, after *netstate.Snapshot) {
			vlan(t, after, "data0", 101, 3000)
			vlan(t, after, "inner0", 7, 3000)
			absent(t, after, "mgmt0")
			if _, ok := after.Link("extra0"); !ok {
				t.Error("extra0 is missing")
			}
		},
	}, {
		name: "left out",
		before: `
- {name: a, type: dummy, config: {name: a0}}
- {name: b, type: dummy, config: {name: b0}}
- {name: c, type: dummy, config: {name: c0, mtu: 1400, addresses: [192.0.2.5/24, "2001:db8::5/64"], routes: [{dst: 198.51.100.0/24, gw: 192.0.2.1, mtu: 1300, src: 192.0.2.5}]}}
- {name: v, type: vlan, dependOn: [c], config: {id: 7, name: v0, mtu: 1300, mac: "02:00:00:00:00:07"}}
- {name: bond, type: bond, dependOn: [a, b], config: {name: bond0, mode: 802.3ad, mtu: 1400, updelay: 300, lacpRate: fast, adSelect: count, xmitHashPolicy: layer3+4, minLinks: 1, addresses: ["2001:db8:1::5/64"]}}
- {name: tune, type: tuning, dependOn: [c], config: {dev: c0, txQLen: 300, promisc: true, allmulti: true, sysctl: {net.ipv4.conf.IFNAME.rp_filter: "2"}}}
- {name: x, type: vxlan, dependOn: [c], config: {id: 9, name: x0, mtu: 1280, ttl: 9, remote: 192.0.2.9}}
- {name: red, type: vrf, dependOn: [v], config: {vrfname: red, table: 1001}}
- {name: mac, type: tuning, dependOn: [red], config: {dev: red, mac: "02:00:00:00:00:09"}}
`,
		after: `
- {name: a, type: dummy, config: {name: a0}}
- {name: b, type: dummy, config: {name: b0}}
- {name: c, type: dummy, config: {name: c0, addresses: [192.0.2.5/24], routes: [{dst: 198.51.100.0/24, gw: 192.0.2.1}]}}
- {name: v, type: vlan, dependOn: [c], config: {id: 7, name: v0}}
- {name: bond, type: bond, dependOn: [a, b], config: {name: bond0, mode: 802.3ad}}
- {name: x, type: vxlan, dependOn: [c], config: {id: 9, name: x0}}
`,
		check: func(t *testing.T, _, after *netstate.Snapshot) {
			absent(t, after, "red")
			vlan(t, after, "v0", 7, 1500)
			if c, _ := after.Link("c0"); *c.MTU != 1500 || *c.TxQueueLen != 1000 || *c.Promisc || *c.AllMulti {
				t.Errorf("c0: %+v", c)
			}
		},
	}, {
		name: "a port on a tunnel", // whose bond takes no larger MTU than the tunnel has
		before: `
- {name: c, type: dummy, config: {name: c0, mac: "02:00:00:00:00:01"}}
- {name: d, type: dummy, config: {name: d0, mac: "02:00:00:00:00:02"}}
- {name: x, type: vxlan, dependOn: [c], config: {id: 9, name: x0, remote: 192.0.2.9, mac: "02:00:00:00:00:03"}}
- {name: v, type: vlan, dependOn: [x], config: {id: 7, name: v0}}
- {name: bond, type: bond, dependOn: [d, v], config: {name: bond0, mode: active-backup, mtu: 1500}}
`,
		after: `
- {name: c, type: dummy, config: {name: c0, mac: "02:00:00:00:00:01"}}
- {name: d, type: dummy, config: {name: d0, mac: "02:00:00:00:00:02"}}
- {name: x, type: vxlan, dependOn: [c], config: {id: 9, name: x0, remote: 192.0.2.9, mac: "02:00:00:00:00:03"}}
- {name: v, type: vlan, dependOn: [x], config: {id: 7, name: v0}}
- {name: bond, type: bond, dependOn: [d, v], config: {name: bond0, mode: balance-xor, mtu: 1400}}
`,
		check: func(t *testing.T, before, after *netstate.Snapshot) {
			vlan(t, before, "v0", 7, 1500)
			vlan(t, after, "v0", 7, 1400)
		},
	}}
	if !hasCards() {
		return out // no PCI there
	}
	return append(out, updateCase{
		name: "a device returns to the host", devices: []string{"vf0", "vf1"},
		before: `
- {name: vf0, type: sriov, config: {name: net1, trust: "on", spoofchk: "off"}}
- {name: vf1, type: sriov, config: {name: net2, trust: "on", spoofchk: "off"}}
- {name: bond, type: bond, dependOn: [vf0, vf1], config: {name: bond0, mode: active-backup, miimon: 100}}
- {name: v, type: vlan, dependOn: [bond], config: {id: 100, name: data0}}
`,
		after: `
- {name: vf0, type: sriov, config: {name: net1, trust: "on", spoofchk: "off"}}
- {name: v, type: vlan, dependOn: [vf0], config: {id: 100, name: data0}}
`,
		check: func(t *testing.T, before, after *netstate.Snapshot) {
			absent(t, after, "bond0")
			absent(t, after, "net2")
			home := func(s *netstate.Snapshot) (n int) {
				for _, d := range netstate.All[netstate.Device](s) {
					if d.At != nil && netstate.OnHost(*d.At) {
						n++
					}
				}
				return n
			}
			if was, is := home(before), home(after); is != was+1 {
				t.Errorf("%d devices are at home, and %d were before", is, was)
			}
		},
	})
}

// object is a generation of a case's topology.
func object(t *testing.T, steps string, generation int64) *v1alpha1.NetworkTopology {
	t.Helper()
	o := &v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "t", UID: "t-uid", Generation: generation}}
	raw, err := yaml.YAMLToJSON([]byte("updatePolicy: InPlace\nsteps:\n" + steps))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &o.Spec); err != nil {
		t.Fatal(err)
	}
	parse(t, "t", strings.ReplaceAll(steps, "\n-", "\n    -")) // which validates it
	return o
}

// keeper is an agent's half that keeps claims, on a lane's journal.
type keeper struct {
	*attachment.Keeper
	store *claims.Store
}

// noReporter is a Reporter that drops all reports.
type noReporter struct{}

func (noReporter) Attaching(attachment.Pod, claims.Claim, attachment.Progress) {}
func (noReporter) Attached(attachment.Pod, claims.Claim, []reconcile.Report)   {}
func (noReporter) Failed(attachment.Pod, claims.Claim, error)                  {}
func (noReporter) Updated(claims.Claim, string, int64, reconcile.Report)       {}
func (noReporter) Detached(claims.Claim)                                       {}
func (noReporter) Replaced(claims.Claim, string, []string)                     {}
func (noReporter) follow(context.Context, *claims.Topology, *v1alpha1.NetworkTopology) error {
	return nil
}

func newKeeper(host *kernel.Host, dir string, wrap func(reconcile.Domain) reconcile.Domain) (keeper, error) {
	r, err := engine(host, dir, wrap)
	if err != nil {
		return keeper{}, err
	}
	j, err := journal.Open(dir)
	if err != nil {
		return keeper{}, err
	}
	store, err := claims.Open(claims.Options{Dir: filepath.Join(dir, "claims"), Locker: j, BootID: host.BootID()})
	if err != nil {
		return keeper{}, err
	}
	reg, err := all.Registry()
	if err != nil {
		return keeper{}, err
	}
	return keeper{attachment.New(attachment.Options{
		Store: store, Engine: r, Contracts: reg, Gate: gate.Dir(filepath.Join(dir, "cdi")), Reporter: noReporter{}, Follow: noReporter{}.follow, Now: time.Now,
		Refine: func(context.Context, *claims.Claim, [][]topology.StepResult) error { return nil },
		Log:    slog.New(slog.NewTextHandler(io.Discard, nil)),
	}), store}, nil
}

func (l *lane) keeper(wrap func(reconcile.Domain) reconcile.Domain) keeper {
	l.t.Helper()
	k, err := newKeeper(l.host, l.dir, wrap)
	if err != nil {
		l.t.Fatal(err)
	}
	return k
}

const updateEnv = "PLUMBLINE_KERNEL_UPDATE"

// updateSpec is the task of the killed process.
type updateSpec struct {
	Dir    string
	Object *v1alpha1.NetworkTopology
	At     int
}

// updateChild updates claim "c" and kills itself after the nth change.
func updateChild() {
	var spec updateSpec
	die(json.Unmarshal([]byte(os.Getenv(updateEnv)), &spec))
	host, err := kernel.Open(kernel.Options{})
	die(err)
	k, err := newKeeper(host, spec.Dir, dying(spec.At))
	die(err)
	die(k.Update(context.Background(), "c", spec.Object))
}

// pod is a claim of one topology, attached to a namespace.
type pod struct {
	*lane
	path       string
	sandbox    reconcile.SandboxID
	generation int64
}

// attached prepares claim "c" of a case and attaches it.
func (c updateCase) attached(t *testing.T) *pod {
	t.Helper()
	p := &pod{lane: newLane(t), path: newNetns(t), sandbox: "s/c/t", generation: 1}
	k := p.keeper(nil)
	what := claims.Topology{Object: *object(t, c.before, 1)}
	for i, step := range c.devices {
		id := p.watched()[2*i].Key().ID
		what.Devices = append(what.Devices, claims.Device{Device: claim.Device{Step: step, Name: id}, Host: inventory.Device{ID: id, Name: id}})
	}
	if err := k.store.Put(claims.Claim{UID: "c", Name: "c", Pod: claims.Pod{Name: "p", UID: "p"}, Topologies: []claims.Topology{what}}); err != nil {
		t.Fatal(err)
	}
	if err := k.Attach(ctxFor(t), attachment.Pod{Sandbox: "s", UID: "p", Name: "p", Netns: p.path}); err != nil {
		t.Fatal(err)
	}
	return p
}

// holds that the pod has one generation, whole: the record says it, the engine
// finds nothing to do, and the state of the pod equals a snapshot.
func (p *pod) holds(when string, generation int64, want *netstate.Snapshot) {
	p.t.Helper()
	p.mustEqual(want, p.path, when)
	e, known, err := p.keeper(nil).store.Get("c")
	if err != nil || !known {
		p.t.Fatalf("%s: known %t, %v", when, known, err)
	}
	if t := e.Topologies[0]; t.Object.Generation != generation || t.Next != nil {
		p.t.Errorf("%s: generation %d, updating %t; want %d", when, t.Object.Generation, t.Next != nil, generation)
	}
	st, err := p.engine(nil).Check(ctxFor(p.t), p.sandbox)
	if err != nil || st.State != reconcile.InSync {
		p.t.Errorf("%s: %v, %+v", when, err, st)
	}
	if open := gate.Dir(filepath.Join(p.dir, "cdi")).OpenFor("c"); open != "s" {
		p.t.Errorf("%s: the gate is open for %q", when, open)
	}
	p.generation = generation
}

// updated makes steps the pod's next generation.
func (p *pod) updated(steps string) {
	p.t.Helper()
	p.generation++
	if err := p.keeper(nil).Update(ctxFor(p.t), "c", object(p.t, steps, p.generation)); err != nil {
		p.t.Fatal(err)
	}
}

// explain logs what an edit is planned to change.
func (p *pod) explain(steps string) {
	p.t.Helper()
	e, _, err := p.keeper(nil).store.Get("c")
	if err != nil {
		p.t.Fatal(err)
	}
	sb, err := e.SandboxOf(&e.Topologies[0], object(p.t, steps, 2), "s", p.path)
	if err != nil {
		p.t.Fatal(err)
	}
	plan, err := p.engine(nil).Plan(ctxFor(p.t), sb)
	p.t.Logf("%v\n%s", err, plan)
}

// TestUpdate brings an edit to a pod that runs, and back. The edit leads to what a new attachment of its topology makes.
func TestUpdate(t *testing.T) {
	for _, c := range effort.Sample(t, 4, updateCases()) {
		t.Run(c.name, func(t *testing.T) {
			host := newLane(t).state("")
			p := c.attached(t)
			before := p.state(p.path)
			p.updated(c.after)
			after := p.state(p.path)
			p.holds("updated", 2, after)
			c.check(t, before, after)
			p.updated(c.before)
			p.holds("updated back", 3, before)
			if err := p.keeper(nil).Withdraw(ctxFor(t), "c"); err != nil {
				t.Fatal(err)
			}
			p.mustEqual(host, "", "after the claim's end")
			c.before = c.after
			p = c.attached(t)
			p.mustEqual(after, p.path, "attached as it was edited")
			if err := p.keeper(nil).Withdraw(ctxFor(t), "c"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestUpdateFailsAnywhere: a failure at any change of an update leaves the pod the
// network it had.
func TestUpdateFailsAnywhere(t *testing.T) {
	for _, c := range effort.Sample(t, 4, updateCases()) {
		t.Run(c.name, func(t *testing.T) {
			host := newLane(t).state("")
			p := c.attached(t)
			before := p.state(p.path)
			p.explain(c.after)
			first, stride := effort.Stride(t, 3)
			for n := first; ; n += stride {
				applied := 0
				err := p.keeper(func(d reconcile.Domain) reconcile.Domain {
					return faulty{Domain: d, applied: &applied, at: n, before: func() error { return errInjected }}
				}).Update(ctxFor(t), "c", object(t, c.after, 2))
				if err == nil {
					if applied == 0 {
						t.Error("no change was made at all")
					}
					break
				}
				if !errors.Is(err, errInjected) || !strings.Contains(err.Error(), "step ") && !strings.Contains(err.Error(), "topology ") {
					t.Fatalf("change %d: %v", n, err)
				}
				p.holds(fmt.Sprintf("change %d failed, with %v", n, err), 1, before)
			}
			if err := p.keeper(nil).Withdraw(ctxFor(t), "c"); err != nil {
				t.Fatal(err)
			}
			p.mustEqual(host, "", "after the claim's end")
		})
	}
}

// TestUpdateKilled: kill -9 after any change of an update, and the next agent ends
// it: with the later generation or, when that fails, with the earlier one. The
// short form takes every fifth change.
func TestUpdateKilled(t *testing.T) {
	for _, c := range effort.Sample(t, 4, updateCases()) {
		t.Run(c.name, func(t *testing.T) {
			p := c.attached(t)
			before := p.state(p.path)
			p.updated(c.after)
			after := p.state(p.path)
			p.updated(c.before)
			first, stride := effort.Stride(t, 5)
			for n := first; p.runKilled(updateEnv, updateSpec{p.dir, object(t, c.after, p.generation+1), n}); n += stride {
				when := fmt.Sprintf("killed after change %d", n)
				switch n % 3 {
				case 0: // the loop is quicker than the keeper
					if _, err := p.engine(nil).Repair(ctxFor(t), p.sandbox); err != nil {
						t.Errorf("%s: repair: %v", when, err)
					}
					fallthrough
				case 1:
					if err := p.keeper(nil).FinishUpdate(ctxFor(t), "c"); err != nil {
						t.Fatalf("%s: settle: %v", when, err)
					}
					p.holds(when, p.generation+1, after)
					p.updated(c.before)
				default:
					applied := 0
					err := p.keeper(func(d reconcile.Domain) reconcile.Domain {
						return faulty{Domain: d, applied: &applied, at: 1, before: func() error { return errInjected }}
					}).FinishUpdate(ctxFor(t), "c")
					if err != nil {
						t.Fatalf("%s: settle: %v", when, err)
					}
					if applied == 0 { // it was all done
						p.holds(when, p.generation+1, after)
						p.updated(c.before)
					}
				}
				p.holds(when+", and back", p.generation, before)
				if n > 64 {
					t.Fatal("an update finds no end")
				}
			}
			if err := p.keeper(nil).Withdraw(ctxFor(t), "c"); err != nil {
				t.Fatal(err)
			}
			if left := slices.Collect(func(yield func(string) bool) {
				for _, d := range netstate.All[netstate.Device](p.state("")) {
					if d.At == nil || !netstate.OnHost(*d.At) {
						yield(d.ID)
					}
				}
			}); len(left) > 0 {
				t.Errorf("not at home: %v", left)
			}
		})
	}
}

// TestEditTakesLinkDown edits what can be changed only while the link is down or has no
// ports. Its IPv6 address stays on it meanwhile, and its routes do not. When any change
// of the edit fails, the link is as it was.
func TestEditTakesLinkDown(t *testing.T) {
	const rest = `, addresses: [192.0.2.5/24, "2001:db8::5/64"], routes: [{dst: "2001:db8:1::/48", gw: "2001:db8::1"}, {dst: 198.51.100.0/24, gw: 192.0.2.1}]}}
    - {name: v, type: vlan, dependOn: [bond], config: {id: 100, name: data0, addresses: [192.0.3.5/24]}}
`
	for _, c := range []struct{ field, before, after string }{
		{"bond.lacpRate", "mode: 802.3ad, lacpRate: slow", "mode: 802.3ad, lacpRate: fast"},
		{"bond.mode", "mode: active-backup", "mode: balance-xor"},
	} {
		t.Run(c.field, func(t *testing.T) {
			l, path := newLane(t), newNetns(t)
			version := func(bond string) reconcile.Sandbox {
				return reconcile.Sandbox{ID: "t/t", Netns: path, Topology: parse(t, "t", `    - {name: a, type: dummy, config: {name: a0}}
    - {name: b, type: dummy, config: {name: b0}}
    - {name: bond, type: bond, dependOn: [a, b], config: {name: bond0, miimon: 100, `+bond+rest)}
			}
			r := l.engine(nil)
			if _, err := r.Ensure(ctxFor(t), version(c.before)); err != nil {
				t.Fatal(err)
			}
			before := l.state(path)
			first, stride := effort.Stride(t, 3)
			for n := first; ; n += stride {
				applied := 0
				rep, err := l.engine(func(d reconcile.Domain) reconcile.Domain {
					return faulty{Domain: d, applied: &applied, at: n, before: func() error { return errInjected }}
				}).Ensure(ctxFor(t), version(c.after))
				if err != nil {
					if !errors.Is(err, errInjected) || strings.Contains(err.Error(), "roll back") {
						t.Fatalf("change %d failed: %v", n, err)
					}
					l.mustEqual(before, path, fmt.Sprintf("change %d failed", n))
					continue
				}
				if changes := fmt.Sprint(rep.Changes); !strings.Contains(changes, c.field+" ") || strings.Contains(changes, "address") {
					t.Errorf("%v, want a change of %s, and none of addresses", rep.Changes, c.field)
				}
				break
			}
			if again, err := r.Ensure(ctxFor(t), version(c.after)); err != nil || !again.Unchanged {
				t.Errorf("applied again: %v %v", again.Changes, err)
			}
		})
	}
}
