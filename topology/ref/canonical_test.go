package ref

import "strings"

// String returns the template in canonical form; parsing that returns the same template.
func (t Template) String() string {
	var b strings.Builder
	for i, p := range t.parts {
		if p.ref != nil {
			b.WriteString(p.ref.String())
			continue
		}
		writeText(&b, p.text, i+1 < len(t.parts))
	}
	return b.String()
}

// writeText writes text so that Parse reads it as text: a run of two or more
// opening braces, or one that would touch a following token, is quoted.
func writeText(b *strings.Builder, text string, beforeToken bool) {
	for text != "" {
		i := strings.IndexByte(text, '{')
		if i < 0 {
			b.WriteString(text)
			return
		}
		b.WriteString(text[:i])
		run := 0
		for i+run < len(text) && text[i+run] == '{' {
			run++
		}
		last := i+run == len(text)
		if run > 1 || last && beforeToken {
			b.WriteString(`{{ "` + text[i:i+run] + `" }}`)
		} else {
			b.WriteByte('{')
		}
		text = text[i+run:]
	}
}
