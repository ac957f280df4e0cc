package main

import (
	"bytes"
	"strings"
	"testing"
)

// Arguments after a file are completed: cobra parses the flags twice for that.
func TestCompletion(t *testing.T) {
	for _, c := range []struct {
		arguments []string
		want      string
	}{
		{[]string{"graph", "-f", "../../docs/flagship.yaml", "-o", ""}, "svg"},
		{[]string{"claim", "-f", "../../docs/flagship.yaml", "--kind", ""}, "limits"},
		{[]string{"import", "-f", "../../docs/flagship.yaml", "--st"}, "--state-dir"},
		{[]string{"agent", "--log-format", ""}, "json"},
		{[]string{"agent", "--log-level", ""}, "warn"},
		{[]string{"controller", "--log-level", ""}, "warn"},
		{[]string{"plan", "-f", "../../docs/flagship.yaml", "--device", "vf0=l"}, ":4"},
	} {
		var out, complaint bytes.Buffer
		code := run(t.Context(), append([]string{"__complete"}, c.arguments...), stdio{in: strings.NewReader(""), out: &out, err: &complaint})
		if code != 0 || !strings.Contains(out.String(), c.want) {
			t.Errorf("%q: exit status %d, %q, %s: want %q", c.arguments, code, out.String(), complaint.String(), c.want)
		}
	}
}
