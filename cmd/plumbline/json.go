package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"

	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/inventory/maintenance"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/ports"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/graph"
)

// The values of -o that are not a format of package graph.
const (
	formatText = "text"
	formatJSON = "json"
	formatYAML = "yaml"
)

// The JSON forms are part of the command line's interface: fields are added,
// never renamed.

// document is the output of apply.
type document struct {
	Sandbox reconcile.SandboxID `json:"sandbox"`
	Changes []changeDocument    `json:"changes"`
	Steps   []stepDocument      `json:"steps"`
}

// deletedDocument is the output of delete: the changes that were undone. A change that could not be undone is an error.
type deletedDocument struct {
	Sandboxes []undoneDocument `json:"sandboxes"`
}

type undoneDocument struct {
	Sandbox reconcile.SandboxID `json:"sandbox"`
	Changes []changeDocument    `json:"changes"`
	Notes   []string            `json:"notes"`
}

// maintainedDocument is the output of maintain: the devices that are taken out of service, or with --done were put into it
// again, and the pods that use them. Evicted tells whether these are evicted; else they would be with --evict.
type maintainedDocument struct {
	Devices   []maintenance.Device `json:"devices"`
	InService bool                 `json:"inService"`
	Evicted   bool                 `json:"evicted"`
	Pods      []maintenance.User   `json:"pods"`
}

// plannedDocument is the output of plan.
type plannedDocument struct {
	document
	Imagined bool              `json:"imagined,omitempty"` // the node
	Pending  []ops.Pending     `json:"pending"`
	Notes    []string          `json:"notes"`
	Devices  map[string]string `json:"devices"`
	// Addresses are those that steps are given beside their configs.
	Addresses map[string][]netip.Prefix `json:"addresses"`
	// Export lists the environment variables of containers.
	Export []topology.Variable `json:"export,omitempty"`
	// Files are those that containers are given.
	Files []topology.File `json:"files,omitempty"`
	given ops.Givens
}

type changeDocument struct {
	Step   string               `json:"step"`
	Action netstate.Action      `json:"action"`
	Object netstate.Key         `json:"object"`
	Fields []netstate.FieldDiff `json:"fields"`
}

// stepDocument is the result of a step; Result is the one of CNI 1.1.
type stepDocument struct {
	Name   string    `json:"name"`
	Type   string    `json:"type"`
	Result cniResult `json:"result"`
}

// graphDocument is the output of graph.
type graphDocument struct {
	Topology string         `json:"topology"`
	Steps    []nodeDocument `json:"steps"`
}

// nodeDocument is a step as it is drawn: Notes are the lines below it.
type nodeDocument struct {
	Name     string   `json:"name"`
	Type     string   `json:"type"`
	DependOn []string `json:"dependOn"`
	State    string   `json:"state,omitempty"`
	Notes    []string `json:"notes"`
}

// graphStatusDocument is the output of graph --status.
type graphStatusDocument struct {
	Sandboxes []sandboxGraph `json:"sandboxes"`
}

type sandboxGraph struct {
	Sandbox reconcile.SandboxID `json:"sandbox"`
	Netns   string              `json:"netns"`
	State   reconcile.State     `json:"state"`
	graphDocument
	Rules []ruleStatus `json:"rules,omitempty"`
}

type statusDocument struct {
	Sandboxes []sandboxStatus `json:"sandboxes"`
	Damaged   []string        `json:"damaged"`
	// OtherVersions are the records that another version of plumbline has written.
	OtherVersions []string `json:"otherVersions"`
}

type sandboxStatus struct {
	reconcile.Status
	Steps []stepDocument `json:"steps,omitempty"`
	Rules []ruleStatus   `json:"rules,omitempty"`
}

// ruleStatus is a rule of a NetworkQoS on an interface, with its counters.
type ruleStatus struct {
	Rule      string `json:"rule"`
	Interface string `json:"interface"`
	Backend   string `json:"backend"` // what enforces it: tc, OVN, or PF, beside marks of tc
	*ruleCounters
}

// ruleCounters are those of the kernel or of Open vSwitch. Unknown ones are left out.
type ruleCounters struct {
	MarkedPackets  uint64  `json:"markedPackets"`
	MarkedBytes    uint64  `json:"markedBytes"`
	DroppedPackets *uint64 `json:"droppedPackets,omitempty"`
}

// countersOf are those of a reading, nil if nothing is known.
func countersOf(r ports.Reading) *ruleCounters {
	if r.Filters == nil {
		return nil
	}
	c := r.Counters()
	out := &ruleCounters{MarkedPackets: c.Marked.Packets, MarkedBytes: c.Marked.Bytes}
	if !c.DropsUnknown {
		out.DroppedPackets = &c.Dropped
	}
	return out
}

// cniResult is printed as a CNI result, with additional fields for what CNI does not have.
type cniResult struct{ topology.Result }

// MarshalJSON implements json.Marshaler.
func (r cniResult) MarshalJSON() ([]byte, error) {
	cni, err := r.CNI()
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(cni)
	if err != nil || r.Devices == nil {
		return raw, err
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, err
	}
	if fields["devices"], err = json.Marshal(r.Devices); err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}

func planDocument(sb reconcile.Sandbox, plan *ops.Plan, exported []topology.Variable, files []topology.File) plannedDocument {
	return plannedDocument{
		document:  document{sb.ID, changeDocuments(toMake(plan)), stepDocuments(plan.Results)},
		Pending:   append([]ops.Pending{}, plan.Pending...),
		Notes:     append([]string{}, plan.Notes...),
		Devices:   sb.Given.Devices(),
		Addresses: sb.Given.Addresses(),
		Export:    exported,
		Files:     files,
		given:     sb.Given,
	}
}

func graphDocumentOf(t *topology.Topology, of map[string]graph.Status) (graphDocument, error) {
	order, err := topology.Order(t)
	d := graphDocument{Topology: t.Name, Steps: []nodeDocument{}}
	for _, s := range order {
		st := of[s.Name]
		d.Steps = append(d.Steps, nodeDocument{s.Name, s.Type, append([]string{}, s.DependOn...), st.Word, append([]string{}, st.Notes...)})
	}
	return d, err
}

func changeDocuments(changes []netstate.Change) []changeDocument {
	out := []changeDocument{}
	for _, c := range changes {
		out = append(out, changeDocument{c.Step, c.Action(), c.Key(), append([]netstate.FieldDiff{}, c.Fields()...)})
	}
	return out
}

func stepDocuments(results []topology.StepResult) []stepDocument {
	out := []stepDocument{}
	for _, r := range results {
		out = append(out, stepDocument{r.Name, r.Type, cniResult{r.Result}})
	}
	return out
}

// damagedFiles reports the journal files that were found damaged now, and those set
// aside before that still exist.
func damagedFiles(e *engine, found []error) []string {
	out := []string{}
	for _, err := range found {
		if frame.AsOtherVersion(err) == nil {
			out = append(out, err.Error())
		}
	}
	files, err := e.Damaged()
	if err != nil {
		return append(out, err.Error())
	}
	for _, f := range files {
		out = append(out, fmt.Sprintf("journal file %q was damaged and set aside: remove it when its sandbox is in order", f))
	}
	return out
}

// otherVersions reports the records that other versions have written.
func otherVersions(found []*frame.OtherVersion) []string {
	out := []string{}
	for _, o := range found {
		out = append(out, fmt.Sprintf("record %q: %v", o.Path, o))
	}
	return out
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// document prints a value as JSON or YAML, with the same keys.
func (a *app) document(format string, v any) error {
	if format == formatJSON {
		return writeJSON(a.out, v)
	}
	text, err := yaml.Marshal(v)
	if err != nil {
		return err
	}
	_, err = a.out.Write(text)
	return err
}
