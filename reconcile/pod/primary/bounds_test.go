package primary

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/cnisocket"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestFailingAdds: pods that fail by their own spec, however often, take no address from others. One that
// was never on a link does not rest. If the others all rest, that which has rested the longest is given, and
// none that a pod has.
func TestFailingAdds(t *testing.T) {
	refused := fault.New(fault.Invalid, errors.New("portMappings: has 257 ports"))
	link := []netstate.Change{{After: netstate.Link{Name: "eth0"}}}
	for what, fail := range map[string]func(reconcile.Sandbox) ([]netstate.Change, error){
		"refused by its plan": func(reconcile.Sandbox) ([]netstate.Change, error) { return nil, refused },
		"rolled back":         func(reconcile.Sandbox) ([]netstate.Change, error) { return link, refused },
		"rolled back with an address": func(sb reconcile.Sandbox) ([]netstate.Change, error) {
			given := sb.Given["eth"].Addresses[0].String()
			return append(link, netstate.Change{After: netstate.Addr{Link: "eth0", Address: given}}), refused
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := newServer(t)
			works := s.Network
			s.Network = func() (Network, error) {
				n, err := works()
				n.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/28")} // 13 pods
				return n, err
			}
			s.add("living")
			of := func(container string) netip.Addr {
				t.Helper()
				rec, known, err := s.book.Record(reconcile.IDOfPrimary(container, "eth0", "pods"))
				if err != nil || !known {
					t.Fatalf("no record of %q: %v", container, err)
				}
				return rec.Sandbox.Given["eth"].Addresses[0].Addr()
			}
			for round := range 3 {
				s.book.fail = fail
				for i := range 40 {
					if err := s.call(cnisocket.Add, fmt.Sprintf("bad-%d-%d", round, i), ""); !strings.Contains(err, "257 ports") {
						t.Fatalf("ADD %d of a pod that is refused: %q", i, err)
					}
				}
				s.book.fail = nil
				good := fmt.Sprintf("good-%d", round)
				if err := s.call(cnisocket.Add, good, ""); err != "" {
					t.Fatalf("another pod, after 40 that were refused: %s", err)
				}
				if of(good) == of("living") {
					t.Fatalf("the address %s of a pod that runs was given to another", of(good))
				}
			}
			// All addresses that pods had on a link rest; the pod that ended first gives its own.
			s = newServer(t)
			s.Network = func() (Network, error) {
				n, err := works()
				n.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/29")} // 5 pods
				return n, err
			}
			s.add("a", "b", "c", "d", "e")
			first := of("c")
			for _, c := range []string{"c", "a", "e"} {
				if err := s.call(cnisocket.Del, c, ""); err != "" {
					t.Fatal(err)
				}
				s.now = s.now.Add(time.Second)
			}
			if err := s.call(cnisocket.Add, "f", ""); err != "" {
				t.Errorf("a pod while all free addresses rest: %s", err)
			} else if got := of("f"); got != first {
				t.Errorf("it has %s, and %s has rested longer", got, first)
			}
		})
	}
}

// TestEndsWithFullDisk: a pod ends although what it had cannot be written: its DEL succeeds, and the addresses are given back
// when they can be.
func TestEndsWithFullDisk(t *testing.T) {
	for fails := range 3 { // all writes, or the first or second one
		s := newServer(t)
		s.add("a", "b")
		n := 0
		s.sync = func(*os.File) error {
			if n++; fails == 0 || n == fails {
				return syscall.ENOSPC
			}
			return nil
		}
		for range 2 { // a runtime repeats it
			if err := s.call(cnisocket.Del, "a", ""); err != "" {
				t.Errorf("write %d fails: DEL: %s", fails, err)
			}
		}
		if records, _ := s.have(); records != "b" {
			t.Errorf("write %d fails: records of %q are left", fails, records)
		}
		s.sync = nil
		for range 2 {
			s.sweep(t.Context())
			s.now = s.now.Add(orphanedFor)
		}
		s.want("swept", "b", "b")
	}
}

// TestRefusedBeforeAnything: what no node would accept of a pod is refused before an address is taken and a file is written.
func TestRefusedBeforeAnything(t *testing.T) {
	s := newServer(t)
	s.Vet = func(_ context.Context, t *topology.Topology) ([]string, error) {
		if ports, _ := t.Steps[0].Config["portMappings"].([]any); len(ports) > 1 {
			return nil, fault.New(fault.Invalid, errors.New("too many ports"))
		}
		return nil, nil
	}
	s.sync = func(f *os.File) error {
		t.Errorf("%s is written", f.Name())
		return nil
	}
	port := `{"hostPort": 8080, "containerPort": 80}`
	if err := s.call(cnisocket.Add, "a", `, "runtimeConfig": {"portMappings": [`+port+`, `+port+`]}`); !strings.Contains(err, "too many ports") {
		t.Errorf("ADD: %q", err)
	}
	s.want("refused", "", "")
	s.sync = nil
	if err := s.call(cnisocket.Add, "a", `, "runtimeConfig": {"portMappings": [`+port+`]}`); err != "" {
		t.Errorf("ADD: %s", err)
	}
	s.want("accepted", "a", "a")
}

// TestEndsWithoutAPIServer: a pod ends, and a call for it is answered once more, although the agent does not know what the
// API server knows: the network of the node's pods, their pool and their CIDRs.
func TestEndsWithoutAPIServer(t *testing.T) {
	for what, network := range map[string]func() (Network, error){
		"it was never reached":  func() (Network, error) { return Network{}, errors.New("no answer of the API server") },
		"the topology is gone":  func() (Network, error) { return Network{}, fault.New(fault.NotReady, errors.New("no topology")) },
		"it has no CIDRs":       func() (Network, error) { return Network{Topology: &topology.Topology{Name: "pods"}}, nil },
		"it is another network": func() (Network, error) { return Network{Topology: &topology.Topology{Name: "other"}}, nil },
	} {
		s := newServer(t)
		s.add("a", "b")
		s.Network = network
		for range 2 { // a runtime repeats it
			if err := s.call(cnisocket.Del, "a", ""); err != "" {
				t.Errorf("%s: DEL: %s", what, err)
			}
		}
		s.want(what, "b", "b")
	}
}
