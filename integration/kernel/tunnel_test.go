package kernel

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
)

// ends are two sandboxes with a tunnel between them.
type ends struct {
	t     *testing.T
	r     *reconcile.Reconciler
	s     *foreignWriter // NS is the first end, OTHER the second
	boxes [2]reconcile.Sandbox
}

func newEnds(t *testing.T) *ends {
	t.Helper()
	e := &ends{t: t, r: newLane(t).engine(nil)}
	one, other := newNetns(t), newNetns(t)
	e.boxes = [2]reconcile.Sandbox{{ID: "t/one", Netns: one}, {ID: "t/other", Netns: other}}
	e.s = &foreignWriter{t, filepath.Base(one), filepath.Base(other)}
	e.s.run(`for n in $NS $OTHER; do ip netns exec $n sysctl -qw net.ipv6.conf.default.accept_dad=0; done`)
	return e
}

// wired joins the ends by an Ethernet link u0 with an address of each family, and
// another IPv4 address.
func (e *ends) wired() *ends {
	e.s.run(`
ip -n $NS link add u0 type veth peer name u0 netns $OTHER
for n in "1 $NS" "2 $OTHER"; do
	set -- $n
	ip -n $2 address add 192.0.2.$1/24 dev u0
	ip -n $2 address add 192.0.2.10$1/24 dev u0
	ip -n $2 address add 2001:db8::$1/64 dev u0 nodad
	ip -n $2 link set u0 up
done`)
	return e
}

// apply applies the steps at both ends: ME and YOU are the numbers of the ends.
func (e *ends) apply(steps string) {
	e.t.Helper()
	for i, fill := range []*strings.Replacer{strings.NewReplacer("ME", "1", "YOU", "2"), strings.NewReplacer("ME", "2", "YOU", "1")} {
		e.boxes[i].Topology = parse(e.t, "t", fill.Replace(steps))
		if _, err := e.r.Ensure(ctxFor(e.t), e.boxes[i]); err != nil {
			e.t.Fatal(err)
		}
		if again, err := e.r.Ensure(ctxFor(e.t), e.boxes[i]); err != nil || !again.Unchanged {
			e.t.Fatalf("applied again: %v %v", again.Changes, err)
		}
	}
}

// reach sends the largest packet that fits through the tunnel, and a small IPv6 one.
func (e *ends) reach(mtu string) {
	e.t.Helper()
	e.s.run(`test "$(ip -n $NS -o link show t0 | sed 's/.* mtu \([0-9]*\) .*/\1/')" = ` + mtu + `
ip netns exec $NS ping -n -q -c 1 -w 60 -M do -s $((` + mtu + ` - 28)) 198.51.100.2
ip netns exec $NS ping -n -q -c 1 -w 60 2001:db8:9::2`)
}

func (e *ends) index() string {
	return strings.TrimSpace(e.s.run(`ip -n $NS -o link show t0 | cut -d: -f1`))
}

const inner = `, name: t0, addresses: [198.51.100.ME/24, "2001:db8:9::ME/64"]}}
`

// TestTunnel sends packets through tunnels, and after each edit of both ends.
func TestTunnel(t *testing.T) {
	t.Run("edited in place", func(t *testing.T) {
		e := newEnds(t).wired()
		e.apply(`    - {name: x, type: vxlan, config: {id: 7, master: u0, local: 192.0.2.ME, remote: 192.0.2.YOU` + inner)
		e.reach("1450")
		index := e.index()
		e.apply(`    - {name: x, type: vxlan, config: {id: 7, master: u0, local: 192.0.2.10ME, remote: 192.0.2.10YOU, learning: false, ttl: 1, mtu: 1400` + inner)
		e.s.run(`ip -n $NS -s link show t0; ip netns exec $NS ip neighbor flush dev t0`)
		e.reach("1400")
		e.apply(`    - {name: x, type: vxlan, config: {id: 7, master: u0, group: 239.1.1.1` + inner)
		e.reach("1450")
		e.apply(`    - {name: x, type: vxlan, config: {id: 7, master: u0, group: 239.1.1.2` + inner)
		e.reach("1450")
		if joined := e.s.run(`ip -n $NS maddr show dev u0`); strings.Contains(joined, "239.1.1.1") || !strings.Contains(joined, "239.1.1.2") {
			t.Errorf("groups of the link below:\n%s", joined)
		}
		if now := e.index(); now != index {
			t.Errorf("recreated: link %s is now %s", index, now)
		}
	})
	t.Run("several ends", func(t *testing.T) {
		e := newEnds(t).wired()
		e.apply(`    - {name: x, type: vxlan, config: {id: 7, master: u0, learning: false, remote: 192.0.2.YOU` + inner)
		index := e.index()
		for _, c := range []struct{ ends, entries string }{
			{`remotes: [192.0.2.YOU, 192.0.2.77]`, "192.0.2.2 192.0.2.77"},
			{`remotes: [192.0.2.78, 192.0.2.10YOU, 192.0.2.77]`, "192.0.2.102 192.0.2.77 192.0.2.78"},
			{`remote: 192.0.2.YOU`, "192.0.2.2"},
			{`remotes: [192.0.2.YOU]`, "192.0.2.2"},
		} {
			e.apply(`    - {name: x, type: vxlan, config: {id: 7, master: u0, learning: false, ` + c.ends + inner)
			e.reach("1450")
			have := strings.Fields(e.s.run(`bridge -n $NS fdb show dev t0 | sed -n 's/^00:00:00:00:00:00 dst \([^ ]*\) via u0 .*/\1/p' | sort`))
			if got := strings.Join(have, " "); got != c.entries {
				t.Errorf("%s: entries of %q, want %q", c.ends, got, c.entries)
			}
		}
		if now := e.index(); now != index {
			t.Errorf("recreated: link %s is now %s", index, now)
		}
	})
	t.Run("recreated", func(t *testing.T) {
		e := newEnds(t).wired()
		for _, config := range []string{
			`id: 7, master: u0, local: "2001:db8::ME", remote: "2001:db8::YOU"`,
			`id: 8, master: u0, local: "2001:db8::ME", remote: "2001:db8::YOU"`,
			`id: 8, port: 4790, routed: true, remote: "2001:db8::YOU"`,
		} {
			e.apply(`    - {name: x, type: vxlan, config: {` + config + inner)
			e.reach("1430")
		}
		e.apply(`    - {name: x, type: vxlan, config: {id: 8, port: 4790, routed: true, remote: 192.0.2.YOU` + inner)
		e.reach("1450")
		for _, box := range e.boxes {
			if _, err := e.r.AwaitRelease(ctxFor(t), box.ID); err != nil {
				t.Fatal(err)
			}
		}
		if left := e.s.run(`ip -n $NS -o link show type vxlan; ip -n $OTHER -o link show type vxlan`); left != "" {
			t.Errorf("after release: %s", left)
		}
	})
	t.Run("over functions", func(t *testing.T) {
		if !hasCards() {
			return // no PCI there; the other lane runs it
		}
		e := newEnds(t)
		e.boxes[0].Given = ops.Givens{}.WithDevices(functions(t, map[string]string{"vf": "enp3s0f0/0"}))
		e.boxes[1].Given = ops.Givens{}.WithDevices(functions(t, map[string]string{"vf": "enp4s0f0/0"}))
		e.apply(`    - {name: vf, type: sriov, config: {addresses: [192.0.2.ME/24]}}
    - {name: x, type: vxlan, dependOn: [vf], config: {id: 7, local: "{{ vf.ips[0].address }}", remote: 192.0.2.YOU, mtu: 1500` + inner)
		e.reach("1500")
		for _, box := range e.boxes {
			if _, err := e.r.AwaitRelease(ctxFor(t), box.ID); err != nil {
				t.Fatal(err)
			}
		}
	})
}
