package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// testID holds what a file name cannot.
const testID = reconcile.SandboxID("blue/ai")

func open(t testing.TB, dir string) *Journal {
	t.Helper()
	j, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// counted makes a journal count its fsyncs.
func counted(j *Journal) *int {
	n := new(int)
	j.fsync = func(f *os.File) error {
		*n++
		return f.Sync()
	}
	return n
}

func record(id reconcile.SandboxID, phase reconcile.Phase, history ...netstate.Change) reconcile.Record {
	return reconcile.Record{
		Sandbox: reconcile.Sandbox{ID: id, Netns: "/run/netns/blue", Given: ops.Givens{}.WithDevices(map[string]string{"nic": "0000:03:00.2"})},
		BootID:  "boot",
		NetnsID: reconcile.NetnsID{Device: 4, Inode: 4026532281, Cookie: 77},
		Phase:   phase,
		History: history,
		Updated: time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC),
	}
}

// made is the creation of a link, mtu a change of its MTU.
func made(name string) netstate.Change {
	return netstate.Change{Step: "s", After: netstate.Link{Name: name, LinkKind: "bond", MTU: new(uint32(1500))}}
}

func mtu(name string, from, to uint32) netstate.Change {
	return netstate.Change{
		Step:   "s",
		Before: netstate.Link{Name: name, MTU: new(from)},
		After:  netstate.Link{Name: name, MTU: new(to)},
	}
}

func mustGet(t testing.TB, j *Journal, id reconcile.SandboxID) reconcile.Record {
	t.Helper()
	r, found, err := j.Get(id)
	if err != nil || !found {
		t.Fatalf("Get(%q): found %v, error %v", id, found, err)
	}
	return r
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func sameRecord(t testing.TB, got, want reconcile.Record) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("record differs (-want +got):\n%s", d)
	}
}

func TestStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	j := open(t, dir)

	if _, found, err := j.Get(testID); found || err != nil {
		t.Fatalf("Get of nothing: %v, %v", found, err)
	}
	must(t, j.Remove(testID))
	if err := j.Intend(testID, []netstate.Change{made("bond0")}); err == nil || !strings.Contains(err.Error(), "no record") {
		t.Fatalf("Intend without a record: %v", err)
	}

	must(t, j.Put(record(testID, reconcile.Applied, made("bond0"))))
	must(t, j.Intend(testID, []netstate.Change{mtu("bond0", 1500, 9000), made("bond1")}))
	bond0 := made("bond0")
	bond0.After = netstate.Link{Name: "bond0", LinkKind: "bond", MTU: new(uint32(9000))}
	sameRecord(t, mustGet(t, open(t, dir), testID), record(testID, reconcile.Applying, bond0, made("bond1")))

	must(t, j.Settle(record(testID, reconcile.Applied, bond0)))
	sameRecord(t, mustGet(t, open(t, dir), testID), record(testID, reconcile.Applied, bond0))

	must(t, j.Put(record(testID, reconcile.Releasing, bond0)))
	must(t, j.Intend(testID, []netstate.Change{netstatetest.Inverse(bond0)})) // it is about to go, and ours until then
	sameRecord(t, mustGet(t, open(t, dir), testID), record(testID, reconcile.Releasing, bond0))

	must(t, j.Settle(record("a", reconcile.Failed))) // creates, too
	must(t, j.Put(record("z", reconcile.Applied)))
	records, errs := j.List()
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	var ids []reconcile.SandboxID
	for _, r := range records {
		ids = append(ids, r.Sandbox.ID)
	}
	if d := cmp.Diff([]reconcile.SandboxID{"a", testID, "z"}, ids); d != "" {
		t.Error(d)
	}

	for _, id := range ids {
		must(t, j.Remove(id))
	}
	if left := names(t, dir); len(left) > 0 {
		t.Errorf("left in the directory: %q", left)
	}
}

// A topology read back is the one that was written, so that the same one
// applied again is no change.
func TestTopologyRoundTrip(t *testing.T) {
	want := record(testID, reconcile.Applied)
	want.Sandbox.Topology = &topology.Topology{
		Name: "ai", DriftPolicy: topology.Repair,
		Steps: []topology.Step{{
			Name: "nic", Type: "sriov", Selector: `device.attributes["a"] == 1`, DriftPolicy: topology.Observe,
			Config: map[string]any{
				"vlan": int64(100), "big": int64(math.MaxInt64), "bigger": json.Number("9223372036854775808"),
				"share": 0.5, "trust": true, "none": nil, "text": "<1 & 2>",
				"list": []any{int64(1), "two", map[string]any{"n": int64(-3)}},
			},
		}},
	}
	want.Results = []topology.StepResult{{Name: "nic", Type: "sriov", Result: topology.Result{
		Interfaces: []topology.Interface{{Name: "net1", MTU: 9000}},
	}}}
	dir := t.TempDir()
	must(t, open(t, dir).Put(want))
	sameRecord(t, mustGet(t, open(t, dir), testID), want)
}

func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	j := open(t, dir)
	must(t, j.Put(record(testID, reconcile.Applied)))
	unlock, err := j.Lock(t.Context(), testID)
	must(t, err)
	defer unlock()
	for path, want := range map[string]os.FileMode{
		dir:                             os.ModeDir | 0o700,
		j.path("blue%2Fai", logSuffix):  0o600,
		j.path("blue%2Fai", lockSuffix): 0o600,
	} {
		info, err := os.Lstat(path)
		must(t, err)
		if info.Mode() != want {
			t.Errorf("%s: mode %v, want %v", path, info.Mode(), want)
		}
	}
}

// An fsync costs a pod's start milliseconds: they are budgeted.
func TestFsyncs(t *testing.T) {
	big := record(testID, reconcile.Applied)
	big.Failure = strings.Repeat("x", compactBytes)
	for _, tt := range []struct {
		name string
		do   func(*Journal) error
		want int
	}{
		{"intend", func(j *Journal) error { return j.Intend(testID, []netstate.Change{made("a"), made("b"), made("c")}) }, 1},
		{"intend nothing", func(j *Journal) error { return j.Intend(testID, nil) }, 0},
		{"settle", func(j *Journal) error { return j.Settle(record(testID, reconcile.Applied)) }, 0},
		{"settle, compacting", func(j *Journal) error {
			for range 5 {
				if err := j.Settle(big); err != nil {
					return err
				}
			}
			return nil
		}, 2}, // file and directory
		{"put over a record", func(j *Journal) error { return j.Put(record(testID, reconcile.Applied)) }, 1},
		{"put a new record", func(j *Journal) error { return j.Put(record("new", reconcile.Applied)) }, 2},
		{"read", func(j *Journal) error {
			_, errs := j.List()
			_, _, err := j.Get(testID)
			return errors.Join(append(errs, err)...)
		}, 0},
		{"lock", func(j *Journal) error {
			unlock, err := j.Lock(t.Context(), testID)
			if err == nil {
				unlock()
			}
			return err
		}, 0},
		{"remove", func(j *Journal) error { return j.Remove(testID) }, 1},
		{"remove nothing", func(j *Journal) error { return j.Remove("absent") }, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			j := open(t, t.TempDir())
			must(t, j.Put(record(testID, reconcile.Applied)))
			n := counted(j)
			must(t, tt.do(j))
			if *n != tt.want {
				t.Errorf("%d fsyncs, want %d", *n, tt.want)
			}
		})
	}
}

// What an intend could not make durable must not be replayed.
func TestFsyncFails(t *testing.T) {
	j := open(t, t.TempDir())
	before := record(testID, reconcile.Applied, made("bond0"))
	must(t, j.Put(before))
	broken := errors.New("input/output error")
	j.fsync = func(*os.File) error { return broken }
	if err := j.Intend(testID, []netstate.Change{made("x")}); !errors.Is(err, broken) {
		t.Fatalf("Intend: %v", err)
	}
	sameRecord(t, mustGet(t, j, testID), before)
	if err := j.Put(record("new", reconcile.Applied)); !errors.Is(err, broken) {
		t.Fatalf("Put: %v", err)
	}
	if _, found, err := j.Get("new"); found || err != nil {
		t.Fatalf("Get after a failed Put: %v, %v", found, err)
	}
	j.fsync = (*os.File).Sync
	must(t, j.Intend(testID, []netstate.Change{made("y")}))
	sameRecord(t, mustGet(t, j, testID), record(testID, reconcile.Applying, made("bond0"), made("y")))
}

func TestGrowthIsBounded(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	r := record(testID, reconcile.Applied)
	r.Failure = strings.Repeat("x", 4000)
	must(t, j.Put(r))
	largest := int64(0)
	for i := range 50 {
		must(t, j.Intend(testID, []netstate.Change{mtu("bond0", 1500, uint32(2000+i))}))
		must(t, j.Settle(r))
		info, err := os.Stat(j.path("blue%2Fai", logSuffix))
		must(t, err)
		largest = max(largest, info.Size())
	}
	if largest < compactBytes/2 || largest > compactBytes+8192 {
		t.Errorf("log grew to %d bytes", largest)
	}
	sameRecord(t, mustGet(t, j, testID), r)
	if got := names(t, dir); len(got) != 2 {
		t.Errorf("files: %q", got)
	}
}

// A log that only intents grow, because no pass ever ends, is bounded as well.
func TestIntentsAreFolded(t *testing.T) {
	j := open(t, t.TempDir())
	must(t, j.Put(record(testID, reconcile.Releasing)))
	alias := func(s string) netstate.Change {
		return netstate.Change{Before: netstate.Link{Name: "a", Alias: new("")}, After: netstate.Link{Name: "a", Alias: new(s)}}
	}
	for i := range 5 {
		must(t, j.Intend(testID, []netstate.Change{alias(strings.Repeat(string(rune('a'+i)), limitBytes/6))}))
	}
	info, err := os.Stat(j.path("blue%2Fai", logSuffix))
	must(t, err)
	if info.Size() > int64(limitBytes)*3/4 {
		t.Errorf("log grew to %d bytes", info.Size())
	}
	r := mustGet(t, j, testID)
	if len(r.History) != 1 || *r.History[0].After.(netstate.Link).Alias != strings.Repeat("e", limitBytes/6) || r.Phase != reconcile.Releasing {
		t.Errorf("phase %s, %d changes", r.Phase, len(r.History))
	}
}

func TestOversizedRecord(t *testing.T) {
	j := open(t, t.TempDir())
	r := record(testID, reconcile.Applied)
	r.Failure = strings.Repeat("x", limitBytes/4)
	if err := j.Put(r); fault.Of(err) != fault.Invalid {
		t.Fatalf("Put: %v", err)
	}
}

func TestOpen(t *testing.T) {
	base := t.TempDir()
	mkdir := func(name string, mode os.FileMode) string {
		dir := filepath.Join(base, name)
		must(t, os.Mkdir(dir, mode))
		must(t, os.Chmod(dir, mode))
		return dir
	}
	link := func(name, to string) string {
		must(t, os.Symlink(to, filepath.Join(base, name)))
		return filepath.Join(base, name)
	}
	file := filepath.Join(base, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	private, open := mkdir("private", 0o755), mkdir("world", 0o777)

	for _, tt := range []struct {
		name, dir, err string
		kind           fault.Kind
	}{
		{"new", filepath.Join(base, "x", "y"), "", ""},
		{"there", private, "", ""},
		{"link", link("l", private), "", ""},
		{"world-writable", open, "mode 0777 lets others write", fault.Invalid},
		{"sticky", mkdir("sticky", 0o777|os.ModeSticky), "mode 1777 lets others write", fault.Invalid},
		{"group-writable", mkdir("group", 0o770), "mode 0770 lets others write", fault.Invalid},
		{"link to world-writable", link("lw", open), "mode 0777 lets others write", fault.Invalid},
		{"file", file, "not a directory", fault.Invalid},
		{"below a file", filepath.Join(file, "x"), "not a directory", fault.Internal},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Open(tt.dir)
			if tt.err == "" {
				must(t, err)
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.err) || fault.Of(err) != tt.kind {
				t.Errorf("error %v (%s), want %s (%s)", err, fault.Of(err), tt.err, tt.kind)
			}
		})
	}

	t.Run("others", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("only root can give files away")
		}
		theirs := mkdir("theirs", 0o700)
		must(t, os.Chown(theirs, 1234, 1234))
		if _, err := Open(theirs); err == nil || !strings.Contains(err.Error(), "belongs to user 1234") {
			t.Errorf("directory of another user: %v", err)
		}
		planted := link("planted", private)
		must(t, os.Lchown(planted, 1234, 1234))
		if _, err := Open(planted); err == nil || !strings.Contains(err.Error(), "symbolic link of user 1234") {
			t.Errorf("symbolic link of another user: %v", err)
		}
	})
}

func TestFileName(t *testing.T) {
	long := strings.Repeat("n", 300)
	for id, want := range map[reconcile.SandboxID]string{
		"blue/ai-bonded-rdma":               "blue%2Fai-bonded-rdma",
		"..":                                "%2E.",
		".hidden":                           "%2Ehidden",
		"a.damaged-1":                       "a.damaged-1",
		"ü%2F~\n":                           "%C3%BC%252F%7E%0A",
		reconcile.SandboxID(long):           long[:167] + "~98934f4ff4b49c2d3a9f1a2cbf9f0b0a",
		reconcile.SandboxID(long[:maxName]): long[:maxName],
	} {
		got, err := fileName(id)
		must(t, err)
		if strings.Contains(want, "~") { // the hash is the test's business only by length
			want = want[:168] + got[168:]
		}
		if got != want || len(got) > maxName {
			t.Errorf("fileName(%q) = %q, want %q", id, got, want)
		}
	}
	for _, id := range []reconcile.SandboxID{"", "\xff"} {
		if _, err := fileName(id); fault.Of(err) != fault.Invalid {
			t.Errorf("fileName(%q): %v", id, err)
		}
		j := open(t, t.TempDir())
		_, _, getErr := j.Get(id)
		_, lockErr := j.Lock(t.Context(), id)
		for _, err := range []error{getErr, lockErr, j.Put(record(id, "")), j.Settle(record(id, "")), j.Remove(id), j.Intend(id, []netstate.Change{made("a")})} {
			if fault.Of(err) != fault.Invalid {
				t.Errorf("ID %q: %v", id, err)
			}
		}
	}
}

func FuzzFileName(f *testing.F) {
	f.Add("a/b", "a%2Fb")
	f.Add(strings.Repeat("x", 500), strings.Repeat("x", 501))
	f.Add("..", ".")
	f.Fuzz(func(t *testing.T, a, b string) {
		na, errA := fileName(reconcile.SandboxID(a))
		nb, errB := fileName(reconcile.SandboxID(b))
		if errA != nil || errB != nil {
			return
		}
		if (a == b) != (na == nb) {
			t.Errorf("%q is %q, %q is %q", a, na, b, nb)
		}
		if len(na) > maxName || filepath.Base(na) != na || strings.HasPrefix(na, ".") {
			t.Errorf("%q is %q", a, na)
		}
	})
}

// Readers take no lock: they see a state from before or after each write,
// whatever the writer does to the file meanwhile.
func TestReadersBesideWriter(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	must(t, j.Put(record(testID, reconcile.Applied)))
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			other := open(t, dir)
			last := -1
			for {
				select {
				case <-done:
					return
				default:
				}
				r, found, err := other.Get(testID)
				records, errs := other.List()
				if err != nil || !found || len(errs) > 0 || len(records) != 1 {
					t.Errorf("Get: %v, %v; List: %d, %v", found, err, len(records), errs)
					return
				}
				// Histories of one pass only grow, passes only follow each other.
				var pass int
				_, _ = fmt.Sscan(r.BootID, &pass)
				now := 10*pass + len(r.History)
				if now < last {
					t.Errorf("went back from %d to %d", last, now)
					return
				}
				last = now
			}
		})
	}
	passes := 15
	if effort.Long() {
		passes = 100
	}
	for pass := range passes {
		r := record(testID, reconcile.Applying)
		r.BootID = fmt.Sprint(pass)
		r.Failure = strings.Repeat("x", 3000)
		must(t, j.Put(r))
		for i := range 5 {
			must(t, j.Intend(testID, []netstate.Change{made(fmt.Sprint("l", i))}))
			r.History = append(r.History, made(fmt.Sprint("l", i)))
		}
		must(t, j.Settle(r))
	}
	close(done)
	readers.Wait()
	if d, err := j.Damaged(); err != nil || len(d) > 0 {
		t.Errorf("set aside: %q, %v", d, err)
	}
}

func ExampleJournal() {
	dir, err := os.MkdirTemp("", "journal")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	j, err := Open(dir)
	if err != nil {
		fmt.Println(err)
		return
	}
	id := reconcile.SandboxID("blue/ai")
	unlock, err := j.Lock(context.Background(), id)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer unlock()
	_ = j.Put(reconcile.Record{Sandbox: reconcile.Sandbox{ID: id}, Phase: reconcile.Applying})
	_ = j.Intend(id, []netstate.Change{{Step: "bond", After: netstate.Link{Name: "bond0", LinkKind: "bond"}}})
	// A crash here leaves this for the next start:
	records, _ := j.List()
	for _, r := range records {
		fmt.Println(r.Sandbox.ID, r.Phase)
		for _, c := range r.History {
			fmt.Println(c)
		}
	}
	// Output:
	// blue/ai Applying
	// + link bond0 kind bond
}

// What a pass adds to a pod's start: the file system aside, reading the log
// before the append.
func BenchmarkIntend(b *testing.B) {
	for _, bytes := range []int{0, compactBytes} {
		b.Run(fmt.Sprintf("%d KiB log", bytes>>10), func(b *testing.B) {
			j := open(b, b.TempDir())
			j.fsync = func(*os.File) error { return nil }
			r := record(testID, reconcile.Applied)
			r.Failure = strings.Repeat("x", bytes)
			unlock, err := j.Lock(b.Context(), testID)
			must(b, err)
			defer unlock()
			for b.Loop() {
				b.StopTimer()
				must(b, j.Put(r))
				b.StartTimer()
				must(b, j.Intend(testID, []netstate.Change{made("bond0"), made("bond1")}))
			}
		})
	}
}

// TestIDs holds that IDs are those of List, also where the name of the file does
// not tell, and that no log is read for those whose name does.
func TestIDs(t *testing.T) {
	dir := t.TempDir()
	ours, theirs := open(t, dir), open(t, dir)
	long := reconcile.SandboxID(strings.Repeat("long/", 60))
	want := []reconcile.SandboxID{"a%2Fb", "a/b", "blue/ai", "b~c", long, "ü/."}
	for _, id := range want {
		must(t, theirs.Put(record(id, reconcile.Applied, made("bond0"))))
	}
	for range 2 { // the second time the long one is remembered
		got, errs := ours.IDs()
		if d := cmp.Diff(want, got); d != "" || len(errs) > 0 {
			t.Errorf("%v: %s", errs, d)
		}
	}
	must(t, theirs.Remove(long))
	must(t, os.WriteFile(ours.path("a%2Fb", logSuffix), []byte("no log\n"), 0o600))
	got, errs := ours.IDs()
	if d := cmp.Diff([]reconcile.SandboxID{"a%2Fb", "a/b", "blue/ai", "b~c", "ü/."}, got); d != "" || len(errs) > 0 {
		t.Errorf("beside one that has become damaged: %v: %s", errs, d)
	}
	if _, _, err := ours.Get("a/b"); err == nil {
		t.Error("it is not found to be damaged")
	}
	if got, errs = ours.IDs(); len(got) != 4 || len(errs) != 1 {
		t.Errorf("afterwards: %v, %v", got, errs)
	}
	if _, errs = ours.IDs(); len(errs) > 0 {
		t.Errorf("told twice: %v", errs)
	}
}

// BenchmarkIDs measures the cost of a pod's end beside existing sandboxes,
// BenchmarkList what it would pay if it read them.
func BenchmarkIDs(b *testing.B) {
	j := five(b)
	for b.Loop() {
		if got, errs := j.IDs(); len(got) != 500 || len(errs) > 0 {
			b.Fatal(got, errs)
		}
	}
}

// BenchmarkReplay reads the log of a sandbox to which its topology was applied.
func BenchmarkReplay(b *testing.B) {
	var history []netstate.Change
	for i := range 20 {
		history = append(history, made(fmt.Sprintf("link%d", i)))
	}
	var log []byte
	for _, e := range []entry{
		{Record: new(record(testID, reconcile.Applying))},
		{Intend: history},
		{Record: new(record(testID, reconcile.Applied, history...))},
	} {
		line, err := e.encode()
		must(b, err)
		log = append(log, line...)
	}
	for b.Loop() {
		if s, err := replay(log); err != nil || len(s.record.History) != len(history) {
			b.Fatal(s, err)
		}
	}
}

func BenchmarkList(b *testing.B) {
	j := five(b)
	for b.Loop() {
		if got, errs := j.List(); len(got) != 500 || len(errs) > 0 {
			b.Fatal(got, errs)
		}
	}
}

// five returns a journal of five hundred.
func five(b *testing.B) *Journal {
	b.Helper()
	j := open(b, b.TempDir())
	j.fsync = func(*os.File) error { return nil }
	var history []netstate.Change
	for i := range 20 {
		history = append(history, made(fmt.Sprintf("link%d", i)))
	}
	for i := range 500 {
		must(b, j.Put(record(reconcile.SandboxID(fmt.Sprintf("sandbox-%d/claim/ai", i)), reconcile.Applied, history...)))
	}
	return j
}
