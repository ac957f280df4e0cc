package kernel

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestOtherWriters: in a pod with its cluster's network, routers on both of its links, and a program that adds what it
// likes, two topologies are attached, checked, disturbed, repaired and released. A pass changes nothing of ours that was not
// disturbed, and nothing of others.
func TestOtherWriters(t *testing.T) {
	seed := effort.Seed(t)
	worlds := 1
	if effort.Long() {
		worlds = 300
	}
	for i := range worlds {
		w := &writers{rng: rand.New(rand.NewPCG(seed, uint64(i)))}
		if !t.Run(fmt.Sprint(i), w.run) {
			t.Logf("again with PLUMBLINE_SEED=%d", seed)
		}
	}
}

// writers is a pod's namespace and those who write to it.
type writers struct {
	*lane
	foreignWriter
	rng   *rand.Rand
	r     *reconcile.Reconciler
	path  string
	story []string
}

func (w *writers) run(t *testing.T) {
	w.lane, w.path = newLane(t), newNetns(t)
	w.devices = []string{}
	w.foreignWriter = foreignWriter{t: t, ns: filepath.Base(w.path)}
	w.r = w.engine(nil)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(strings.Join(w.story, "\n"))
		}
	})
	cluster, uplink := newRouter(t, "cluster0"), newRouter(t, "uplink0")
	advertised := []string{"2001:db8:aaaa::", "2001:db8:bbbb::"}
	for i, up := range []*router{cluster, uplink} {
		if w.rng.IntN(3) > 0 {
			up.advertise(advertisement(advertised[i : i+1]))
			w.story = append(w.story, up.link+" has a router that advertises "+advertised[i])
		}
	}
	// The cluster's network is a macvlan of its own, so that its router reaches it.
	w.foreignWriter.run(`ip link add eth0 link cluster0 netns $NS type macvlan mode bridge
		$ip link set lo up; $ip link set eth0 up; $ip address add 10.244.0.5/24 dev eth0; $ip address add fd00:244::5/64 dev eth0 nodad`)
	for _, route := range []string{"default via 10.244.0.1", "default via fd00:244::1", "203.0.113.0/24 via 10.244.0.1", "2001:db8:77::/48 via fd00:244::1"} {
		if w.rng.IntN(4) > 0 {
			w.other("$ip route add " + route + " dev eth0")
		}
	}
	w.add("eth0")

	var boxes []reconcile.Sandbox
	for i := range 2 {
		steps := w.topology(i)
		w.story = append(w.story, steps)
		sb := box(w.path, parse(t, fmt.Sprintf("t%d", i), steps))
		if _, err := w.r.Ensure(ctxFor(t), sb); fault.Of(err) == fault.Conflict || fault.Of(err) == fault.Invalid {
			w.story = append(w.story, "refused: "+err.Error()) // what the first has
			continue
		} else if err != nil {
			t.Fatalf("topology %d: %v", i, err)
		}
		boxes = append(boxes, sb)
		w.add("eth0", "r0", "r1")
		w.mustStay(boxes, "attached")
	}
	for range 3 {
		w.add("eth0", "r0", "r1")
		w.mustStay(boxes, "others have added")
		w.disturbOne(boxes)
	}
	if len(boxes) == 2 && w.rng.IntN(2) == 0 {
		slices.Reverse(boxes)
	}
	for len(boxes) > 0 {
		before, ours := w.state(w.path), w.made(boxes[:1])
		if _, err := w.r.AwaitRelease(ctxFor(t), boxes[0].ID); err != nil {
			t.Fatalf("release: %v", err)
		}
		boxes = boxes[1:]
		for _, o := range missing(before, w.state(w.path)) {
			if !ours[o.Key()] && !ours[o.LivesOn()] {
				t.Errorf("the release deleted %s", o.Key())
			}
		}
		w.mustStay(boxes, "after a release")
	}
}

// missing lists the objects that only the first of two states has.
func missing(before, after *netstate.Snapshot) (out []netstate.Object) {
	for _, o := range netstate.All[netstate.Object](before) {
		if _, ok := after.Get(o.Key()); !ok {
			out = append(out, o)
		}
	}
	return out
}

// made returns what the records of sandboxes have.
func (w *writers) made(boxes []reconcile.Sandbox) map[netstate.Key]bool {
	w.lane.t.Helper()
	out := map[netstate.Key]bool{}
	for _, sb := range boxes {
		rec, _, err := w.r.Record(sb.ID)
		if err != nil {
			w.fatal("record: %v", err)
		}
		for _, c := range rec.History {
			out[c.Key()] = true
		}
	}
	return out
}

// topology draws a topology; both of a pod may want the same routes, rules and sysctls.
func (w *writers) topology(i int) string {
	maybe := func(text string) string {
		if w.rng.IntN(2) == 0 {
			return ""
		}
		return text
	}
	var routes []string
	for _, r := range []string{
		fmt.Sprintf("{dst: 0.0.0.0/0, gw: 10.8.%d.1%s}", i, maybe(", metric: 100")),
		fmt.Sprintf("{dst: \"::/0\", gw: \"2001:db8:8:%d::1\"%s}", i, maybe(", metric: 512")),
		fmt.Sprintf("{dst: 203.0.113.0/24, gw: 10.8.%d.1%s}", i, maybe(", table: 7")),
		"{dst: \"2001:db8:77::/48\"}",
	} {
		if w.rng.IntN(2) == 0 {
			routes = append(routes, r)
		}
	}
	out := fmt.Sprintf("    - {name: net, type: macvlan, config: {master: uplink0, name: r%[1]d, addresses: [10.8.%[1]d.2/24, \"2001:db8:8:%[1]d::2/64\"], routes: [%[2]s]%[3]s%[4]s%[5]s}}\n",
		i, strings.Join(routes, ", "), maybe(", acceptRA: true"), maybe(", rules: [{priority: 100, from: 203.0.113.0/24, table: 7}]"), maybe(", sourceRouting: true"))
	if w.rng.IntN(2) == 0 {
		out += fmt.Sprintf("    - {name: tune, type: tuning, dependOn: [net], config: {dev: r%d, sysctl: {net.core.somaxconn: \"500\"}}}\n", i)
	}
	if w.rng.IntN(3) == 0 && !strings.Contains(out, "sourceRouting") {
		out += fmt.Sprintf("    - {name: red, type: vrf, dependOn: [net], config: {vrfname: red%d%s}}\n", i, maybe(", leak: true"))
	}
	return out
}

// other lets the pod's program do something, which may fail: it may be there already.
func (w *writers) other(command string) {
	out, err := w.try(command)
	w.story = append(w.story, fmt.Sprintf("pod: %s (%v %s)", command, err, strings.TrimSpace(out)))
}

// add lets the pod's program add to links, of ours too, what changes nothing of ours.
func (w *writers) add(links ...string) {
	for range w.rng.IntN(4) {
		n := w.rng.IntN(200) + 20
		link := pick(w.rng, links)
		w.other(strings.ReplaceAll(pick(w.rng, []string{
			fmt.Sprintf("$ip address add 10.9.%d.1/32 dev LINK", n),
			fmt.Sprintf("$ip address add 10.8.0.%d/24 dev LINK", n),
			fmt.Sprintf("$ip address add 2001:db8:9::%d/128 dev LINK nodad", n),
			"$ip route add default dev LINK metric 5000",
			"$ip route add default dev LINK",
			"$ip route append default dev LINK metric 5000",
			"$ip route add default via fe80::99 dev LINK metric 1024",
			"$ip route append default via fe80::99 dev LINK metric 1024",
			"$ip route append default via fe80::98 dev LINK metric 4096",
			"$ip route add 203.0.113.0/24 dev LINK",
			"$ip route add 203.0.113.0/24 dev LINK metric 77",
			"$ip route add 203.0.113.0/24 dev LINK table 7",
			"$ip route append 2001:db8:77::/48 via fe80::99 dev LINK metric 1024",
			"$ip route add 2001:db8:77::/48 dev LINK metric 300",
			"$ip route add unreachable 198.51.100.0/24 metric 9",
			fmt.Sprintf("$ip rule add from 10.9.%d.1 lookup 7 priority 100", n),
			fmt.Sprintf("$ip -6 rule add to 2001:db8:9::%d lookup 7 priority 100", n),
			"$ip rule add from 203.0.113.0/24 lookup 7 priority 101",
			"$ip neigh replace 10.8.0.9 lladdr 02:00:00:00:00:99 dev LINK",
			fmt.Sprintf("$ip link add own%d link LINK type macvlan mode bridge && $ip link set own%[1]d up", n),
			"ip netns exec $NS sysctl -qw net.ipv4.conf.LINK.log_martians=1",
			"ip netns exec $NS tc qdisc add dev LINK root pfifo limit 77",
			"$ip link set eth0 down; $ip link set eth0 up",
		}), "LINK", link))
	}
}

// mustStay checks that neither a check nor a repair of a topology does anything.
func (w *writers) mustStay(boxes []reconcile.Sandbox, when string) {
	w.lane.t.Helper()
	for _, sb := range boxes {
		before, odds := w.state(w.path), w.details()
		for pass, do := range map[string]func() (reconcile.Report, error){
			"repair": func() (reconcile.Report, error) { return w.r.Repair(ctxFor(w.lane.t), sb.ID) },
			"apply":  func() (reconcile.Report, error) { return w.r.Ensure(ctxFor(w.lane.t), sb) },
		} {
			if rep, err := do(); err != nil || !rep.Unchanged {
				w.fatal("%s, %s of topology %q: %v, changed %v", when, pass, sb.Topology.Name, err, rep.Changes)
			}
		}
		if diff := netstatetest.Differences(before, w.state(w.path)); len(diff) > 0 {
			w.fatal("%s: passes of topology %q changed %v", when, sb.Topology.Name, diff)
		}
		if now := w.details(); now != odds {
			w.fatal("%s: rules and queues were\n%sand are\n%s", when, odds, now)
		}
	}
}

// disturbOne deletes or changes something of ours, and has it repaired: what others have stays.
func (w *writers) disturbOne(boxes []reconcile.Sandbox) {
	w.lane.t.Helper()
	if len(boxes) == 0 {
		return
	}
	sb := pick(w.rng, boxes)
	rec, _, err := w.r.Record(sb.ID)
	if err != nil {
		w.fatal("record: %v", err)
	}
	var ours []netstate.Object
	for _, c := range rec.History {
		switch o := c.After.(type) {
		case netstate.Addr, netstate.Route, netstate.Rule:
			if c.Before == nil {
				ours = append(ours, o)
			}
		}
	}
	if len(ours) == 0 {
		return
	}
	before, all := w.state(w.path), w.made(boxes)
	o := pick(w.rng, ours)
	w.story = append(w.story, fmt.Sprintf("disturbed: - %s", o.Key()))
	w.disturb(w.path, netstate.Change{Before: o})
	disturbed := w.state(w.path) // with its address a link may lose routes of others
	if _, err := w.r.Repair(ctxFor(w.lane.t), sb.ID); err != nil {
		w.fatal("repair after %s was deleted: %v", o.Key(), err)
	}
	after := w.state(w.path)
	for _, gone := range missing(before, after) {
		if _, there := disturbed.Get(gone.Key()); there || all[gone.Key()] {
			w.fatal("after %s was deleted and repaired, %s is missing", o.Key(), gone.Key())
		}
	}
	if more := missing(after, before); len(more) > 0 {
		w.fatal("after %s was deleted and repaired, there is also %s", o.Key(), more[0].Key())
	}
	w.mustStay(boxes, "repaired")
}

func (w *writers) fatal(format string, args ...any) {
	w.lane.t.Helper()
	w.lane.t.Fatalf(format, args...)
}
