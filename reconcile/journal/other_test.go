package journal

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/topology/fault"
)

// leftAlone holds that nothing that is done to a sandbox, or to all, changes its log.
func leftAlone(t *testing.T, j *Journal, path string, want []byte) {
	t.Helper()
	for name, err := range map[string]error{
		"Get":    func() error { _, _, err := j.Get(testID); return err }(),
		"Put":    j.Put(record(testID, reconcile.Applied)),
		"Settle": j.Settle(record(testID, reconcile.Applied)),
		"Intend": j.Intend(testID, []netstate.Change{made("a")}),
		"Remove": j.Remove(testID),
	} {
		if frame.AsOtherVersion(err) == nil || fault.Of(err) != fault.Conflict {
			t.Errorf("%s: %v", name, err)
		}
	}
	if ids, errs := j.IDs(); slices.Contains(ids, testID) || len(errs) > 0 {
		t.Errorf("IDs: %q, %v", ids, errs)
	}
	j.Holders([]string{"0000:03:00.2"})
	j.Releasing()
	unlock, err := j.Lock(t.Context(), testID)
	must(t, err)
	unlock()
	if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, want) {
		t.Errorf("the log is another: %v\n%s", err, have)
	}
	if kept, err := j.Damaged(); err != nil || len(kept) > 0 {
		t.Errorf("set aside: %q, %v", kept, err)
	}
}

// TestOtherVersion holds that a log that is whole and that this version does not know
// in full is left where it is by whoever meets it first, and reported.
func TestOtherVersion(t *testing.T) {
	log, _ := history(t)
	lines := bytes.SplitAfter(log, []byte("\n"))
	later := func(version string, line []byte) []byte { return append([]byte(version), line[len(frame.Version):]...) }
	for _, tt := range []struct {
		name, err string
		log       [][]byte
	}{
		{"later version", `line 1: `, [][]byte{later("9", lines[0])}},
		{"minor version", `version "1.1" is unknown`, [][]byte{later("1.1", lines[0])}},
		{"later version behind lines of this one", `line 3: `, [][]byte{lines[0], lines[1], later("9", lines[2])}},
		{"later version behind damage", `line 2: `, [][]byte{later(frame.Version, flip(lines[0])), later("9", lines[2])}},
		{"later version before lines of this one", `line 1: `, [][]byte{later("9", lines[0]), lines[1]}},
		{"later version with a torn end", `line 1: `, [][]byte{later("9", lines[0]), lines[1][:9]}},
		{"object type", `unknown object type "qdisc"`, [][]byte{lines[0], framed(`{"intend":[{"type":"qdisc","after":{"handle":"1:"}}]}`)}},
		{
			"object type in the record", `unknown object type "qdisc"`,
			[][]byte{framed(`{"record":{"bootID":"boot","sandbox":{"id":"blue/ai","devices":{"nic":"0000:03:00.2"}},"history":[{"type":"qdisc","after":{}},{"type":"device","after":{"id":"0000:03:00.2"}}]}}`)},
		},
		{"phase", `unknown phase "Paused"`, [][]byte{framed(`{"record":{"sandbox":{"id":"blue/ai"},"phase":"Paused"}}`)}},
		{"entry", "neither a record nor intended changes", [][]byte{lines[0], framed(`{"forget":["x"]}`)}},
		{"shape", "cannot unmarshal", [][]byte{framed(`{"record":{"sandbox":["blue/ai"]}}`)}},
	} {
		content := bytes.Join(tt.log, nil)
		for by, meet := range map[string]func(*Journal){
			"List":    func(j *Journal) { j.List() },
			"Get":     func(j *Journal) { _, _, _ = j.Get(testID) },
			"Put":     func(j *Journal) { _ = j.Put(record(testID, reconcile.Applied)) },
			"Intend":  func(j *Journal) { _ = j.Intend(testID, []netstate.Change{made("a")}) },
			"Remove":  func(j *Journal) { _ = j.Remove(testID) },
			"Holders": func(j *Journal) { j.Holders([]string{"x"}) },
		} {
			t.Run(tt.name+" met by "+by, func(t *testing.T) {
				dir := t.TempDir()
				j := open(t, dir)
				j.fsync = func(*os.File) error { return nil }
				must(t, j.Put(record("red/ai", reconcile.Applied)))
				path := j.path("blue%2Fai", logSuffix)
				must(t, os.WriteFile(path, content, 0o600))

				meet(j)
				others := j.OtherVersions()
				if len(others) != 1 || others[0].Path != path {
					t.Fatalf("met, and not known: %v", others)
				}
				leftAlone(t, j, path, content)
				records, errs := j.List()
				if len(records) != 1 || records[0].Sandbox.ID != "red/ai" {
					t.Errorf("other sandboxes: %v", records)
				}
				if len(errs) != 1 || !strings.Contains(errs[0].Error(), tt.err) || !strings.Contains(errs[0].Error(), "left alone") {
					t.Errorf("errors: %q\nwant: %s", errs, tt.err)
				}
				must(t, j.Remove("red/ai"))
				if got := names(t, dir); len(got) != 2 || got[1] != "blue%2Fai.lock" {
					t.Errorf("files: %q", got)
				}
			})
		}
	}
}

func flip(line []byte) []byte {
	out := bytes.Clone(line)
	out[len(out)/2] ^= 1
	return out
}

// TestOtherVersionHolds holds that what a record of another version mentions counts
// as held, for any name, and that changes of it are followed.
func TestOtherVersionHolds(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	path := filepath.Join(dir, "blue%2Fai.journal")
	mentions := func(device string) bool {
		j.Holders([]string{device})
		return slices.ContainsFunc(j.OtherVersions(), func(o *frame.OtherVersion) bool { return o.Mentions[device] && o.BootID == "boot" })
	}
	must(t, j.Put(record(testID, reconcile.Applied)))
	own, err := os.ReadFile(path)
	must(t, err)
	more := framed(`{"intend":[{"type":"function","after":{"of":{"0000:03:00.7":true}}}]}`)
	must(t, os.WriteFile(path, append(own, more...), 0o600))
	if !mentions("0000:03:00.2") || !mentions("0000:03:00.7") || mentions("0000:03:00.4") {
		t.Errorf("of another version: %v", j.OtherVersions())
	}

	// Its version has rewritten it in a form this one knows, and then it is removed.
	must(t, os.WriteFile(path, own, 0o600))
	if mentions("0000:03:00.2") {
		t.Error("of another version still")
	}
	sameRecord(t, mustGet(t, j, testID), record(testID, reconcile.Applied))
	must(t, os.WriteFile(path, append(own, more...), 0o600))
	if !mentions("0000:03:00.7") {
		t.Error("not of another version again")
	}
	must(t, os.Remove(path))
	if mentions("0000:03:00.7") {
		t.Error("held by a file that is gone")
	}
}

// TestOtherVersionOfLongName is the same for a name from which the ID cannot be derived.
func TestOtherVersionOfLongName(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	id := reconcile.SandboxID(strings.Repeat("x", 300))
	must(t, j.Put(record(id, reconcile.Applied)))
	path := filepath.Join(dir, names(t, dir)[0])
	data, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, append([]byte("9"), data[1:]...), 0o600))
	if ids, errs := open(t, dir).IDs(); len(ids)+len(errs) > 0 {
		t.Errorf("%v, %v", ids, errs)
	}
	if _, _, err := j.Get(id); frame.AsOtherVersion(err) == nil {
		t.Errorf("Get: %v", err)
	}
}

// TestNothingIsWrittenThatCannotBeRead holds that changes whose record would be larger
// than what is read are refused, and do not change the log.
func TestNothingIsWrittenThatCannotBeRead(t *testing.T) {
	j := open(t, t.TempDir())
	must(t, j.Put(record(testID, reconcile.Applied)))
	large := made("bond0")
	large.Why = strings.Repeat("x", limitBytes+1)
	if err := j.Intend(testID, []netstate.Change{large}); fault.Of(err) != fault.Invalid || !strings.Contains(err.Error(), "too large") {
		t.Errorf("Intend: %v", err)
	}
	sameRecord(t, mustGet(t, j, testID), record(testID, reconcile.Applied))
	if kept, err := j.Damaged(); err != nil || len(kept) > 0 {
		t.Errorf("set aside: %q, %v", kept, err)
	}
}
