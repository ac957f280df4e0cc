package ncclfile_test

import (
	"encoding/xml"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/plumbline/plumbline/inventory/ncclfile"
	"github.com/plumbline/plumbline/inventory/sysfstest"
)

var update = flag.Bool("update", false, "write the golden file")

// TestFile holds the file of two switches on two CPUs, with a GPU and a function below the first, a virtual function below the second, and
// a function at a root port. What the kernel does not know of a link is written as it is, and no limit.
func TestFile(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/switches.txtar")
	if err != nil {
		t.Fatal(err)
	}
	_, sys := sysfstest.Unpack(t, archive)
	node := ncclfile.Node{Sys: sys, CPUInfo: filepath.Join(sys, "cpuinfo"), Arch: "amd64"}
	got, err := node.Of([]string{"0000:83:00.2", "0000:04:00.0", "0000:04:00.0"}, []string{"0000:03:00.0", "0000:C1:00.0", "0000:05:00.0", "../../x", ""})
	if err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/switches.xml"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || got != string(want) {
		t.Errorf("%v: have\n%s\nwant\n%s", err, got, want)
	}
	known := map[string]string{ // all that the files of clouds have, and NCCL writes
		"system": "version", "cpu": "numaid affinity arch vendor familyid modelid",
		"pci": "busid class vendor device subsystem_vendor subsystem_device link_speed link_width",
	}
	for d := xml.NewDecoder(strings.NewReader(got)); ; {
		token, err := d.Token()
		if err != nil {
			break
		}
		if e, ok := token.(xml.StartElement); ok {
			for _, a := range e.Attr {
				if !strings.Contains(" "+known[e.Name.Local]+" ", " "+a.Name.Local+" ") {
					t.Errorf("element %s has attribute %s", e.Name.Local, a.Name.Local)
				}
			}
		}
	}
	for _, bad := range []string{"0000:05:00.0", "../../../etc", "0000:03:00.8", ""} {
		if got, err := node.Of([]string{bad}, nil); err == nil {
			t.Errorf("%q: %s", bad, got)
		}
	}
	if _, err := node.Of(make([]string, 129), nil); err == nil || !strings.Contains(err.Error(), "129 devices, at most 128") {
		t.Errorf("too many: %v", err)
	}
}
