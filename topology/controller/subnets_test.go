package controller_test

import (
	"cmp"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/controller"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestJoinPool holds what becomes of the pool of a network's subnets when a topology has the network, too, or has other subnets.
func TestJoinPool(t *testing.T) {
	subnets := func(list ...string) topology.IPAM { return topology.IPAM{Pool: "ovn-blue", Subnets: list} }
	excluding := func(list ...string) topology.IPAM {
		return topology.IPAM{Pool: "ovn-blue", Subnets: []string{"10.0.0.0/24"}, ExcludeCIDRs: list}
	}
	for name, c := range map[string]struct {
		sharing string // topologies with its subnets
		want    topology.IPAM
		deleted bool
		label   string // "" for its name
		message string
		becomes string // what it excludes
	}{
		"its own":               {want: subnets("10.0.0.0/24"), becomes: "10.0.0.9/32"},
		"more is excluded":      {want: excluding("10.0.0.0/28", "10.0.0.9/32"), becomes: "10.0.0.9/32 10.0.0.0/28"},
		"less is excluded":      {want: excluding(), becomes: "10.0.0.9/32"},
		"all is excluded":       {want: excluding("10.0.0.0/24"), message: `excludeSubnets: together with those of other topologies on the network: AddressPool "ovn-blue": spec.subnets[0]: "10.0.0.0/24" has no address left`},
		"others, one":           {sharing: "b", want: subnets("10.1.0.0/24"), message: `subnets: AddressPool "ovn-blue" of this network has 10.0.0.0/24, and the step says 10.1.0.0/24: the network is also in NetworkTopology "b": write`},
		"others, two":           {sharing: "b c", want: subnets("10.0.0.0/24", "fd00::/64"), message: `and the step says 10.0.0.0/24 and fd00::/64: the network is also in NetworkTopology "b", "c": write`},
		"others, many":          {sharing: "b c d e f g h i", want: subnets("10.1.0.0/24"), message: `"b", "c", "d", "e", "f" and 3 more: write`},
		"edited":                {want: subnets("10.0.0.0/23"), message: `has 10.0.0.0/24, and the step says 10.0.0.0/23: it is recreated once no pod has an address from it`},
		"being deleted":         {want: subnets("10.0.0.0/24"), deleted: true, message: "is being deleted: this ends once no pod has an address from it"},
		"of a user":             {label: "none", want: excluding("10.0.0.9/32"), becomes: "10.0.0.9/32"},
		"of a user, other":      {label: "none", want: subnets("10.1.0.0/24"), message: "plumbline did not create it, and does not change it"},
		"of a user, allocating": {label: "none", want: excluding("10.0.0.0/28"), message: `excludeSubnets: AddressPool "ovn-blue" of this network does not exclude "10.0.0.0/28" of 10.0.0.0/24: plumbline did not create it`},
		"a copy of a user":      {label: "ovn-red", want: subnets("10.1.0.0/24"), message: "plumbline did not create it"},
	} {
		t.Run(name, func(t *testing.T) {
			have := addresspool.OfSubnets(excluding("10.0.0.9/32"))
			have.Labels[v1alpha1.LabelSubnets] = cmp.Or(c.label, have.Name)
			if c.deleted {
				have.DeletionTimestamp = new(metav1.Now())
			}
			message, err := controller.JoinPool(have, c.want, func() (quoted []string, err error) {
				for name := range strings.FieldsSeq(c.sharing) {
					quoted = append(quoted, strconv.Quote(name))
				}
				return quoted, nil
			})
			if err != nil || !strings.Contains(message, c.message) || (message == "") != (c.message == "") {
				t.Errorf("%v, %s\nwant %s", err, message, c.message)
			}
			if becomes := strings.Join(have.Spec.Exclude, " "); becomes != cmp.Or(c.becomes, "10.0.0.9/32") {
				t.Errorf("it excludes %s, want %s", becomes, c.becomes)
			}
		})
	}
}

// TestPoolMessages holds that a topology is not Ready while the pool of its subnets is not as it says.
func TestPoolMessages(t *testing.T) {
	s := controller.StatusOf(topologyOf(), controller.Outcome{Steps: 1, Classes: 1, Pools: []string{`step "net1": config.subnets: other`}})
	for _, c := range s.Conditions {
		if (c.Type == v1alpha1.ConditionReady || c.Type == v1alpha1.ConditionProgrammed) &&
			(c.Status != metav1.ConditionFalse || c.Reason != "Conflict" || c.Message != "new pods wait for their addresses:\nstep \"net1\": config.subnets: other") {
			t.Errorf("%+v", c)
		}
	}
}
