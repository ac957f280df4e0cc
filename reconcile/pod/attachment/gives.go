package attachment

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile"
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
		if t := &e.Topologies[i]; !t.HasNodes(k.Contracts) && !t.Exports() {
			continue
		}
		rec, known, err := k.Engine.Record(e.SandboxID(sandbox, &e.Topologies[i]))
		if err != nil || !known {
			return errors.Join(err, fault.New(fault.NotReady,
				fmt.Errorf("topology %q: the results of its steps are not recorded", e.Topologies[i].Object.Name)))
		}
		for _, step := range rec.Results {
			d := step.Result.Devices
			if d == nil {
				continue
			}
			if d.RDMADevice != "" && len(d.DeviceNodes) == 0 {
				return fault.New(fault.NotReady,
					fmt.Errorf("topology %q: step %q: RDMA device %q does not exist", e.Topologies[i].Object.Name, step.Name, d.RDMADevice))
			}
			if err := k.refuseLost(e.UID, deviceOf(&rec, step), d); err != nil {
				return fmt.Errorf("topology %q: step %q: %w", e.Topologies[i].Object.Name, step.Name, err)
			}
			for _, n := range d.DeviceNodes {
				if !slices.Contains(gives.Nodes, n) { // all groups share one node of VFIO
					gives.Nodes = append(gives.Nodes, n)
				}
			}
		}
	}
	told, err := k.exported(e, sandbox)
	if err != nil {
		return err
	}
	for _, v := range told.variables {
		gives.Env = append(gives.Env, v.Name+"="+v.Value)
	}
	gives.Folders = told.folders
	return k.Gate.Open(e.UID, sandbox, netns, gives)
}

// refuseLostIn returns an error if a container of a sandbox gets device nodes from a claim that are of another device by now. Of a record
// that cannot be read, as one of another version, the gate has decided.
func (k *Keeper) refuseLostIn(e *claims.Entry, sandbox string) error {
	for i := range e.Topologies {
		if k.Lost == nil || !e.Topologies[i].HasNodes(k.Contracts) {
			continue
		}
		rec, known, err := k.Engine.Record(e.SandboxID(sandbox, &e.Topologies[i]))
		if err != nil || !known {
			continue
		}
		for _, step := range rec.Results {
			if step.Result.Devices == nil {
				continue
			}
			if err := k.refuseLost(e.UID, deviceOf(&rec, step), step.Result.Devices); err != nil {
				return fmt.Errorf("claim %q: topology %q: step %q: %w", e.Name, e.Topologies[i].Object.Name, step.Name, err)
			}
		}
	}
	return nil
}

// deviceOf is the device of a step that gives device nodes: of a derived step it is in the result alone.
func deviceOf(rec *reconcile.Record, step topology.StepResult) string {
	return cmp.Or(rec.Sandbox.Given[step.Name].Device, step.Result.Devices.PCIAddress)
}

// refuseLost returns an error for device nodes that are of another device by now. A repair records those of the device, and the next sweep
// gives them.
func (k *Keeper) refuseLost(claim types.UID, device string, d *topology.Devices) error {
	if k.Lost == nil {
		return nil
	}
	lost := k.Lost(device, d.RDMADevice, d.DeviceNodes)
	if len(lost) == 0 {
		return nil
	}
	k.Nodes.add(claim)
	return fault.New(fault.NotReady,
		fmt.Errorf("%s no longer belongs to device %q, as after a reload of its driver: waiting for the next check of the pod",
			strings.Join(lost, ", "), cmp.Or(device, d.RDMADevice)))
}

// exported holds the variables and files that the topologies of a claim export.
type exported struct {
	variables []topology.Variable
	folders   []gate.Folder
}

// exported returns what the topologies of a claim export in a sandbox.
func (k *Keeper) exported(e *claims.Entry, sandbox string) (all exported, err error) {
	by := map[string]string{} // topologies by variable
	size, files := 0, 0
	for i := range e.Topologies {
		t := &e.Topologies[i]
		if !t.Exports() {
			continue
		}
		decoded, err := t.Decoded()
		if err != nil {
			return exported{}, fault.New(fault.Invalid, err)
		}
		rec, _, err := k.Engine.Record(e.SandboxID(sandbox, t))
		if err != nil {
			return exported{}, err
		}
		one, err := k.exports(decoded, rec.Results, e.Beside)
		if err != nil {
			return exported{}, err
		}
		for _, v := range one.variables {
			if other, twice := by[v.Name]; twice {
				return exported{},
					fault.New(fault.Conflict, fmt.Errorf("topologies %q and %q of the claim both export %s, and a container has one: "+
						"remove it from spec.export of one, or request them with two claims for different containers", other,
						decoded.Name, v.Name))
			}
			by[v.Name] = decoded.Name
			size += len(v.Name) + len(v.Value) + len("=\x00")
		}
		for _, f := range one.folders {
			for _, file := range f.Files {
				files += len(file.Content)
			}
		}
		all.variables, all.folders = append(all.variables, one.variables...), append(all.folders, one.folders...)
	}
	if size > topology.MaxExportedSize {
		return exported{}, fault.New(fault.Invalid, fmt.Errorf(
			"the variables that the topologies of the claim export have %d bytes, at most %d are accepted", size, topology.MaxExportedSize))
	}
	if files > topology.MaxFilesSize {
		return exported{}, fault.New(fault.Invalid, fmt.Errorf(
			"the files that the topologies of the claim export have %d bytes, at most %d are accepted", files, topology.MaxFilesSize))
	}
	return all, nil
}

// exports returns what a topology exports, given the results of its steps, all of which are known, and the PCI addresses
// that other drivers have given the claim.
func (k *Keeper) exports(t *topology.Topology, results []topology.StepResult, beside []string) (all exported, err error) {
	if all.variables, err = t.Variables(k.Contracts, results); err != nil {
		return all, fault.New(fault.Unsupported, fmt.Errorf("topology %q: %w", t.Name, err))
	}
	files, err := t.Files(k.Contracts, results, func(pci, rdma []string) (string, error) { return k.TopologyFile(pci, rdma, beside) })
	if err != nil {
		return all, fault.New(fault.Unsupported, fmt.Errorf("topology %q: %w", t.Name, err))
	}
	unknown := func(name, needs string) error {
		return fault.New(fault.NotReady, fmt.Errorf("topology %q: spec.export: %s needs %s, which is not known", t.Name, name, needs))
	}
	for _, v := range all.variables {
		if v.Needs != "" {
			return all, unknown(v.Name, v.Needs)
		}
	}
	folder := gate.Folder{Name: t.Name, At: topology.FilesDir + "/" + t.Name}
	for _, f := range files {
		if f.Needs != "" {
			return all, unknown("file "+f.Name, f.Needs)
		}
		folder.Files = append(folder.Files, gate.File{Name: f.Name, Content: f.Content})
	}
	if len(folder.Files) > 0 {
		all.folders = []gate.Folder{folder}
	}
	return all, nil
}

// clash refuses a container with claims that export one variable, or files to one folder: the runtime would take either.
func (k *Keeper) clash(of []claims.Entry, sandbox string) error {
	if len(of) < 2 {
		return nil
	}
	by := map[string]string{} // claims by what they export
	for i := range of {
		told, err := k.exported(&of[i], sandbox)
		if err != nil {
			return fmt.Errorf("claim %q: %w", of[i].Name, err)
		}
		var names []string
		for _, v := range told.variables {
			names = append(names, v.Name)
		}
		for _, f := range told.folders {
			names = append(names, "files to "+f.At)
		}
		for _, name := range names {
			if other, twice := by[name]; twice {
				return fault.New(fault.Conflict, fmt.Errorf("claims %q and %q of the container both export %s, and a container has one: "+
					"list one of them in resources.claims of the container, or remove it from spec.export of one topology", other,
					of[i].Name, name))
			}
			by[name] = of[i].Name
		}
	}
	return nil
}

// Admitted reports what a container that has been admitted had set itself and gets from its claims.
func (k *Keeper) Admitted(pod Pod, container string, env []string) {
	of := gate.Consumed(env)
	for _, e := range k.ofPod(pod.UID) {
		if _, consumes := of[e.UID]; !consumes {
			continue
		}
		if variables := k.Gate.Replaced(e.UID, env); len(variables) > 0 {
			k.Reporter.Replaced(e.Claim, container, variables)
		}
	}
}
