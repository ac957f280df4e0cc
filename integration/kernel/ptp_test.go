package kernel

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/kernel"
)

// routedHost is a network namespace that stands for the host of pods, wired to one that
// stands for a machine outside, which knows no route to them unless it is given one.
type routedHost struct {
	*foreignWriter
	host, outside string // names of the namespaces
}

func newRoutedHost(t *testing.T) routedHost {
	t.Helper()
	host, outside := filepath.Base(newNetns(t)), filepath.Base(newNetns(t))
	h := routedHost{&foreignWriter{t: t, ns: host, other: outside}, host, outside}
	h.run(`
ip -n $NS link set lo up
ip -n $OTHER link set lo up
ip -n $NS link add up0 mtu 1450 type veth peer name up0 mtu 1450 netns $OTHER
ip -n $NS address add 203.0.113.1/24 dev up0
ip -n $NS address add 2001:db8:f::1/64 dev up0 nodad
ip -n $NS link set up0 up
ip -n $OTHER address add 203.0.113.2/24 dev up0
ip -n $OTHER address add 2001:db8:f::2/64 dev up0 nodad
ip -n $OTHER link set up0 up
ip -n $NS route add default via 203.0.113.2
ip netns exec $NS sh -ec 'echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding'
`)
	return h
}

// lane is an engine whose host is the namespace.
func (h routedHost) lane(t *testing.T) *lane {
	t.Helper()
	l := laneOn(t, kernel.Options{Netns: "/run/netns/" + h.host})
	l.devices = []string{} // none is not all
	return l
}

// reaches says whether a namespace gets answers from an address.
func (h routedHost) reaches(from, to string) error {
	if out, err := h.try(fmt.Sprintf("ip netns exec %s ping -c 1 -W 2 %s", from, to)); err != nil {
		return fmt.Errorf("%s does not reach %s: %w\n%s", from, to, err, out)
	}
	return nil
}

// TestRoutedPods: two pods of type ptp reach their host, one another and, with a route back, a
// machine outside, in both families. Objects deleted on the host come back; nothing is left
// after the release; the pair has the MTU of the uplink, and follows it.
func TestRoutedPods(t *testing.T) {
	h := newRoutedHost(t)
	l := h.lane(t)
	r := l.engine(nil)
	start := l.state("")
	var pods []string
	for i := range 2 {
		path := newNetns(t)
		pods = append(pods, filepath.Base(path))
		h.run("ip -n " + filepath.Base(path) + " link set lo up")
		sb := box(path, parse(t, "t", fmt.Sprintf("    - {name: p, type: ptp, config: {isDefaultGateway: true, dad: \"off\", addresses: [10.9.0.%d/24, \"2001:db8:9::%d/64\"]}}\n", i+5, i+5)))
		sb.ID = reconcile.SandboxID(fmt.Sprintf("pod%d/t", i))
		if _, err := r.Ensure(ctxFor(t), sb); err != nil {
			t.Fatal(err)
		}
	}
	h.run("ip -n $OTHER route add 10.9.0.0/24 via 203.0.113.1; ip -n $OTHER route add 2001:db8:9::/64 via 2001:db8:f::1")
	reach := func() {
		t.Helper()
		eventually.Succeeds(t, patience, "the network is as wanted", func() error {
			for _, to := range []string{"10.9.0.1", "2001:db8:9::1", "10.9.0.6", "2001:db8:9::6", "203.0.113.2", "2001:db8:f::2"} {
				if err := h.reaches(pods[0], to); err != nil {
					return err
				}
			}
			return h.reaches(h.host, "10.9.0.5")
		})
	}
	reach()
	if got := h.run("ip -n " + pods[0] + " -o link show net1"); !strings.Contains(got, "mtu 1450 ") {
		t.Errorf("the pair does not have the MTU of the uplink: %s", got)
	}

	h.run("ip -n $NS route flush proto 112; ip -n $NS -6 route flush proto 112; ip -n $NS link set up0 mtu 1420")
	for i := range 2 {
		if _, err := r.Repair(ctxFor(t), reconcile.SandboxID(fmt.Sprintf("pod%d/t", i))); err != nil {
			t.Fatal(err)
		}
	}
	reach()
	if got := h.run("ip -n " + pods[1] + " -o link show net1"); !strings.Contains(got, "mtu 1420 ") {
		t.Errorf("the pair does not follow the MTU of the uplink: %s", got)
	}

	h.run("ip netns exec $NS sh -ec 'echo 0 >/proc/sys/net/ipv4/ip_forward'")
	if st, err := r.Check(ctxFor(t), "pod0/t"); err != nil || st.State != reconcile.InSync {
		t.Errorf("a running pod on a host that no longer forwards: %v, %+v", err, st)
	}
	third := box(newNetns(t), parse(t, "t", "    - {name: p, type: ptp, config: {addresses: [10.9.0.7/24]}}\n"))
	third.ID = "pod2/t"
	if _, err := r.Ensure(ctxFor(t), third); err == nil || !strings.Contains(err.Error(), "net.ipv4.ip_forward") {
		t.Errorf("a new pod on a host that does not forward: %v", err)
	}
	for i := range 2 {
		if _, err := r.AwaitRelease(ctxFor(t), reconcile.SandboxID(fmt.Sprintf("pod%d/t", i))); err != nil {
			t.Fatal(err)
		}
	}
	l.mustEqual(start, "", "after release")
	if got := h.run("ip -n $NS route show proto 112; ip -n $NS -6 route show proto 112; ip -n $NS -o link show type veth | grep -v up0 || true"); got != "" {
		t.Errorf("left on the host: %s", got)
	}
}
