package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/reconcile/pod/primary"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
)

func TestClusterCIDRs(t *testing.T) {
	var many []string
	for i := range maxClusterCIDRs + 1 {
		many = append(many, fmt.Sprintf("10.%d.0.0/16", i))
	}
	for _, c := range []struct {
		given []string
		want  string // of the error
	}{
		{nil, ""},
		{[]string{"10.244.0.0/16", "fd00:244::/48"}, ""},
		{[]string{"10.244.0.1/16"}, `--cluster-cidr: "10.244.0.1/16" is not a CIDR`},
		{[]string{"10.244.0.0"}, `--cluster-cidr: "10.244.0.0" is not a CIDR`},
		{many, "--cluster-cidr: has 17 CIDRs, and can have 16"},
	} {
		g := agent{nodeName: "n", nriIndex: "30", resync: time.Minute, attachTimeout: time.Minute, podNetwork: podNetwork{clusterCIDRs: c.given}}
		err := g.check()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.given, err, c.want)
		}
		if out, _ := g.podNetwork.clusters(); err == nil && len(out) != len(c.given) {
			t.Errorf("%v: %v", c.given, out)
		}
	}
}

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
	s := &serving{addresses: a}
	if n := s.podCIDRs(); n.Used || !n.Known {
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
	if n := s.podCIDRs(); n.Used || !n.Known {
		t.Errorf("with a claim's addresses: %+v", n)
	}
	take(reconcile.OwnerOfPrimary("container", "eth0"))
	if n := s.podCIDRs(); n.Used || n.Known {
		t.Errorf("with a pod: %+v", n)
	}
	// With the flag, those pods keep their routes, whatever the topologies say.
	s.agent = &agent{podNetwork: podNetwork{clusterCIDRs: []string{"10.244.0.0/16"}}}
	s.pods = &podServing{follower: primary.NewFollower(primary.FollowerOptions{File: filepath.Join(t.TempDir(), "primary")})}
	if n := s.podCIDRs(); !n.Used || !slices.Equal(n.ClusterCIDRs, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}) {
		t.Errorf("with a pod and the flag: %+v", n)
	}
}
