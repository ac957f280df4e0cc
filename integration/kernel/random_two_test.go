package kernel

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/integration/namespace"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// stepsOfTwo are the steps of either of two topologies of one pod; X is the first letter of the
// names of their links and @ a number in their addresses. Objects with neither are shared.
const stepsOfTwo = `
    - {name: d, type: dummy, config: {name: Xd0, mac: "02:00:00:00:0@:01"}}
    - {name: e, type: dummy, config: {name: Xe0, mac: "02:00:00:00:0@:02"}}
    - {name: own, type: vlan, dependOn: [e], config: {id: 200, name: Xm0}}
    - {name: blue, type: vrf, dependOn: [own], config: {vrfname: Xblue}}
    - {name: addressed, type: tuning, dependOn: [blue], config: {dev: Xm0, addresses: [198.18.@.5/24]}}
    - {name: red, type: vrf, dependOn: [e], config: {vrfname: red, table: 1001, interfaces: [Xe0]}}
    - {name: data, type: vlan, dependOn: [d], config: {id: 100, name: Xv0, sourceRouting: true, addresses: [{address: 192.0.@.5/24, gateway: 192.0.@.1}, {address: "2001:db8:@::5/64", gateway: "2001:db8:@::1"}], routes: [{dst: default}, {dst: 198.51.@.0/24}]}}
    - {name: tune, type: tuning, dependOn: [data], config: {mtu: 1400, sysctl: {net.ipv4.ip_forward: "1", net.core.somaxconn: "500", net.ipv4.conf.IFNAME.rp_filter: "2"}}}
`

// spoilsOfTwo are changes that others and the pod make to such a topology.
var spoilsOfTwo = []drifted{
	{name: "link gone", disturb: `$ip link delete Xv0`},
	{name: "link gone with all upon it", disturb: `$ip link delete Xd0`},
	{name: "link down", disturb: `$ip link set Xv0 down`},
	{name: "addresses flushed", disturb: `$ip address flush dev Xv0`},
	{name: "rule of an address gone", disturb: `$ip rule delete from 192.0.@.5`},
	{name: "all IPv4 rules gone", disturb: `$ip rule flush && $ip rule add lookup main priority 32766`},
	{name: "default route gone", disturb: `$ip route delete default dev Xv0`},
	{name: "IPv6 routes gone", disturb: `$ip -6 route flush dev Xv0`},
	{name: "VRF gone", disturb: `$ip link delete Xblue`},
	{name: "out of the common VRF", disturb: `$ip link set Xe0 nomaster`},
	{name: "common VRF gone", disturb: `$ip link delete red`},
	{name: "common VRF leaks", disturb: `$ip route delete unreachable default table 1001 metric 4278198272`},
	{name: "common sysctl", disturb: `ip netns exec $NS sysctl -qw net.ipv4.ip_forward=0`},
	{name: "another common sysctl", disturb: `ip netns exec $NS sysctl -qw net.core.somaxconn=77`},
	{name: "MTU", disturb: `$ip link set Xv0 mtu 1300`},
	{name: "own route", disturb: `$ip route add 203.0.113.0/24 dev Xv0`},
	{name: "own default route", disturb: `$ip route add default via 192.0.@.1 metric 7`},
	{name: "own rule", disturb: `$ip rule add from 192.0.@.5 lookup 600 priority 6000`},
	{name: "own member of the common VRF", disturb: `$ip link add Xown type dummy && $ip link set Xown master red`},
}

// podOfTwo is a pod with two topologies, in a random run.
type podOfTwo struct {
	*chaos
	*foreignWriter
	path     string
	versions [2][]reconcile.Sandbox // of each topology; the first is whole
	start    *netstate.Snapshot
	// disturbedBefore: others have changed the namespace since it was made.
	disturbedBefore bool
}

// TestRandomTwoTopologies: two topologies of one pod, which share a VRF and sysctls, are attached,
// edited, disturbed, repaired and released at random, by engines that crash, fail and misread.
// A change to one never adds drift to the other.
func TestRandomTwoTopologies(t *testing.T) {
	length, seed := effort.Duration(t, 10*time.Second), effort.Seed(t)
	l, path, other := newLane(t), newNetns(t), newNetns(t)
	p := &podOfTwo{
		chaos:         &chaos{lane: l, rng: rand.New(rand.NewPCG(seed, 1)), seed: seed, undisturbed: l.engine(nil)},
		foreignWriter: &foreignWriter{t, filepath.Base(path), filepath.Base(other)}, path: path,
	}
	for i := range p.versions {
		lines := strings.Split(strings.Trim(ofTwo(stepsOfTwo, i), "\n"), "\n")
		for _, n := range []int{len(lines), len(lines) - 1, len(lines) - 2, len(lines) - 3} {
			p.versions[i] = append(p.versions[i], box(path, parse(t, []string{"first", "second"}[i], strings.Join(lines[:n], "\n")+"\n")))
		}
	}
	p.furnish()
	steps := 0
	for end := time.Now().Add(length); time.Now().Before(end); steps++ {
		p.step()
	}
	for i := range p.versions {
		p.end(i)
	}
	t.Logf("%d steps", steps)
}

// ofTwo makes a text that of topology i.
func ofTwo(text string, i int) string {
	return strings.NewReplacer("X", string(rune('a'+i)), "@", fmt.Sprint(i+1)).Replace(text)
}

func (p *podOfTwo) id(i int) reconcile.SandboxID { return p.versions[i][0].ID }

func (p *podOfTwo) furnish() {
	p.run("ip -n $NS link set lo up")
	p.inside(firstNetwork)
	p.start, p.disturbedBefore = p.state(p.path), false
}

func (p *podOfTwo) record(i int) (reconcile.Record, bool) {
	recs, errs := p.undisturbed.List()
	if len(errs) > 0 {
		p.fatal("records: %v", errs)
	}
	n := slices.IndexFunc(recs, func(r reconcile.Record) bool { return r.Sandbox.ID == p.id(i) })
	if n < 0 {
		return reconcile.Record{}, false
	}
	return recs[n], true
}

// step does something to one of the topologies, and compares the other with before.
func (p *podOfTwo) step() {
	i := p.rng.IntN(2)
	rec, known := p.record(i)
	switch dice := p.rng.IntN(100); {
	case !known, known && rec.Phase == reconcile.Releasing && dice < 50:
		p.act(i, "attach", pick(p.rng, p.versions[i]))
	case dice < 35:
		row := pick(p.rng, spoilsOfTwo)
		row.disturb = ofTwo(row.disturb, i)
		out, err := p.try(row.disturb)
		p.logStep("%s: %s (%v %s)", p.id(i), row.name, err, strings.TrimSpace(out))
		p.disturbedBefore = true
	case dice < 70:
		p.act(i, "repair", rec.Sandbox)
	case dice < 88:
		p.act(i, "update", pick(p.rng, p.versions[i]))
	default:
		p.act(i, "release", rec.Sandbox)
	}
}

// act does something to a topology by an engine to which something happens, and then once more
// by one to which nothing does.
func (p *podOfTwo) act(i int, act string, sb reconcile.Sandbox) {
	beside := p.drift(1 - i)
	r, injected := p.engine()
	err := p.do(r, act, sb)
	p.logStep("%s: %s, %s (%v)", sb.ID, act, injected, err)
	p.beside(i, beside)
	if injected != "undisturbed" && p.rng.IntN(3) == 0 {
		return // it stays so for now
	}
	rec, known := p.record(i)
	switch {
	case act == "release" || known && rec.Phase == reconcile.Releasing:
		p.end(i)
		return
	case !known && act == "repair":
		return
	}
	if err = p.do(p.undisturbed, act, sb); fault.Of(err) == fault.Conflict && p.disturbedBefore {
		p.logStep("%s: %v", sb.ID, err)
		p.restart() // the conflicting object ends with the namespace
		return
	}
	if err != nil {
		p.fatal("%s: %s, undisturbed: %v", sb.ID, act, err)
	}
	if drift := p.drift(i); len(drift) > 0 {
		p.fatal("%s: after %s: %s", sb.ID, act, drift)
	}
	p.beside(i, beside)
}

func (p *podOfTwo) do(r *reconcile.Reconciler, act string, sb reconcile.Sandbox) (err error) {
	switch act {
	case "repair":
		_, err = r.Repair(ctxFor(p.lane.t), sb.ID)
	case "release":
		_, err = r.AwaitRelease(ctxFor(p.lane.t), sb.ID)
	default:
		_, err = r.Ensure(ctxFor(p.lane.t), sb)
	}
	return err
}

// drift is that of a topology; one that is not attached has none.
func (p *podOfTwo) drift(i int) []string {
	p.lane.t.Helper()
	if rec, known := p.record(i); !known || rec.Phase == reconcile.Releasing {
		return nil
	}
	st, err := p.undisturbed.Check(ctxFor(p.lane.t), p.id(i))
	if err != nil || st.State == reconcile.StateFailed && (st.Failure == "" || st.Kind == fault.Internal) {
		p.fatal("%s: check: %v, %+v", p.id(i), err, st)
	}
	if st.Failure != "" {
		return []string{st.Failure}
	}
	var drift []string
	for _, d := range st.Drift {
		drift = append(drift, d.String())
	}
	return drift
}

// beside asserts that an act on a topology added no drift to the other one.
func (p *podOfTwo) beside(i int, was []string) {
	p.lane.t.Helper()
	if len(was) > 0 {
		return // it was disturbed or is half attached: what others repair of it shows more of its drift
	}
	if is := p.drift(1 - i); len(is) > 0 {
		p.fatal("%s was not meant: %v", p.id(1-i), is)
	}
}

// end releases a topology. When both are released, the namespace is as before.
func (p *podOfTwo) end(i int) {
	p.lane.t.Helper()
	beside := p.drift(1 - i)
	if _, err := p.undisturbed.AwaitRelease(ctxFor(p.lane.t), p.id(i)); err != nil {
		p.fatal("%s: release: %v", p.id(i), err)
	}
	p.logStep("%s: released", p.id(i))
	p.beside(i, beside)
	if _, known := p.record(1 - i); known {
		return
	}
	if !p.disturbedBefore {
		p.mustEqual(p.start, p.path, p.when("both are released"))
	}
	p.restart()
}

// restart ends both topologies with their namespace, and puts another one at its path.
func (p *podOfTwo) restart() {
	p.lane.t.Helper()
	for i := range p.versions {
		if _, err := p.undisturbed.AwaitRelease(ctxFor(p.lane.t), p.id(i)); err != nil {
			p.fatal("%s: release: %v", p.id(i), err)
		}
	}
	deleteNetns(p.path)
	p.logStep("another namespace")
	if _, err := namespace.Add(p.ns); err != nil {
		p.lane.t.Fatal(err)
	}
	p.furnish()
}
