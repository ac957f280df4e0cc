package kernel

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/integration/eventually"
)

// TestServiceOnBridge: a pod reaches a Service whose endpoint is a pod of its bridge, on a node where nobody has loaded
// br_netfilter. Rules like those of kube-proxy lead it there.
func TestServiceOnBridge(t *testing.T) {
	s := &foreignWriter{t: t}
	const unload = "modprobe -r xt_physdev br_netfilter"
	s.run(unload)
	t.Cleanup(func() { s.run(unload) }) // other tests do not need it
	n, _ := newPortNode(t, `{name: eth, type: bridge, config: {bridge: plpod0, isDefaultGateway: true, dad: "off"}}`)
	defer n.run(n.server(&process{}, nil, ""))()
	a, b := newNetns(t), newNetns(t)
	a4, _ := n.add(at("a", a))
	b4, _ := n.add(at("b", b))
	answer(t, b, 80, 53)
	s.run(fmt.Sprintf(`nft 'table inet service { chain c { type nat hook prerouting priority dstnat; ip daddr 10.96.0.1 tcp dport 80 dnat ip to %[1]s; ip daddr 10.96.0.1 udp dport 53 dnat ip to %[1]s; }; }'`, b4))
	t.Cleanup(func() { s.run("nft delete table inet service") })
	n.reach(in(a), b4)
	if seen, err := ask(a, "tcp", "10.96.0.1:80"); err == nil {
		t.Fatalf("the pod reaches the Service before, from %s, and the test tests nothing", seen)
	}

	reaches := func(what string) {
		t.Helper()
		if err := n.host.TranslateBridged(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for _, c := range []struct{ network, to, seen string }{{"tcp", "10.96.0.1:80", a4}, {"udp", "10.96.0.1:53", a4}} {
			eventually.Succeeds(t, patience, "the network is as wanted", func() error {
				seen, err := ask(a, c.network, c.to)
				if err == nil && seen != c.seen {
					err = fmt.Errorf("the endpoint has seen %s, want %s", seen, c.seen)
				}
				if err != nil {
					return fmt.Errorf("%s: %s %s: %w", what, c.network, c.to, err)
				}
				return nil
			})
		}
	}
	reaches("loaded")
	if _, err := os.Stat("/sys/module/br_netfilter"); err != nil {
		t.Error(err)
	}
	s.run("sysctl -qw net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0")
	reaches("set to 0 by others")
	if left := s.run("nft list tables"); strings.Contains(left, "bridged") {
		t.Errorf("left is\n%s", left)
	}
	for container, path := range map[string]string{"a": a, "b": b} {
		if err := n.cni.DelNetworkList(ctxFor(t), n.list, at(container, path)); err != nil {
			t.Error(err)
		}
	}
}
