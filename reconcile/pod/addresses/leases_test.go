package addresses_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// byHost is a pool of 2^bits blocks of 14 addresses, of which a node has one.
func byHost(name string, bits int32) v1alpha1.AddressPool {
	p := v1alpha1.AddressPool{Spec: v1alpha1.AddressPoolSpec{
		Subnets: []v1alpha1.AddressSubnet{{Prefix: fmt.Sprintf("10.0.0.0/%d", 28-bits)}}, HostBlock: &bits,
	}}
	p.Name, p.Finalizers = name, []string{v1alpha1.AddressPoolFinalizer}
	return p
}

// TestContended holds that a node which loses block after block to others, as when all lease at once, stops trying and
// reads which are free; that this is no full pool; and that a node which is alone has the lowest free block.
func TestContended(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := newServer(byHost("p", 10))
	for i := range 1024 {
		s.put("p", fmt.Sprintf("10.0.%d.%d/28", i/16, i%16*16), v1alpha1.AddressLeaseSpec{Node: fmt.Sprint("other-", i), NodeUID: "uid"})
	}
	s.unlisted = true
	a := s.agent(t, "n", fileOf(t), &now)
	a.pass()
	if _, err := a.take("c", "web-0", "p"); err == nil {
		t.Fatal("an address without a lease")
	}
	for range 3 {
		s.created = 0
		if err := a.Pass(t.Context()); err == nil || s.created > 16 || !strings.Contains(err.Error(), "other nodes are leasing blocks") {
			t.Fatalf("after %d tries: %v", s.created, err)
		}
	}
	s.unlisted, s.created = false, 0
	if err := a.Pass(t.Context()); err == nil || s.created > 0 || !strings.Contains(err.Error(), "all blocks are leased") {
		t.Errorf("of a full pool, after %d tries: %v", s.created, err)
	}
	now = now.Add(time.Minute)
	for _, block := range []string{"10.0.62.128/28", "10.0.63.0/28"} {
		delete(s.leases, addresspool.LeaseName("p", netip.MustParsePrefix(block)))
	}
	if got := a.has("c", "web-0", "p"); got != "10.0.62.129" || s.created != 1 {
		t.Errorf("the node has %s after %d tries", got, s.created)
	}
}

// TestFullBlock holds the error of a pod that gets no address as the only block of its node is full: it does not promise
// a lease, as the node takes no other one. Before the node has a block, it does.
func TestFullBlock(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := newServer(byHost("full", 4))
	s.pools[0].Status.Size, s.pools[0].Status.Leased = 224, 14 // the others have enough
	a := s.agent(t, "n", fileOf(t), &now)
	a.pass()
	if _, err := a.take("c0", "web-0", "full"); fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), "requesting another lease") {
		t.Errorf("without a block: %v", err)
	}
	for i := range 14 {
		a.has(types.UID(fmt.Sprint("c", i)), fmt.Sprint("web-", i), "full")
	}
	for range 2 {
		_, err := a.take("more", "web-14", "full")
		if want := "no address is free on this node: its block of the pool is full, and a node gets one block of a pool with hostBlock: delete pods, or use a pool with a smaller hostBlock"; fault.Of(err) != fault.NotReady || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("of a full block: %v", err)
		}
		a.pass()
	}
	if len(s.leases) != 1 {
		t.Errorf("the node has %d leases", len(s.leases))
	}
}

// TestMostExcluded holds that a node finds the blocks of a pool that excludes nearly all of its addresses, wherever these are, and
// all of them; and that the pool is full afterwards.
func TestMostExcluded(t *testing.T) {
	for _, c := range []struct {
		name, subnet string
		exclude      []string
		size         int32
		want         []string
	}{
		{"the last of IPv4", "10.0.0.0/8", []string{"10.0.0.0-10.255.255.250"}, 1, []string{"10.255.255.251", "10.255.255.252", "10.255.255.253", "10.255.255.254"}},
		{"two of IPv6, far from each other", "2001:db8::/64", []string{"2001:db8::/65", "2001:db8:0:0:8000::-2001:db8::9000:0:0:2", "2001:db8::9000:0:0:4-2001:db8::c000:0:0:0", "2001:db8::c000:0:0:2-2001:db8::ffff:ffff:ffff:ffff"}, 16, []string{"2001:db8::9000:0:0:3", "2001:db8::c000:0:0:1"}},
		{"one behind many excludes", "10.0.0.0/8", []string{"10.0.0.0/9", "10.128.0.0/10", "10.192.0.0-10.255.254.8", "10.255.254.10-10.255.255.255"}, 4, []string{"10.255.254.9"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := time.Unix(1e9, 0)
			p := v1alpha1.AddressPool{Spec: v1alpha1.AddressPoolSpec{Subnets: []v1alpha1.AddressSubnet{{Prefix: c.subnet}}, Exclude: c.exclude, BlockSize: &c.size}}
			p.Name, p.Finalizers = "p", []string{v1alpha1.AddressPoolFinalizer}
			s := newServer(p)
			a := s.agent(t, "n", fileOf(t), &now)
			var got []string
			for i := range c.want {
				got = append(got, a.has(types.UID(fmt.Sprint("c", i)), fmt.Sprint("web-", i), "p"))
			}
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("pods have %v, want %v", got, c.want)
			}
			_, _ = a.take("more", "web-more", "p")
			s.created = 0
			if err := a.Pass(t.Context()); err == nil || !strings.Contains(err.Error(), "all blocks are leased") || s.created > 16 {
				t.Errorf("of a full pool, after %d tries: %v", s.created, err)
			}
		})
	}
}
