package node

import (
	"bytes"
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

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// file is what a file of the directory says: one sandbox.
type file struct {
	// Netns is the name of a network namespace, or its path.
	Netns string `json:"netns"`
	// Topology is a whole NetworkTopology; TopologyFile the file of one,
	// relative to the directory. One of them is given.
	Topology     json.RawMessage `json:"topology,omitempty"`
	TopologyFile string          `json:"topologyFile,omitempty"`
	// Devices assigns devices to root steps, by PCI address or interface name.
	Devices map[string]string `json:"devices,omitempty"`
}

// wish is a sandbox somebody wants to be.
type wish struct {
	file     string // base name of the file
	id       reconcile.SandboxID
	netns    Netns
	topology *topology.Topology
	asked    map[string]string
}

// same reports whether two wishes are for the same.
func (w wish) same(o wish) bool {
	if w.id != o.id || w.netns != o.netns || !maps.Equal(w.asked, o.asked) {
		return false
	}
	a, errA := json.Marshal(w.topology)
	b, errB := json.Marshal(o.topology)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// FromFile reports whether a sandbox is one that a loop keeps: only those does it
// ever release.
func FromFile(id reconcile.SandboxID) bool { return id.Origin().File }

// reading is one reading of the directory.
type reading struct {
	wishes map[string]wish  // by file
	broken map[string]error // by file
	dirs   []string         // whose changes can change the reading
}

// readDir reads all files "*.yaml" of a directory but those that hold a
// NetworkTopology themselves, for others to name. What is wrong with one file
// does not keep the others from being read.
func readDir(ctx context.Context, dir string, set contract.Set) (reading, error) {
	dir = filepath.Clean(dir)
	out := reading{wishes: map[string]wish{}, broken: map[string]error{}, dirs: []string{dir}}
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
			continue // it went meanwhile
		}
		if err == nil && isTopology(data) {
			continue
		}
		var w wish
		if err == nil {
			w, err = out.parse(ctx, dir, data, set)
		}
		if ctx.Err() != nil {
			return out, context.Cause(ctx) // the file is not to blame
		}
		if err != nil {
			out.broken[name] = fmt.Errorf("config file %q: %w", name, err)
			continue
		}
		w.file = name
		out.wishes[name] = w
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

func (r *reading) parse(ctx context.Context, dir string, data []byte, set contract.Set) (wish, error) {
	var f file
	if err := yaml.UnmarshalStrict(data, &f); err != nil {
		return wish{}, fault.New(fault.Invalid, oneLine(err))
	}
	if f.Netns == "" {
		return wish{}, fault.New(fault.Invalid, errors.New("netns: is missing: name a network namespace or its path"))
	}
	w := wish{asked: f.Devices}
	var err error
	if w.netns, err = ParseNetns(f.Netns); err != nil {
		return wish{}, fmt.Errorf("netns: %w", err)
	}
	text := []byte(f.Topology)
	switch {
	case len(f.Topology) > 0 && f.TopologyFile != "":
		return wish{}, fault.New(fault.Invalid, errors.New("topology and topologyFile are both given: keep one"))
	case len(f.Topology) == 0 && f.TopologyFile == "":
		return wish{}, fault.New(fault.Invalid, errors.New("topology: is missing: give one, or the name of its file as topologyFile"))
	case f.TopologyFile != "":
		path := f.TopologyFile
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		r.dirs = append(r.dirs, filepath.Dir(path))
		if text, err = os.ReadFile(path); err != nil {
			return wish{}, fmt.Errorf("topologyFile: %w", err)
		}
	}
	if w.topology, _, err = Load(ctx, text, set); err != nil {
		return wish{}, err
	}
	w.id = reconcile.IDOfFile(w.netns.Name, w.topology.Name)
	return w, nil
}

// refuseTwice leaves a sandbox that several files describe to the first of them.
func (r *reading) refuseTwice() {
	first := map[reconcile.SandboxID]string{}
	for _, name := range slices.Sorted(maps.Keys(r.wishes)) {
		w := r.wishes[name]
		if other, twice := first[w.id]; twice {
			r.broken[name] = fmt.Errorf("config file %q: topology %q in network namespace %q is described by file %q already", name, w.topology.Name, w.netns.Name, other)
			delete(r.wishes, name)
			continue
		}
		first[w.id] = name
	}
}

// oneLine puts a parser's findings on one line, without its way there.
func oneLine(err error) error {
	text := strings.Join(strings.Fields(err.Error()), " ")
	for _, way := range []string{"error converting YAML to JSON: ", "error unmarshaling JSON: ", "while decoding JSON: ", "json: "} {
		text = strings.TrimPrefix(text, way)
	}
	return errors.New(text)
}

// config is what the directory has said so far.
type config struct {
	files  map[string]wish // by file; of a broken one what it said last
	broken map[string]error
	// unknown are broken files that never said anything: what they are meant to
	// keep cannot be told.
	unknown bool
}

// take replaces what the directory says and returns the sandboxes whose wish
// has come, gone or changed. A file that breaks keeps what it said: nobody loses
// a network by a typing error.
func (c *config) take(r reading) (changed []reconcile.SandboxID) {
	files := maps.Clone(r.wishes)
	c.unknown = false
	for name := range r.broken {
		if old, ok := c.files[name]; ok {
			files[name] = old
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

// byID orders wishes by sandbox; the first file wins, as in refuseTwice.
func byID(files map[string]wish) map[reconcile.SandboxID]wish {
	out := map[reconcile.SandboxID]wish{}
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(files))) {
		out[files[name].id] = files[name]
	}
	return out
}
