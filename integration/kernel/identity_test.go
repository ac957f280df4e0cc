package kernel

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

const movedSteps = `
    - {name: vf, type: sriov, config: {vlan: 100, mac: "02:00:00:00:00:0a", mtu: 2000}}
`

// movedFunction is a pod with one virtual function.
var movedFunction = scenario{name: "function", devices: map[string]string{"vf": "enp3s0f0/2"}, steps: movedSteps, edited: movedSteps}

// TestForgedIdentity: whatever a pod writes on its links, its function returns to the host
// unchanged, and nothing else does.
func TestForgedIdentity(t *testing.T) {
	if !hasCards() {
		return // no PCI there
	}
	const disown = "$ip link set net1 alias plumbline:nobody; "
	for _, tc := range effort.Sample(t, 2, []struct{ name, pod string }{
		{"alias", disown},
		{"tap with its alias", disown + `modprobe tun; ip netns exec $NS ip tuntap add dev evil mode tap; $ip link set evil up; $ip link set evil alias plumbline:$VF`},
		{"veth with its alias", disown + `$ip link add evil type veth peer name far; $ip link set evil up alias plumbline:$VF; $ip link set far up`},
		{"dummy with its name", `$ip link set net1 down; $ip link set net1 name hidden; $ip link add net1 type dummy; $ip link set net1 up`},
		{"names of the host", `$ip link property add dev net1 altname enp3s0f1; $ip link property add dev net1 altname other`},
	}) {
		for _, end := range []string{"release", "death"} {
			t.Run(tc.name+"/"+end, func(t *testing.T) {
				s := movedFunction.fixture(t)
				machine := s.machine()
				s.prepare("release")
				s.run(strings.ReplaceAll(tc.pod, "$VF", s.sandbox.Given["vf"].Device))
				if end == "death" {
					deleteNetns(s.path)
				}
				if _, err := s.undisturbed.AwaitRelease(ctxFor(t), s.sandbox.ID); err != nil {
					t.Fatal(err)
				}
				s.mustEqual(s.home, "", "after release")
				if now := s.machine(); now != machine {
					t.Errorf("the host was\n%sand is\n%s", machine, now)
				}
			})
		}
	}
}

// TestHiddenInNestedNamespace: a pod moves the function into a namespace of its own. A
// release reports that it is absent, and completes when that namespace has ended, under any
// name of the function.
func TestHiddenInNestedNamespace(t *testing.T) {
	if !hasCards() {
		return // no PCI there
	}
	s := movedFunction.fixture(t)
	machine := s.machine()
	s.prepare("release")
	s.run(`$ip link set net1 netns $OTHER; ip -n $OTHER link set net1 name enp3s0f1 alias plumbline:nobody; ip -n $OTHER link property add dev enp3s0f1 altname hidden`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := s.undisturbed.Release(ctx, s.sandbox.ID); err == nil {
		t.Error("released although the function is away")
	}
	s.run("ip netns delete $OTHER")
	if _, err := s.undisturbed.AwaitRelease(ctxFor(t), s.sandbox.ID); err != nil {
		t.Fatal(err)
	}
	s.mustEqual(s.home, "", "after release")
	if now := s.machine(); now != machine {
		t.Errorf("the host was\n%sand is\n%s", machine, now)
	}
}

// exchanged runs a script before the first change that brings a device to the
// host, after that was planned.
type exchanged struct {
	faulty
	script func()
	done   *bool
}

func (e exchanged) Apply(ctx context.Context, c netstate.Change) error {
	if d, ok := c.After.(netstate.Device); ok && !*e.done && d.At != nil && netstate.OnHost(*d.At) {
		*e.done = true
		e.script()
		err := e.Domain.Apply(ctx, c)
		if fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), "another link was put in the device's place") {
			return fmt.Errorf("the exchange was not noticed: %w", err)
		}
		return err
	}
	return e.Domain.Apply(ctx, c)
}

// TestExchangedWhileMoved: between the observation and the move the pod puts a link of
// its own at the function's index. It is sent back; the host has never had it
// under a name it knows, nor up.
func TestExchangedWhileMoved(t *testing.T) {
	if !hasCards() {
		return // no PCI there
	}
	s := movedFunction.fixture(t)
	machine := s.machine()
	s.prepare("release")
	index := s.state(s.path).LinksWhere(func(l netstate.Link) bool { return l.Name == "net1" })[0].Index
	done := false
	r := s.engine(func(d reconcile.Domain) reconcile.Domain {
		return exchanged{faulty{Domain: d}, func() {
			s.run(fmt.Sprintf(`$ip link set net1 netns $OTHER; $ip link add index %d name net1 type veth peer name far; $ip link set net1 up; $ip link set far up; ip -n $OTHER link set net1 name back netns $NS`, index))
		}, &done}
	})
	if _, err := r.Release(ctxFor(t), s.sandbox.ID); err != nil {
		t.Fatal(err)
	}
	if !done {
		t.Fatal("no device came to the host")
	}
	s.mustEqual(s.home, "", "after release")
	if now := s.machine(); now != machine {
		t.Errorf("the host was\n%sand is\n%s", machine, now)
	}
	kinds := s.state(s.path).LinksWhere(func(l netstate.Link) bool { return l.LinkKind == "veth" })
	if len(kinds) != 2 || !slices.ContainsFunc(kinds, func(l netstate.Link) bool { return l.Name == "far" }) {
		t.Errorf("the pod has the links %v", kinds)
	}
}
