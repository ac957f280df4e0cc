package conformance_test

import (
	"slices"
	"testing"

	"github.com/plumbline/plumbline/integration/cluster/conformance"
)

func TestParseResult(t *testing.T) {
	got, ok := conformance.ParseResult("spec\tfailed\t12\t[sig-network] DNS  resolves [Conformance]\t\"no\\n answer\\t\"")
	want := conformance.Result{Name: "[sig-network] DNS resolves [Conformance]", State: "failed", Seconds: 12, Failure: "no answer"}
	if !ok || got != want {
		t.Errorf("have %+v, %t, want %+v", got, ok, want)
	}
	for _, line := range []string{
		"", "spec", "spec\tfailed\t12\tname", "spec\tfailed\tlong\tname\t\"\"", "spec\tfailed\t12\tname\tno", "I1129\ta\t1\tb\t\"\"",
	} {
		if got, ok := conformance.ParseResult(line); ok {
			t.Errorf("%q is a result: %+v", line, got)
		}
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
