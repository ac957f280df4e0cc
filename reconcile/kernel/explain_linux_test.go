package kernel

import (
	"errors"
	"fmt"
	"io/fs"
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

// TestExplainSysctl holds what is said of a value that the kernel does not take, and of a sysctl that no pod can have otherwise.
func TestExplainSysctl(t *testing.T) {
	for _, c := range []struct {
		op   string
		err  error
		kind fault.Kind
		want string
	}{
		{"write", unix.EINVAL, fault.Invalid, `value "fast" is refused: invalid argument`},
		{"write", unix.ENOENT, fault.Unsupported, `the kernel does not know "fast": load its module on the node, or write another value: no such file or directory`},
		{"write", unix.EPERM, fault.Unsupported, `a pod may not have "fast": permit it on the node in net.ipv4.tcp_allowed_congestion_control, or write another value: operation not permitted`},
		{"open", unix.ENOENT, fault.Unsupported, `this network namespace has no such sysctl: no such file or directory`},
		{"open", unix.EACCES, fault.Unsupported, `the host alone can change it: set it on the node: permission denied`},
	} {
		o := netstate.Sysctl{Path: "net/ipv4/tcp_congestion_control", Value: new("fast")}
		err := explainSysctl(o, &fs.PathError{Op: c.op, Path: "/proc/sys/" + o.Path, Err: c.err})
		if fault.Of(err) != c.kind || err.Error() != c.want {
			t.Errorf("%s, %v: %v: %v; want %q", c.op, c.err, fault.Of(err), err, c.want)
		}
	}
}
