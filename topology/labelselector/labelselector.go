// Package labelselector says what is wrong with a label selector and in which of its fields. The
// error of apimachinery names neither, and explains a label by a regular expression.
package labelselector

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/suggest"
)

// Problem is an error in one field.
type Problem struct {
	Field   string // path within the selector, such as matchExpressions[0].operator
	Message string // lower case, names the value and what was expected
}

// maxProblems bounds what is said of one selector, and maxText what is quoted of it.
const (
	maxProblems = 8
	maxText     = 80
)

const (
	wantKey = "want NAME or DOMAIN/NAME, where NAME has 1 to 63 letters, digits, '-', '_' or '.', " +
		"the first and the last a letter or digit"
	wantValue = "want at most 63 letters, digits, '-', '_' or '.', the first and the last a letter or digit"
)

// operators are the operators of Kubernetes.
var operators = []string{
	string(metav1.LabelSelectorOpIn), string(metav1.LabelSelectorOpNotIn),
	string(metav1.LabelSelectorOpExists), string(metav1.LabelSelectorOpDoesNotExist),
}

// Check returns what is wrong with a selector, nothing if and only if
// metav1.LabelSelectorAsSelector takes it.
func Check(s *metav1.LabelSelector) []Problem {
	if s == nil {
		return nil
	}
	out := Labels("matchLabels", s.MatchLabels)
	for i := range s.MatchExpressions {
		if len(out) < maxProblems {
			out = append(out, requirement(fmt.Sprintf("matchExpressions[%d]", i), &s.MatchExpressions[i])...)
		}
	}
	return out[:min(len(out), maxProblems)]
}

// Labels returns what is wrong with labels that are selected one by one. at is their field.
func Labels(at string, labels map[string]string) []Problem {
	var out []Problem
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if len(validation.IsQualifiedName(key)) > 0 {
			out = append(out, Problem{at, fmt.Sprintf("%q is not the key of a label: %s", shown(key), wantKey)})
		}
		if len(validation.IsValidLabelValue(labels[key])) > 0 {
			out = append(out, Problem{fmt.Sprintf("%s[%q]", at, shown(key)), isNoValue(labels[key])})
		}
		if len(out) >= maxProblems {
			break
		}
	}
	return out[:min(len(out), maxProblems)]
}

func requirement(at string, r *metav1.LabelSelectorRequirement) (out []Problem) {
	add := func(field, format string, args ...any) {
		out = append(out, Problem{at + "." + field, fmt.Sprintf(format, args...)})
	}
	switch {
	case r.Key == "":
		add("key", "is missing: give the key of a label")
	case len(validation.IsQualifiedName(r.Key)) > 0:
		add("key", "%q is not the key of a label: %s", shown(r.Key), wantKey)
	}
	switch r.Operator {
	case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn:
		if len(r.Values) == 0 {
			add("values", "are missing: operator %s needs one or more; to select by the key alone use Exists or DoesNotExist", r.Operator)
		}
	case metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			instead := map[metav1.LabelSelectorOperator]metav1.LabelSelectorOperator{
				metav1.LabelSelectorOpExists: metav1.LabelSelectorOpIn, metav1.LabelSelectorOpDoesNotExist: metav1.LabelSelectorOpNotIn,
			}
			add("values", "operator %s takes none: remove them, or use operator %s", r.Operator, instead[r.Operator])
		}
	case "":
		add("operator", "is missing: give one of %s", strings.Join(operators, ", "))
	default:
		name := shown(string(r.Operator))
		add("operator", "%q is not one of %s%s", name, strings.Join(operators, ", "), suggest.Hint(name, operators))
	}
	for i, v := range r.Values {
		if len(validation.IsValidLabelValue(v)) > 0 && len(out) < maxProblems {
			add(fmt.Sprintf("values[%d]", i), "%s", isNoValue(v))
		}
	}
	return out
}

func isNoValue(v string) string {
	return fmt.Sprintf("%q is not the value of a label: %s", shown(v), wantValue)
}

// shown shortens what a user wrote.
func shown(s string) string { return excerpt.Of(s, maxText) }
