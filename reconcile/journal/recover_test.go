package journal

import (
	"bytes"
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/tools/txtar"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata")

// Each case holds a log, perhaps a torn end (without its newline), and what
// reading them gives.
func TestReplay(t *testing.T) {
	files, err := filepath.Glob("testdata/replay/*.txtar")
	must(t, err)
	if len(files) == 0 {
		t.Fatal("no cases")
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			must(t, err)
			var log, want []byte
			for _, f := range archive.Files {
				switch f.Name {
				case "log":
					log = bytes.Clone(f.Data)
				case "torn":
					log = append(log, bytes.TrimSuffix(f.Data, []byte("\n"))...)
				case "want":
					want = f.Data
				default:
					t.Fatalf("unknown section %q", f.Name)
				}
			}
			var got bytes.Buffer
			if s, err := replay(log); err != nil {
				fmt.Fprintln(&got, err)
			} else {
				printState(&got, s)
			}
			if *update {
				last := &archive.Files[len(archive.Files)-1]
				if last.Name != "want" {
					archive.Files = append(archive.Files, txtar.File{Name: "want"})
					last = &archive.Files[len(archive.Files)-1]
				}
				last.Data = got.Bytes()
				must(t, os.WriteFile(file, txtar.Format(archive), 0o644))
				return
			}
			if d := cmp.Diff(string(want), got.String()); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

func printState(b *bytes.Buffer, s state) {
	if !s.found {
		fmt.Fprintln(b, "no record")
	} else {
		fmt.Fprintf(b, "sandbox %s in %s, %s\n", s.record.Sandbox.ID, s.record.Sandbox.Netns, s.record.Phase)
		for _, c := range s.record.History {
			fmt.Fprintln(b, c)
		}
	}
	if s.size > s.good {
		fmt.Fprintf(b, "torn: %d bytes\n", s.size-s.good)
	}
}

// The format is read by later versions: its bytes must not change unnoticed.
func TestFormat(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	must(t, j.Put(record(testID, reconcile.Applying)))
	must(t, j.Intend(testID, []netstate.Change{made("bond0"), mtu("net1", 1500, 9000)}))
	must(t, j.Settle(record(testID, reconcile.Applied, made("bond0"), mtu("net1", 1500, 9000))))
	archive := &txtar.Archive{Comment: []byte("Put, Intend and Settle of one sandbox, as they lie in the directory.\n\n")}
	for _, name := range names(t, dir) {
		data, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		archive.Files = append(archive.Files, txtar.File{Name: name, Data: data})
	}
	got := txtar.Format(archive)
	const golden = "testdata/format.txtar"
	if *update {
		must(t, os.WriteFile(golden, got, 0o644))
	}
	want, err := os.ReadFile(golden)
	must(t, err)
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// history writes a log of several appends and returns it with the states after
// each of its lines; the first is that of no line.
func history(t testing.TB) (log []byte, states []*reconcile.Record) {
	t.Helper()
	dir := t.TempDir()
	j := open(t, dir)
	states = append(states, nil)
	step := func(err error) {
		t.Helper()
		must(t, err)
		states = append(states, new(mustGet(t, j, testID)))
	}
	step(j.Put(record(testID, reconcile.Applying, made("old"))))
	step(j.Intend(testID, []netstate.Change{made("bond0"), mtu("net1", 1500, 9000)}))
	step(j.Intend(testID, []netstate.Change{mtu("net1", 9000, 1400)}))
	step(j.Settle(record(testID, reconcile.Applied, made("bond0"))))
	step(j.Put(record(testID, reconcile.Releasing, made("bond0"))))
	step(j.Intend(testID, []netstate.Change{netstatetest.Inverse(made("bond0"))}))
	log, err := os.ReadFile(j.path("blue%2Fai", logSuffix))
	must(t, err)
	if got := bytes.Count(log, []byte("\n")); got != len(states)-1 {
		t.Fatalf("%d lines after %d writes", got, len(states)-1)
	}
	return log, states
}

func TestTornAtEveryByte(t *testing.T) {
	log, states := history(t)
	dir := t.TempDir()
	j := open(t, dir)
	j.fsync = func(*os.File) error { return nil }
	path := j.path("blue%2Fai", logSuffix)
	check := func(t *testing.T, want *reconcile.Record) {
		t.Helper()
		r, found, err := j.Get(testID)
		if err != nil || found != (want != nil) {
			t.Fatalf("found %v, error %v", found, err)
		}
		if found {
			sameRecord(t, r, *want)
		}
		if records, errs := j.List(); len(errs) > 0 || (len(records) == 1) != found {
			t.Fatalf("List: %d records, errors %v", len(records), errs)
		}
	}
	first, step := effort.Stride(t, 7)
	for n := first - 1; n <= len(log); n += step {
		torn := map[string][]byte{"cut": log[:n]}
		// The rest of the sector was not written, what follows was.
		if start := bytes.LastIndexByte(log[:n], '\n') + 1; start > 0 && n < len(log) {
			hole := bytes.Clone(log)
			clear(hole[max(start, n/512*512):min(len(log), (n/512+1)*512)])
			torn["hole"] = hole
		}
		want := states[bytes.Count(log[:n], []byte("\n"))]
		for name, data := range torn {
			t.Run(fmt.Sprint(n, " ", name), func(t *testing.T) {
				must(t, os.WriteFile(path, data, 0o600))
				check(t, want)
				if want == nil {
					must(t, j.Put(record(testID, reconcile.Applied)))
					check(t, new(record(testID, reconcile.Applied)))
					return
				}
				more := []netstate.Change{made("next")}
				must(t, j.Intend(testID, more))
				check(t, new(intended(*want, more)))
				if written, err := os.ReadFile(path); err != nil || bytes.Count(written, []byte("\n")) != bytes.Count(log[:n], []byte("\n"))+1 {
					t.Errorf("torn end not cut off: %v\n%s", err, written)
				}
			})
		}
	}
}

func TestDamage(t *testing.T) {
	log, _ := history(t)
	lines := bytes.SplitAfter(log, []byte("\n"))
	line := func(e entry) []byte {
		b, err := e.encode()
		must(t, err)
		return b
	}
	other := record("red/ai", reconcile.Applied)
	write := func(parts ...[]byte) func(string) error {
		return func(path string) error { return os.WriteFile(path, bytes.Join(parts, nil), 0o600) }
	}
	flipped := bytes.Clone(lines[1])
	flipped[len(flipped)/2] ^= 1
	zeroed := bytes.Clone(lines[1])
	zeroed[len(zeroed)/2] = 0
	for _, tt := range []struct {
		name string
		make func(path string) error
		err  string
	}{
		{"a zero that no crash leaves", write(lines[0], zeroed, lines[2]), "line 2: checksum is "},
		{"bad line in the middle", write(lines[0], flipped, lines[2]), "line 2: checksum is "},
		{"bad line at the end", write(lines[0], flipped), "line 2: checksum is "},
		{"later version, and a bit", write([]byte("9" + string(flipped[1:]))), `line 1: checksum is `},
		{"foreign file", write([]byte("#!/bin/sh -e\n")), `line 1: version "#!/bin/sh" is none`},
		{"foreign word", write([]byte("hello\n")), "line 1: not a line of a record"},
		{"no checksum", write([]byte("1 x {}\n")), `line 1: no checksum: "x"`},
		{"empty line", write(lines[0], []byte("\n")), "line 2: not a line"},
		{"zeros", write(make([]byte, 4096), []byte("\n")), "line 1: not a line"},
		{"two values", write(framed("{} {}")), "content: more than one value"},
		{"not JSON", write(framed("[")), "content: "},
		{"record of another sandbox", write(line(entry{Record: &other})), `holds a record of sandbox "red/ai"`},
		{"record without an ID", write(line(entry{Record: &reconcile.Record{}})), "sandbox without an ID"},
		{"second record of another sandbox", write(lines[0], line(entry{Record: &other})), `record of sandbox "red/ai" follows one of "blue/ai"`},
		{"intent without a record", write(lines[1]), "line 1: intended changes without a record"},
		{"too large", func(path string) error {
			f, err := os.Create(path)
			if err != nil {
				return err
			}
			defer f.Close()
			return f.Truncate(int64(limitBytes) + 1)
		}, fmt.Sprintf("larger than %d bytes", limitBytes)},
		{"directory", func(path string) error { return os.Mkdir(path, 0o700) }, "not a regular file"},
		{"symbolic link", func(path string) error { return os.Symlink("/etc/passwd", path) }, "too many levels of symbolic links"},
	} {
		for _, by := range []struct {
			name string
			meet func(*Journal) error
		}{
			{"list", func(*Journal) error { return nil }},
			{"get", func(j *Journal) error { _, _, err := j.Get(testID); return err }},
			{"intend", func(j *Journal) error { return j.Intend(testID, []netstate.Change{made("a")}) }},
		} {
			t.Run(tt.name+" met by "+by.name, func(t *testing.T) {
				dir := t.TempDir()
				j := open(t, dir)
				must(t, j.Put(other))
				path := j.path("blue%2Fai", logSuffix)
				must(t, tt.make(path))
				before, _ := os.ReadFile(path)

				if err := by.meet(j); (err == nil) != (by.name == "list") || err != nil && !strings.Contains(err.Error(), tt.err) {
					t.Errorf("%s: %v", by.name, err)
				}
				records, errs := j.List()
				if len(records) != 1 || records[0].Sandbox.ID != "red/ai" {
					t.Errorf("other sandboxes: %v", records)
				}
				if len(errs) != 1 || !strings.Contains(errs[0].Error(), tt.err) || !strings.Contains(errs[0].Error(), `kept as "blue%2Fai.journal.damaged-1"`) {
					t.Errorf("errors: %q\nwant: %s", errs, tt.err)
				}
				if after, _ := os.ReadFile(path + ".damaged-1"); !bytes.Equal(before, after) {
					t.Error("what was set aside differs")
				}
				if _, errs := j.List(); len(errs) > 0 {
					t.Errorf("reported again: %v", errs)
				}
				if kept, err := j.Damaged(); err != nil || len(kept) != 1 || kept[0] != path+".damaged-1" {
					t.Errorf("Damaged: %q, %v", kept, err)
				}

				// The sandbox can get a new record, and that can be damaged too.
				must(t, j.Put(record(testID, reconcile.Applied)))
				sameRecord(t, mustGet(t, j, testID), record(testID, reconcile.Applied))
				must(t, os.WriteFile(path, []byte("again\n"), 0o600))
				must(t, j.Put(record(testID, reconcile.Failed)))
				sameRecord(t, mustGet(t, j, testID), record(testID, reconcile.Failed))
				if kept, err := j.Damaged(); err != nil || len(kept) != 2 {
					t.Errorf("Damaged: %q, %v", kept, err)
				}
				if _, errs := j.List(); len(errs) != 1 || !strings.Contains(errs[0].Error(), "damaged-2") {
					t.Errorf("errors: %q", errs)
				}
			})
		}
	}
}

// A file that another process is writing is not set aside.
// The other holder is a second journal: to flock that is another process.
func TestDamageInUse(t *testing.T) {
	dir := t.TempDir()
	other := open(t, dir)
	unlock, err := other.Lock(t.Context(), "x")
	must(t, err)
	path := other.path("x", logSuffix)
	must(t, os.WriteFile(path, []byte("hello\n"), 0o600))
	synctest.Test(t, func(t *testing.T) {
		j := open(t, dir)
		for range 2 {
			if _, errs := j.List(); len(errs) != 1 || !strings.Contains(errs[0].Error(), "damaged: line 1: not a line of a record; not set aside: in use") {
				t.Errorf("errors: %v", errs)
			}
		}
	})
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
	unlock()
	if _, errs := open(t, dir).List(); len(errs) != 1 || !strings.Contains(errs[0].Error(), "damaged-1") {
		t.Errorf("errors: %v", errs)
	}
}

func TestForeignNamesAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	for _, name := range []string{"README", "x.lock", "x.journal.new", "x.new", "x.journal.damaged-7"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("hello\n"), 0o600))
	}
	if records, errs := j.List(); len(records)+len(errs) > 0 {
		t.Errorf("%v, %v", records, errs)
	}
	if got := names(t, dir); len(got) != 5 {
		t.Errorf("files: %q", got)
	}
	// An unfinished replacement of before a crash has no effect.
	must(t, j.Put(record("x", reconcile.Applied)))
	mustGet(t, j, "x")
}

// framed is a line of this version with any content, and a checksum that fits.
func framed(payload string) []byte {
	return fmt.Appendf(nil, "%s %08x %s\n", frame.Version, crc32.Checksum([]byte(payload), crc32.MakeTable(crc32.Castagnoli)), payload)
}

// Whatever a log holds, it is read, set aside, or left alone when it is of another
// version, and no other sandbox is affected.
func FuzzLog(f *testing.F) {
	log, _ := history(f)
	f.Add(log)
	f.Add(log[:len(log)-7])
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		broken := bytes.Clone(log)
		broken[rnd.IntN(len(broken))] ^= 1 << rnd.IntN(8)
		f.Add(broken)
	}
	f.Add([]byte("9" + string(log[1:])))
	f.Add(append(bytes.Clone(log), log...))
	f.Add(append(bytes.Clone(log), framed(`{"intend":[{"type":"qdisc","after":{"handle":"1:"}}]}`)...))
	f.Add(append(bytes.Clone(log), bytes.Replace(framed(`{"record":{"sandbox":{"id":"blue/ai"}}}`), []byte(frame.Version+" "), []byte("10.1 "), 1)...))
	for _, payload := range []string{`{"record":{"phase":"Paused","sandbox":{"id":"blue/ai"}}}`, `{"record":null}`, `{"intend":[null]}`, `{"record":{"history":[{}]}}`, `{"record":{"sandbox":{"id":"blue/ai"}}}`} {
		f.Add(framed(payload))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if want, err := replayFrom(data, state{size: len(data)}, 1); err == nil {
			got, err := replayLines(data)
			must(t, err)
			if d := cmp.Diff(want, got, cmp.AllowUnexported(state{})); d != "" {
				t.Errorf("superseded lines decoded -, skipped +:\n%s", d)
			}
		}
		j := open(t, t.TempDir())
		j.fsync = func(*os.File) error { return nil }
		must(t, j.Put(record("other", reconcile.Applied)))
		path := j.path("blue%2Fai", logSuffix)
		must(t, os.WriteFile(path, data, 0o600))
		records, errs := j.List()
		kept, err := j.Damaged()
		must(t, err)
		if others := j.OtherVersions(); len(others) > 0 {
			if len(others) != 1 || len(errs) != 1 || len(kept) > 0 || len(records) != 1 {
				t.Fatalf("of another version: %v, errors %v, set aside %q, %d records", others, errs, kept, len(records))
			}
			leftAlone(t, j, path, data)
			sameRecord(t, mustGet(t, j, "other"), record("other", reconcile.Applied))
			return
		}
		switch {
		case len(errs) != len(kept) || len(errs) > 1:
			t.Fatalf("errors %v, set aside %q", errs, kept)
		case len(errs) == 1 && len(records) != 1:
			t.Fatalf("%d records beside a damaged one", len(records))
		case len(errs) == 1:
			if after, err := os.ReadFile(kept[0]); err != nil || !bytes.Equal(data, after) {
				t.Fatalf("what was set aside differs: %v", err)
			}
		}
		must(t, j.Put(record(testID, reconcile.Applied)))
		must(t, j.Intend(testID, []netstate.Change{made("a")}))
		sameRecord(t, mustGet(t, j, testID), record(testID, reconcile.Applying, made("a")))
		sameRecord(t, mustGet(t, j, "other"), record("other", reconcile.Applied))
	})
}

// The same with a valid checksum around any content, which random bytes never
// get right.
func FuzzContent(f *testing.F) {
	log, _ := history(f)
	for line := range bytes.Lines(log) {
		f.Add(line[11 : len(line)-1])
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		first, err := entry{Record: new(record(testID, reconcile.Applied, made("bond0"), mtu("net1", 1500, 9000)))}.encode()
		must(t, err)
		line := framed(string(payload))
		_, _ = replay(line)
		s, err := replay(append(first, line...))
		if err != nil {
			return
		}
		// A record that was read can be written and is read back the same.
		again, err := entry{Record: &s.record}.encode()
		must(t, err)
		s2, err := replay(again)
		must(t, err)
		if d := cmp.Diff(s.record, s2.record, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("-want +got:\n%s", d)
		}
	})
}
