package addresses_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestLiteralEnds holds that a claim which ends while a pass reads the records does not get its literal address once
// more: it would be held until the object of the claim is deleted.
func TestLiteralEnds(t *testing.T) {
	address := netip.MustParseAddr("192.0.2.9")
	for at := range 3 { // the reading after which it ends
		now := time.Unix(1e9, 0)
		file := fileOf(t)
		s := newServer()
		a := s.agent(t, "n", file, &now)
		claim := addresses.Claim{UID: "c", Namespace: "ns", Name: "c", Pod: "web-0", Literals: []addresses.Literal{{Topology: "t", Step: "s", Address: address}}}
		for range 3 {
			_ = a.Pass(t.Context())
			_, _ = a.Take(claim, nil)
		}
		records := []addresspool.Grant{addresspool.Literal("c", "ns/c", "ns/web-0", []netip.Addr{address})}
		if grants, err := a.Grants(); err != nil || len(grants) != 1 {
			t.Fatalf("the claim has %v, %v", grants, err)
		}
		readings := 0
		a.recorded = func() []addresspool.Grant {
			read := records
			if readings++; readings > at && len(records) > 0 && free(t, file+".lock") {
				records = nil
				a.giveBack("c")
			}
			return read
		}
		a.pass()
		a.pass()
		if grants, err := a.Grants(); err != nil || len(records) > 0 || len(grants) > 0 {
			t.Errorf("ended after reading %d or later, of %d, the claim has %v, %v", at, readings, grants, err)
		}
	}
}

// free reports whether nobody has a lock.
func free(t *testing.T, file string) bool {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// TestLiteralDoesNotRest holds that the next pod with a literal address has it as soon as the one before has ended, also on
// another node, while addresses of pools rest.
func TestLiteralDoesNotRest(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := newServer()
	one, two := s.agent(t, "one", fileOf(t), &now), s.agent(t, "two", fileOf(t), &now)
	take := func(a *agent, claim types.UID) (err error) {
		for range 3 {
			a.pass()
			if _, err = a.Take(addresses.Claim{UID: claim, Namespace: "ns", Name: string(claim), Pod: string(claim), Literals: []addresses.Literal{{Topology: "t", Step: "s", Address: netip.MustParseAddr("192.0.2.9")}}}, nil); err == nil {
				break
			}
		}
		return err
	}
	if err := take(one, "a"); err != nil {
		t.Fatal(err)
	}
	if err := take(two, "b"); !errors.Is(err, addresses.ErrInUse) {
		t.Errorf("beside the pod that has it: %v", err)
	}
	one.giveBack("a")
	one.pass()
	if err := take(two, "b"); err != nil {
		t.Errorf("after the pod before has ended: %v", err)
	}
}

// TestLateDelete holds that a lease which a claim has again is not ended by a request that was sent before, by this agent or another one
// of the node, as during an update; also if one ends it while the other reads it.
func TestLateDelete(t *testing.T) {
	for what, c := range map[string]struct{ other, meanwhile bool }{
		"the same agent": {}, "another agent": {other: true}, "another agent, meanwhile": {other: true, meanwhile: true},
	} {
		now := time.Unix(1e9, 0)
		file := fileOf(t)
		s := newServer()
		one := s.agent(t, "n", file, &now)
		take := func(a *agent, claim types.UID) (err error) {
			for range 3 {
				_ = a.Pass(t.Context())
				if _, err = a.Take(addresses.Claim{UID: claim, Namespace: "ns", Name: string(claim), Pod: string(claim), Literals: []addresses.Literal{{Topology: "t", Step: "s", Address: netip.MustParseAddr("192.0.2.9")}}}, nil); err == nil {
					break
				}
			}
			return err
		}
		if err := take(one, "a"); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		two := one
		if c.other {
			two = s.agent(t, "n", file, &now)
			two.pass()
		}
		one.giveBack("a")
		s.late = true
		if c.meanwhile {
			now = now.Add(time.Minute) // so that it is read again
			s.reading = func(string) { s.reading = nil; _ = one.Pass(t.Context()) }
		} else {
			_ = one.Pass(t.Context())
		}
		if err := take(two, "b"); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if len(s.delayed) == 0 {
			t.Errorf("%s: nothing was deleted", what)
		}
		for _, end := range s.delayed {
			end()
		}
		s.late = false
		if len(s.leases) != 1 {
			t.Errorf("%s: the claim has an address whose lease is ended", what)
		}
		two.giveBack("b")
		two.pass()
		if two.pass(); len(s.leases) > 0 {
			t.Errorf("%s: a lease that nobody needs stays: %v", what, s.leases)
		}
	}
}

// TestMAC holds that one pod of the cluster has a MAC address that its claim sets, as long as the claim lives and across a crash
// of the agent, unless its step allows duplicates; and that messages name the MAC address.
func TestMAC(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := newServer()
	set := []topology.Parameters{{Step: "s", MAC: "02:00:5e:00:00:07"}}
	of := &topology.Topology{Name: "t", Steps: []topology.Step{{Name: "s"}}}
	file := fileOf(t)
	one, two := s.agent(t, "one", file, &now), s.agent(t, "two", fileOf(t), &now)
	take := func(a *agent, claim types.UID) (err error) {
		for range 3 {
			a.pass()
			if _, err = a.Take(addresses.Claim{UID: claim, Namespace: "ns", Name: string(claim), Pod: string(claim), Literals: addresses.Literals(of, set)}, nil); err == nil {
				break
			}
		}
		return err
	}
	if err := take(one, "a"); err != nil {
		t.Fatal(err)
	}
	const want = `step "s" of NetworkTopology "t": pod "b" would have MAC address 02:00:5e:00:00:07, which pod "a" on node "one" has: only one pod can have it at a time: have the claim set another one, or set allowDuplicate: true on the step`
	if err := take(two, "b"); !errors.Is(err, addresses.ErrInUse) || err.Error() != want {
		t.Errorf("on another node: %v, want %s", err, want)
	}
	one = s.agent(t, "one", file, &now)
	if err := take(one, "c"); !errors.Is(err, addresses.ErrInUse) {
		t.Errorf("on the node of the pod that has it, whose agent has crashed: %v", err)
	}
	one = s.agent(t, "one", file, &now) // so that the claim that was refused does not wait for it
	if err := take(one, "a"); err != nil {
		t.Errorf("once more by its own claim: %v", err)
	}
	one.giveBack("a")
	one.pass()
	if err := take(two, "b"); err != nil {
		t.Errorf("after the pod before has ended: %v", err)
	}
	of.Steps[0].AllowDuplicate = true
	if err := take(one, "d"); err != nil {
		t.Errorf("with allowDuplicate: %v", err)
	}
}

// TestLiteralBesideSubnets holds that a literal address which the pool of a network's subnets allocates is refused on the network's
// switch, and not on others, nor elsewhere.
func TestLiteralBesideSubnets(t *testing.T) {
	const blue = "plumbline:layer2:blue"
	now := time.Unix(1e9, 0)
	p := kept("ovn-blue", "192.0.2.0/24")
	p.Annotations = map[string]string{v1alpha1.AnnotationSwitch: blue}
	a := newServer(p).agent(t, "n", fileOf(t), &now)
	a.pass()
	for i, on := range []string{"plumbline:layer2:red", "", blue} {
		claim := addresses.Claim{
			UID: types.UID(fmt.Sprint("c", i)), Namespace: "ns", Name: "c", Pod: fmt.Sprint("web-", i),
			Literals: []addresses.Literal{{Topology: "t", Step: "s", Address: netip.MustParseAddr(fmt.Sprint("192.0.2.", 7+i)), Switch: on}},
		}
		_, err := a.Take(claim, nil)
		if err == nil || strings.Contains(err.Error(), `is allocated to other pods by AddressPool "ovn-blue"`) != (on == blue) {
			t.Errorf("on %q: %v", on, err)
		}
	}
}
