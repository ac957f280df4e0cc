package topology

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// unquoted explains the most common mistake in a config.
const unquoted = `a reference must be in quotes, as in "{{ step.field }}": YAML takes bare braces for a mapping`

// checkText names the line in which a file is not text. The YAML parser does not.
func checkText(data []byte) error {
	if bytes.HasPrefix(data, []byte{0xff, 0xfe}) || bytes.HasPrefix(data, []byte{0xfe, 0xff}) {
		return nil // UTF-16, which the parser reads
	}
	n := 0
	for line := range bytes.Lines(data) {
		n++
		if !utf8.Valid(line) {
			return onLine(n, "the byte 0x%02x is not UTF-8: save the file as UTF-8", firstInvalid(line))
		}
		if i := bytes.IndexFunc(line, control); i >= 0 {
			return onLine(n, "the control character U+%04X cannot be part of YAML: remove it", line[i])
		}
	}
	return nil
}

func firstInvalid(line []byte) byte {
	for len(line) > 0 {
		r, size := utf8.DecodeRune(line)
		if r == utf8.RuneError && size == 1 {
			break
		}
		line = line[size:]
	}
	return line[0]
}

func control(r rune) bool { return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0x7f }

var (
	tabbed       = regexp.MustCompile(`^ *\t`)
	bareTemplate = regexp.MustCompile(`^[^"'#]*[-:,\[{] *\{\{`)
)

// explainSyntax adds the probable mistake to an error of the YAML parser. The parser
// sometimes names the line before.
func explainSyntax(data []byte, err error) error {
	text := err.Error() // as text: the YAML libraries have no types
	tab := strings.Contains(text, "tab character") || strings.Contains(text, "cannot start any token")
	if strings.Contains(text, unquoted) {
		return err
	}
	n := 0
	for line := range bytes.Lines(data) {
		n++
		switch {
		case tab && tabbed.Match(line):
			return &lineError{n, fmt.Errorf("line %d is indented with a tab: YAML takes spaces only",
				n), "is indented with a tab: YAML takes spaces only"}
		case bareTemplate.Match(line) && strings.Contains(err.Error(), "yaml: "): // as text: the prefix of syntax errors
			return &lineError{n, fmt.Errorf("%w; line %d: %s", err, n, unquoted), unquoted}
		}
	}
	return err
}

var (
	parserLine = regexp.MustCompile(`^yaml: line (\d+): `)
	// lineBefore matches the errors whose line the libraries count from 0.
	lineBefore = regexp.MustCompile(`did not find expected (<document start>|node content|key|'-' indicator|',' or '[\]}]')$`)
)

// syntaxError notes the line of an error of the YAML parser, which leaves out that of the first line.
func syntaxError(err error) error {
	text, line := err.Error(), 1
	if m := parserLine.FindStringSubmatch(text); m != nil { // as text: the YAML libraries have no types
		line, _ = strconv.Atoi(m[1])
		text = "yaml: " + text[len(m[0]):]
		if lineBefore.MatchString(text) {
			line++
		}
	}
	return &lineError{line, err, text}
}
