package ncclfile_test

import (
	"encoding/xml"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/plumbline/plumbline/inventory/ncclfile"
	"github.com/plumbline/plumbline/inventory/sysfstest"
)

var update = flag.Bool("update", false, "write the golden file")

// TestFile holds the file of two switches on two CPUs, with a GPU and a function below the first, a virtual function below the second, and
// a function at a root port. The first function is shared, and known by its RDMA device only. An unknown value of a link is written as
// such, and is no limit.
func TestFile(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/switches.txtar")
	if err != nil {
		t.Fatal(err)
	}
	_, sys := sysfstest.Unpack(t, archive)
	node := ncclfile.Node{Sys: sys, CPUInfo: filepath.Join(sys, "cpuinfo"), Arch: "amd64"}
	got, err := node.Of([]string{"0000:83:00.2", "0000:83:00.2"}, []string{"mlx5_4", "mlx5_1", "mlx5_1", "rxe0", "mlx5_9", "../mlx5_4", ""},
		[]string{"0000:03:00.0", "0000:C1:00.0", "0000:05:00.0", "../../x", ""})
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
	for _, bad := range []string{"0000:05:00.0", "../../../etc", "0000:03:00.8", ""} {
		if got, err := node.Of([]string{bad}, nil, nil); err == nil {
			t.Errorf("%q: %s", bad, got)
		}
	}
	if _, err := node.Of(make([]string, 129), nil, nil); err == nil || !strings.Contains(err.Error(), "129 devices, at most 128") {
		t.Errorf("too many: %v", err)
	}
}

// element is an element of a topology file.
type element struct {
	XMLName  xml.Name
	Attrs    []xml.Attr `xml:",any,attr"`
	Children []element  `xml:",any"`
}

// values are how NCCL reads the attributes of a file (ncclTopoGetSystemFromXml and what it calls, in src/graph/topo.cc and xml.h).
var values = map[string]*regexp.Regexp{
	"system version": regexp.MustCompile(`^1$`),
	"cpu numaid":     regexp.MustCompile(`^(-1|[0-9]+)$`),
	"cpu affinity":   regexp.MustCompile(`^[0-9a-f]{1,8}(,[0-9a-f]{8})*$`),
	"cpu arch":       regexp.MustCompile(`^(x86_64|arm64|ppc64)$`),
	"cpu vendor":     regexp.MustCompile(`^(GenuineIntel|AuthenticAMD|CentaurHauls|  Shanghai  )$`),
	"cpu familyid":   regexp.MustCompile(`^[0-9]+$`), "cpu modelid": regexp.MustCompile(`^[0-9]+$`),
	"pci busid":      regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`),
	"pci class":      regexp.MustCompile(`^0x[0-9a-f]{6}$`),
	"pci link_speed": regexp.MustCompile(`^[0-9]+(\.[0-9])? GT/s( PCIe)?$`),
	"pci link_width": regexp.MustCompile(`^[0-9]+$`),
	// In the files of clouds only of switches; NCCL writes them of all (ncclTopoGetXmlFromSys in src/graph/xml.cc).
	"pci vendor": regexp.MustCompile(`^0x[0-9a-f]{4}$`), "pci device": regexp.MustCompile(`^0x[0-9a-f]{4}$`),
	"pci subsystem_vendor": regexp.MustCompile(`^0x[0-9a-f]{4}$`), "pci subsystem_device": regexp.MustCompile(`^0x[0-9a-f]{4}$`),
}

// TestPublished holds that our file has the elements and attributes of the files that clouds publish, in the same places and written as there,
// but for those that NCCL finds by itself, and for vendor and device of what is below a switch.
func TestPublished(t *testing.T) {
	shapes := map[string]map[string]bool{}
	for _, file := range []string{"testdata/published.xml", "testdata/switches.xml"} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var top element
		if err := xml.Unmarshal(data, &top); err != nil {
			t.Fatal(err)
		}
		shape := map[string]bool{} // "system>cpu>pci" and "system>cpu>pci class" of all of that file's elements
		var walk func(path string, e element)
		walk = func(path string, e element) {
			name := e.XMLName.Local
			path = strings.TrimPrefix(path+">"+name, ">")
			if shape[path] = true; name == "gpu" || name == "nic" {
				return // what is below a PCI device
			}
			for _, a := range e.Attrs {
				key := name + " " + a.Name.Local
				shape[path+" "+a.Name.Local] = true
				if form, known := values[key]; !known || !form.MatchString(a.Value) && a.Value != "Unknown" {
					t.Errorf("%s: %s is %q", file, key, a.Value)
				}
			}
			for _, c := range e.Children {
				walk(path, c)
			}
		}
		walk("", top)
		shapes[file] = shape
	}
	ours := shapes["testdata/switches.xml"]
	for path := range shapes["testdata/published.xml"] {
		if found := strings.HasSuffix(path, ">gpu") || strings.HasSuffix(path, ">nic"); found == ours[path] {
			t.Errorf("%s: a published file has it, ours: %v", path, ours[path])
		}
	}
	for path := range ours {
		element, attribute, _ := strings.Cut(path, " ")
		more := strings.HasSuffix(element, ">pci>pci") && slices.Contains([]string{"vendor", "device", "subsystem_vendor", "subsystem_device"}, attribute)
		for !shapes["testdata/published.xml"][element] && strings.HasSuffix(element, ">pci>pci") { // a switch below a switch
			element = strings.TrimSuffix(element, ">pci")
		}
		published := shapes["testdata/published.xml"][strings.TrimSpace(element+" "+attribute)]
		if !published && !more {
			t.Errorf("%s: no published file has it", path)
		}
	}
}
