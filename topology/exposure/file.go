package exposure

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Decode reads the policies of a YAML or JSON file, and says how many documents of
// other kinds there are. Unknown fields are refused.
func Decode(data []byte) (policies []*v1alpha1.DeviceExposurePolicy, others int, err error) {
	found, others, err := topology.Objects(data, v1alpha1.PolicyKind)
	if err != nil {
		return nil, others, err
	}
	for _, raw := range found {
		o := &v1alpha1.DeviceExposurePolicy{}
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.DisallowUnknownFields()
		if err := dec.Decode(o); err != nil {
			return nil, others, fmt.Errorf("%s %q: %w", v1alpha1.PolicyKind, nameOf(raw), inWords(err))
		}
		if want := v1alpha1.GroupVersion.String(); o.APIVersion != want {
			return nil, others, fmt.Errorf("%s %q has apiVersion %q, want %q", v1alpha1.PolicyKind, o.Name, o.APIVersion, want)
		}
		policies = append(policies, o)
	}
	return policies, others, nil
}

func nameOf(raw []byte) string {
	var o struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	_ = json.Unmarshal(raw, &o) // whatever it is, there is a better error already
	return o.Metadata.Name
}

// inWords says what the JSON decoder says without the words of Go.
func inWords(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s: does not take a %s", wrong.Field, wrong.Value)
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}
