package claims_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestOtherVersion holds that no method changes the record of a claim that another version
// has written, that its devices count as held, and that it does not affect other claims.
func TestOtherVersion(t *testing.T) {
	later := func(line string) string { return "9" + line[len(frame.Version):] }
	reframed := func(content string) func(string) string {
		return func(string) string {
			line, err := frame.Encode(json.RawMessage(content))
			if err != nil {
				t.Fatal(err)
			}
			return string(line)
		}
	}
	for _, c := range []struct {
		name, file string
		change     func(line string) string
	}{
		{"later version", "aa.claim", later},
		{"shape", "aa.claim", reframed(`{"uid":"aa","devices":{"pci-0000-03-10-0":"0000:03:10.0"},"topologies":{}}`)},
		{"sandboxes of a later version", "aa.sandboxes", later},
		{"phase", "aa.sandboxes", reframed(`{"bootID":"boot","sandboxes":[{"id":"s1","phase":"Paused"}]}`)},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir, "boot")
			for _, uid := range []types.UID{"aa", "bb"} {
				claim := example(uid)
				if uid == "bb" {
					claim.Topologies = nil
				}
				if err := s.Put(claim); err != nil {
					t.Fatal(err)
				}
				e := get(t, s, uid)
				e.Set(claims.Sandbox{ID: "s1", NetnsID: reconcile.NetnsID{Inode: 7}, Phase: claims.Attached})
				if err := s.PutSandboxes(e); err != nil {
					t.Fatal(err)
				}
			}
			path := filepath.Join(dir, "claims", c.file)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			want := c.change(string(data))
			if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
				t.Fatal(err)
			}

			for range 2 {
				refusesAll(t, s)
				entries, errs := s.List()
				if len(entries) != 1 || entries[0].UID != "bb" || len(errs) != 0 {
					t.Errorf("listed %d with %v, want the other one", len(entries), errs)
				}
			}
			others, err := s.OtherVersions()
			if err != nil || len(others) != 1 || others[0].Path != path {
				t.Errorf("of other versions: %v, %v", others, err)
			}
			if found := claims.OtherVersionsIn(filepath.Join(dir, "claims")); len(found) != 1 || found[0].Path != path {
				t.Errorf("of other versions, to a reader without a store: %v", found)
			}
			if used, err := s.InUse(); err != nil || !has(used, "pci-0000-03-10-0") {
				t.Errorf("in use: %v, %v", used, err)
			}
			if have, err := os.ReadFile(path); err != nil || string(have) != want {
				t.Errorf("the record is another: %v\n%s", err, have)
			}
			if set, err := s.Damaged(); err != nil || len(set) != 0 {
				t.Errorf("set aside: %v, %v", set, err)
			}

			// The other version has left a record that this one can read.
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			if e := get(t, s, "aa"); len(e.In) != 1 {
				t.Errorf("of this version again: %+v", e)
			}
			if others, err := s.OtherVersions(); err != nil || len(others) != 0 {
				t.Errorf("of other versions still: %v, %v", others, err)
			}
		})
	}
}

func has[V any](m map[string]V, key string) bool {
	_, ok := m[key]
	return ok
}

// refusesAll holds that every method refuses the claim "aa".
func refusesAll(t *testing.T, s *claims.Store) {
	t.Helper()
	_, known, err := s.Get("aa")
	if known && frame.AsOtherVersion(err) == nil {
		t.Error("known")
	}
	for what, err := range map[string]error{
		"Get":          err,
		"Put":          s.Put(example("aa")),
		"PutSandboxes": s.PutSandboxes(claims.Entry{Claim: example("aa")}),
		"Remove":       s.Remove("aa"),
	} {
		if frame.AsOtherVersion(err) == nil || fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), `claim "aa"`) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestTooLarge holds that nothing is written that would be set aside as damaged when it
// is read.
func TestTooLarge(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, "boot")
	c := example("aa")
	if err := s.Put(c); err != nil {
		t.Fatal(err)
	}
	c.Topologies[0].Object.Annotations = map[string]string{"note": strings.Repeat("x", 8<<20)}
	if err := s.Put(c); fault.Of(err) != fault.Invalid || !strings.Contains(err.Error(), "are more than the 8388608 that a record may have") {
		t.Errorf("a record of more than 8 MiB: %v", err)
	}
	if e := get(t, open(t, dir, "boot"), "aa"); e.Topologies[0].Object.Annotations != nil {
		t.Error("it was written")
	}
	c.Topologies[0].Object.Annotations["note"] = strings.Repeat("x", 8<<20-4096)
	if err := s.Put(c); err != nil {
		t.Fatal(err)
	}
	if e := get(t, open(t, dir, "boot"), "aa"); len(e.Topologies[0].Object.Annotations["note"]) != 8<<20-4096 {
		t.Error("what may be written cannot be read")
	}
	if set, err := s.Damaged(); err != nil || len(set) != 0 {
		t.Errorf("set aside: %v, %v", set, err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "claims")); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
