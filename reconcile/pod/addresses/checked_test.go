package addresses

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// onlyNode is an API server with the leases of one node.
type onlyNode map[string]*v1alpha1.AddressLease

func (onlyNode) NodeUID(context.Context) (string, error) { return "u", nil }
func (onlyNode) Pools() ([]v1alpha1.AddressPool, error)  { return nil, nil }
func (onlyNode) Wakes(table.Wake) func()                 { return nil }
func (n onlyNode) Own() (out []v1alpha1.AddressLease, _ error) {
	for _, l := range n {
		out = append(out, *l)
	}
	return out, nil
}

func (n onlyNode) Get(_ context.Context, name string) (*v1alpha1.AddressLease, error) {
	return n[name].DeepCopy(), nil
}
func (onlyNode) Taken(context.Context, string) (map[string]bool, error) { return nil, nil }
func (onlyNode) KeptFor(context.Context, string, string) ([]v1alpha1.AddressLease, error) {
	return nil, nil
}

func (n onlyNode) Create(_ context.Context, l *v1alpha1.AddressLease) (*v1alpha1.AddressLease, error) {
	l.UID = types.UID(l.Name)
	n[l.Name] = l.DeepCopy()
	return l, nil
}

func (n onlyNode) Update(_ context.Context, l *v1alpha1.AddressLease) (*v1alpha1.AddressLease, error) {
	n[l.Name] = l.DeepCopy()
	return l, nil
}

func (n onlyNode) Delete(_ context.Context, l *v1alpha1.AddressLease) error {
	delete(n, l.Name)
	return nil
}

// TestForgotten: nothing is kept of leases that the node has given up. Claims may have any number of MAC addresses, one after the other.
func TestForgotten(t *testing.T) {
	now, leases := time.Unix(1e9, 0), onlyNode{}
	a, err := Open(Options{
		Leases: leases, NodeName: "n", File: filepath.Join(t.TempDir(), "addresses"), Recorded: func() []addresspool.Grant { return nil },
		Ended: func(context.Context, addresspool.Grant) (bool, error) { return false, nil },
		Log:   slog.New(slog.DiscardHandler), Now: func() time.Time { return now },
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range byte(20) {
		c := Claim{UID: types.UID(fmt.Sprint("c", i)), Namespace: "ns", Name: "c", Pod: "p", Literals: []Literal{{Topology: "t", Step: "s", Address: addresspool.OfMAC(net.HardwareAddr{2, 0, 0, 0, 0, i})}}}
		for range 3 {
			if _, err = a.Take(c, nil); err == nil {
				break
			}
			if err := a.Pass(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if n := len(a.checked); n < 1 || n > 3 {
			t.Errorf("claim %d: %d leases are known, and the node has %d", i, n, len(leases))
		}
		if err := a.GiveBack(c.UID); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Minute)
		for range 2 {
			if err := a.Pass(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(leases) > 0 {
		t.Errorf("%d leases are left", len(leases))
	}
}
