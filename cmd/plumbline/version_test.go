package main

import (
	"bytes"
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// Each form of the version has all that a report needs: release, commit, Go and platform.
func TestVersion(t *testing.T) {
	say := func(arguments ...string) string {
		var out, complaint bytes.Buffer
		if code := run(t.Context(), arguments, stdio{out: &out, err: &complaint}); code != 0 {
			t.Fatalf("%q: exit status %d: %s", arguments, code, complaint.String())
		}
		return out.String()
	}
	line := say("version")
	if flag := say("--version"); flag != line {
		t.Errorf("--version says %q, and version says %q", flag, line)
	}
	for _, want := range []string{"plumbline development ", "revision ", runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH} {
		if !strings.Contains(line, want) {
			t.Errorf("%q is missing in %q", want, line)
		}
	}
	want := versionDocument{Version: "development", Revision: build().Revision, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	for format, decode := range map[string]func([]byte, any) error{
		formatJSON: json.Unmarshal,
		formatYAML: func(text []byte, into any) error { return yaml.UnmarshalStrict(text, into) },
	} {
		var have versionDocument
		if err := decode([]byte(say("version", "-o", format)), &have); err != nil || have != want {
			t.Errorf("-o %s: want %+v, have %+v, %v", format, want, have, err)
		}
	}
}
