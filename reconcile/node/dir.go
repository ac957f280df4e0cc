package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/qos/enforce"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// file is the content of a file of the directory: one sandbox.
type file struct {
	// Netns is the name of a network namespace, or its path.
	Netns string `json:"netns"`
	// Topology is a whole NetworkTopology; TopologyFile the file of one,
	// relative to the directory. One of them is given.
	Topology     json.RawMessage `json:"topology,omitempty"`
	TopologyFile string          `json:"topologyFile,omitempty"`
	// Devices assigns devices to root steps, by PCI address or interface name.
	Devices map[string]string `json:"devices,omitempty"`
	// Addresses are added to those of the steps' configs.
	Addresses map[string][]string `json:"addresses,omitempty"`
	// NetworkQoS are files of NetworkQoS objects, relative to the directory. Namespace and
	// Labels are those of the pod that they are for.
	NetworkQoS []string          `json:"networkQoS,omitempty"`
	Namespace  string            `json:"namespace,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
}

// desired is a sandbox that a file describes.
type desired struct {
	Assignment // what the file says of it
	// fromRecord is set if the topology is that of the sandbox's record, as the file's is
	// refused: the record is the only copy of it.
	fromRecord bool
}

// same reports whether two are equal.
func (w desired) same(o desired) bool {
	if w.ID != o.ID || w.Netns != o.Netns || !maps.Equal(w.Requested, o.Requested) {
		return false
	}
	return reconcile.Sandbox{
		Topology: w.Topology, Given: w.Given, Rules: w.Rules,
	}.Equal(reconcile.Sandbox{Topology: o.Topology, Given: o.Given, Rules: o.Rules})
}

// FromFile reports whether a sandbox was made from a file by a loop: a loop releases
// only those.
func FromFile(id reconcile.SandboxID) bool { return id.Origin().File }

// reading is one reading of the directory.
type reading struct {
	desired map[string]desired // by file
	broken  map[string]error   // by file
	// refused are those of broken of which only the topology is invalid, without it.
	refused map[string]desired
	dirs    []string // a change in them can change the reading
}

// readDir reads all files "*.yaml" of a directory except those that are a
// NetworkTopology or NetworkQoS objects, which other files may name. An error in one file does not keep the
// others from being read.
func readDir(ctx context.Context, dir string, set contract.Set) (reading, error) {
	dir = filepath.Clean(dir)
	out := reading{desired: map[string]desired{}, broken: map[string]error{}, refused: map[string]desired{}, dirs: []string{dir}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return out, fmt.Errorf("config: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || filepath.Ext(name) != ".yaml" {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // it was removed meanwhile
		}
		if err == nil && (isTopology(data) || enforce.OnlyObjects(data)) {
			continue
		}
		var w desired
		if err == nil {
			w, err = out.parse(ctx, dir, data, set)
		}
		if ctx.Err() != nil {
			return out, context.Cause(ctx) // not an error of the file
		}
		if err != nil {
			out.broken[name] = fmt.Errorf("config file %q: %w", name, err)
			if w.ID != "" {
				out.refused[name] = w
			}
			continue
		}
		out.desired[name] = w
	}
	out.refuseTwice()
	slices.Sort(out.dirs)
	out.dirs = slices.Compact(out.dirs)
	return out, nil
}

// isTopology reports whether the file is a Kubernetes object.
func isTopology(data []byte) bool {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	return yaml.Unmarshal(data, &head) == nil && head.Kind == v1alpha1.Kind && head.APIVersion != ""
}

// parse returns an error also with the sandbox that a file is about, without its
// topology, if that is all that is invalid.
func (r *reading) parse(ctx context.Context, dir string, data []byte, set contract.Set) (desired, error) {
	var f file
	if err := topology.DecodeFields(data, &f); err != nil {
		return desired{}, fault.New(fault.Invalid, err)
	}
	if f.Netns == "" {
		return desired{}, fault.New(fault.Invalid, errors.New("netns: is missing: name a network namespace or its path"))
	}
	w := desired{Assignment: Assignment{Requested: f.Devices}}
	var err error
	if w.Netns, err = ParseNetns(f.Netns); err != nil {
		return desired{}, fmt.Errorf("netns: %w", err)
	}
	if w.Given, err = givenAddresses(f.Addresses, func(step string,
		i int,
	) string {
		return fmt.Sprintf("addresses.%s[%d]", step, i)
	}); err != nil {
		return desired{}, err
	}
	text := []byte(f.Topology)
	switch {
	case len(f.Topology) > 0 && f.TopologyFile != "":
		return desired{}, fault.New(fault.Invalid, errors.New("topology and topologyFile are both given: keep one"))
	case len(f.Topology) == 0 && f.TopologyFile == "":
		return desired{}, fault.New(fault.Invalid, errors.New("topology: is missing: give one, or the name of its file as topologyFile"))
	case f.TopologyFile != "":
		if text, err = r.readNamed(dir, f.TopologyFile); err != nil {
			return desired{}, fmt.Errorf("topologyFile: %w", err)
		}
	}
	parsed, err := topology.Parse("", text)
	if err != nil {
		err, parsed = fault.New(fault.Invalid, err), &topology.Manifest{}
	} else if w.Topology, _, err = Load(ctx, parsed, w.Given, set); err == nil {
		w.Topology, err = WithoutAgent(w.Topology, set)
	}
	if err != nil {
		if f.TopologyFile != "" {
			err = fmt.Errorf("topologyFile %q: %w", f.TopologyFile, err)
		}
		if meant, _ := parsed.Topology(); meant != nil && meant.Name != "" {
			return desired{Assignment: Assignment{ID: reconcile.IDOfFile(w.Netns.Name, meant.Name), Netns: w.Netns}}, err
		}
		return desired{}, err
	}
	var objects []*topology.Manifest
	if enforce.HasObjects(parsed) {
		objects = append(objects, parsed)
	}
	for _, name := range f.NetworkQoS {
		data, err := r.readNamed(dir, name)
		if err != nil {
			return desired{}, fmt.Errorf("networkQoS: %w", err)
		}
		named, err := topology.Parse("", data)
		if err != nil {
			return desired{}, fault.New(fault.Invalid, fmt.Errorf("networkQoS: %w", err))
		}
		objects = append(objects, named)
	}
	if len(objects) > 0 {
		if w.Rules, _, err = enforce.Objects(objects, parsed, enforce.Pod{Namespace: f.Namespace, Labels: f.Labels}, set); err != nil {
			return desired{}, fmt.Errorf("networkQoS: %w", err)
		}
	}
	w.ID = reconcile.IDOfFile(w.Netns.Name, w.Topology.Name)
	return w, nil
}

// readNamed reads a file that another one names, and watches its directory.
func (r *reading) readNamed(dir, path string) ([]byte, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	r.dirs = append(r.dirs, filepath.Dir(path))
	return os.ReadFile(path)
}

// refuseTwice accepts a sandbox from the first file that describes it, and refuses the
// others.
func (r *reading) refuseTwice() {
	first := map[reconcile.SandboxID]string{}
	for _, name := range slices.Sorted(maps.Keys(r.desired)) {
		w := r.desired[name]
		if other, twice := first[w.ID]; twice {
			r.broken[name] = fmt.Errorf("config file %q: topology %q in network namespace %q is described by file %q already", name,
				w.Topology.Name, w.Netns.Name, other)
			delete(r.desired, name)
			continue
		}
		first[w.ID] = name
	}
}

// config holds the files that have been read from the directory so far.
type config struct {
	files  map[string]desired // by file; of a broken one its last valid content
	broken map[string]error
	// unknown is set if a broken file was never valid: which sandboxes it describes
	// cannot be known.
	unknown bool
}

// replace replaces the content and returns the sandboxes that were added, removed or
// changed. A file that breaks keeps its last valid content, which is that of recorded if
// the file was never valid since the start: a typing error removes no network, and neither
// does a version that refuses more than the one before it.
func (c *config) replace(r reading, recorded map[string]desired) (changed []reconcile.SandboxID) {
	files := maps.Clone(r.desired)
	c.unknown = false
	for name := range r.broken {
		if old, ok := c.files[name]; ok {
			files[name] = old
		} else if w, ok := recorded[name]; ok {
			files[name] = w
		} else {
			c.unknown = true
		}
	}
	before, after := byID(c.files), byID(files)
	for id, w := range after {
		if old, ok := before[id]; !ok || !old.same(w) {
			changed = append(changed, id)
		}
	}
	for id := range before {
		if _, ok := after[id]; !ok {
			changed = append(changed, id)
		}
	}
	c.files, c.broken = files, r.broken
	slices.Sort(changed)
	return changed
}

// byID indexes by sandbox; the first file wins, as in refuseTwice.
func byID(files map[string]desired) map[reconcile.SandboxID]desired {
	out := map[reconcile.SandboxID]desired{}
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(files))) {
		out[files[name].ID] = files[name]
	}
	return out
}
