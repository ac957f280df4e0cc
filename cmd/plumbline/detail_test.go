package main

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/topology/fault"
)

// TestDetail: the log and the command line print the part of an error that is meant for
// operators only.
func TestDetail(t *testing.T) {
	err := fmt.Errorf("step: %w", fault.Detailed(errors.New("device is in use"), "pod x has it"))
	var log, out bytes.Buffer
	(&app{stdio: stdio{err: &log}}).log(slog.LevelInfo).Info("failed", "error", err, "n", 1)
	if !strings.Contains(log.String(), `error="step: device is in use (pod x has it)" n=1`) {
		t.Errorf("the log says %s", &log)
	}
	if complain(&out, err); out.String() != "plumbline: step: device is in use\n  pod x has it\n" {
		t.Errorf("the command says %s", &out)
	}
}
