package controller_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/controller"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestJoinPool holds what becomes of the pool of a network's subnets when a topology has the network, too, or has other subnets.
func TestJoinPool(t *testing.T) {
	of := func(name string) *v1alpha1.NetworkTopology {
		o := &v1alpha1.NetworkTopology{}
		o.Name, o.UID = name, types.UID("uid-"+name)
		return o
	}
	owner := func(names ...string) (out []metav1.OwnerReference) {
		for _, n := range names {
			out = append(out, metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.Kind, Name: n, UID: types.UID("uid-" + n)})
		}
		return out
	}
	subnets := func(list ...string) topology.IPAM { return topology.IPAM{Pool: "ovn-blue", Subnets: list} }
	excluding := func(list ...string) topology.IPAM {
		return topology.IPAM{Pool: "ovn-blue", Subnets: []string{"10.0.0.0/24"}, ExcludeCIDRs: list}
	}
	for name, c := range map[string]struct {
		owners    []string
		want      topology.IPAM
		used      int64
		deleted   bool
		end       bool
		message   string
		becomes   string // owners and exclude
		left      string // owners of one that is refused; "" for the same ones
		otherKind bool
	}{
		"its own":               {owners: []string{"a"}, want: subnets("10.0.0.0/24"), becomes: "a [10.0.0.9/32]"},
		"another joins":         {owners: []string{"b"}, want: subnets("10.0.0.0/24"), becomes: "b,a [10.0.0.9/32]"},
		"more is excluded":      {owners: []string{"a", "b"}, want: excluding("10.0.0.0/28", "10.0.0.9/32"), becomes: "a,b [10.0.0.9/32 10.0.0.0/28]"},
		"less is excluded":      {owners: []string{"a"}, want: excluding(), becomes: "a [10.0.0.9/32]"},
		"all is excluded":       {owners: []string{"a"}, want: excluding("10.0.0.0/24"), message: `excludeSubnets: with those of all topologies of the network: AddressPool "ovn-blue": spec.subnets[0]: "10.0.0.0/24" has no address left`},
		"others, one owner":     {owners: []string{"b"}, want: subnets("10.1.0.0/24"), message: `subnets: AddressPool "ovn-blue" of this network has 10.0.0.0/24, and the step says 10.1.0.0/24: the network is also in NetworkTopology "b": write`},
		"others, owners":        {owners: []string{"a", "c", "b"}, want: subnets("10.0.0.0/24", "fd00::/64"), message: `and the step says 10.0.0.0/24 and fd00::/64: the network is also in NetworkTopology "c", "b": write`, left: "c,b"},
		"others, many owners":   {owners: strings.Split("b c d e f g h i", " "), want: subnets("10.1.0.0/24"), message: `"b", "c", "d", "e", "f" and 3 more: write`},
		"edited, used":          {owners: []string{"a"}, want: subnets("10.0.0.0/23"), used: 2, message: `has 10.0.0.0/24, and the step says 10.0.0.0/23: 2 of its addresses are in use; it is recreated when none is`},
		"edited, not used":      {owners: []string{"a"}, want: subnets("10.0.0.0/23"), end: true, message: "it is recreated"},
		"being deleted":         {owners: []string{"a"}, want: subnets("10.0.0.0/24"), deleted: true, message: "is being deleted: this ends when no pod has an address of it"},
		"of a user":             {want: excluding("10.0.0.9/32"), becomes: " [10.0.0.9/32]"},
		"of a user, other":      {want: subnets("10.1.0.0/24"), message: "plumbline did not create it, and does not change it"},
		"of a user, allocating": {want: excluding("10.0.0.0/28"), message: `excludeSubnets: AddressPool "ovn-blue" of this network does not exclude "10.0.0.0/28" of 10.0.0.0/24: plumbline did not create it`},
		"of another kind":       {owners: []string{"a"}, otherKind: true, want: subnets("10.1.0.0/24"), message: "plumbline did not create it"},
	} {
		t.Run(name, func(t *testing.T) {
			have := addresspool.OfSubnets(excluding("10.0.0.9/32"))
			have.OwnerReferences, have.Status.Used = owner(c.owners...), c.used
			for i := range have.OwnerReferences {
				if c.otherKind {
					have.OwnerReferences[i].Kind = "ConfigMap"
				}
			}
			if c.deleted {
				have.DeletionTimestamp = new(metav1.Now())
			}
			end, message := controller.JoinPool(have, of("a"), c.want)
			if end != c.end || !strings.Contains(message, c.message) || (message == "") != (c.message == "") {
				t.Errorf("end %t: %s\nwant %t: %s", end, message, c.end, c.message)
			}
			var names []string
			for _, r := range have.OwnerReferences {
				names = append(names, r.Name)
				if r.Controller != nil || r.BlockOwnerDeletion != nil {
					t.Errorf("owner %+v is the only one", r)
				}
			}
			if becomes := fmt.Sprintf("%s %v", strings.Join(names, ","), have.Spec.Exclude); c.message == "" && becomes != c.becomes {
				t.Errorf("it becomes %s, want %s", becomes, c.becomes)
			} else if c.message != "" && strings.Join(names, ",") != cmp.Or(c.left, strings.Join(c.owners, ",")) {
				t.Errorf("refused, and owned by %s", names)
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
