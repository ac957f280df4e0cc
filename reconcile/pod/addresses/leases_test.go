package addresses_test

import (
	"fmt"
	"net/netip"
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
		if want := "no address is free on this node: its block of the pool is full, and with hostBlock a node has one: delete pods, or use a pool with a smaller hostBlock"; fault.Of(err) != fault.NotReady || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("of a full block: %v", err)
		}
		a.pass()
	}
	if len(s.leases) != 1 {
		t.Errorf("the node has %d leases", len(s.leases))
	}
}
