// Package suggest finds the name a user meant.
//
// Every refusal of an unknown name (a step, a type, a key, a field) ends with
// the nearest known one when there is one. The threshold is tight: a wrong
// suggestion costs more than none.
package suggest

import (
	"slices"
	"strings"
	"unicode"
)

// maxLength is the longest name compared; the distance is quadratic.
const maxLength = 64

// synonyms are the words that netplan, nmstate, iproute2 and IPAM plugins have for ours, in lower case without dashes.
var synonyms = map[string][]string{
	"to": {"destination"}, "dst": {"destination"},
	"via": {"gateway"}, "gw": {"gateway"}, "nexthop": {"gateway"}, "nexthopaddress": {"gateway"},
	"cidr": {"prefix"}, "subnet": {"prefix"}, "range": {"prefix", "subnets"}, "ranges": {"subnets"}, "ipranges": {"subnets"},
	"rangestart": {"first"}, "start": {"first"}, "rangeend": {"last"}, "end": {"last"},
	"expression": {"cel"},
}

// opposites are words that are near and mean the opposite; with "", the second negates what follows.
var opposites = [][2]string{
	{"", "im"}, {"", "in"}, {"", "un"}, {"", "non"}, {"", "dis"}, {"ingress", "egress"}, {"min", "max"}, {"rx", "tx"},
}

// Name returns the candidate nearest to name, or "" when none is near. Equal
// but for case wins, then few typing errors, then a shared word ("vlanId" and
// "id"), then the word of another project. Among equals the first candidate wins.
func Name(name string, candidates []string) string {
	if name == "" || len(name) > maxLength {
		return ""
	}
	best, bestCost := "", 0
	for _, c := range candidates {
		cost, near := distance(name, c)
		if near && (best == "" || cost < bestCost) {
			best, bestCost = c, cost
		}
	}
	if best == "" {
		for _, s := range synonyms[strings.Join(words(name), "")] {
			if slices.Contains(candidates, s) {
				return s
			}
		}
	}
	return best
}

func opposite(a, b string) bool {
	a, b = strings.ToLower(a), strings.ToLower(b)
	return a != b && slices.ContainsFunc(opposites, func(o [2]string) bool {
		return strings.Replace(a, o[0], o[1], 1) == b || strings.Replace(b, o[0], o[1], 1) == a
	})
}

// Hint returns the end of an error message, `, did you mean "x"?`, or "" when no
// candidate is near.
func Hint(name string, candidates []string) string {
	if c := Name(name, candidates); c != "" {
		return `, did you mean "` + c + `"?`
	}
	return ""
}

func distance(name, candidate string) (cost int, near bool) {
	if candidate == "" || len(candidate) > maxLength {
		return 0, false
	}
	if strings.EqualFold(name, candidate) {
		return 0, true
	}
	if opposite(name, candidate) {
		return 0, false
	}
	limit := 1
	if n := min(len(name), len(candidate)); n >= 8 {
		limit = 3
	} else if n >= 4 {
		limit = 2
	} else if n < 3 {
		limit = 0
	}
	if d := levenshtein(strings.ToLower(name), strings.ToLower(candidate), limit); d <= limit {
		return d, true
	}
	if sharesWords(words(name), words(candidate)) {
		return 10, true
	}
	return 0, false
}

// levenshtein counts insertions, deletions, replacements and swaps of
// neighbours (optimal string alignment), up to a limit: what is above it is at
// least one more.
func levenshtein(a, b string, limit int) int {
	x, y := []rune(a), []rune(b)
	if n := len(x) - len(y); n > limit || -n > limit {
		return limit + 1
	}
	before, prev, row := make([]int, len(y)+1), make([]int, len(y)+1), make([]int, len(y)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(x); i++ {
		// Further than limit from the diagonal everything is above it.
		first, last := max(1, i-limit), min(len(y), i+limit)
		row[0] = i
		if first > 1 {
			row[first-1] = limit + 1
		}
		for j := first; j <= last; j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		if last < len(y) {
			row[last+1] = limit + 1
		}
		before, prev, row = prev, row, before
	}
	return prev[len(y)]
}

// words splits at dashes, underscores and camel case, in lower case.
func words(s string) []string {
	var out []string
	var word []rune
	flush := func() {
		if len(word) > 0 {
			out = append(out, strings.ToLower(string(word)))
			word = nil
		}
	}
	wasUpper := true
	for _, r := range s {
		if r == '-' || r == '_' || r == '.' {
			flush()
			continue
		}
		if unicode.IsUpper(r) && !wasUpper {
			flush()
		}
		wasUpper = unicode.IsUpper(r)
		word = append(word, r)
	}
	flush()
	return out
}

// sharesWords reports whether one list is the end or the beginning of the other.
func sharesWords(a, b []string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	if len(a) == 0 || len(a) == len(b) {
		return false
	}
	head := strings.Join(b[:len(a)], " ")
	tail := strings.Join(b[len(b)-len(a):], " ")
	short := strings.Join(a, " ")
	return short == head || short == tail
}
