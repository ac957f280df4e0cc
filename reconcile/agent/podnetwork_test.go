package agent

import (
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/reconcile/pod/primary"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
)

// TestPodCIDRsWithoutTheFlag: an agent that gives pods no network removes routes to other nodes'
// pods, but not while pods of an earlier agent have addresses of the pod CIDRs.
func TestPodCIDRsWithoutTheFlag(t *testing.T) {
	a, err := addresses.Open(addresses.Options{
		NodeName: "n", File: filepath.Join(t.TempDir(), "addresses"), Recorded: func() []addresspool.Grant { return nil },
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Now: time.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := podCIDRs(nil, a, nil); n.Used || !n.Known {
		t.Errorf("without pods: %+v", n)
	}
	layout, err := addresspool.Local(topology.IPAM{IPRange: topology.IPRange{Subnet: "10.244.1.0/24"}})
	if err != nil {
		t.Fatal(err)
	}
	take := func(owner string) {
		t.Helper()
		if _, err := a.Take(addresses.Claim{UID: types.UID(owner)}, []addresses.Want{{Topology: "pods", Step: "eth", Pool: topology.LocalPool, Local: layout}}); err != nil {
			t.Fatal(err)
		}
	}
	take("claim-of-host-local")
	if n := podCIDRs(nil, a, nil); n.Used || !n.Known {
		t.Errorf("with a claim's addresses: %+v", n)
	}
	take(reconcile.OwnerOfPrimary("container", "eth0"))
	if n := podCIDRs(nil, a, nil); n.Used || n.Known {
		t.Errorf("with a pod: %+v", n)
	}
	// With the flag, those pods keep their routes, whatever the topologies say.
	clusters := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	pods := primary.NewFollower(primary.FollowerOptions{File: filepath.Join(t.TempDir(), "primary")})
	if n := podCIDRs(pods, a, clusters); !n.Used || !slices.Equal(n.ClusterCIDRs, clusters) {
		t.Errorf("with a pod and the flag: %+v", n)
	}
}
