package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/graph"
)

// withData are the commands that print their result as JSON and YAML, too.
func withData(t *testing.T) (paths []string) {
	t.Helper()
	none := map[string]string{
		"plumbline": "a group", "pod": "a group", "qos": "a group",
		"agent": "runs until it is ended", "controller": "runs until it is ended", "run": "runs until it is ended",
		"support-bundle": "writes an archive",
		"probe":          "an exit status", "check-install": "an exit status",
	}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		has := false
		if f := c.Flags().Lookup("output"); f != nil {
			of, ok := f.Value.(*choice)
			has = ok && slices.Contains(of.words, formatJSON) && slices.Contains(of.words, formatYAML)
		}
		if _, excepted := none[c.Name()]; has == excepted {
			t.Errorf("%s: -o json and yaml: %t, excepted: %t", c.CommandPath(), has, excepted)
		}
		if has {
			paths = append(paths, strings.TrimPrefix(c.CommandPath(), "plumbline "))
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(stdio{}))
	return paths
}

// TestDataOfCommands holds that each command prints its result as JSON and YAML, too, unless it has none.
func TestDataOfCommands(t *testing.T) {
	if all := withData(t); len(all) < 10 {
		t.Errorf("only %q", all)
	}
}

// onTerminal returns what f writes to a terminal.
func onTerminal(t *testing.T, f func(terminal *os.File)) string {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	if err := unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan string)
	go func() {
		all, _ := io.ReadAll(screen) // it ends with EIO when the terminal is closed
		seen <- string(all)
	}()
	f(terminal)
	terminal.Close()
	return strings.ReplaceAll(<-seen, "\r\n", "\n")
}

var codes = regexp.MustCompile("\x1b\\[[0-9]+m")

// TestTerminal holds what each command writes to a terminal: what it writes to a pipe, with colours where a line is a heading or has a
// state or a verb; and with NO_COLOR, or on a terminal that has none, nothing else. Data and errors never have colours.
func TestTerminal(t *testing.T) {
	t.Setenv("KUBECONFIG", podServer(t))
	t.Chdir(t.TempDir())
	for name, content := range map[string]string{
		"t.yaml":   "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec: {steps: [{name: a, type: sriov}]}\n",
		"bad.yaml": "kind: NetworkTopology\n",
		"nad.yaml": "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: n}\n" +
			`spec: {config: '{"cniVersion": "1.0.0", "type": "macvlan", "master": "eth1"}'}` + "\n",
	} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Commands of a node are in writers below, too: here they have no sandbox.
	commands := map[string]struct {
		args     string
		coloured bool
	}{
		"validate": {"-f t.yaml", false}, "plan": {"-f t.yaml", true}, "apply": {"-f t.yaml --netns none", false}, "graph": {"-f t.yaml -o text", false},
		"claim": {"-f t.yaml", false}, "import": {"-f nad.yaml", false}, "devices": {"", false}, "maintain": {"n1/eth0", false},
		"status": {"--state-dir none", false}, "delete": {"--netns none --state-dir none", false}, "version": {"", false},
		"pod status": {"web -n shop", true}, "pod plan": {"web -n shop", true}, "pod explain": {"web -n shop", true},
		"qos explain": {"--netns none --to 10.0.0.5:443/tcp --state-dir none", false},
	}
	type output struct {
		name     string
		coloured bool
		write    func(out, errs io.Writer)
	}
	var all []output
	add := func(args string, coloured bool) {
		all = append(all, output{args, coloured, func(out, errs io.Writer) {
			run(t.Context(), strings.Fields(args), stdio{strings.NewReader(""), out, errs})
		}})
	}
	for _, path := range withData(t) {
		c, listed := commands[path]
		if !listed {
			t.Errorf("%s is not tried", path)
		}
		add(path+" "+c.args, c.coloured)
		if path != "apply" { // needs a namespace first
			add(path+" "+c.args+" -o json", false)
		}
	}
	add("validate -f bad.yaml", false)
	add("plan --help", false)
	report := reconcile.Report{Changes: []netstate.Change{{Step: "a", After: netstate.Link{Name: "d0", LinkKind: "dummy"}}}}
	sb := reconcile.Sandbox{ID: "blue/ai", Netns: "/run/netns/blue", Topology: drawn()}
	drift := reconcile.Status{State: reconcile.Drifted, Drift: []reconcile.Drift{{Step: "data", Action: netstate.Create, Object: netstate.LinkKey("data0")}}}
	for name, write := range map[string]func(a *app) error{
		"apply":          func(a *app) error { a.text().apply(sb, report); return nil },
		"delete":         func(a *app) error { a.text().deleted(sb, report); return nil },
		"status":         func(a *app) error { a.text().status([]sandboxStatus{{Status: drift}}); return nil },
		"graph --status": func(a *app) error { return a.drawnStatus([]verdict{{Status: drift, topology: drawn()}}, formatText) },
	} {
		all = append(all, output{name + " of a sandbox", true, func(out, errs io.Writer) {
			if err := write(&app{stdio: stdio{out: out, err: errs}}); err != nil {
				t.Error(err)
			}
		}})
	}
	for _, format := range slices.Concat(graph.Formats(), []string{formatJSON, formatYAML}) {
		all = append(all, output{"graph --status -o " + format, false, func(out, errs io.Writer) {
			if err := (&app{stdio: stdio{out: out, err: errs}}).drawnStatus([]verdict{{Status: drift, topology: drawn()}}, format); err != nil {
				t.Error(err)
			}
		}})
	}
	for _, o := range all {
		t.Run(o.name, func(t *testing.T) {
			t.Setenv("TERM", "xterm")
			t.Setenv("NO_COLOR", "")
			var piped bytes.Buffer
			o.write(&piped, &piped)
			shown := onTerminal(t, func(terminal *os.File) { o.write(terminal, terminal) })
			if codes.MatchString(shown) != o.coloured || codes.ReplaceAllString(shown, "") != piped.String() || piped.Len() == 0 {
				t.Errorf("on a terminal, coloured %t:\n%q\nin a pipe:\n%q", o.coloured, shown, piped.String())
			}
			for _, without := range []string{"NO_COLOR=1", "NO_COLOR=0", "TERM=dumb"} {
				name, value, _ := strings.Cut(without, "=")
				before := os.Getenv(name)
				t.Setenv(name, value)
				if shown := onTerminal(t, func(terminal *os.File) { o.write(terminal, terminal) }); shown != piped.String() {
					t.Errorf("%s, on a terminal:\n%q\nin a pipe:\n%q", without, shown, piped.String())
				}
				t.Setenv(name, before)
			}
		})
	}
}
