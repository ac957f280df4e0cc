package claims_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile/pod/claims"
)

// TestChangesOfOthers holds that the cache is never older than the directory, also if
// another process writes to it.
func TestChangesOfOthers(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(t *testing.T, dir string, other *claims.Store)
		want string // UIDs and names
	}{
		{"nothing", func(*testing.T, string, *claims.Store) {}, "aa c, bb c"},
		{"another agent records one", func(t *testing.T, _ string, other *claims.Store) {
			must(t, other.Put(example("cc")))
		}, "aa c, bb c, cc c"},
		{"and replaces one", func(t *testing.T, _ string, other *claims.Store) {
			e := example("aa")
			e.Name = "d"
			must(t, other.Put(e))
		}, "aa d, bb c"},
		{"and removes one", func(t *testing.T, _ string, other *claims.Store) { must(t, other.Remove("aa")) }, "bb c"},
		{"one is moved away", func(t *testing.T, dir string, _ *claims.Store) {
			must(t, os.Rename(filepath.Join(dir, "aa.claim"), filepath.Join(t.TempDir(), "aa.claim")))
		}, "bb c"},
		{"one is truncated in place", func(t *testing.T, dir string, _ *claims.Store) {
			must(t, os.Truncate(filepath.Join(dir, "aa.claim"), 100))
		}, "bb c"},
		{"the directory is replaced", func(t *testing.T, dir string, _ *claims.Store) {
			must(t, os.Rename(dir, dir+"-old"))
			must(t, open(t, filepath.Dir(dir), "boot").Put(example("dd")))
		}, "dd c"},
		{"the directory is recreated", func(t *testing.T, dir string, _ *claims.Store) {
			must(t, os.RemoveAll(dir))
			must(t, open(t, filepath.Dir(dir), "boot").Put(example("dd")))
		}, "dd c"},
		{"more than the kernel holds", func(t *testing.T, dir string, other *claims.Store) {
			data, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
			must(t, err)
			most, err := strconv.Atoi(strings.TrimSpace(string(data)))
			must(t, err)
			// Successive notifications of one name count as one.
			for i := range most + 2 {
				must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf(".%d", i%2)), nil, 0o600))
			}
			must(t, other.Remove("aa"))
		}, "bb c"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			one, other := open(t, dir, "boot"), open(t, dir, "boot")
			for _, uid := range []types.UID{"aa", "bb"} {
				must(t, one.Put(example(uid)))
			}
			for range 2 { // the second time from memory
				if entries, errs := one.List(); len(entries) != 2 || len(errs) != 0 {
					t.Fatalf("before: %v, %v", entries, errs)
				}
			}
			c.do(t, filepath.Join(dir, "claims"), other)
			entries, _ := one.List() // the damaged one is an error
			var have []string
			for _, e := range entries {
				have = append(have, string(e.UID)+" "+e.Name)
			}
			if got := strings.Join(have, ", "); got != c.want {
				t.Errorf("have %s, want %s", got, c.want)
			}
			e, known, _ := one.Get("aa") // set aside already, if damaged
			if known != strings.Contains(c.want, "aa") || known && !strings.Contains(c.want, "aa "+e.Name) {
				t.Errorf("Get: known %t, %+v", known, e)
			}
		})
	}
}

// TestEntriesAreCopies holds that a caller's changes of an entry are not seen by others.
func TestEntriesAreCopies(t *testing.T) {
	s := open(t, t.TempDir(), "boot")
	must(t, s.Put(example("aa")))
	e := get(t, s, "aa")
	e.Set(claims.Sandbox{ID: "s1", Phase: claims.Attached})
	must(t, s.PutSandboxes(e))
	e = get(t, s, "aa")
	e.Sandbox("s1").Phase = claims.Stopping
	e.Set(claims.Sandbox{ID: "s2"})
	e.Topologies[0].Object.Name = "other"
	if e = get(t, s, "aa"); len(e.In) != 1 || e.In[0].Phase != claims.Attached || e.Topologies[0].Object.Name != "t" {
		t.Errorf("have %+v", e)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
