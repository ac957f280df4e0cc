package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/integration/namespace"
	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/hostengine"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/watch"
	"github.com/plumbline/plumbline/topology"
)

// inMachine skips a test that changes namespaces or devices, unless it runs in the virtual
// machine of integration/vm.
func inMachine(t *testing.T) {
	t.Helper()
	if os.Getenv("PLUMBLINE_LANE") == "" {
		t.Skip("changes the kernel's state: runs in the machine of integration/vm")
	}
}

// TestKernelSessions replays testdata/kernel/*.txtar on real namespaces. Besides
// plumbline a few commands of ip are understood, to create namespaces and to disturb
// them.
func TestKernelSessions(t *testing.T) {
	inMachine(t)
	files, err := filepath.Glob("testdata/kernel/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no sessions", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(name, "vf-") && os.Getenv("PLUMBLINE_LANE") == "uml" {
				t.Skip("needs SR-IOV, which user-mode Linux has not")
			}
			replay(t, file, ip)
		})
	}
}

var (
	netnsCommand = regexp.MustCompile(`^ip netns (add|delete) (\S+)$`)
	setCommand   = regexp.MustCompile(`^ip -n (\S+) link set (\S+) mtu (\d+)$`)
	delCommand   = regexp.MustCompile(`^ip -n (\S+) link delete (\S+)$`)
	tcCommand    = regexp.MustCompile(`^tc -n (\S+) filter delete dev (\S+) egress pref (\d+)$`)
	addrCommand  = regexp.MustCompile(`^ip -n (\S+) address delete (\S+) dev (\S+)$`)
)

// ip emulates the commands ip and tc.
func ip(t *testing.T, command string) {
	t.Helper()
	if m := netnsCommand.FindStringSubmatch(command); m != nil {
		if m[1] == "add" {
			addNetns(t, m[2])
		} else if err := namespace.Delete("/run/netns/" + m[2]); err != nil {
			t.Fatal(err)
		}
	} else if m := setCommand.FindStringSubmatch(command); m != nil {
		mtu, err := strconv.ParseUint(m[3], 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		foreignChange(t, m[1], netstate.Change{Before: netstate.Link{Name: m[2], MTU: new(uint32(0))}, After: netstate.Link{Name: m[2], MTU: new(uint32(mtu))}})
	} else if m := delCommand.FindStringSubmatch(command); m != nil {
		foreignChange(t, m[1], netstate.Change{Before: netstate.Link{Name: m[2]}})
	} else if m := tcCommand.FindStringSubmatch(command); m != nil {
		pref, err := strconv.ParseUint(m[3], 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		if err := kernel.Within("/run/netns/"+m[1], func() error {
			link, err := netlink.LinkByName(m[2])
			if err != nil {
				return err
			}
			return netlink.FilterDel(&netlink.GenericFilter{FilterType: "flower", FilterAttrs: netlink.FilterAttrs{
				LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_MIN_EGRESS, Priority: uint16(pref),
			}})
		}); err != nil {
			t.Fatal(err)
		}
	} else if m := addrCommand.FindStringSubmatch(command); m != nil {
		foreignChange(t, m[1], netstate.Change{Before: netstate.Addr{Link: m[3], Address: m[2]}})
	} else {
		t.Fatalf("do not know how to %q", command)
	}
}

// addNetns makes a namespace, which is deleted at the end of the test.
func addNetns(t *testing.T, name string) string {
	t.Helper()
	path, err := namespace.Add(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = namespace.Delete(path) })
	return path
}

// foreignChange makes a change as another program would.
func foreignChange(t *testing.T, netns string, c netstate.Change) {
	t.Helper()
	inside(t, netns, func(s *kernel.Sandbox) {
		if err := s.Apply(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	})
}

func inside(t *testing.T, netns string, f func(*kernel.Sandbox)) {
	t.Helper()
	host, err := kernel.Open(kernel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	s, err := host.Sandbox("/run/netns/" + netns)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	f(s)
}

// links lists the links of a namespace but lo, with their MTUs.
func links(t *testing.T, netns string) string {
	t.Helper()
	var out []string
	inside(t, netns, func(s *kernel.Sandbox) {
		snap, err := s.Observe(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range netstate.All[netstate.Link](snap) {
			if l.Name != "lo" {
				out = append(out, fmt.Sprintf("%s/%d", l.Name, *l.MTU))
			}
		}
	})
	return strings.Join(out, " ")
}

// until waits until a namespace contains these links. It checks after each notification.
func until(t *testing.T, netns, want string) {
	t.Helper()
	w, err := watch.New(watch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Add("test", "/run/netns/"+netns); err != nil {
		t.Fatal(err)
	}
	go func() { _ = w.Run(t.Context()) }()
	limit := time.After(2 * time.Minute)
	for {
		got := links(t, netns)
		if got == want {
			return
		}
		select {
		case <-w.Events():
		case <-limit:
			t.Fatalf("%s holds %q, want %q", netns, got, want)
		}
	}
}

// background is a running `plumbline run`.
type background struct {
	url    string
	stop   context.CancelFunc
	ended  chan int
	read   chan struct{} // closed when stderr has all that it said
	stderr *bytes.Buffer
}

var listens = regexp.MustCompile(`listen=(\S+)`)

// start runs the daemon and returns when it serves.
func start(t *testing.T, args ...string) *background {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	b := &background{stop: cancel, ended: make(chan int, 1), read: make(chan struct{}), stderr: &bytes.Buffer{}}
	go func() {
		b.ended <- run(ctx, append([]string{"run", "--listen", "127.0.0.1:0"}, args...), stdio{strings.NewReader(""), io.Discard, w})
		w.Close()
	}()
	serving := make(chan string, 1)
	go func() {
		defer close(b.read)
		for lines := bufio.NewScanner(r); lines.Scan(); {
			fmt.Fprintln(b.stderr, lines.Text())
			if m := listens.FindStringSubmatch(lines.Text()); m != nil {
				serving <- m[1]
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-b.read
		if t.Failed() {
			t.Logf("the daemon said:\n%s", b.stderr)
		}
	})
	select {
	case address := <-serving:
		b.url = "http://" + address
	case code := <-b.ended:
		t.Fatalf("the daemon ended with %d", code)
	}
	return b
}

func (b *background) get(t *testing.T, path string) (int, string) {
	t.Helper()
	resp, err := http.Get(b.url + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

const oneDummy = `apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: ai}
spec:
  steps:
  - {name: a, type: dummy, config: {mtu: MTU}}
`

// file writes a file of the daemon's directory.
func file(t *testing.T, dir, name, text string) {
	t.Helper()
	// Rename, as editors do, so that the file is never read half written.
	temp := filepath.Join(dir, "."+name)
	if err := os.WriteFile(temp, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temp, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func TestRun(t *testing.T) {
	inMachine(t)
	dir, state := t.TempDir(), filepath.Join(t.TempDir(), "state")
	addNetns(t, "plt-blue")
	addNetns(t, "plt-hand")
	file(t, dir, "ai.yaml", strings.Replace(oneDummy, "MTU", "1400", 1))
	file(t, dir, "blue.yaml", "netns: plt-blue\ntopologyFile: ai.yaml\n")
	file(t, dir, "late.yaml", "netns: plt-late\ntopologyFile: ai.yaml\n")
	file(t, dir, "misspelt.yaml", "netns: plt-misspelt\ntopologyfile: ai.yaml\nlabels: {tier: 1}\n")
	hand := filepath.Join(t.TempDir(), "hand.yaml")
	if err := os.WriteFile(hand, []byte(strings.Replace(oneDummy, "MTU", "1300", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	command := func(want int, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if code := run(t.Context(), append(args, "--state-dir", state), stdio{strings.NewReader(""), &out, &errs}); code != want {
			t.Errorf("plumbline %s: exit %d, want %d\n%s%s", strings.Join(args, " "), code, want, &out, &errs)
		}
		return out.String() + errs.String()
	}
	command(0, "apply", "-f", hand, "--netns", "plt-hand")

	d := start(t, "--config", dir, "--state-dir", state)
	until(t, "plt-blue", "net1/1400")
	if err := os.Remove(filepath.Join(dir, "misspelt.yaml")); err != nil { // nothing is released beside it
		t.Fatal(err)
	}
	addNetns(t, "plt-late")
	until(t, "plt-late", "net1/1400")

	repairs := 0
	repaired := func(netns, want string, change netstate.Change) {
		t.Helper()
		repairs++
		foreignChange(t, netns, change)
		until(t, netns, want)
		// It ends after its last change, and one that has not ended would repair the next change, too.
		counted := fmt.Sprintf("plumbline_repairs_total{outcome=\"Success\",topology=\"ai\"} %d\n", repairs)
		eventually.True(t, 2*time.Minute, "the end of a repair", func() bool {
			_, metrics := d.get(t, "/metrics")
			return strings.Contains(metrics, counted)
		})
	}
	repaired("plt-blue", "net1/1400", netstate.Change{
		Before: netstate.Link{Name: "net1", MTU: new(uint32(0))}, After: netstate.Link{Name: "net1", MTU: new(uint32(1280))},
	})
	repaired("plt-blue", "net1/1400", netstate.Change{Before: netstate.Link{Name: "net1"}})
	repaired("plt-hand", "net1/1300", netstate.Change{Before: netstate.Link{Name: "net1"}})
	command(0, "status")

	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ok\n"} {
		if code, body := d.get(t, path); code != http.StatusOK || body != want {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	_, metrics := d.get(t, "/metrics")
	for _, want := range []string{
		`plumbline_repairs_total{outcome="Success",topology="ai"} 3`,
		`plumbline_sandboxes{state="InSync"} 3`,
		`plumbline_changes_total{action="create",step_type="dummy"} 12`, // each link with two sysctls
		"plumbline_time_to_repair_seconds_count 3",
		"plumbline_journal_damaged_files 0",
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
	if t.Failed() {
		t.Log(metrics)
	}

	if said := command(exitError, "run", "--config", dir, "--listen", "127.0.0.1:0"); !strings.Contains(said, "another loop is running on it") {
		t.Errorf("a second daemon on one journal said:\n%s", said)
	}

	file(t, dir, "ai.yaml", strings.Replace(oneDummy, "MTU", "1450", 1))
	until(t, "plt-blue", "net1/1450")
	until(t, "plt-late", "net1/1450")
	if err := os.Remove(filepath.Join(dir, "late.yaml")); err != nil {
		t.Fatal(err)
	}
	until(t, "plt-late", "")

	d.stop()
	if code := <-d.ended; code != 0 {
		t.Errorf("the daemon ended with %d", code)
	}
	<-d.read
	if said, want := d.stderr.String(), `config file \"misspelt.yaml\": labels.tier: want a string, got the number 1: put it in quotes\nunknown field \"topologyfile\", did you mean \"topologyFile\"?`; !strings.Contains(said, want) {
		t.Errorf("the daemon did not say %s", want)
	}
	if got := links(t, "plt-blue"); got != "net1/1450" {
		t.Errorf("after the daemon was stopped plt-blue holds %q", got)
	}
	command(0, "status")
	command(0, "delete", "--netns", "plt-hand")
	if got := links(t, "plt-hand"); got != "" {
		t.Errorf("after delete plt-hand holds %q", got)
	}
}

// An interrupted apply rolls back and reports that.
func TestInterrupt(t *testing.T) {
	inMachine(t)
	path := addNetns(t, "plt-stop")
	var text strings.Builder
	text.WriteString("apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: many}\nspec:\n  steps:\n")
	for i := range 200 { // takes longer than the notification of the first
		fmt.Fprintf(&text, "  - {name: s%d, type: dummy, config: {addresses: [10.0.%d.1/24]}}\n", i, i)
	}
	topo := filepath.Join(t.TempDir(), "many.yaml")
	if err := os.WriteFile(topo, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := watch.New(watch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Add("test", path); err != nil {
		t.Fatal(err)
	}
	go func() { _ = w.Run(t.Context()) }()
	ctx, interrupt := context.WithCancel(t.Context())
	go func() {
		for e := range w.Events() {
			if e.ID == "test" && e.Reason == watch.Changed {
				interrupt()
				return
			}
		}
	}()
	var out, errs bytes.Buffer
	code := run(ctx, []string{"apply", "-f", topo, "--netns", "plt-stop", "--state-dir", filepath.Join(t.TempDir(), "state")}, stdio{strings.NewReader(""), &out, &errs})
	if code != exitInterrupted || !strings.Contains(errs.String(), "plumbline: interrupted\n") {
		t.Errorf("exit %d, want %d:\n%s%s", code, exitInterrupted, &out, &errs)
	}
	if got := links(t, "plt-stop"); got != "" {
		t.Errorf("after the interrupt: %s", got)
	}
}

// A bundle contains what exists, names what is missing, and is never written partly.
func TestSupportBundle(t *testing.T) {
	inMachine(t)
	dir, state, cdi := t.TempDir(), filepath.Join(t.TempDir(), "state"), t.TempDir()
	for _, name := range []string{"plt-well", "plt-bad", "plt-gone"} {
		addNetns(t, name)
	}
	topo := filepath.Join(dir, "ai.yaml")
	file(t, dir, "ai.yaml", strings.Replace(oneDummy, "MTU", "1400", 1))
	file(t, cdi, "dra.networking-gate-1.json", "{}")
	file(t, cdi, "nvidia.json", "not ours")
	file(t, state+"/..", "agent.log", "a line")
	command := func(ctx context.Context, args ...string) (int, string) {
		var out, errs bytes.Buffer
		code := run(ctx, append(args, "--state-dir", state), stdio{strings.NewReader(""), &out, &errs})
		return code, out.String() + errs.String()
	}
	for _, name := range []string{"plt-well", "plt-bad", "plt-gone"} {
		if code, said := command(t.Context(), "apply", "-f", topo, "--netns", name); code != 0 {
			t.Fatal(said)
		}
	}
	foreignChange(t, "plt-bad", netstate.Change{Before: netstate.Link{Name: "net1", MTU: new(uint32(0))}, After: netstate.Link{Name: "net1", MTU: new(uint32(1280))}})
	if err := namespace.Delete("/run/netns/plt-gone"); err != nil {
		t.Fatal(err)
	}
	file(t, state, "torn.journal", "1 00000000 nonsense\n1 00000000 nonsense\n")
	file(t, state, "notes", "not ours")

	for _, to := range []string{"one.tar.gz", "two.tar.gz"} { // the same twice
		to = filepath.Join(dir, to)
		code, said := command(t.Context(), "support-bundle", "--to", to, "--cdi-dir", cdi, "--log", state+"/../agent.log", "--metrics-address", "127.0.0.1:1")
		if code != 0 {
			t.Fatalf("exit %d: %s", code, said)
		}
		held := archive(t, to)
		for name, want := range map[string]string{
			"version.txt": "plumbline ", "host/kernel.txt": "Linux ", "host/sysctls.txt": "net.ipv4.ip_forward = ", "host/devices.json": "",
			"state/plt-well%2Fai.journal": `"record"`, "cdi/dra.networking-gate-1.json": "{}",
			"sandboxes/plt-well_ai.status.json": `"InSync"`, "sandboxes/plt-bad_ai.status.json": `"Drifted"`, "sandboxes/plt-gone_ai.status.json": `"Failed"`,
			"sandboxes/plt-bad_ai.graph.txt": "mtu is 1280, not 1400", "sandboxes/plt-bad_ai.observed.json": `"mtu": 1280`,
			"problems.txt": "sandboxes/plt-gone_ai.observed.json: ",
		} {
			if text, ok := held[name]; !ok || !strings.Contains(text, want) {
				t.Errorf("%s holds %q, want %q in it", name, text, want)
			}
		}
		for name := range held {
			if strings.Contains(name, "notes") || strings.Contains(name, "nvidia") {
				t.Errorf("it holds %s, which is not ours", name)
			}
		}
		if !strings.Contains(held["problems.txt"], "metrics/127.0.0.1_1.txt: ") {
			t.Errorf("the agent that does not answer is no problem:\n%s", held["problems.txt"])
		}
		if t.Failed() {
			t.Log(slices.Sorted(maps.Keys(held)), held["problems.txt"])
		}
	}
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	if code, said := command(ctx, "support-bundle", "--to", filepath.Join(dir, "half.tar.gz")); code != exitInterrupted {
		t.Errorf("interrupted: exit %d: %s", code, said)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*half*")); err != nil || len(left) > 0 {
		t.Errorf("left of the one that was interrupted: %q, %v", left, err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*half*")); err != nil || len(left) > 0 {
		t.Errorf("left of the one that was interrupted: %q, %v", left, err)
	}
}

// archive reads a bundle: text by name, without the top folder.
func archive(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for files := tar.NewReader(zip); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(header.Name, "/")
		out[name] = string(text)
	}
}

// TestRefusedTopologyAfterReboot: an earlier version applied a topology that this one
// refuses. After a reboot it is applied again in the same sandbox, but in no other.
func TestRefusedTopologyAfterReboot(t *testing.T) {
	inMachine(t)
	dir := t.TempDir()
	addNetns(t, "plt-old")
	addNetns(t, "plt-new")
	text := strings.Replace(oneDummy, "MTU", "1400", 1) + "  - {name: v, type: vrf, dependOn: [a], config: {vrfname: red, table: 254}}\n"
	file(t, dir, "ai.yaml", text)
	topo, err := topology.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	store, err := journal.Open(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Put(reconcile.Record{
		Sandbox: reconcile.Sandbox{ID: "plt-old/ai", Netns: "/run/netns/plt-old", Topology: topo}, BootID: "earlier", Phase: reconcile.Applied,
		Results: []topology.StepResult{{Name: "a", Type: "dummy"}, {Name: "v", Type: "vrf"}},
	}); err != nil {
		t.Fatal(err)
	}
	says := filepath.Join(dir, "ai.yaml") + `:7: NetworkTopology "ai", step "v": config.table: 254 is`
	for _, tc := range []struct {
		netns, says, links string
		code               int
	}{
		{"plt-new", "plumbline: " + says, "", 1},
		{"plt-old", "note: an earlier version applied this topology here, so it is kept, although it is invalid: " + says, "net1/1400 red/65575", 0},
	} {
		var stderr bytes.Buffer
		code := run(t.Context(), []string{"apply", "-f", filepath.Join(dir, "ai.yaml"), "--netns", tc.netns, "--state-dir", filepath.Join(dir, "state")},
			stdio{strings.NewReader(""), io.Discard, &stderr})
		if code != tc.code || !strings.Contains(stderr.String(), tc.says) {
			t.Errorf("%s: exit %d, want %d: %s", tc.netns, code, tc.code, stderr.String())
		}
		if got := links(t, tc.netns); got != tc.links {
			t.Errorf("%s holds %q, want %q", tc.netns, got, tc.links)
		}
	}
	if code := run(t.Context(), []string{"delete", "--netns", "plt-old", "--state-dir", filepath.Join(dir, "state")}, stdio{strings.NewReader(""), io.Discard, io.Discard}); code != 0 {
		t.Errorf("delete: exit %d", code)
	}
}

// TestRDMAOfAPod: a pod makes RDMA devices in its namespace, on a link with the name of one of the
// host's. The host's device has none by that.
func TestRDMAOfAPod(t *testing.T) {
	inMachine(t)
	if os.Getenv("PLUMBLINE_LANE") == "uml" {
		return // it has no RDMA
	}
	if out, err := exec.Command("modprobe", "rdma_rxe").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	host, err := kernel.Open(kernel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	const name = "nic7"
	add := func() error {
		link := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: name}}
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	}
	rdma := func(device string) error { return netlink.RdmaLinkAdd(device, "rxe", name) }
	if err := add(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := netlink.LinkDel(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil { // and what is on it
			t.Error(err)
		}
	}()
	pod := addNetns(t, "pod")
	for _, f := range []func() error{add, func() error { return rdma("hostile") }} {
		if err := kernel.Within(pod, f); err != nil {
			t.Fatal(err)
		}
	}
	// The host sees the same.
	if b, err := os.ReadFile("/sys/class/infiniband/hostile/ports/1/gid_attrs/ndevs/0"); strings.TrimSpace(string(b)) != name {
		t.Fatalf("the device is on %q: %v", b, err)
	}
	of := func() []string {
		devices, err := hostengine.Devices(t.Context(), host, nil)
		i := slices.IndexFunc(devices, func(d inventory.Device) bool { return d.IfName == name })
		if err != nil || i < 0 {
			t.Fatalf("%v: %+v", err, devices)
		}
		if d := devices[i]; d.RDMA != (len(d.RDMADevices) > 0) {
			t.Errorf("%+v", d)
		}
		return devices[i].RDMADevices
	}
	if have := of(); len(have) > 0 {
		t.Errorf("a link of the host has the pod's RDMA devices %q", have)
	}
	if err := rdma("own"); err != nil {
		t.Fatal(err)
	}
	if have := of(); !slices.Equal(have, []string{"own"}) {
		t.Errorf("its RDMA devices are %q, want its own", have)
	}
}
