package conformance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Result is that of one spec.
type Result struct {
	Name    string // with single spaces
	State   string // "passed", "failed" and so on
	Seconds int
	Failure string // the reason in one line, if it has not passed
}

// ParseResult reads a line of the output of integration/cluster/e2e. Most lines have no result.
func ParseResult(line string) (Result, bool) {
	fields := strings.Split(line, "\t")
	if len(fields) != 5 || fields[0] != "spec" {
		return Result{}, false
	}
	seconds, err := strconv.Atoi(fields[2])
	if err != nil {
		return Result{}, false
	}
	failure, err := strconv.Unquote(fields[4])
	if err != nil {
		return Result{}, false
	}
	return Result{Name: Name(fields[3]), State: fields[1], Seconds: seconds, Failure: strings.Join(strings.Fields(failure), " ")}, true
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
