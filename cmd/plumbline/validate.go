package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/qos"
	qosv1alpha1 "github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/reconcile/node"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/exposure"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/objectfile"
	"github.com/plumbline/plumbline/topology/pluginschema"
	schemav1alpha1 "github.com/plumbline/plumbline/topology/pluginschema/v1alpha1"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

func (a *app) validate() *cobra.Command {
	var files fileList
	var addresses []string
	var format string
	v := &validation{app: a}
	cmd := &cobra.Command{
		Use:   "validate -f FILE",
		Short: "Validate topologies, pools, policies, claims and NetworkQoS objects",
		Long: `Validates NetworkTopologies, AddressPools, DeviceExposurePolicies, NetworkQoS objects,
CNIPluginSchemas, ResourceClaims and ResourceClaimTemplates like the webhook, and against
each other. Topologies are also planned for a node that has everything they need. A file
may have several documents and lists; -f may be repeated. Needs neither root nor a cluster.

An error begins with the file and line of its field, as in topology.yaml:42. A probable
mistake, or a missing object, which may exist in the cluster, is a note.

A topology that refers to given addresses, or names a gateway among them, is valid only
with --address.

Exit status: 0 everything is valid; 1 an error, or with --strict a note.`,
		Example: `  plumbline validate --strict -f topology.yaml -f pools.yaml -f claim.yaml
  plumbline validate -f topology.yaml --address data0=192.0.2.5/24
  kubectl get networktopologies,addresspools -o yaml | plumbline validate -f -`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if v.given, err = node.ParseAddresses(addresses); err != nil {
				return fmt.Errorf("--address: %w", err)
			}
			if len(v.given) > 0 && len(files) > 1 {
				return errors.New("--address: names a step of one topology: leave out the other files")
			}
			if format != formatText {
				return v.document(cmd.Context(), files, format)
			}
			return v.run(cmd.Context(), files)
		},
	}
	outputFlag(cmd, &format, formatText, formatJSON, formatYAML)
	fileFlag(cmd, &files)
	_ = cmd.MarkFlagRequired("filename")
	addressFlag(cmd, &addresses, "")
	cmd.Flags().BoolVar(&v.strict, "strict", false, "a note is an error: exit status 1")
	return cmd
}

// validation is one run of validate.
type validation struct {
	*app
	given   ops.Givens
	strict  bool
	files   int
	notes   int
	set     contract.Set // the built-in types, and those that schemas of the files describe
	objects validity.Objects
}

// validDocument is the output of validate -o json: the lines of the text, separately. Errors are those of Problems, each with its place.
type validDocument struct {
	Valid    bool           `json:"valid"`
	Checked  []string       `json:"checked"`
	Notes    []string       `json:"notes"`
	Problems []string       `json:"problems"`
	Errors   []invalidPlace `json:"errors"`
}

type invalidPlace struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Message string `json:"message"`
}

// places are the problems of an error with their places.
func places(err error) []invalidPlace {
	out := []invalidPlace{}
	for _, e := range fault.Each(err) {
		if invalid, ok := fault.As[*topology.Invalid](e); ok {
			for _, p := range invalid.Each() {
				out = append(out, invalidPlace{p.File, p.Line, p.Err.Error()})
			}
			continue
		}
		p, ok := errors.AsType[*fault.Placed](e)
		if !ok {
			p = &fault.Placed{Err: e}
		}
		out = append(out, invalidPlace{p.File, p.Line, p.Err.Error()})
	}
	return out
}

// document prints the result of a run as data. Problems are no error of the command then, but its exit status is the same.
func (v *validation) document(ctx context.Context, files []string, format string) error {
	printer := v.app
	own := *printer
	var checked, notes strings.Builder
	own.out, own.err = &checked, &notes
	v.app = &own
	err := v.run(ctx, files)
	if ctx.Err() != nil {
		return err
	}
	lines := func(text, prefix string) []string {
		out := []string{}
		for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
			if line != "" {
				out = append(out, strings.TrimPrefix(line, prefix))
			}
		}
		return out
	}
	d := validDocument{
		Valid: err == nil, Checked: lines(checked.String(), ""), Notes: lines(notes.String(), "plumbline: note: "),
		Problems: []string{}, Errors: places(err),
	}
	if err != nil {
		d.Problems = lines(err.Error(), "")
	}
	if failed := printer.document(format, d); failed != nil || err == nil {
		return failed
	}
	return status(exitError)
}

// note prints a remark, and counts it.
func (v *validation) note(format string, args ...any) {
	v.notes++
	v.app.note(format, args...)
}

// run validates the objects of the files by themselves, then together.
func (v *validation) run(ctx context.Context, files []string) error {
	var all []error
	var inputs []*topology.Manifest
	v.files = len(files)
	for _, file := range files {
		f, err := v.parse(ctx, file)
		if err != nil {
			all = append(all, err)
			continue
		}
		inputs = append(inputs, f)
	}
	v.objects.Pools = map[string]*addresspool.Layout{}
	all = append(all, v.schemas(inputs))
	for _, in := range inputs {
		all = append(all, v.file(ctx, in))
	}
	if err := errors.Join(all...); err != nil {
		return err
	}
	notes, errs := validity.Across(ctx, v.objects, v.set)
	for _, n := range notes {
		v.note("%s", n)
	}
	if len(errs) == 0 {
		for _, c := range v.objects.Claims {
			fmt.Fprintf(v.out, "%s %q is valid: %s.\n", c.Source.Kind, c.Source.Name, excerpt.Count(len(c.Spec.Requests), "request"))
		}
	}
	if v.strict && v.notes > 0 {
		errs = append(errs, fmt.Errorf("--strict: %s, of which none is accepted", excerpt.Count(v.notes, "note")))
	}
	return errors.Join(errs...)
}

// schemas validates the CNIPluginSchemas of all files, whose types the topologies may have.
func (v *validation) schemas(files []*topology.Manifest) error {
	var all []schemav1alpha1.CNIPluginSchema
	var errs []error
	for _, f := range files {
		schemas, err := objectfile.Decode[schemav1alpha1.CNIPluginSchema](f, schemav1alpha1.GroupVersion.WithKind(schemav1alpha1.Kind))
		errs = append(errs, err)
		for i, o := range schemas {
			if _, err := pluginschema.Contract(o); err != nil {
				d := f.Objects(schemav1alpha1.Kind)[i]
				errs = append(errs, d.At("", fmt.Errorf("%s %q: %w", schemav1alpha1.Kind, o.Name, err)))
				continue
			}
			fmt.Fprintf(v.out, "%s %q is valid: type %q.\n", schemav1alpha1.Kind, o.Name, o.Spec.CNIType)
			all = append(all, *o)
		}
	}
	v.set = v.registry
	if len(all) > 0 {
		set, problems := pluginschema.Known(v.registry, all)
		v.set, errs = set, append(errs, problems...)
	}
	return errors.Join(errs...)
}

// file checks the objects of a file.
func (v *validation) file(ctx context.Context, f *topology.Manifest) error {
	checked, kinds := 0, []string{"DeviceClass", "List", v1alpha1.Kind, schemav1alpha1.Kind, validity.KindClaim, validity.KindTemplate}
	for _, other := range []struct {
		kind     string
		validate func(*topology.Manifest) error
	}{
		{v1alpha1.PolicyKind, v.policies},
		{v1alpha1.AddressPoolKind, v.pools},
		{qosv1alpha1.Kind, v.qos},
	} {
		kinds = append(kinds, other.kind)
		if err := other.validate(f); err != nil {
			return err
		}
		checked += len(f.Objects(other.kind))
	}
	claims, err := validity.Claims(f)
	if err != nil {
		return err
	}
	v.objects.Claims = append(v.objects.Claims, claims...)
	checked += len(f.Objects(validity.KindClaim)) + len(f.Objects(validity.KindTemplate))
	for _, d := range f.Objects("DeviceClass") {
		v.objects.Classes = append(v.objects.Classes, d.Name())
	}
	others, err := f.Others(kinds...)
	if err != nil {
		return err
	}
	topologies, schemas := f.Objects(v1alpha1.Kind), f.Objects(schemav1alpha1.Kind)
	if len(topologies) > 1 || len(topologies) == 0 && checked+len(schemas) > 0 || len(topologies) == 1 && len(others) == 0 {
		return v.several(ctx, f, topologies, others)
	}
	if checked > 0 {
		v.unchecked(others)
	}
	err = v.topology(ctx, f, checked == 0)
	none, ok := errors.AsType[*topology.None](err)
	switch {
	case !ok:
		return err
	case v.files > 1: // as if they were in one file
		v.unchecked(others)
		return nil
	}
	return fmt.Errorf("%s: nothing to validate, only %s: the kinds are %s", f.Name, strings.Join(none.Others, ", "),
		strings.Join(kinds[2:], ", "))
}

// unchecked notes documents of kinds that validate does not know.
func (v *validation) unchecked(others []string) {
	for _, other := range others {
		v.note("%s is not checked", other)
	}
}

// several checks any number of topologies.
func (v *validation) several(ctx context.Context, f *topology.Manifest, topologies []topology.Document, others []string) error {
	v.unchecked(others)
	if len(topologies) > 1 && len(v.given) > 0 {
		return fmt.Errorf("--address is for one topology, and %s has %d: give it a file with one", f.Name, len(topologies))
	}
	var errs []error
	for _, d := range topologies {
		errs = append(errs, v.topology(ctx, f.Only(d), false))
	}
	return errors.Join(errs...)
}

// pools checks the AddressPools of a file.
func (v *validation) pools(f *topology.Manifest) error {
	pools, err := objectfile.Decode[v1alpha1.AddressPool](f, v1alpha1.GroupVersion.WithKind(v1alpha1.AddressPoolKind))
	if err != nil {
		return err
	}
	var errs []error
	var valid []string
	for i, o := range pools {
		d := f.Objects(v1alpha1.AddressPoolKind)[i]
		if o.Name == "" {
			errs = append(errs, d.At("metadata.name", fmt.Errorf("%s %q: metadata.name: is missing", v1alpha1.AddressPoolKind, o.Name)))
		}
		v.unscoped(v1alpha1.AddressPoolKind, o, "")
		l, err := addresspool.Of(o)
		if errs = append(errs, d.Located(err)); err != nil {
			continue
		}
		if v.objects.Pools[o.Name] != nil {
			errs = append(errs, inAnother(d, v1alpha1.AddressPoolKind))
		}
		v.objects.Pools[o.Name] = l
		var sizes []string
		single := len(l.Families()) == 1
		for _, is4 := range l.Families() {
			family := map[bool]string{true: "IPv4", false: "IPv6"}[is4]
			size := fmt.Sprint(l.Size(is4))
			single = single && size == "1"
			if l.Size(is4) == math.MaxInt64 { // as far as is counted
				size = "more than 10^18"
			}
			sizes = append(sizes, size+" "+family)
		}
		noun := map[bool]string{true: "address", false: "addresses"}[single]
		valid = append(valid, fmt.Sprintf("%s %q is valid: %s %s.\n", v1alpha1.AddressPoolKind, o.Name, strings.Join(sizes, " and "), noun))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_, err = io.WriteString(v.out, strings.Join(valid, ""))
	return err
}

// unscoped notes a namespace of an object that has none: the API server ignores it, and the user probably relies on it.
func (v *validation) unscoped(kind string, o metav1.Object, instead string) {
	if o.GetNamespace() != "" {
		v.note("%s %q: metadata.namespace: is ignored, since the kind is cluster-scoped: remove it%s", kind, o.GetName(), instead)
	}
}

// inAnother is the error of an object that two files have: kubectl applies the last one.
func inAnother(d topology.Document, kind string) error {
	return d.At("", fmt.Errorf("%s %q is in another file, too: give each a name of its own", kind, d.Name()))
}

// qos checks the NetworkQoS objects of a file.
func (v *validation) qos(f *topology.Manifest) error {
	objects, err := qos.Objects(f)
	if err != nil {
		return err
	}
	var errs []error
	var valid []string
	for i, o := range objects {
		p := qos.New(o)
		for _, w := range p.Notes(false, false) {
			v.note("%s %q: %s", qosv1alpha1.Kind, p.Name(), w)
		}
		if p.Err == nil && p.ByLabels() {
			v.note("%s %q: %s", qosv1alpha1.Kind, p.Name(), qos.LabelsInCluster)
		}
		if p.Err == nil && !p.SelectsTopologies() {
			v.note("%s %q: selects no NetworkTopology, so it does not cover topologies of claims: add networkSelectors with "+
				"networkSelectionType %s. Leave it as it is for the primary network of pods, or for networks of ovn-kubernetes",
				qosv1alpha1.Kind, p.Name(), qosv1alpha1.NetworkTopologies)
		}
		v.objects.QoS = append(v.objects.QoS, p)
		errs = append(errs, f.Objects(qosv1alpha1.Kind)[i].Located(p.Err))
		valid = append(valid, fmt.Sprintf("%s %q is valid: %s.\n", qosv1alpha1.Kind, p.Name(), excerpt.Count(len(p.Rules), "rule")))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_, err = io.WriteString(v.out, strings.Join(valid, ""))
	return err
}

// topology checks the topology of a file. alone says that nothing else of the file was checked.
func (v *validation) topology(ctx context.Context, f *topology.Manifest, alone bool) error {
	t, notes, err := node.Load(ctx, f, v.given, v.set)
	if err != nil {
		return err
	}
	d := f.Objects(v1alpha1.Kind)[0]
	if slices.ContainsFunc(v.objects.Topologies, func(o validity.Named) bool { return o.Name == t.Name }) {
		return d.At("", fmt.Errorf("%s %q is there twice: give each a name of its own", v1alpha1.Kind, t.Name))
	}
	if alone {
		v.unchecked(t.Ignored)
	}
	for _, note := range notes {
		v.note("%s", placed(d, t, note))
	}
	fmt.Fprintf(v.out, "NetworkTopology %q is valid: %s.\n", t.Name, excerpt.Count(len(t.Steps), "step"))
	o := &v1alpha1.NetworkTopology{}
	raw, err := d.JSON()
	if err == nil {
		err = json.Unmarshal(raw, o)
	}
	if err != nil {
		return d.At("", err)
	}
	v.unscoped(v1alpha1.Kind, o, ". spec.claimTemplate.namespaces has the namespaces of its ResourceClaimTemplates")
	v.objects.Topologies = append(v.objects.Topologies, validity.Named{Topology: t, Object: o, Document: d})
	return nil
}

// placed is a note on a topology with its place and the topology, as an error has them.
func placed(d topology.Document, t *topology.Topology, note string) string {
	place, after := d.Place(note), ": "
	if rest, ofStep := strings.CutPrefix(note, "step \""); ofStep {
		step, message, _ := strings.Cut(rest, "\": ")
		field, _, _ := strings.Cut(message, ": ")
		inv := &topology.Invalid{Topology: t.Name, Problems: []topology.Problem{{Step: step, Field: field, Message: message}}}
		d.Locate(inv, t)
		place, after = inv.Problems[0].Place, ", "
	}
	return place.Before(fmt.Sprintf("NetworkTopology %q%s%s", t.Name, after, note))
}

// policies checks the DeviceExposurePolicies of a file.
func (v *validation) policies(f *topology.Manifest) error {
	objects, err := objectfile.Decode[v1alpha1.DeviceExposurePolicy](f, v1alpha1.GroupVersion.WithKind(v1alpha1.PolicyKind))
	if err != nil {
		return err
	}
	documents := map[string]topology.Document{}
	var errs []error
	all := make([]*exposure.Policy, len(objects))
	for i, o := range objects {
		documents[o.Name] = f.Objects(v1alpha1.PolicyKind)[i]
		v.unscoped(v1alpha1.PolicyKind, o, "")
		all[i] = exposure.New(o)
		if slices.ContainsFunc(v.objects.Policies, func(p *exposure.Policy) bool { return p.Name == o.Name }) {
			errs = append(errs, inAnother(documents[o.Name], v1alpha1.PolicyKind))
		}
	}
	ordered, _ := exposure.Limit(all)
	for _, p := range ordered {
		errs = append(errs, documents[p.Name].Located(p.Err))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	v.objects.Policies = append(v.objects.Policies, all...)
	for _, p := range all {
		fmt.Fprintf(v.out, "DeviceExposurePolicy %q is valid.\n", p.Name)
	}
	return nil
}
