package kernel

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestBelongings: what the host is configured to have over a device, its addresses and static
// routes, is there again when a pod has given the device back. A device with a VLAN of the host
// on it is not taken.
func TestBelongings(t *testing.T) {
	if !hasCards() {
		t.Skip("needs a card")
	}
	l := newLane(t)
	devices := functions(t, map[string]string{"d": "enp3s0f0/0"})
	path := newNetns(t)
	s := &foreignWriter{t, filepath.Base(path), ""}
	host := func() string {
		return s.run(`ip -o addr show dev enp3s0f0v0 | awk '{print $3, $4}'; ip route show dev enp3s0f0v0; ip -6 route show dev enp3s0f0v0 | grep -v fe80`)
	}
	s.run(`ip link set enp3s0f0v0 up; ip addr add 192.0.2.5/24 dev enp3s0f0v0; ip addr add 2001:db8::5/64 dev enp3s0f0v0 nodad
		ip route add 198.51.100.0/24 via 192.0.2.1; ip -6 route add 2001:db8:5::/48 via 2001:db8::1
		ip addr add 203.0.113.5/24 dev enp3s0f0v0 noprefixroute; ip route add 203.0.113.0/24 dev enp3s0f0v0 proto kernel scope link src 203.0.113.5 metric 100 # as NetworkManager
		ip route add 233.252.0.0/24 via 203.0.113.1`)
	t.Cleanup(func() { s.run(`ip addr flush dev enp3s0f0v0 scope global; ip link set enp3s0f0v0 down`) })
	start := host()
	sb := box(path, parse(t, "t", "    - {name: d, type: host-device, config: {name: net1}}\n"))
	sb.Given = ops.Givens{}.WithDevices(devices)
	r := l.engine(nil)
	rep, err := r.Ensure(ctxFor(t), sb)
	if err != nil {
		t.Fatal(err)
	}
	if notes := strings.Join(rep.Notes, "\n"); !strings.Contains(notes, `the host has 192.0.2.5/24, 2001:db8::5/64, 203.0.113.5/24 on "enp3s0f0v0"`) {
		t.Errorf("notes: %s", notes)
	}
	if rep, err := r.AwaitRelease(ctxFor(t), sb.ID); err != nil || len(rep.Notes) > 0 {
		t.Errorf("release: %v, %v", err, rep.Notes)
	}
	if end := host(); !strings.Contains(end, "203.0.113.0/24 proto kernel scope link src 203.0.113.5 metric 100") || !strings.Contains(end, "233.252.0.0/24 via 203.0.113.1") || !strings.Contains(end, "198.51.100.0/24 via 192.0.2.1") || !strings.Contains(end, "2001:db8:5::/48 via 2001:db8::1") || !strings.Contains(end, "inet 192.0.2.5/24") || !strings.Contains(end, "inet6 2001:db8::5/64") {
		t.Errorf("the host had\n%s\nand has\n%s", start, end)
	}
	s.run(`ip link add link enp3s0f0v0 name host7 type vlan id 7`)
	t.Cleanup(func() { s.run(`ip link delete host7`) })
	if _, err := r.Ensure(ctxFor(t), sb); fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), "is used by the host: carries host7") {
		t.Errorf("a device with a VLAN of the host: %v", err)
	}
}

// writeCounter adds up the writes of the domains that were closed.
type writeCounter struct {
	reconcile.Domain
	writes *uint64
}

func (c writeCounter) Close() error {
	if d, ok := c.Domain.(interface {
		Counters() (dumps, gets, writes uint64)
	}); ok {
		_, _, n := d.Counters()
		*c.writes += n
	}
	return c.Domain.Close()
}

// TestSysctlsOfDevice: sysctls that the host is configured to have for a device are as they were when a pod has given
// the device back. Moving to another namespace resets them. Those that are the host's default cost no write.
func TestSysctlsOfDevice(t *testing.T) {
	l, path := newLane(t), newNetns(t)
	id := virtualCard(t, "nic0")
	s := &foreignWriter{t, filepath.Base(path), ""}
	names := "ipv4/conf/nic0/rp_filter ipv4/conf/nic0/arp_ignore ipv4/conf/nic0/forwarding ipv6/conf/nic0/accept_ra ipv6/conf/nic0/addr_gen_mode ipv6/conf/nic0/disable_ipv6"
	values := func() string {
		return s.run("cd /proc/sys/net; for f in " + names + "; do echo $f $(cat $f); done")
	}
	sb := box(path, parse(t, "t", "    - {name: d, type: host-device, config: {name: net1}}\n"))
	sb.Given = ops.Givens{}.WithDevices(map[string]string{"d": id})
	var writes uint64
	r := l.engine(func(d reconcile.Domain) reconcile.Domain {
		if _, external := d.(alone); external {
			return d
		}
		return writeCounter{d, &writes}
	})
	cycle := func() (attach, release uint64) {
		t.Helper()
		before := values()
		writes = 0
		if _, err := r.Ensure(ctxFor(t), sb); err != nil {
			t.Fatal(err)
		}
		attach, writes = writes, 0
		s.run("ip netns exec $NS sh -c 'echo 1 >/proc/sys/net/ipv4/conf/net1/proxy_arp; echo 0 >/proc/sys/net/ipv4/conf/net1/arp_ignore'")
		if rep, err := r.AwaitRelease(ctxFor(t), sb.ID); err != nil || rep.Unclean != "" {
			t.Fatal(err, rep.Unclean)
		}
		if after := values(); after != before {
			t.Errorf("the host had\n%sand has\n%s", before, after)
		}
		return attach, writes
	}
	attach, release := cycle()
	s.run("cd /proc/sys/net/ipv4/conf/nic0; echo 2 >rp_filter; echo 1 >arp_ignore; echo 1 >forwarding; cd /proc/sys/net/ipv6/conf/nic0; echo 0 >accept_ra; echo 1 >addr_gen_mode; echo 1 >disable_ipv6")
	attach2, release2 := cycle()
	if attach2 != attach {
		t.Errorf("attaching writes %d times, %d where sysctls differ", attach, attach2)
	}
	if release2 <= release {
		t.Errorf("a release writes %d times, %d where sysctls differ", release, release2)
	}
}
