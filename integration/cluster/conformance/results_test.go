package conformance_test

import (
	"slices"
	"testing"

	"github.com/plumbline/plumbline/integration/cluster/conformance"
)

func TestParseResults(t *testing.T) {
	got, err := conformance.ParseResults([]byte(`[{"SpecReports": [
		{"ContainerHierarchyTexts": ["[sig-network] DNS"], "LeafNodeType": "It", "LeafNodeText": "resolves  [Conformance]", "State": "failed",
			"RunTime": 12345678901, "Failure": {"Message": "no\n answer\t"}},
		{"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": "serve", "State": "skipped"},
		{"ContainerHierarchyTexts": null, "LeafNodeType": "SynchronizedBeforeSuite", "LeafNodeText": "", "State": "passed"}]}]`))
	want := []conformance.Result{{Name: "[sig-network] DNS resolves [Conformance]", State: "failed", Seconds: 12, Failure: "no answer"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("have %+v, %v, want %+v", got, err, want)
	}
	if _, err := conformance.ParseResults([]byte("spec")); err == nil {
		t.Error("a report that is not JSON is read")
	}
}

func TestJudge(t *testing.T) {
	result := func(name, state string) conformance.Result {
		return conformance.Result{Name: name, State: state, Failure: "why"}
	}
	for name, c := range map[string]struct {
		results  []conformance.Result
		expected map[string]string
		want     []string
	}{
		"all pass":  {results: []conformance.Result{result("a", "passed"), result("b", "passed")}},
		"one fails": {results: []conformance.Result{result("a", "passed"), result("b", "failed")}, want: []string{"b: failed: why"}},
		"one panics": {
			results: []conformance.Result{result("a", "panicked"), result("b", "passed")},
			want:    []string{"a: panicked: why"},
		},
		"one fails, as expected": {
			results:  []conformance.Result{result("a", "passed"), result("b", "failed")},
			expected: map[string]string{"b": "old"},
		},
		"one passes unexpectedly": {
			results:  []conformance.Result{result("a", "passed"), result("b", "passed")},
			expected: map[string]string{"b": "old"},
			want:     []string{"b: passed, and is expected to fail: old"},
		},
		"one does not run": {results: []conformance.Result{result("b", "passed")}, want: []string{"a: did not run"}},
		"one that is expected to fail does not run": {
			results:  []conformance.Result{result("a", "passed")},
			expected: map[string]string{"b": "old"},
			want:     []string{"b: did not run"},
		},
		"none runs": {want: []string{"a: did not run", "b: did not run"}},
		"one is not in the list": {
			results: []conformance.Result{result("a", "passed"), result("b", "passed"), result("c", "passed")},
			want:    []string{"c: ran, and is not in the list, or ran twice"},
		},
		"one runs twice": {
			results: []conformance.Result{result("a", "passed"), result("b", "passed"), result("b", "failed")},
			want:    []string{"b: ran, and is not in the list, or ran twice"},
		},
		"an expectation is old": {
			results:  []conformance.Result{result("a", "passed"), result("b", "passed")},
			expected: map[string]string{"z": "old"},
			want:     []string{"z: expected to fail, and is not in the list"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := conformance.Judge([]string{"a", "b"}, c.results, c.expected); !slices.Equal(got, c.want) {
				t.Errorf("have %q, want %q", got, c.want)
			}
		})
	}
}
