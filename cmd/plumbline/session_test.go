package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "rewrite the sessions")

// TestSessions replays testdata/*.txtar. The file "session" is a terminal: lines
// "$ plumbline ..." are commands, what follows is their output, errors behind
// "!", and the exit status where it is not 0. The other files are there when the
// commands run; "< file" is standard input.
func TestSessions(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no sessions", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) { replay(t, file) })
	}
}

func replay(t *testing.T, file string) {
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
	t.Setenv("COLUMNS", "80")
	var got bytes.Buffer
	for line := range strings.Lines(string(archive.Files[session].Data)) {
		if command, ok := strings.CutPrefix(line, "$ plumbline "); ok {
			fmt.Fprint(&got, line)
			execute(t, &got, strings.TrimSpace(command))
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
	fmt.Fprint(w, out.String())
	for line := range strings.Lines(errs.String()) {
		fmt.Fprint(w, "! ", line)
	}
	if code != 0 {
		fmt.Fprintf(w, "(exit %d)\n", code)
	}
}
