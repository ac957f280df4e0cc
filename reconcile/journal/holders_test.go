package journal

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// TestHolders: changes of another process count at once, and an unchanged log is not
// read again.
func TestHolders(t *testing.T) {
	dir := t.TempDir()
	ours, theirs := open(t, dir), open(t, dir)
	moved := func(id string) netstate.Change {
		return netstate.Change{Step: "s", Before: netstate.Device{ID: id, At: new("host:eth0")}, After: netstate.Device{ID: id, At: new("net1")}}
	}
	expect := func(when string, want ...reconcile.SandboxID) {
		t.Helper()
		var got []reconcile.SandboxID
		for _, r := range ours.Holders([]string{"0000:03:00.2", "0000:03:00.4"}) {
			got = append(got, r.Sandbox.ID)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", when, d)
		}
	}
	expect("in an empty directory")
	must(t, theirs.Put(record("blue/ai", reconcile.Applied, moved("0000:03:00.2"))))
	must(t, theirs.Put(record("green/ai", reconcile.Applied, moved("0000:03:00.3"))))
	expect("after two were made", "blue/ai")
	must(t, theirs.Intend("green/ai", []netstate.Change{moved("0000:03:00.4")}))
	expect("after the other took one too", "blue/ai", "green/ai")
	if got := ours.Releasing(); len(got) > 0 {
		t.Errorf("nobody lets go, but %v", got)
	}
	must(t, theirs.Put(record("blue/ai", reconcile.Releasing, moved("0000:03:00.2"))))
	if got := ours.Releasing(); len(got) != 1 || got[0].Sandbox.ID != "blue/ai" {
		t.Errorf("one lets go, but %v", got)
	}
	must(t, theirs.Remove("blue/ai"))
	expect("after the first went", "green/ai")
	must(t, theirs.Put(record("pink/ai", reconcile.Applied, netstate.Change{Before: netstate.VF{ID: "0000:03:00.2", VLAN: new(uint16(0))}, After: netstate.VF{ID: "0000:03:00.2", VLAN: new(uint16(7))}})))
	must(t, theirs.Put(record("prepared/c/ai", reconcile.Applied, netstate.Change{Before: netstate.Binding{ID: "0000:03:00.2"}, After: netstate.Binding{ID: "0000:03:00.2", Driver: new("vfio-pci")}})))
	expect("after two took one without moving it", "green/ai", "pink/ai", "prepared/c/ai")
	must(t, theirs.Remove("pink/ai"))
	must(t, theirs.Remove("prepared/c/ai"))
	must(t, os.WriteFile(ours.path("red", logSuffix), []byte("no log\n"), 0o600))
	expect("beside a damaged file", "green/ai")
	if _, errs := ours.List(); len(errs) != 1 {
		t.Errorf("the damaged file is reported by %v", errs)
	}
}

// TestBesideReadsNothingOfItsOwn: logs that this process has written are not read again for a sandbox beside them. Otherwise each of
// several pods that end together would read the logs of all others after each of their changes.
func TestBesideReadsNothingOfItsOwn(t *testing.T) {
	j := open(t, t.TempDir())
	j.fsync = func(*os.File) error { return nil }
	ids := make([]reconcile.SandboxID, 50)
	for i := range ids {
		ids[i] = reconcile.SandboxID(fmt.Sprintf("pod-%d/ai", i))
	}
	write := map[string]func(reconcile.SandboxID) error{
		"put":    func(id reconcile.SandboxID) error { return j.Put(record(id, reconcile.Applied, made("bond0"))) },
		"settle": func(id reconcile.SandboxID) error { return j.Settle(record(id, reconcile.Releasing, made("bond0"))) },
		"intend": func(id reconcile.SandboxID) error { return j.Intend(id, []netstate.Change{made("data0")}) },
	}
	allocations := func() float64 {
		return testing.AllocsPerRun(1, func() { j.Beside(ids[0], "/run/netns/none", reconcile.NetnsID{}) })
	}
	must(t, write["put"](ids[0]))
	for _, way := range []string{"put", "settle", "intend"} {
		for _, id := range ids {
			must(t, write[way](id))
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		j.Beside(ids[0], "/run/netns/none", reconcile.NetnsID{})
		runtime.ReadMemStats(&after)
		if first, again := float64(after.Mallocs-before.Mallocs), allocations(); first > 2*again {
			t.Errorf("%s: %v allocations in the first call after 50 writes, %v in the next", way, first, again)
		}
	}
}

// TestBeside: the sandboxes of a namespace are those of its path, and those that have opened it by another one.
func TestBeside(t *testing.T) {
	j, open := open(t, t.TempDir()), reconcile.NetnsID{Inode: 7}
	for id, at := range map[reconcile.SandboxID]reconcile.NetnsID{"blue/a": open, "blue/b": {Inode: 6}, "pid7/a": open, "red/a": {}, "green/a": {Inode: 8}} {
		r := record(id, reconcile.Applied, made("bond0"))
		name, _, _ := strings.Cut(string(id), "/")
		r.Sandbox.Netns, r.NetnsID = "/run/netns/"+name, at
		must(t, j.Put(r))
	}
	for _, c := range []struct {
		open reconcile.NetnsID
		want []reconcile.SandboxID
	}{{open, []reconcile.SandboxID{"blue/b", "pid7/a"}}, {reconcile.NetnsID{}, []reconcile.SandboxID{"blue/b"}}} {
		var got []reconcile.SandboxID
		for _, r := range j.Beside("blue/a", "/run/netns/blue", c.open) {
			got = append(got, r.Sandbox.ID)
		}
		slices.Sort(got)
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("opened %v: %s", c.open, d)
		}
	}
}

// BenchmarkHolders measures the cost of a new sandbox beside existing ones.
func BenchmarkHolders(b *testing.B) {
	j := open(b, b.TempDir())
	j.fsync = func(*os.File) error { return nil }
	for i := range 500 {
		must(b, j.Put(record(reconcile.SandboxID(string(rune('a'+i%26))+string(rune('a'+i/26))+"/ai"), reconcile.Applied, made("bond0"), made("data0"))))
	}
	for b.Loop() {
		if got := j.Holders([]string{"0000:03:00.2"}); len(got) > 0 {
			b.Fatal(got)
		}
	}
}
