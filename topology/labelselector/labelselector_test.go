package labelselector_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/topology/labelselector"
)

func TestCheck(t *testing.T) {
	requirement := func(key string, operator metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "rack", Operator: metav1.LabelSelectorOpExists}, {Key: key, Operator: operator, Values: values},
		}}
	}
	const wantKey = "is not the key of a label: want NAME or DOMAIN/NAME, where NAME has 1 to 63 letters, digits, '-', '_' or '.', the first and the last a letter or digit"
	const wantValue = "is not the value of a label: want at most 63 letters, digits, '-', '_' or '.', the first and the last a letter or digit"
	for name, c := range map[string]struct {
		s    *metav1.LabelSelector
		want []string
	}{
		"none":             {nil, nil},
		"empty":            {&metav1.LabelSelector{}, nil},
		"good":             {&metav1.LabelSelector{MatchLabels: map[string]string{"example.com/rail": "", "role": "gpu"}}, nil},
		"good requirement": {requirement("rail", metav1.LabelSelectorOpNotIn, "a", ""), nil},
		"key and value": {
			&metav1.LabelSelector{MatchLabels: map[string]string{"my role": "gpu!", "rail": "-"}},
			[]string{`matchLabels: "my role" ` + wantKey, `matchLabels["my role"]: "gpu!" ` + wantValue, `matchLabels["rail"]: "-" ` + wantValue},
		},
		"empty key":     {&metav1.LabelSelector{MatchLabels: map[string]string{"": "x"}}, []string{`matchLabels: "" ` + wantKey}},
		"long key":      {&metav1.LabelSelector{MatchLabels: map[string]string{strings.Repeat("k", 400): "x"}}, []string{`matchLabels: "` + strings.Repeat("k", 77) + `…" ` + wantKey}},
		"no key":        {requirement("", "Exists"), []string{"matchExpressions[1].key: is missing: give the key of a label"}},
		"key":           {requirement("a/b/c", "Exists"), []string{`matchExpressions[1].key: "a/b/c" ` + wantKey}},
		"no operator":   {requirement("a", ""), []string{"matchExpressions[1].operator: is missing: give one of In, NotIn, Exists, DoesNotExist"}},
		"operator":      {requirement("a", "Near"), []string{`matchExpressions[1].operator: "Near" is not one of In, NotIn, Exists, DoesNotExist`}},
		"spelling":      {requirement("a", "exist"), []string{`matchExpressions[1].operator: "exist" is not one of In, NotIn, Exists, DoesNotExist, did you mean "Exists"?`}},
		"no values":     {requirement("a", "In"), []string{"matchExpressions[1].values: are missing: operator In needs one or more; to select by the key alone use Exists or DoesNotExist"}},
		"values":        {requirement("a", "Exists", "b"), []string{"matchExpressions[1].values: operator Exists takes none: remove them, or use operator In"}},
		"values of not": {requirement("a", "DoesNotExist", "b"), []string{"matchExpressions[1].values: operator DoesNotExist takes none: remove them, or use operator NotIn"}},
		"value":         {requirement("a", "In", "b", "c d"), []string{`matchExpressions[1].values[1]: "c d" ` + wantValue}},
	} {
		t.Run(name, func(t *testing.T) {
			var have []string
			for _, p := range labelselector.Check(c.s) {
				have = append(have, p.Field+": "+p.Message)
			}
			if !slices.Equal(have, c.want) {
				t.Errorf("have\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// TestBounded: a selector of a user who means to fill a status says only so much.
func TestBounded(t *testing.T) {
	s := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for i := range 100 {
		s.MatchLabels[strings.Repeat("!", i+1)] = "!"
		s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: "!", Operator: "!", Values: slices.Repeat([]string{"!"}, 100)})
	}
	if n := len(labelselector.Check(s)); n != 8 {
		t.Errorf("%d problems of labels", n)
	}
	s.MatchLabels = nil
	if n := len(labelselector.Check(s)); n != 8 {
		t.Errorf("%d problems of requirements", n)
	}
}

// TestAgrees holds for random selectors that they have a problem if and only if Kubernetes refuses them.
func TestAgrees(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	words := []string{"", "a", "a.b/c", "a b", "/a", "a/", "-", "A_b", strings.Repeat("x", 63), strings.Repeat("x", 64), strings.Repeat("d", 254) + "/n", "ä"}
	operators := []metav1.LabelSelectorOperator{"", "In", "NotIn", "Exists", "DoesNotExist", "in"}
	word := func() string {
		if rng.IntN(3) > 0 { // else few would be accepted
			return "a"
		}
		return words[rng.IntN(len(words))]
	}
	accepted := 0
	for range 20_000 {
		s := &metav1.LabelSelector{MatchLabels: map[string]string{}}
		for range rng.IntN(3) {
			s.MatchLabels[word()] = word()
		}
		for range rng.IntN(3) {
			r := metav1.LabelSelectorRequirement{Key: word(), Operator: operators[rng.IntN(len(operators))]}
			for range rng.IntN(3) {
				r.Values = append(r.Values, word())
			}
			s.MatchExpressions = append(s.MatchExpressions, r)
		}
		_, err := metav1.LabelSelectorAsSelector(s)
		if problems := labelselector.Check(s); (err == nil) != (len(problems) == 0) {
			t.Fatalf("%+v: Kubernetes says %v, and here are %q", s, err, problems)
		}
		if err == nil {
			accepted++
		}
	}
	if accepted < 1000 || accepted > 19_000 {
		t.Errorf("of 20000 selectors, %d are accepted", accepted)
	}
}
