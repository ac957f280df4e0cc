package kernel

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestMACOfMACVLANTaken holds that the refusal of a MAC names it and the master.
func TestMACOfMACVLANTaken(t *testing.T) {
	err := linkKinds["macvlan"].explain(unix.EADDRINUSE, netstate.Link{LinkKind: "macvlan", Parent: new("host:eth1"), MAC: new("02:00:00:00:00:01")}, netstate.Link{})
	want := `"eth1" on the host or another macvlan of it, perhaps of another pod, has mac 02:00:00:00:00:01: choose another: address already in use`
	if err.Error() != want || fault.Of(err) != fault.Conflict || !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
