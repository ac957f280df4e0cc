package attachment

import (
	"errors"
	"fmt"
	"slices"

	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/gate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// openGate opens the gate of a claim for a sandbox, with the device nodes that its steps have given, and what its topologies export. What
// is not known, or not true, keeps it closed.
func (k *Keeper) openGate(e *claims.Entry, sandbox, netns string) error {
	var gives gate.Gives
	for i := range e.Topologies {
		if t := &e.Topologies[i]; !t.HasNodes() && !t.Exports() {
			continue
		}
		rec, known, err := k.Engine.Record(e.SandboxID(sandbox, &e.Topologies[i]))
		if err != nil || !known {
			return errors.Join(err, fault.New(fault.NotReady, fmt.Errorf("topology %q: the results of its steps are not recorded", e.Topologies[i].Object.Name)))
		}
		for _, step := range rec.Results {
			if step.Result.Devices == nil {
				continue
			}
			for _, n := range step.Result.Devices.DeviceNodes {
				if !slices.Contains(gives.Nodes, n) { // all groups share one node of VFIO
					gives.Nodes = append(gives.Nodes, n)
				}
			}
		}
	}
	variables, err := k.exported(e, sandbox)
	if err != nil {
		return err
	}
	for _, v := range variables {
		gives.Env = append(gives.Env, v.Name+"="+v.Value)
	}
	return k.Gate.Open(e.UID, sandbox, netns, gives)
}

// exported returns the variables that the topologies of a claim export in a sandbox.
func (k *Keeper) exported(e *claims.Entry, sandbox string) ([]topology.Variable, error) {
	var all []topology.Variable
	by := map[string]string{} // topologies by variable
	size := 0
	for i := range e.Topologies {
		t := &e.Topologies[i]
		if !t.Exports() {
			continue
		}
		decoded, err := t.Decoded()
		if err != nil {
			return nil, fault.New(fault.Invalid, err)
		}
		rec, _, err := k.Engine.Record(e.SandboxID(sandbox, t))
		if err != nil {
			return nil, err
		}
		variables, err := k.variables(decoded, rec.Results)
		if err != nil {
			return nil, err
		}
		for _, v := range variables {
			if other, twice := by[v.Name]; twice {
				return nil, fault.New(fault.Conflict, fmt.Errorf("topologies %q and %q of the claim both export %s, and a container has one: remove it from spec.export of one, or request them with two claims for different containers", other, decoded.Name, v.Name))
			}
			by[v.Name] = decoded.Name
			size += len(v.Name) + len(v.Value) + len("=\x00")
		}
		all = append(all, variables...)
	}
	if size > topology.MaxExportedSize {
		return nil, fault.New(fault.Invalid, fmt.Errorf("the variables that the topologies of the claim export have %d bytes, at most %d are accepted", size, topology.MaxExportedSize))
	}
	return all, nil
}

// variables returns what a topology exports, given the results of its steps, all of which are known.
func (k *Keeper) variables(t *topology.Topology, results []topology.StepResult) ([]topology.Variable, error) {
	all, err := t.Variables(k.Contracts, results)
	if err != nil {
		return nil, fault.New(fault.Unsupported, fmt.Errorf("topology %q: %w", t.Name, err))
	}
	for _, v := range all {
		if v.Needs != "" {
			return nil, fault.New(fault.NotReady, fmt.Errorf("topology %q: spec.export: %s needs %s, which is not known", t.Name, v.Name, v.Needs))
		}
	}
	return all, nil
}

// clash refuses a container with claims that export one variable: the runtime would take the value of either.
func (k *Keeper) clash(of []claims.Entry, sandbox string) error {
	if len(of) < 2 {
		return nil
	}
	by := map[string]string{} // claims by variable
	for i := range of {
		variables, err := k.exported(&of[i], sandbox)
		if err != nil {
			return fmt.Errorf("claim %q: %w", of[i].Name, err)
		}
		for _, v := range variables {
			if other, twice := by[v.Name]; twice {
				return fault.New(fault.Conflict, fmt.Errorf("claims %q and %q of the container both export %s, and a container has one: list one of them in resources.claims of the container, or remove the variable from spec.export of one topology", other, of[i].Name, v.Name))
			}
			by[v.Name] = of[i].Name
		}
	}
	return nil
}
