package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "rewrite the sessions")

// TestSessions replays testdata/*.txtar. The file "session" is a terminal session: lines
// "$ plumbline ..." are commands; their output follows, with errors after "!", and the exit
// status if it is not 0. The other files exist when the commands run; "< file" is standard
// input.
func TestSessions(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no sessions", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) { replay(t, file, nil) })
	}
}

// replay runs a session. Commands other than plumbline are executed by other.
func replay(t *testing.T, file string, other func(t *testing.T, command string)) {
	t.Helper()
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	session := -1
	for i, f := range archive.Files {
		if f.Name == "session" {
			session = i
			continue
		}
		path := filepath.Join(dir, f.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if session < 0 {
		t.Fatal(`no file "session"`)
	}
	file, err = filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	var got bytes.Buffer
	for line := range strings.Lines(string(archive.Files[session].Data)) {
		command, ok := strings.CutPrefix(line, "$ ")
		if !ok {
			continue
		}
		fmt.Fprint(&got, line)
		command = strings.TrimSpace(command)
		if args, ours := strings.CutPrefix(command, "plumbline "); ours {
			execute(t, &got, args)
		} else {
			other(t, command)
		}
	}
	if *update {
		archive.Files[session].Data = got.Bytes()
		if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(archive.Files[session].Data), got.String()); diff != "" {
		t.Errorf("session (-want +got; -update rewrites it):\n%s", diff)
	}
}

// Parts of the output that differ in each run: times, random MAC addresses and the link-local addresses made of them, and
// counters of rules, since interfaces send by themselves. The MAC addresses of the sessions begin with 02:00:00.
var (
	counts = regexp.MustCompile(`(?m)(  tc)( +\d+){3}$`)
	times  = regexp.MustCompile(`\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z?`)
	locals = regexp.MustCompile(`\bfe80::[0-9a-f]{1,4}:[0-9a-f]{1,2}ff:fe[0-9a-f]{2}:[0-9a-f]{1,4}\b`)
	macs   = regexp.MustCompile(`\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b`)
)

func same(t *testing.T, text string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	text = strings.ReplaceAll(times.ReplaceAllString(text, "TIME"), dir, "DIR")
	text = counts.ReplaceAllString(text, "$1  COUNTERS")
	text = locals.ReplaceAllString(text, "(its own link-local address)")
	return macs.ReplaceAllStringFunc(text, func(mac string) string {
		if strings.HasPrefix(mac, "02:00:00:") {
			return mac
		}
		return "(its own MAC)"
	})
}

func execute(t *testing.T, w io.Writer, command string) {
	t.Helper()
	std := stdio{in: strings.NewReader("")}
	command, input, ok := strings.Cut(command, " < ")
	if ok {
		f, err := os.Open(input)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		std.in = f
	}
	var out, errs bytes.Buffer
	std.out, std.err = &out, &errs
	code := run(t.Context(), strings.Fields(command), std)
	fmt.Fprint(w, same(t, out.String()))
	for line := range strings.Lines(same(t, errs.String())) {
		fmt.Fprint(w, "! ", line)
	}
	if code != 0 {
		fmt.Fprintf(w, "(exit %d)\n", code)
	}
}
