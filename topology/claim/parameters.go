package claim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plumbline/plumbline/topology"
)

// Set is the opaque config of a claim: what it sets in the configs of a topology's steps. It cannot name a topology.
type Set struct {
	Parameters []topology.Parameters `json:"parameters"`
}

// errFromClaim is the error of config in a claim that is more than parameters.
var errFromClaim = errors.New("in a claim, config for driver \"" + Driver +
	"\" may have parameters only: the DeviceClass decides which topology and step a device is for")

// parseParameters decodes the opaque config of a claim.
func parseParameters(raw []byte) ([]topology.Parameters, error) {
	var s Set
	if err := strictly(raw, &s); err != nil {
		return nil, fmt.Errorf("%w: %w", errFromClaim, err)
	}
	if len(s.Parameters) == 0 {
		return nil, fmt.Errorf("%w: parameters is missing", errFromClaim)
	}
	if len(s.Parameters) > topology.MaxParameters {
		return nil, fmt.Errorf("parameters has %d entries, at most %d are accepted", len(s.Parameters), topology.MaxParameters)
	}
	// The API server refuses our report of the status when it comes to other bytes than the allocation has, see TopologyRef.
	var compact bytes.Buffer
	_ = json.Compact(&compact, raw) // it was decoded
	if sorted, err := json.Marshal(s); err != nil || !bytes.Equal(compact.Bytes(), sorted) {
		return nil, fmt.Errorf(
			"parameters: write the keys in alphabetical order and without empty values, as %s: the API server compares them as text",
			sorted)
	}
	return s.Parameters, nil
}

// SetParameters has a claim of one topology set parameters.
func SetParameters(spec *resourceapi.ResourceClaimSpec, set []topology.Parameters) {
	if len(set) == 0 {
		return
	}
	raw, _ := json.Marshal(Set{set})
	one := resourceapi.DeviceClaimConfiguration{DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: Driver, Parameters: runtime.RawExtension{Raw: raw}},
	}}
	for _, r := range spec.Devices.Requests {
		one.Requests = append(one.Requests, r.Name)
	}
	spec.Devices.Config = append(spec.Devices.Config, one)
}

// isFor reports whether config for these requests, for all if there are none, is for a request or an alternative of it.
func isFor(requests []string, request string) bool {
	parent, _, _ := strings.Cut(request, "/")
	return len(requests) == 0 || slices.Contains(requests, request) || slices.Contains(requests, parent)
}

// onlyOne returns what a claim has for the topology that its config is for, nil if it has nothing for one. Of says the name
// of a topology, and whether the config is for that. Config for several is an error.
func onlyOne[T any](all []T, of func(*T) (topology string, is bool)) (one *T, err error) {
	name := ""
	for i := range all {
		switch other, is := of(&all[i]); {
		case !is:
		case one != nil:
			return nil, fmt.Errorf(
				"its requests are for the NetworkTopologies %q and %q: name in requests those of one of them, and write a config for each",
				name, other)
		default:
			one, name = &all[i], other
		}
	}
	return one, nil
}
