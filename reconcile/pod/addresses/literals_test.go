package addresses_test

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/topology/addresspool"
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
