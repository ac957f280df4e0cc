package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// TestTerminalEscapes: control characters from a pod's namespace do not reach a terminal,
// with and without our own colours.
func TestTerminalEscapes(t *testing.T) {
	evil := "a\x1b]0;x\a\x1b[2J\u009b\xff"
	for _, colours := range []bool{false, true} {
		var out strings.Builder
		text{printable{&out, colours}, colours}.status([]sandboxStatus{{Status: reconcile.Status{
			Sandbox: "s", State: reconcile.Drifted, Failure: "kernel: " + evil, Updated: time.Unix(0, 0),
			Drift: []reconcile.Drift{
				{Step: "s", Action: netstate.Update, Object: netstate.LinkKey(evil), Field: "name", Have: evil, Want: "net1"},
			},
		}}})
		complain(&out, errors.New(evil))
		stdio{err: &out}.note("%s", evil)
		plain := out.String()
		for _, ours := range []string{"\x1b[1m", "\x1b[33m", "\x1b[0m"} {
			if colours && !strings.Contains(plain, ours) {
				t.Errorf("the colour %q is missing", ours)
			}
			plain = strings.ReplaceAll(plain, ours, "")
		}
		if i := strings.IndexFunc(plain, func(r rune) bool { return r < ' ' && r != '\n' || r > '~' && r < 0xa0 || r == 0xfffd }); i >= 0 {
			t.Errorf("colours %t: %q", colours, plain[max(0, i-20):])
		}
		if !strings.Contains(plain, `a\x1b]0;x`) {
			t.Errorf("colours %t: the name cannot be recognised in %q", colours, plain)
		}
	}
}
