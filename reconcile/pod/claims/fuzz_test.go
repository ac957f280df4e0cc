package claims_test

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile/frame"
)

// FuzzRecord holds that for any content of a claim's files, with a valid checksum or
// without, the claim is read, set aside, or left alone if it is of another version, and
// that no other claim is affected.
func FuzzRecord(f *testing.F) {
	for _, name := range []string{"aa.claim", "aa.sandboxes"} {
		data, err := os.ReadFile(filepath.Join("testdata/format", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(name == "aa.claim", false, data)
		f.Add(name == "aa.claim", false, append([]byte("9"), data[1:]...))
		f.Add(name == "aa.claim", true, data[11:len(data)-1])
	}
	f.Add(false, true, []byte(`{"bootID":"boot","sandboxes":[{"phase":"Paused"}]}`))
	f.Add(true, true, []byte(`{"uid":"aa","topologies":{}}`))
	f.Add(true, true, []byte(`null`))
	f.Fuzz(func(t *testing.T, ofClaim, framed bool, data []byte) {
		dir := t.TempDir()
		s := open(t, dir, "boot")
		for _, uid := range []types.UID{"aa", "bb"} {
			if err := s.Put(example(uid)); err != nil {
				t.Fatal(err)
			}
		}
		if framed {
			data = fmt.Appendf(nil, "%s %08x %s\n", frame.Version, crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)), data)
		}
		path := filepath.Join(dir, "claims", map[bool]string{true: "aa.claim", false: "aa.sandboxes"}[ofClaim])
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		_, known, err := s.Get("aa")
		others, failed := s.OtherVersions()
		aside, failedToo := s.Damaged()
		if failed != nil || failedToo != nil || len(others)+len(aside) > 1 {
			t.Fatalf("of other versions %v, %v; set aside %q, %v", others, failed, aside, failedToo)
		}
		switch {
		case len(others) == 1:
			refusesAll(t, s)
			if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, data) {
				t.Errorf("the record is another: %v", err)
			}
		case len(aside) == 1:
			if have, err := os.ReadFile(aside[0]); err != nil || !bytes.Equal(have, data) || !ofClaim {
				t.Errorf("what was set aside is another: %v", err)
			}
		case err != nil || !known:
			t.Errorf("neither read nor reported: known %t, %v", known, err)
		}
		if e := get(t, s, "bb"); e.Name != "c" {
			t.Errorf("the other claim: %+v", e)
		}
	})
}
