package controller

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/plumbline/plumbline/topology/exposure"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestPolicyStatus holds the status of a policy for the sums of reports.
func TestPolicyStatus(t *testing.T) {
	report := func(node string, p ...v1alpha1.PolicyReport) v1alpha1.DeviceExposureReport {
		r := v1alpha1.DeviceExposureReport{Policies: p}
		r.Name = node
		return r
	}
	policy := func(devices, offered, undecided int32, problem string, conflicts ...string) v1alpha1.PolicyReport {
		return v1alpha1.PolicyReport{Name: "p", Generation: 2, Devices: devices, Offered: offered, Undecided: undecided, Problem: problem, Conflicts: conflicts}
	}
	stale := v1alpha1.PolicyReport{Name: "p", Generation: 1, Devices: 7}
	for name, c := range map[string]struct {
		read            exposure.Policy
		reports         []v1alpha1.DeviceExposureReport
		missing         []string
		reason, message string
		devices, nodes  int32
	}{
		"nobody reports": {reason: "Succeeded", message: "decides for 0 devices on 0 nodes; 0 offered"},
		"two nodes": {
			reports: []v1alpha1.DeviceExposureReport{report("b", policy(1, 0, 0, "")), report("a", policy(2, 2, 0, ""))},
			reason:  "Succeeded", message: "decides for 3 devices on 2 nodes; 2 offered", devices: 3, nodes: 2,
		},
		"one has read an earlier generation": {
			reports: []v1alpha1.DeviceExposureReport{report("a", policy(2, 2, 0, "")), report("b", stale)},
			reason:  "Succeeded", message: "decides for 2 devices on 1 node; 2 offered; 1 of 2 nodes have reported on this generation", devices: 2, nodes: 1,
		},
		"fails": {
			reports: []v1alpha1.DeviceExposureReport{report("b", policy(1, 0, 1, "late")), report("a", policy(0, 0, 2, "early"))},
			reason:  "Invalid", message: `3 devices on 2 nodes stay as they were: node "a": early`, devices: 1, nodes: 1,
		},
		"a tie": {
			reports: []v1alpha1.DeviceExposureReport{report("a", policy(0, 0, 2, "x", "r", "q")), report("b", policy(0, 0, 1, "x", "q"))},
			reason:  "Conflict", message: `"p" and "q" and "r" have the same priority 5 and decide differently: 3 devices on 2 nodes stay as they were. Change a priority, or a selector so that they do not overlap`,
		},
		"a pool that does not exist": {
			reports: []v1alpha1.DeviceExposureReport{report("a", policy(2, 2, 0, "")), report("b", stale)}, missing: []string{"one", "two"},
			reason: "NotReady", message: "one\ntwo; 1 of 2 nodes have reported on this generation", devices: 2, nodes: 1,
		},
		"invalid": {read: exposure.Policy{Err: errors.New("wrong")}, reason: "Invalid", message: "not applied, and devices stay as they were: wrong"},
	} {
		o := &v1alpha1.DeviceExposurePolicy{}
		o.Name, o.Generation, o.Spec.Priority = "p", 2, 5
		s := PolicyStatus(o, &c.read, Sum([]v1alpha1.DeviceExposurePolicy{*o}, c.reports)["p"], c.missing)
		ready := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady)
		if ready.Reason != c.reason || ready.Message != c.message || s.Devices != c.devices || s.Nodes != c.nodes {
			t.Errorf("%s: %d devices, %d nodes, %s: %s", name, s.Devices, s.Nodes, ready.Reason, ready.Message)
		}
		if valid := meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionValid); valid != (c.read.Err == nil) {
			t.Errorf("%s: valid %v", name, valid)
		}
	}
}
