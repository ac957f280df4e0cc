package addresses_test

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestFile holds what becomes of a node's file that is missing, damaged or of another
// version: what claims have is not forgotten, and a later version's file is left alone.
func TestFile(t *testing.T) {
	grant := addresspool.Grant{
		Owner: addresspool.Owner{Claim: "c", Topology: "t", Step: "s"}, Of: "ns/c", Pool: "p", Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/24")},
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "addresses")
	open := func() (*addresses.Allocator, error) {
		return addresses.Open(addresses.Options{
			NodeName: "n", File: file, Recorded: func() []addresspool.Grant { return []addresspool.Grant{grant} }, Log: slog.New(slog.DiscardHandler), Now: time.Now,
		})
	}
	for range 2 { // missing, and there
		if _, err := open(); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(file)
		if err != nil || strings.Count(string(data), "192.0.2.7/24") != 1 {
			t.Errorf("the file is %s, %v", data, err)
		}
	}
	if err := os.WriteFile(file, []byte("1 00000000 {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := open()
	if err != nil {
		t.Fatal(err)
	}
	if data, _ := os.ReadFile(file); !strings.Contains(string(data), "192.0.2.7/24") {
		t.Errorf("after damage the file is %s", data)
	}
	if aside, _ := filepath.Glob(file + ".damaged-*"); len(aside) != 1 {
		t.Errorf("set aside: %q", aside)
	}
	if _, err := a.Take(addresses.Claim{UID: "d"}, []addresses.Want{{Topology: "t", Step: "s", Pool: "p"}}); fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), `there is no AddressPool "p"`) {
		t.Errorf("from a pool that is not known: %v", err)
	}
	if err := a.GiveBack("c"); err != nil {
		t.Fatal(err)
	}
	if data, _ := os.ReadFile(file); strings.Contains(string(data), "192.0.2.7/24") || !strings.Contains(string(data), "192.0.2.7") {
		t.Errorf("given back, the file is %s", data)
	}

	later, err := frame.Encode(addresspool.Holdings{})
	if err != nil {
		t.Fatal(err)
	}
	later = append([]byte("99"), later[strings.IndexByte(string(later), ' '):]...)
	if err := os.WriteFile(file, later, 0o600); err != nil {
		t.Fatal(err)
	}
	if a, err = open(); err != nil {
		t.Fatalf("beside a file of a later version: %v", err)
	}
	if _, err := a.Take(addresses.Claim{UID: "d"}, nil); frame.AsOtherVersion(err) == nil {
		t.Errorf("from a file of a later version: %v", err)
	}
	if err := a.GiveBack("c"); err != nil {
		t.Errorf("a claim cannot end: %v", err)
	}
	if data, _ := os.ReadFile(file); string(data) != string(later) {
		t.Errorf("a file of a later version was changed: %s", data)
	}
}

// TestLocal holds that a node allocates from ranges of its own without the API server, that
// a claim keeps its address when the agent starts again, and that a step cannot get
// addresses of two pools.
func TestLocal(t *testing.T) {
	layout, err := addresspool.Local(topology.IPAM{IPRange: topology.IPRange{Subnet: "192.0.2.0/29"}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "addresses")
	now := time.Unix(1000, 0)
	var a *addresses.Allocator
	start := func() {
		if a, err = addresses.Open(addresses.Options{
			NodeName: "n", File: file, Recorded: func() []addresspool.Grant { return nil }, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now },
		}); err != nil {
			t.Fatal(err)
		}
	}
	take := func(claim types.UID) (ops.Given, error) {
		w := addresses.Want{Topology: "t", Step: "s", Pool: topology.LocalPool, Local: layout}
		got, err := a.Take(addresses.Claim{UID: claim}, []addresses.Want{w})
		return got[w], err
	}
	had := map[types.UID]string{}
	for range 2 {
		start()
		for _, claim := range []types.UID{"a", "b", "c", "d", "e"} {
			given, err := take(claim)
			if err != nil || len(given.Addresses) != 1 || fmt.Sprint(given.Gateways) != "[192.0.2.1]" || had[claim] != "" && had[claim] != given.Addresses[0].String() {
				t.Fatalf("claim %s, which had %q, is given %+v, %v", claim, had[claim], given, err)
			}
			had[claim] = given.Addresses[0].String()
		}
	}
	if _, err := take("f"); fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), "ipam of type host-local: no address is free on this node") {
		t.Errorf("a sixth of five addresses: %v", err)
	}
	unused := func(address string, networks ...netip.Prefix) bool {
		f, err := a.Unused(networks)
		if err != nil {
			t.Fatal(err)
		}
		return f(netip.MustParseAddr(address))
	}
	of := netip.MustParsePrefix("192.0.2.0/29")
	had4 := netip.MustParsePrefix(had["c"]).Addr().String()
	if unused(had4, of) || unused("192.0.2.9", of) || unused(had4) {
		t.Error("an address counts as unused that a claim has, or that is in no network of the node")
	}
	if err := a.GiveBack("c"); err != nil {
		t.Fatal(err)
	}
	if !unused(had4, of) || unused(had4) {
		t.Error("an address that was given back counts as used, or as that of a network")
	}
	now = now.Add(time.Second)
	if err := a.GiveBack("a"); err != nil {
		t.Fatal(err)
	}
	if err := a.Cancel("e"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ claim, from types.UID }{{"f", "e"}, {"g", "c"}, {"h", "a"}} { // "e" had it on no link
		if given, err := take(c.claim); err != nil || given.Addresses[0].String() != had[c.from] {
			t.Errorf("claim %s is given %v, %v, not %s", c.claim, given, err, had[c.from])
		}
	}
	if _, err := a.Take(addresses.Claim{UID: "b"}, []addresses.Want{{Topology: "t", Step: "s", Pool: "p"}}); err == nil {
		t.Error("a step has addresses of two pools")
	}
}

// TestSubnets holds that a claim has addresses of a network's pool while that is as its topology says, and keeps what it has afterwards;
// and that a pool which is not made yet is named with who makes it.
func TestSubnets(t *testing.T) {
	now := time.Unix(1e9, 0)
	of := topology.IPAM{Pool: "ovn-blue", Subnets: []string{"192.0.2.0/24", "2001:db8::/64"}}
	s := newServer()
	a := s.agent(t, "n", fileOf(t), &now)
	take := func(claim types.UID, division topology.IPAM) (given ops.Given, err error) {
		w := addresses.Want{Topology: "t", Step: "s", Pool: of.Pool, Division: &division}
		for range 5 {
			_ = a.Pass(t.Context())
			got, e := a.Take(addresses.Claim{UID: claim, Namespace: "ns", Name: string(claim), Pod: string(claim), InPod: "net"}, []addresses.Want{w})
			if given, err = got[w], e; err == nil {
				break
			}
		}
		return given, err
	}
	refused := func(claim types.UID, division topology.IPAM, text string) {
		t.Helper()
		if given, err := take(claim, division); fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), text) {
			t.Errorf("%s is given %v, %v", claim, given.Addresses, err)
		}
	}
	refused("early", of, `AddressPool "ovn-blue" does not exist yet, and the controller creates it from the subnets: see the condition Programmed of NetworkTopology "t"`)
	pool := addresspool.OfSubnets(of)
	pool.Finalizers = []string{v1alpha1.AddressPoolFinalizer}
	s.pools = append(s.pools, *pool)
	first, err := take("first", of)
	if err != nil || len(first.Addresses) != 2 || !first.Addresses[0].Addr().Is4() || first.Addresses[1].Bits() != 64 || first.Pool != "ovn-blue" {
		t.Fatalf("given %+v, %v", first, err)
	}
	larger, excluding := of, of
	larger.Subnets = []string{"192.0.2.0/23"}
	excluding.ExcludeCIDRs = []string{"192.0.2.128/25"}
	refused("edited", larger, `subnets: AddressPool "ovn-blue" of this network has 192.0.2.0/24 and 2001:db8::/64, and the step says 192.0.2.0/23`)
	refused("excluding", excluding, `excludeSubnets: AddressPool "ovn-blue" of this network does not exclude "192.0.2.128/25"`)
	if again, err := take("first", larger); err != nil || fmt.Sprint(again.Addresses) != fmt.Sprint(first.Addresses) {
		t.Errorf("after an edit it has %v, %v", again.Addresses, err)
	}
}

// TestManyPools holds that a pass costs next to nothing for each pool of which the node has no address: a cluster has one for each
// network of OVN.
func TestManyPools(t *testing.T) {
	cost := func(n int) float64 {
		s := newServer(kept("p", "192.0.2.0/24"))
		for i := range n {
			s.pools = append(s.pools, kept(fmt.Sprintf("ovn-%05d", i), "10.0.0.0/16"))
		}
		now := time.Unix(1e9, 0)
		a := s.agent(t, "n1", fileOf(t), &now)
		a.has("c1", "web", "p")
		a.pass()
		if counts := a.Counts(); len(counts) != 1 || counts[0].Pool != "p" || counts[0].Used != 1 {
			t.Errorf("%d counts", len(counts))
		}
		return testing.AllocsPerRun(3, a.pass)
	}
	const n = 1000
	if each := (cost(n) - cost(0)) / n; each > 8 {
		t.Errorf("a pass has %.0f allocations for each pool that concerns others", each)
	}
}
