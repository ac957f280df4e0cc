// Package excerpt shortens texts that users, pods and peers wrote to the length that an
// error, a condition or an Event accepts, and counts in them.
package excerpt

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

const more = "…"

// Of returns a text of at most most bytes, which must be 3 or more. A text that is longer is
// cut between two characters and ends in an ellipsis; invalid UTF-8, which the API server
// and JSON refuse or change, becomes question marks.
func Of(s string, most int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= most {
		return s
	}
	at := most - len(more)
	for !utf8.RuneStart(s[at]) {
		at--
	}
	return s[:at] + more
}

// Lines is Of for a text of lines: it is cut at the end of a line if more than half of the
// bytes are left then, and the ellipsis is a line of its own.
func Lines(s string, most int) string {
	s = strings.ToValidUTF8(s, "?") // which may be shorter
	if len(s) <= most {
		return s
	}
	s = strings.TrimSuffix(Of(s, most-1), more)
	if i := strings.LastIndexByte(s, '\n'); i > most/2 {
		s = s[:i]
	}
	return s + "\n" + more
}

// First lists the first names, and how many more there are.
func First(names []string, most int) string {
	out := strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		out += fmt.Sprintf(" and %d more", more)
	}
	return out
}

// Texts returns the texts of things, such as their names.
func Texts[T any](all []T, text func(T) string) []string {
	out := make([]string, len(all))
	for i := range all {
		out[i] = text(all[i])
	}
	return out
}

// Few lists the texts of the first things, and how many more there are.
func Few[T any](all []T, most int, text func(T) string) string {
	out := Texts(all[:min(len(all), most)], text)
	if more := len(all) - len(out); more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(out, "; ")
}

// Count returns a number and what it is of: "1 pod", "2 pods".
func Count(n int, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case strings.HasSuffix(what, "s"):
		return fmt.Sprintf("%d %ses", n, what)
	}
	return fmt.Sprintf("%d %ss", n, what)
}
