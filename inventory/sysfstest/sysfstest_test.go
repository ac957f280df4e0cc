package sysfstest_test

import (
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/plumbline/plumbline/inventory/sysfstest"
)

const tree = `A card.
-- class/net/eth0 -> ../../devices/pci/net/eth0 --
-- devices/pci/net/eth0/mtu --
1500
-- devices/pci/net/eth0/phys_port_name/ --
`

func TestUnpackAndRecord(t *testing.T) {
	archive := txtar.Parse([]byte(tree))
	unpacked, _ := sysfstest.Unpack(t, archive)
	recorder := sysfstest.NewRecorder(unpacked.(fs.ReadLinkFS))
	if _, err := fs.ReadDir(recorder, "class/net"); err != nil {
		t.Error(err)
	}
	// Through the link: the archive has the file where it really is.
	if mtu, err := fs.ReadFile(recorder, "class/net/eth0/mtu"); string(mtu) != "1500\n" || err != nil {
		t.Errorf("mtu: have %q, %v", mtu, err)
	}
	if _, err := fs.ReadFile(recorder, "class/net/eth0/phys_port_name"); err == nil {
		t.Error("an unreadable file can be read")
	}
	if _, err := fs.ReadFile(recorder, "class/net/eth0/missing"); err == nil {
		t.Error("a missing file can be read")
	}
	if _, err := fs.Stat(recorder, "devices/pci/net/eth0"); err != nil {
		t.Error(err)
	}
	have := recorder.Archive()
	have.Comment = archive.Comment
	if diff := cmp.Diff(tree, string(txtar.Format(have))); diff != "" {
		t.Errorf("recorded (-want +have):\n%s", diff)
	}
	if err := fstest.TestFS(unpacked, "devices/pci/net/eth0/mtu"); err != nil {
		t.Error(err)
	}
}

func TestWriteRefuses(t *testing.T) {
	for _, name := range []string{"/etc/passwd", "../x", "a/../../x -> y", "a//b"} {
		err := sysfstest.Write(t.TempDir(), &txtar.Archive{Files: []txtar.File{{Name: name}}})
		if err == nil || !strings.Contains(err.Error(), "is not a path below /sys") {
			t.Errorf("%q: have %v", name, err)
		}
	}
}
