package main

import (
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// printable writes text for a terminal. Control characters are written as escapes (\x1b):
// names and messages may come from a pod's namespace, where an interface's name is any 15
// bytes but '/', ':' and space.
type printable struct {
	io.Writer
	colours bool // our own colour codes are passed
}

// colour matches the codes that text.mark and text.bold write.
var colour = regexp.MustCompile(`^\x1b\[([01]|3[1-6])m`)

// Write never splits a rune: its callers write whole lines.
func (p printable) Write(b []byte) (int, error) {
	if _, err := io.WriteString(p.Writer, p.escape(string(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (p printable) escape(s string) string {
	var out strings.Builder
	for s != "" {
		r, n := utf8.DecodeRuneInString(s)
		ours := ""
		if p.colours {
			ours = colour.FindString(s)
		}
		switch {
		case ours != "":
			out.WriteString(ours)
			n = len(ours)
		case r == utf8.RuneError && n == 1, !unicode.IsPrint(r) && r != '\n' && r != '\t':
			quoted := strconv.Quote(s[:n])
			out.WriteString(quoted[1 : len(quoted)-1])
		default:
			out.WriteString(s[:n])
		}
		s = s[n:]
	}
	return out.String()
}
