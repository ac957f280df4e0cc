// Package ncclfile writes the topology file of NCCL (NCCL_TOPO_FILE): below which switches and CPUs of a node PCI devices are.
//
// Elements and attributes are those that NCCL reads and writes itself (src/graph/xml.cc, ncclTopoGetXmlFromSys and
// ncclTopoGetXmlFromCpu), and that the files of clouds have, such as topology/p5.48xl-topo.xml of aws-ofi-nccl and topology/ndv4-topo.xml
// of azhpc-images. NCCL finds the rest itself, such as GPUs and the names of network devices.
package ncclfile

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

type system struct {
	XMLName xml.Name `xml:"system"`
	Version string   `xml:"version,attr"`
	CPUs    []*cpu
}

type cpu struct {
	XMLName  xml.Name `xml:"cpu"`
	NUMA     string   `xml:"numaid,attr"`
	Affinity string   `xml:"affinity,attr,omitempty"`
	Arch     string   `xml:"arch,attr"`
	Vendor   string   `xml:"vendor,attr,omitempty"`
	Family   string   `xml:"familyid,attr,omitempty"`
	Model    string   `xml:"modelid,attr,omitempty"`
	PCI      []*pci
}

type pci struct {
	XMLName         xml.Name `xml:"pci"`
	BusID           string   `xml:"busid,attr"`
	Class           string   `xml:"class,attr"`
	Vendor          string   `xml:"vendor,attr,omitempty"`
	Device          string   `xml:"device,attr,omitempty"`
	SubsystemVendor string   `xml:"subsystem_vendor,attr,omitempty"`
	SubsystemDevice string   `xml:"subsystem_device,attr,omitempty"`
	LinkSpeed       string   `xml:"link_speed,attr"`
	LinkWidth       int      `xml:"link_width,attr"`
	PCI             []*pci
}

// maxDevices bounds the devices of a file, and maxDepth the bridges above one.
const (
	maxDevices = 128
	maxDepth   = 32
)

var address = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// Node has the places from which the topology file of a node is read.
type Node struct {
	Sys     string // the path of sysfs
	CPUInfo string // the path of cpuinfo of procfs; it may be missing
	Arch    string // as GOARCH
}

// Of returns the file for devices of the node, by PCI address, and for those of RDMA devices by name. A PCI address that the node does
// not have is an error; beside are devices of other drivers, which are left out then.
func (n Node) Of(own, rdma, beside []string) (string, error) {
	addresses := slices.Clone(own)
	for _, name := range rdma {
		if a := n.below(name); a != "" {
			addresses = append(addresses, a)
		}
	}
	for _, a := range beside {
		if a = strings.ToLower(a); address.MatchString(a) {
			if _, err := os.Stat(n.link(a)); err == nil {
				addresses = append(addresses, a)
			}
		}
	}
	if len(addresses) > maxDevices {
		return "", fmt.Errorf("NCCL topology: %d devices, at most %d are accepted", len(addresses), maxDevices)
	}
	top := system{Version: "1"}
	for _, a := range slices.Compact(slices.Sorted(slices.Values(addresses))) { // NCCL keeps that order, too
		if err := n.add(&top, a); err != nil {
			return "", fmt.Errorf("NCCL topology: %w", err)
		}
	}
	slices.SortFunc(top.CPUs, func(a, b *cpu) int {
		return cmp.Or(cmp.Compare(len(a.NUMA), len(b.NUMA)), strings.Compare(a.NUMA, b.NUMA))
	})
	out, err := xml.MarshalIndent(top, "", "  ")
	return string(out) + "\n", err
}

// below returns the PCI address of the device that an RDMA device is of, as NCCL finds it; "" for one in software. In exclusive mode sysfs
// shows only RDMA devices of the host: one in a pod is of a function that the step takes.
func (n Node) below(rdma string) string {
	if rdma != filepath.Base(rdma) {
		return ""
	}
	dir, err := filepath.EvalSymlinks(filepath.Join(n.Sys, "class/infiniband", rdma, "device"))
	if a := filepath.Base(dir); err == nil && address.MatchString(a) {
		return a
	}
	return ""
}

func (n Node) link(device string) string { return filepath.Join(n.Sys, "bus/pci/devices", device) }

// add adds a device, with the switches above it.
func (n Node) add(top *system, device string) error {
	if !address.MatchString(device) {
		return fmt.Errorf("%q is not a PCI address", device)
	}
	dir, err := filepath.EvalSymlinks(n.link(device))
	if err != nil {
		return err
	}
	var chain []string // from the device up to the root complex
	for at := dir; address.MatchString(filepath.Base(at)); at = filepath.Dir(at) {
		chain = append(chain, at)
	}
	if len(chain) == 0 || len(chain) > maxDepth {
		return fmt.Errorf("device %s has %d PCI devices above it", device, len(chain))
	}
	// A switch is its upstream port: every second device is a port on the way, and left out, as NCCL does.
	highest := (len(chain) - 1) / 2 * 2
	under := &n.cpu(top, n.read(chain[highest], "numa_node")).PCI
	for i := highest; i >= 0; i -= 2 {
		one := slices.IndexFunc(*under, func(p *pci) bool { return p.BusID == filepath.Base(chain[i]) })
		if one < 0 {
			one = len(*under)
			*under = append(*under, n.pci(chain[i]))
		}
		under = &(*under)[one].PCI
	}
	return nil
}

func (n Node) cpu(top *system, numa string) *cpu {
	numa = cmp.Or(numa, "-1") // of a machine without NUMA
	if i := slices.IndexFunc(top.CPUs, func(c *cpu) bool { return c.NUMA == numa }); i >= 0 {
		return top.CPUs[i]
	}
	c := &cpu{NUMA: numa, Affinity: n.read(n.Sys, "devices/system/node/node"+numa+"/cpumap"), Arch: n.Arch}
	if n.Arch == "amd64" {
		c.Arch = "x86_64"
		info := n.first(n.CPUInfo)
		c.Vendor, c.Family, c.Model = info["vendor_id"], info["cpu family"], info["model"]
	}
	top.CPUs = append(top.CPUs, c)
	return c
}

func (n Node) pci(dir string) *pci {
	link := dir
	if pf, err := filepath.EvalSymlinks(filepath.Join(dir, "physfn")); err == nil { // a virtual function has no link of its own
		link = pf
	}
	above := filepath.Dir(link)
	speed := n.read(link, "max_link_speed")
	if port := n.read(above, "max_link_speed"); gigatransfers(port) < gigatransfers(speed) {
		speed = port
	}
	return &pci{
		BusID: filepath.Base(dir), Class: n.read(dir, "class"), Vendor: n.read(dir, "vendor"), Device: n.read(dir, "device"),
		SubsystemVendor: n.read(dir, "subsystem_vendor"), SubsystemDevice: n.read(dir, "subsystem_device"),
		LinkSpeed: speed, LinkWidth: lanes(n.read(link, "max_link_width"), n.read(above, "max_link_width")),
	}
}

// gigatransfers is a rate as the kernel writes it, such as "16.0 GT/s PCIe"; what it does not know is no limit.
func gigatransfers(text string) float64 {
	number, _, ok := strings.Cut(text, " GT/s")
	rate, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil {
		return math.Inf(1)
	}
	return rate
}

// lanes is the smaller width of those that are known. 255 is the kernel's PCIE_LNK_WIDTH_UNKNOWN.
func lanes(widths ...string) int {
	least := 0
	for _, w := range widths {
		if n, err := strconv.Atoi(w); err == nil && n > 0 && n < 255 && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}

// read returns a file of one line, "" if there is none.
func (n Node) read(dir, name string) string {
	return strings.TrimSpace(readAll(filepath.Join(dir, name)))
}

// first returns the keys of the first processor in cpuinfo.
func (n Node) first(file string) map[string]string {
	text, _, _ := strings.Cut(readAll(file), "\n\n")
	out := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		out[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	return out
}

func readAll(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	data, _ := io.ReadAll(io.LimitReader(f, 1<<16))
	return string(data)
}
