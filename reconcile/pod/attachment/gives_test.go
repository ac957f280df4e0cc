package attachment_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/pod/attachment"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/gate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// exports has the topologies of a prepared claim export variables.
func (w *world) exports(uid types.UID, env map[string]v1alpha1.ExportValue) {
	w.t.Helper()
	e, _, err := w.store.Get(uid)
	w.ok(err)
	for i := range e.Topologies {
		e.Topologies[i].Object.Spec.Export = &v1alpha1.Export{Env: env}
	}
	w.ok(w.store.Put(e.Claim))
}

// wantEnv holds the environment in the gate of a claim; without any the gate is closed.
func (w *world) wantEnv(uid types.UID, env ...string) {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(string(w.gate), gate.FilePrefix+string(uid)+".json"))
	if err != nil && len(env) > 0 {
		w.t.Errorf("gate of claim %q: %v", uid, err)
		return
	}
	var spec cdi.Spec
	if err == nil && json.Unmarshal(data, &spec) != nil {
		w.t.Fatalf("%s", data)
	}
	var have []string
	for _, d := range spec.Devices {
		have = slices.DeleteFunc(d.ContainerEdits.Env, func(v string) bool { return strings.HasPrefix(v, "PLUMBLINE_CLAIM_") })
	}
	if !slices.Equal(have, env) {
		w.t.Errorf("containers of claim %q get %q, want %q", uid, have, env)
	}
}

// interfaceOf is the result of step "d" with an interface.
func interfaceOf(name, mac string) []topology.StepResult {
	return []topology.StepResult{{Name: "d", Result: topology.Result{Interfaces: []topology.Interface{{Name: name, MAC: mac, Sandbox: "/n"}}}}}
}

// TestExport: what a topology exports is in the gate when that opens, also in one that was lost and is opened again.
func TestExport(t *testing.T) {
	w := newWorld(t)
	w.prepare("a", "t1")
	w.exports("a", map[string]v1alpha1.ExportValue{"FABRIC": "={{ d.interfaceName }}", "B": "2"})
	w.results = interfaceOf("rail0", "")
	pod := w.sandbox("s1", 1)
	w.ok(w.Attach(t.Context(), pod))
	w.wantEnv("a", "B=2", "FABRIC==rail0")
	w.ok(w.gate.Close("a"))
	w.ok(w.Synchronize([]attachment.Pod{pod}))
	w.wantEnv("a", "B=2", "FABRIC==rail0")
	w.ok(w.Admit(t.Context(), pod, env("a", "s1")))
}

// TestExportUnknown: a value that is not known, or does not exist, keeps the gate closed, and what was attached is released.
func TestExportUnknown(t *testing.T) {
	for value, want := range map[v1alpha1.ExportValue]struct {
		kind fault.Kind
		text string
	}{
		"{{ d.mac }}":            {fault.NotReady, `topology "t1": spec.export: FABRIC needs d.mac, which is not known`},
		"{{ d.ips[0].address }}": {fault.Unsupported, `topology "t1": spec.export.env.FABRIC: {{ d.ips[0].address }}: no address 0: the result has no addresses`},
	} {
		w := newWorld(t)
		w.prepare("a", "t1")
		w.exports("a", map[string]v1alpha1.ExportValue{"FABRIC": value})
		w.results = interfaceOf("rail0", "")
		w.refused(w.Attach(t.Context(), w.sandbox("s1", 1)), want.kind, want.text)
		w.wantEnv("a")
		w.want("+s1/a/t1", "-s1/a/t1")
		w.wantPhase("a", "s1", claims.Failed)
	}
}

// TestExportTwice: topologies of one claim, and claims of one container, do not export one variable; claims of different containers may.
func TestExportTwice(t *testing.T) {
	w := newWorld(t)
	w.prepare("a", "t1", "t2")
	w.exports("a", map[string]v1alpha1.ExportValue{"FABRIC": "x"})
	w.refused(w.Attach(t.Context(), w.sandbox("s1", 1)), fault.Conflict, `topologies "t1" and "t2" of the claim both export FABRIC`)
	w.wantEnv("a")

	w = newWorld(t)
	for _, uid := range []types.UID{"a", "b"} {
		w.prepare(uid, "t"+string(uid))
		w.exports(uid, map[string]v1alpha1.ExportValue{"FABRIC": "x"})
	}
	pod := w.sandbox("s1", 1)
	w.ok(w.Attach(t.Context(), pod))
	w.ok(w.Admit(t.Context(), pod, env("a", "s1")))
	w.ok(w.Admit(t.Context(), pod, env("b", "s1")))
	w.refused(w.Admit(t.Context(), pod, append(env("a", "s1"), env("b", "s1")...)), fault.Conflict,
		`claims "claim-a" and "claim-b" of the container both export FABRIC`)
}

// TestExportReplaces: what a container has set itself, and gets from its claim instead, is reported; what is new is not, nor what
// another container's claim exports.
func TestExportReplaces(t *testing.T) {
	w := newWorld(t)
	w.prepare("a", "t1")
	w.exports("a", map[string]v1alpha1.ExportValue{"FABRIC": "x", "OTHER": "y"})
	pod := w.sandbox("s1", 1)
	w.ok(w.Attach(t.Context(), pod))
	claim := env("a", "s1")[0]
	for _, c := range []struct {
		name string
		env  []string // as runtimes make it: replaced where it was, else appended
		want []string
	}{
		{"none", []string{"A=1", claim, "FABRIC=x", "OTHER=y"}, nil},
		{"one", []string{"A=1", "OTHER=y", "B=2", claim, "FABRIC=x"}, []string{"replaced claim-a one [OTHER]"}},
		{"both", []string{"FABRIC=x", "OTHER=y", claim}, []string{"replaced claim-a both [FABRIC OTHER]"}},
		{"longer name", []string{"FABRICS=x", claim, "FABRIC=x", "OTHER=y"}, nil},
		{"without the claim", []string{"FABRIC=z"}, nil},
	} {
		w.reported = nil
		w.Admitted(pod, c.name, c.env)
		if !slices.Equal(w.reported, c.want) {
			t.Errorf("%s: reported %q, want %q", c.name, w.reported, c.want)
		}
	}
}

// TestExportFiles: files are written before the gate opens, follow an update in the folder that running containers have, and end with the claim; one
// claim has at most 256 KiB, and a container files of one folder once.
func TestExportFiles(t *testing.T) {
	w := newWorld(t)
	w.prepare("a", "t1")
	export := func(uid types.UID, e v1alpha1.Export) {
		c, _, err := w.store.Get(uid)
		w.ok(err)
		for i := range c.Topologies {
			c.Topologies[i].Object.Spec.Export = &e
		}
		c.Beside = []string{"0000:0a:00.0"}
		w.ok(w.store.Put(c.Claim))
	}
	file := func(uid, name string) string {
		data, err := os.ReadFile(filepath.Join(string(w.gate), "dra.networking-files", uid, "t1", name))
		if err != nil {
			return "none"
		}
		return string(data)
	}
	export("a", v1alpha1.Export{Files: map[string]v1alpha1.ExportContent{"rails": "{{ d.interfaceName }}\n"}, Presets: []v1alpha1.ExportPreset{"ncclTopology"}})
	w.results = interfaceOf("rail0", "")
	w.results[0].Result.Interfaces[0].PCIID = "0000:03:00.2"
	w.results[0].Result.Devices = &topology.Devices{RDMADevice: "mlx5_4", DeviceNodes: []string{"/dev/infiniband/uverbs4"}}
	pod := w.sandbox("s1", 1)
	w.ok(w.Attach(t.Context(), pod))
	w.wantEnv("a", "NCCL_TOPO_FILE=/var/run/dra.networking/files/t1/nccl-topology.xml")
	if rails, devices := file("a", "rails"), file("a", "nccl-topology.xml"); rails != "rail0\n" || devices != "[0000:03:00.2] [mlx5_4] [0000:0a:00.0]" {
		t.Errorf("files %q and %q", rails, devices)
	}

	next := edited("t1", 2)
	next.Spec.Export = &v1alpha1.Export{Files: map[string]v1alpha1.ExportContent{"rails": "{{ d.interfaceName }}"}}
	w.results = interfaceOf("rail1", "")
	w.ok(w.Update(t.Context(), "a", next))
	if rails, devices := file("a", "rails"), file("a", "nccl-topology.xml"); rails != "rail1" || devices != "none" {
		t.Errorf("after an update: files %q and %q", rails, devices)
	}
	next = edited("t1", 3)
	next.Spec.Export = &v1alpha1.Export{Files: map[string]v1alpha1.ExportContent{"rails": "{{ d.mac }}"}}
	w.refused(w.Update(t.Context(), "a", next), fault.NotReady, "file rails needs d.mac, which is not known")
	if rails := file("a", "rails"); rails != "rail1" {
		t.Errorf("after an update that failed: %q", rails)
	}

	w.prepare("b", "t1")
	export("b", v1alpha1.Export{Files: map[string]v1alpha1.ExportContent{"rails": "x"}})
	w.ok(w.Attach(t.Context(), pod))
	w.refused(w.Admit(t.Context(), pod, append(env("a", "s1"), env("b", "s1")...)), fault.Conflict,
		`claims "claim-a" and "claim-b" of the container both export files to /var/run/dra.networking/files/t1`)

	w.ok(w.Detach(t.Context(), pod))
	w.ok(w.Withdraw(t.Context(), "a"))
	if rails := file("a", "rails"); rails != "none" {
		t.Errorf("after the claim: %q", rails)
	}

	w = newWorld(t)
	w.prepare("c", "t1", "t2")
	large := map[string]v1alpha1.ExportContent{}
	for i := range 9 {
		large[string(rune('a'+i))] = v1alpha1.ExportContent(strings.Repeat("x", 16000))
	}
	export("c", v1alpha1.Export{Files: large})
	w.refused(w.Attach(t.Context(), w.sandbox("s1", 1)), fault.Invalid, "have 288000 bytes, at most 262144 are accepted")
}

// TestExportLarge: the topologies of a claim share the bound of its environment.
func TestExportLarge(t *testing.T) {
	w := newWorld(t)
	w.prepare("a", "t1", "t2")
	e, _, err := w.store.Get("a")
	w.ok(err)
	for i := range e.Topologies {
		env := map[string]v1alpha1.ExportValue{}
		for _, c := range "abcdefghijklmnopqrstuvwxyz" {
			env[string(rune('A'+i))+string(c)] = v1alpha1.ExportValue(strings.Repeat("x", 1000))
		}
		e.Topologies[i].Object.Spec.Export = &v1alpha1.Export{Env: env}
	}
	w.ok(w.store.Put(e.Claim))
	w.refused(w.Attach(t.Context(), w.sandbox("s1", 1)), fault.Invalid, "have 52208 bytes, at most 32768 are accepted")
	w.wantEnv("a")
}

// TestExportUpdated: containers that are created after an update get what it exports; of one that fails, they get what was there before.
func TestExportUpdated(t *testing.T) {
	w := newWorld(t)
	w.prepare("a", "t1")
	w.exports("a", map[string]v1alpha1.ExportValue{"FABRIC": "{{ d.interfaceName }}"})
	w.results = interfaceOf("rail0", "")
	w.ok(w.Attach(t.Context(), w.sandbox("s1", 1)))
	w.wantEnv("a", "FABRIC=rail0")

	next := edited("t1", 2)
	next.Spec.Export = &v1alpha1.Export{Env: map[string]v1alpha1.ExportValue{"OTHER": "{{ d.interfaceName }}"}}
	w.results = interfaceOf("rail1", "")
	w.ok(w.Update(t.Context(), "a", next))
	w.wantEnv("a", "OTHER=rail1")

	next = edited("t1", 3)
	next.Spec.Export = &v1alpha1.Export{Env: map[string]v1alpha1.ExportValue{"OTHER": "{{ d.mac }}"}}
	w.refused(w.Update(t.Context(), "a", next), fault.NotReady, "OTHER needs d.mac")
	w.wantGeneration("a", "s1", "t1", 2, false)
	w.wantEnv("a", "OTHER=rail1")
}

// TestNodesLost: a gate does not open with a device node that another device has by now, also when the agent was started again; it opens
// when a repair has recorded the node of the device, or the device has it again.
func TestNodesLost(t *testing.T) {
	w := newWorld(t)
	var of []string // what the device has
	asked := ""
	w.Lost = func(device, rdma string, nodes []string) []string {
		asked = device + " " + rdma
		return slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return slices.Contains(of, n) })
	}
	w.prepare("a", "t1")
	w.gives("a", []string{"/dev/infiniband/uverbs5"}, v1alpha1.Step{Name: "d", Type: "dummy"}, v1alpha1.Step{Name: "roce", Type: "rxe", DependOn: []string{"d"}})
	pod := w.sandbox("s1", 1)
	of = []string{"/dev/infiniband/uverbs6"}
	w.refused(w.Attach(t.Context(), pod), fault.NotReady, `topology "t1": step "roce": /dev/infiniband/uverbs5 no longer belongs to device "pl0", as after a reload of its driver`)
	w.wantGate("a", "")
	of = []string{"/dev/infiniband/uverbs5"}
	w.ok(w.Attach(t.Context(), pod))
	w.wantNodes("a", "/dev/infiniband/uverbs5")
	if asked != " pl0" {
		t.Errorf("asked of %q", asked)
	}
	of = []string{"/dev/infiniband/uverbs6"}
	w.refused(w.Synchronize([]attachment.Pod{pod}), fault.NotReady, "/dev/infiniband/uverbs5 no longer belongs to device")
	w.wantGate("a", "")
	of = []string{"/dev/infiniband/uverbs5"} // which no repair notices
	w.Renew(t.Context())
	w.wantNodes("a", "/dev/infiniband/uverbs5")
}

// TestNodesChange: containers that are created after a repair get the device nodes that it has recorded, also if the agent was started again meanwhile;
// while there are none, or the record cannot be read, the gate is closed. It stays as it is if the record is of another version. A claim that is no longer attached keeps its gate closed.
func TestNodesChange(t *testing.T) {
	w := newWorld(t)
	w.prepare("a", "t1")
	w.gives("a", []string{"/dev/infiniband/uverbs5"}, v1alpha1.Step{Name: "d", Type: "dummy"}, v1alpha1.Step{Name: "roce", Type: "rxe", DependOn: []string{"d"}})
	pod := w.sandbox("s1", 1)
	w.ok(w.Attach(t.Context(), pod))
	const id = "s1/a/t1"
	repaired := func(nodes ...string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		rec := w.held[id]
		rec.Results = []topology.StepResult{{Name: "roce", Result: topology.Result{Devices: &topology.Devices{RDMADevice: "pl0", DeviceNodes: nodes}}}}
		w.held[id] = rec
	}
	repaired("/dev/infiniband/uverbs6")
	w.Nodes.Pass(reconcile.Pass{Sandbox: id})
	w.Renew(t.Context())
	w.wantNodes("a", "/dev/infiniband/uverbs5")
	w.Nodes.Pass(reconcile.Pass{Sandbox: id, NodesChanged: true})
	w.Renew(t.Context())
	w.wantNodes("a", "/dev/infiniband/uverbs6")

	repaired()
	w.Nodes.Pass(reconcile.Pass{Sandbox: id, NodesChanged: true})
	w.Renew(t.Context())
	w.wantNodes("a")
	w.wantGate("a", "")

	repaired("/dev/infiniband/uverbs7")
	w.ok(w.Synchronize([]attachment.Pod{pod}))
	w.wantNodes("a", "/dev/infiniband/uverbs7")
	repaired("/dev/infiniband/uverbs8")
	w.ok(w.Synchronize([]attachment.Pod{pod}))
	w.wantNodes("a", "/dev/infiniband/uverbs8")

	w.unread = &frame.OtherVersion{Err: errors.New(`version "9" is unknown`)}
	w.refused(w.Synchronize([]attachment.Pod{pod}), fault.NotReady, "written by another version")
	w.wantNodes("a", "/dev/infiniband/uverbs8")
	w.unread = errors.New("input/output error")
	w.refused(w.Synchronize([]attachment.Pod{pod}), fault.NotReady, "input/output error")
	w.wantGate("a", "")
	w.unread = nil
	w.ok(w.Synchronize([]attachment.Pod{pod}))

	w.Nodes.Pass(reconcile.Pass{Sandbox: id, NodesChanged: true})
	w.ok(w.Withdraw(t.Context(), "a"))
	w.Renew(t.Context())
	w.wantGates()
}

// TestNodesLostAtCreation: a container that is created after a driver was loaded again, and before a repair has recorded that, is not started with
// the device node of another device.
func TestNodesLostAtCreation(t *testing.T) {
	w := newWorld(t)
	of := []string{"/dev/infiniband/uverbs5"} // what the device has
	w.Lost = func(_, _ string, nodes []string) []string {
		return slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return slices.Contains(of, n) })
	}
	w.prepare("a", "t1")
	w.gives("a", []string{"/dev/infiniband/uverbs5"}, v1alpha1.Step{Name: "d", Type: "dummy"}, v1alpha1.Step{Name: "roce", Type: "rxe", DependOn: []string{"d"}})
	pod := w.sandbox("s1", 1)
	w.ok(w.Attach(t.Context(), pod))
	w.ok(w.Admit(t.Context(), pod, env("a", "s1")))
	of = []string{"/dev/infiniband/uverbs6"}
	w.refused(w.Admit(t.Context(), pod, env("a", "s1")), fault.NotReady, "/dev/infiniband/uverbs5 no longer belongs to device")
}

// TestNodesOfDerivedStep: the device nodes of a derived step are those of the device in its result.
func TestNodesOfDerivedStep(t *testing.T) {
	w := newWorld(t)
	w.Lost = func(device, _ string, nodes []string) []string {
		if device == "0000:03:00.2" {
			return nil
		}
		return nodes
	}
	w.prepare("a", "t1")
	w.gives("a", []string{"/dev/ptp3"}, v1alpha1.Step{Name: "vf", Type: "sriov"}, v1alpha1.Step{Name: "verbs", Type: "rdma", DependOn: []string{"vf"}})
	w.results[0].Result.Devices.PCIAddress = "0000:03:00.2"
	pod := w.sandbox("s1", 1)
	w.ok(w.Attach(t.Context(), pod))
	w.ok(w.Admit(t.Context(), pod, env("a", "s1")))
	w.wantNodes("a", "/dev/ptp3")
}

// TestExportUpdateClash: an update that has two topologies of a claim export one variable, or too much together, fails, and the pod has the
// network, the variables and the containers that it had before.
func TestExportUpdateClash(t *testing.T) {
	large := map[string]v1alpha1.ExportContent{}
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"} {
		large[name] = v1alpha1.ExportContent(strings.Repeat("x", 16000))
	}
	for name, tt := range map[string]struct {
		export v1alpha1.Export
		kind   fault.Kind
		text   string
	}{
		"twice": {v1alpha1.Export{Env: map[string]v1alpha1.ExportValue{"FABRIC": "y"}}, fault.Conflict, `topologies "t1" and "t2" of the claim both export FABRIC`},
		"large": {v1alpha1.Export{Files: large}, fault.Invalid, "at most 262144 are accepted"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.prepare("a", "t1", "t2")
			e, _, err := w.store.Get("a")
			w.ok(err)
			e.Topology("t1").Object.Spec.Export = &v1alpha1.Export{Env: map[string]v1alpha1.ExportValue{"FABRIC": "x"}, Files: large}
			w.ok(w.store.Put(e.Claim))
			pod := w.sandbox("s1", 1)
			w.ok(w.Attach(t.Context(), pod))
			w.wantEnv("a", "FABRIC=x")

			next := edited("t2", 2)
			next.Spec.Export = &tt.export
			w.refused(w.Update(t.Context(), "a", next), tt.kind, tt.text)
			w.wantGeneration("a", "s1", "t2", 1, false)
			w.wantEnv("a", "FABRIC=x")
			w.ok(w.FinishUpdate(t.Context(), "a"))
			w.ok(w.Admit(t.Context(), pod, env("a", "s1"))) // the kubelet restarts a container
		})
	}
}
