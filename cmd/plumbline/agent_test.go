package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/reconcile/agent"
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
		g := agentFlags{Config: agent.Config{NodeName: "n", NRIIndex: "30", Resync: time.Minute, AttachTimeout: time.Minute}, clusterCIDRs: c.given}
		err := g.check()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.given, err, c.want)
		}
		if out := g.PodNetwork.ClusterCIDRs; err == nil && len(out) != len(c.given) {
			t.Errorf("%v: %v", c.given, out)
		}
	}
}
