package controller

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

// Outcome is the result of a pass over a topology.
type Outcome struct {
	Steps   int              // of the topology, when it is valid
	Invalid error            // why it is not valid
	Unknown []*topology.Step // steps no node can run
	Clashes []string         // messages about names it wants and others have
	Pools   []string         // messages about the AddressPools of subnets that its pods wait for
	Err     error            // an internal failure; the pass is retried
	Classes int              // DeviceClasses the topology has now
	Unnamed []string         // steps whose class the API server has written without its extended resource name
	Use     Use
	// NotReady returns for how long a node has not been ready, so that nothing can be updated on it; 0 if it
	// is. Nil is of none.
	NotReady func(node string) time.Duration
	// Templates is nil if the pass ended before them.
	Templates *Templates
	// Shares is nil if the pass ended before them.
	Shares *Shares
}

// The reasons of conditions that are not fault kinds.
const (
	reasonSucceeded = "Succeeded"
	reasonUsed      = "Claims"
	reasonUnused    = "Unused"
	// reasonNoDevice: there is nothing that a claim could request.
	reasonNoDevice = "NoDevice"
)

// Bounds of the API, and of what people can read.
const (
	maxMessage = 8 << 10
	maxNote    = 1 << 10 // of an Event
	maxNames   = 5
)

// StatusOf returns the status of a topology. A condition whose status is unchanged keeps
// its transition time.
func StatusOf(o *v1alpha1.NetworkTopology, found Outcome) v1alpha1.NetworkTopologyStatus {
	s := *o.Status.DeepCopy()
	s.ObservedGeneration = o.Generation
	s.DeviceClasses = int32(found.Classes)
	s.Sandboxes = int32(found.Use.Pods)
	s.Degraded = int32(found.Use.Degraded)
	set := func(c metav1.Condition) metav1.Condition {
		c.ObservedGeneration = o.Generation
		c.Message = excerpt.Lines(c.Message, maxMessage)
		meta.SetStatusCondition(&s.Conditions, c)
		return c
	}
	valid := set(validCondition(found))
	programmed := set(programming(o, found))
	ready := metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: reasonSucceeded,
		Message: programmed.Message,
	}
	for _, c := range []metav1.Condition{programmed, valid} { // the first problem is reported
		if c.Status != metav1.ConditionTrue {
			ready.Status, ready.Reason, ready.Message = c.Status, c.Reason, c.Message
		}
	}
	set(ready)
	set(usage(o, found.Use))
	switch {
	case found.Templates == nil: // they stay as they are
	case found.Templates.Wanted:
		set(templatesCondition(*found.Templates))
	default:
		meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionClaimTemplates)
	}
	switch {
	case found.Shares == nil: // as before
	case found.Shares.Steps > 0:
		set(found.Shares.condition())
	default:
		meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionShared)
	}
	rollOut(o, found, &s)
	return s
}

func validCondition(found Outcome) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionValid, Status: metav1.ConditionTrue, Reason: reasonSucceeded,
		Message: excerpt.Count(found.Steps, "step"),
	}
	if found.Invalid != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, string(fault.Invalid), found.Invalid.Error()
	}
	return c
}

func programming(o *v1alpha1.NetworkTopology, found Outcome) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionFalse}
	stay := "no DeviceClass is created"
	if found.Classes > 0 {
		stay = "the DeviceClasses are not changed"
	}
	switch {
	case found.Invalid != nil:
		c.Reason, c.Message = string(fault.Invalid), stay+", as the topology is not valid"
	case len(found.Unknown) > 0:
		lines := []string{stay + ":"}
		for _, s := range found.Unknown {
			lines = append(lines, fmt.Sprintf(
				"no node can run step %q: type %q is only described by a CNIPluginSchema, and not built into plumbline", s.Name, s.Type))
		}
		c.Reason, c.Message = string(fault.Unsupported), strings.Join(lines, "\n")
	case len(found.Clashes) > 0:
		c.Reason, c.Message = string(fault.Conflict), stay+":\n"+strings.Join(found.Clashes, "\n")
	case len(found.Pools) > 0:
		c.Reason, c.Message = string(fault.Conflict), "new pods wait for their addresses:\n"+strings.Join(found.Pools, "\n")
	case found.Err != nil:
		c.Reason, c.Message = string(fault.Internal), found.Err.Error()
	case o.Spec.Role != "":
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonSucceeded,
			"agents with --pod-network give it to new pods on the nodes that it selects"
	case found.Classes == 0:
		c.Reason, c.Message = reasonNoDevice, validity.NoDevice
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonSucceeded, excerpt.Count(found.Classes, "DeviceClass")
		for _, step := range found.Unnamed {
			c.Message += fmt.Sprintf("\nstep %q: the API server has dropped extendedResourceName (feature DRAExtendedResource), "+
				"so pods get its device by a claim only", step)
		}
	}
	return c
}

func usage(o *v1alpha1.NetworkTopology, u Use) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionInUse, Status: metav1.ConditionFalse, Reason: reasonUnused,
		Message: "no allocated claim uses it",
	}
	if u.Claims == 0 {
		return c
	}
	c.Status, c.Reason = metav1.ConditionTrue, reasonUsed
	// Their names are only for those who may read the claims: everybody who uses a topology
	// can read it.
	c.Message = fmt.Sprintf("%s and %s", excerpt.Count(u.Claims, "claim"), excerpt.Count(u.Pods, "pod"))
	if !o.DeletionTimestamp.IsZero() {
		c.Message += ". Pods keep the network they have"
		if u.Unprepared > 0 {
			c.Message += fmt.Sprintf("; %s not prepared yet: the finalizer keeps the topology until %s",
				excerpt.Count(u.Unprepared, "claim"), o.DeletionTimestamp.Add(maxGrace).UTC().Format(time.RFC3339))
		}
	}
	return c
}
