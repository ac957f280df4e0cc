package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fullDisk is a file on a disk that is full.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) {
	return 0, errors.New("write out: no space left on device")
}

// TestFullDisk holds that a command whose output was not written says so, and fails.
func TestFullDisk(t *testing.T) {
	file, err := filepath.Abs("../../docs/quickstart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"validate -f " + file, "validate -o json -f " + file, "plan -f " + file, "plan -o json -f " + file, "graph -f " + file,
		"status --state-dir none", "status -o yaml --state-dir none", "delete --netns none --state-dir none", "help", "plan --help", "version",
	} {
		var complaint bytes.Buffer
		code := run(t.Context(), strings.Fields(args), stdio{strings.NewReader(""), fullDisk{}, &complaint})
		if code != exitError || strings.Count(complaint.String(), "no space left on device") != 1 {
			t.Errorf("%s: exit status %d, %q", args, code, complaint.String())
		}
	}
}

// TestInterruptedRead holds that a command that waits for its input ends with the first signal.
func TestInterruptedRead(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"validate -f -", "plan -f -", "apply --netns none -f -", "claim -f -", "graph -f -", "import -f -", "devices --policy -",
		"validate -f " + pipe,
	} {
		ctx, cancel := context.WithCancel(t.Context())
		in, writer := io.Pipe()
		var complaint bytes.Buffer
		ended := make(chan int, 1)
		go func() { ended <- run(ctx, strings.Fields(args), stdio{in, io.Discard, &complaint}) }()
		cancel()
		select {
		case code := <-ended:
			if code != exitInterrupted || !strings.Contains(complaint.String(), "interrupted") {
				t.Errorf("%s: exit status %d, %q", args, code, complaint.String())
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: still reads", args)
		}
		writer.Close()
	}
}

// run is the program, apart from signals and the exit of the process.
func run(ctx context.Context, args []string, std stdio) int {
	std.out = &output{Writer: std.out}
	return runCommand(ctx, newRoot(std), args, std)
}
