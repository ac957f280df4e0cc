package claim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Driver is the name of the DRA driver: in classes, slices and claims.
const Driver = "dra.networking"

// The labels of a generated DeviceClass.
const (
	LabelTopology = "networking.dra.io/topology"
	LabelStep     = "networking.dra.io/step"
)

// Config is the opaque config of a generated DeviceClass.
type Config struct {
	NetworkTopologyRef TopologyRef `json:"networkTopologyRef"`
	// Step is the root step the class is for.
	Step string `json:"step"`
	// ThenSteps are further root steps, which have the same extended resource name: a
	// claim's second device of the class is for the first of them, and so on.
	ThenSteps []string `json:"thenSteps,omitempty"`
}

// Steps returns the root steps that a claim's devices of the class are for, in order.
func (c Config) Steps() []string { return append([]string{c.Step}, c.ThenSteps...) }

// Equal reports whether two configs are the same.
func (c Config) Equal(other Config) bool {
	return c.NetworkTopologyRef == other.NetworkTopologyRef && slices.Equal(c.Steps(), other.Steps())
}

// TopologyRef names a topology. UID and generation pin the one the class was generated
// from; a class written by hand need not have them. The fields are in the order of their
// keys: server-side apply to a claim's status writes the opaque parameters of its
// allocation with sorted keys, and the API server refuses that as a change when they were
// not sorted before (1.37).
type TopologyRef struct {
	Generation int64     `json:"generation,omitempty"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid,omitempty"`
}

// ConfigOf returns the config of the class for a root step.
func ConfigOf(t *v1alpha1.NetworkTopology, step string) Config {
	return Config{
		NetworkTopologyRef: TopologyRef{Name: t.Name, UID: t.UID, Generation: t.Generation}, Step: step,
		ThenSteps: thenSteps(t, step),
	}
}

// thenSteps returns the steps after a step that have its extended resource name. There are
// none when an earlier step has the name: the DeviceClass of that step has it.
func thenSteps(t *v1alpha1.NetworkTopology, step string) []string {
	all := topology.StepResources(t)
	i := slices.IndexFunc(all, func(s topology.StepResource) bool { return s.Step == step })
	if i < 0 {
		return nil
	}
	var named []string
	for _, s := range all {
		if s.Resource == all[i].Resource {
			named = append(named, s.Step)
		}
	}
	if named[0] != step || len(named) == 1 {
		return nil
	}
	return named[1:]
}

// ClassName returns the name of the DeviceClass for a root step. Two topologies may need
// the same name ("a-b" with "c", "a" with "b-c"): the controller refuses the later one.
func ClassName(topology, step string) string { return topology + "-" + step }

// ParseConfig decodes opaque parameters. Unknown keys are errors: ignoring them could
// change what a class of a later version means.
func ParseConfig(parameters []byte) (Config, error) {
	var c Config
	err := strictly(parameters, &c)
	switch {
	case err != nil:
	case c.NetworkTopologyRef.Name == "":
		err = errors.New("networkTopologyRef.name is missing")
	case c.Step == "":
		err = errors.New("step is missing")
	case len(c.ThenSteps) >= MaxRequests || slices.Contains(c.ThenSteps, ""):
		err = fmt.Errorf("thenSteps has an empty name, or more than %d", MaxRequests-1)
	}
	if err != nil {
		return Config{}, fmt.Errorf("opaque parameters: %w", err)
	}
	return c, nil
}

// strictly decodes one JSON value whose keys are all known.
func strictly(raw []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}
