package conformance

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Result is that of one spec.
type Result struct {
	Name    string // with single spaces
	State   string // "passed", "failed" and so on
	Seconds int
	Failure string // the reason in one line, if it has not passed
}

// ParseResults reads a report of Ginkgo in JSON: of the specs that were not left out.
func ParseResults(report []byte) (out []Result, err error) {
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts           []string
			LeafNodeType, LeafNodeText, State string
			RunTime                           time.Duration
			Failure                           struct{ Message string }
		}
	}
	if err := json.Unmarshal(report, &suites); err != nil {
		return nil, fmt.Errorf("report of the specs: %w", err)
	}
	for _, suite := range suites {
		for _, spec := range suite.SpecReports {
			if spec.LeafNodeType != "It" || spec.State == "skipped" || spec.State == "pending" {
				continue
			}
			out = append(out, Result{
				Name:  Name(strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ")),
				State: spec.State, Seconds: int(spec.RunTime.Seconds()), Failure: strings.Join(strings.Fields(spec.Failure.Message), " "),
			})
		}
	}
	return out, nil
}

// Name is the name of a spec with single spaces: Kubernetes' list wraps it, and its own spaces vary.
func Name(name string) string { return strings.Join(strings.Fields(name), " ") }

// Judge returns the problems of a run of specs: one that did not run, has no place in the list, failed, or passed although it is
// expected to fail for the given reason.
func Judge(specs []string, results []Result, expected map[string]string) (problems []string) {
	left := slices.Clone(specs)
	for _, r := range results {
		i := slices.Index(left, r.Name)
		reason, fails := expected[r.Name]
		switch {
		case i < 0:
			problems = append(problems, fmt.Sprintf("%s: ran, and is not in the list, or ran twice", r.Name))
			continue
		case r.State == "passed" && fails:
			problems = append(problems, fmt.Sprintf("%s: passed, and is expected to fail: %s", r.Name, reason))
		case r.State != "passed" && !fails:
			problems = append(problems, fmt.Sprintf("%s: %s: %s", r.Name, r.State, r.Failure))
		}
		left = slices.Delete(left, i, i+1)
	}
	for _, name := range left {
		problems = append(problems, name+": did not run")
	}
	for name := range expected {
		if !slices.Contains(specs, name) {
			problems = append(problems, name+": expected to fail, and is not in the list")
		}
	}
	slices.Sort(problems)
	return problems
}
