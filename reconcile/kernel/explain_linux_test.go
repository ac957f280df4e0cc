package kernel

import (
	"errors"
	"fmt"
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

// TestGuardsUnsupported holds that the advice on a kernel without nftables of bridges works: a bridge that plumbline creates has
// guards in any case, which know the addresses of each port. The kernel answers each message of a transaction.
func TestGuardsUnsupported(t *testing.T) {
	err := explainGuards(errors.Join(fmt.Errorf("conn.Receive: %w", unix.EOPNOTSUPP), unix.EOPNOTSUPP, unix.EOPNOTSUPP))
	want := "the kernel has no nftables for bridges, which guard the ports: load the modules nf_tables and nft_meta_bridge, or create the bridge on the node and set macspoofchk: false and raGuard: false in the step: operation not supported"
	if err.Error() != want || fault.Of(err) != fault.Unsupported {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
