package kernel_test

import (
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/topology/fault"
)

func TestSysctls(t *testing.T) {
	b := newBench(t)
	b.create(dummy("d0"), netstate.Link{Name: "d0.100", LinkKind: "dummy"})
	for _, tc := range []struct{ path, value string }{
		{"net/ipv4/ip_forward", "1"},
		{"net/ipv4/conf/d0/rp_filter", "2"},
		{"net/ipv4/conf/d0.100/arp_notify", "1"}, // a name with a dot
		{"net/ipv6/conf/d0/keep_addr_on_down", "1"},
		{"net/ipv4/tcp_rmem", "4096 100000 200000"}, // the kernel answers with tabs
		{"net/ipv4/ip_local_port_range", "20000 30000"},
	} {
		s := netstate.Sysctl{Path: tc.path, Value: &tc.value}
		before := b.observe(s)
		c := b.update(s)
		b.holds(s)
		b.apply(netstatetest.Inverse(c))
		same(t, before, b.observe(s))
	}
	b.absent(netstate.Sysctl{Path: "net/core/netdev_max_backlog"}) // the host's alone
	b.absent(netstate.Sysctl{Path: "net/ipv4/conf/nowhere/rp_filter"})
	// One without a value is observed, too.
	secret := netstate.Sysctl{Path: "net/ipv6/conf/d0/stable_secret"}
	if got, ok := netstate.Lookup(b.observe(secret), secret); !ok || got.Value != nil {
		t.Errorf("got %+v, %v", got, ok)
	}
}

// The host's values are neither read nor written.
func TestSysctlOfTheSandbox(t *testing.T) {
	b := newBench(t)
	other := newBenchOn(t, b.host)
	s := netstate.Sysctl{Path: "net/ipv4/ip_forward", Value: new("1")}
	b.create(s)
	b.holds(s)
	other.holds(netstate.Sysctl{Path: s.Path, Value: new("0")})
}

func TestSysctlRefused(t *testing.T) {
	b := newBench(t)
	set := func(path, value string) netstate.Change {
		return netstate.Change{Before: netstate.Sysctl{Path: path}, After: netstate.Sysctl{Path: path, Value: &value}}
	}
	b.refused(fault.Invalid, set("net/ipv4/ip_default_ttl", "300"), `"300"`, "refused")
	b.refused(fault.Invalid, set("net/ipv4/ip_default_ttl", "many"), `"many"`)
	b.refused(fault.Unsupported, set("net/core/netdev_max_backlog", "1"), "no such sysctl")
	b.refused(fault.NotReady, set("net/ipv4/conf/nowhere/rp_filter", "1"), `"nowhere"`)
	for _, path := range []string{"kernel/hostname", "net/../kernel/hostname", "/net/ipv4/ip_forward", "net"} {
		b.refused(fault.Invalid, set(path, "1"))
		if _, err := b.Observe(t.Context(), []netstate.Object{netstate.Sysctl{Path: path}}); fault.Of(err) != fault.Invalid {
			t.Errorf("%s: %v", path, err)
		}
	}
}
