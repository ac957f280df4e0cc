package objectfile_test

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/objectfile"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

const head = "apiVersion: networking.dra.io/v1alpha1\nkind: DeviceExposurePolicy\nmetadata: {name: p}\n"

func decode(text string) (*v1alpha1.DeviceExposurePolicy, error) {
	f, err := topology.Parse("", []byte(text))
	if err != nil {
		return nil, err
	}
	objects, err := objectfile.Decode[v1alpha1.DeviceExposurePolicy](f, v1alpha1.GroupVersion.WithKind(v1alpha1.PolicyKind))
	if err != nil {
		return nil, err
	}
	return objects[0], nil
}

func TestDecode(t *testing.T) {
	o, err := decode(head + `spec:
  priority: 5
  nodeSelector: {rail: a}
  selector: {cel: "true"}
  exposure: {capacity: {bandwidth: {value: 25G, requestPolicy: {default: "1"}}}}
`)
	if err != nil {
		t.Fatal(err)
	}
	if bandwidth := o.Spec.Exposure.Capacity["bandwidth"].Value; o.Spec.Priority != 5 || o.Spec.NodeSelector["rail"] != "a" || o.Spec.Selector.CEL != "true" || bandwidth.Value() != 25_000_000_000 {
		t.Errorf("%+v", o)
	}
}

// TestRefused holds that an error names the field with the keys and indexes that lead to it, and what was
// expected there.
func TestRefused(t *testing.T) {
	for _, c := range []struct{ spec, want string }{
		{`{nodeselector: {a: b}}`, `unknown field "spec.nodeselector", did you mean "nodeSelector"?`},
		{`{physicalNetworks: [{name: a, nodeSelector: {a: b}}]}`, `unknown field "spec.physicalNetworks[0].nodeSelector": known here are addressPool, name, vlan; "nodeSelector" is known in spec`},
		{`{exposure: {capacity: {bandwidth: {value: 25Gbps}}}}`, `spec.exposure.capacity.bandwidth.value: want a quantity such as 25G, got the string "25Gbps"`},
		{`{selector: {expression: "true"}}`, `unknown field "spec.selector.expression", did you mean "cel"?`},
		{`{selector: {matchLabels: {a: b}}}`, `unknown field "spec.selector.matchLabels": known here are cel`},
		{`{physicalNetworks: [{name: a}, {nmae: b}]}`, `unknown field "spec.physicalNetworks[1].nmae", did you mean "name"?`},
		{`{exposure: {capacity: {bandwidth: {values: 1}}}}`, `unknown field "spec.exposure.capacity.bandwidth.values", did you mean "value"?`},
		{`{nodeSelector: {matchLabels: {a: b}}}`, "spec.nodeSelector.matchLabels: want a string, got an object: write spec.nodeSelector: {NAME: TEXT}"},
		{`{nodeSelector: {matchExpressions: [{key: a, operator: Exists}]}}`, "spec.nodeSelector.matchExpressions: want a string, got a list: write spec.nodeSelector: {NAME: TEXT}"},
		{`{nodeSelector: {a: 1}}`, "spec.nodeSelector.a: want a string, got the number 1: put it in quotes"},
		{`{nodeSelector: {a: yes}}`, "spec.nodeSelector.a: want a string, got the boolean true: put it in quotes (YAML reads y, yes and on as true, n, no and off as false)"},
		{`{nodeSelector: [a]}`, "spec.nodeSelector: want an object, got a list"},
		{`{nodeSelector: a=b}`, `spec.nodeSelector: want an object, got the string "a=b"`},
		{`{selector: "true"}`, `spec.selector: want an object, got the string "true": write {cel: …}`},
		{`{selector: {cel: 1}}`, "spec.selector.cel: want a string, got the number 1: put it in quotes"},
		{`{priority: true}`, "spec.priority: want an integer, got the boolean true"},
		{`{priority: 1.5}`, "spec.priority: want an integer, got the number 1.5"},
		{`{exposure: {allowMultipleAllocations: "no"}}`, `spec.exposure.allowMultipleAllocations: want a boolean, got the string "no": write true or false, without quotes`},
		{`{physicalNetworks: {name: a}}`, "spec.physicalNetworks: want a list, got an object: put a dash before it"},
	} {
		if _, err := decode(head + "spec: " + c.spec); err == nil || err.Error() != `DeviceExposurePolicy "p": `+c.want {
			t.Errorf("%s\nhave %v\nwant %s", c.spec, err, c.want)
		}
	}
}

// TestKnownElsewhere holds that an error names the place of a field that is written one level too high, and not the field
// that shares a word with it.
func TestKnownElsewhere(t *testing.T) {
	const text = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec: {devices: {requests: [{name: a, deviceClassName: b}]}}\n"
	f, err := topology.Parse("", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	_, err = objectfile.Decode[resourceapi.ResourceClaim](f, resourceapi.SchemeGroupVersion.WithKind("ResourceClaim"))
	const want = `ResourceClaim "c": unknown field "spec.devices.requests[0].deviceClassName": known here are exactly, firstAvailable, name; "deviceClassName" is known in spec.devices.requests[0].exactly`
	if err == nil || err.Error() != want {
		t.Errorf("have %v\nwant %s", err, want)
	}
}

// TestLongKey holds that an error quotes no more of a name than fits.
func TestLongKey(t *testing.T) {
	if _, err := decode(head + "spec: {? " + strings.Repeat("k", 1000) + " : 1}"); err == nil || len(err.Error()) > 600 || !strings.Contains(err.Error(), "kkk…\": known here are action, ") {
		t.Error(err)
	}
}

// TestBounds holds that an error has a bounded number of lines, also of several objects, of which each names its
// object.
func TestBounds(t *testing.T) {
	long := strings.Repeat("x", 1000)
	var text strings.Builder
	for range 50 {
		text.WriteString(strings.Replace(head, "{name: p}", "{name: "+long+"}", 1) + "spec: {a: 1, b: 2}\n---\n")
	}
	_, err := decode(text.String())
	if err == nil {
		t.Fatal("no error")
	}
	lines := strings.Split(err.Error(), "\n")
	if last := lines[len(lines)-1]; len(lines) != topology.MaxProblems+1 || last != "stopped after 64 problems: there may be more" {
		t.Errorf("%d lines, the last is %q", len(lines), last)
	}
	for _, line := range lines[:len(lines)-1] {
		if len(line) > 1000 || !strings.HasPrefix(line, `DeviceExposurePolicy "xxx`) {
			t.Errorf("a line of %d bytes: %.100s", len(line), line)
		}
	}
}
