//go:build cluster

package story_test

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/eventually"
)

//go:embed told.yaml
var told string

// link is an interface as the kernel shows it in the pod.
type link struct {
	Name, MAC, PCI string
	Addresses      []string
}

// container is the output of a container of the test pod.
type container struct {
	Interfaces               []link
	Environment, RDMA, Files map[string]string
	Writable                 string
}

// ofRuntime are the variables that runtimes set themselves; TERM is CRI-O's.
var ofRuntime = []string{"PATH", "HOSTNAME", "HOME", "TERM"}

// testTold holds that what a container is told is true of the pod it is in, as the kernel says it there, that it gets the files of its own
// RDMA device and of no other, and that a container without the claim is told nothing.
func testTold(t *testing.T, c *cluster.Cluster, node *cluster.Node) {
	if _, err := node.Shell(t.Context(), "modprobe -a ib_uverbs rdma_ucm"); err != nil {
		t.Fatal(err)
	}
	topology, objects, _ := strings.Cut(told, "\n---\n")
	if err := c.Apply(t.Context(), topology); err != nil {
		t.Fatal(err)
	}
	if err := c.Await(t.Context(), "deviceclass/told-rail0", "deviceclass/told-rail1", "deviceclass/told-ib"); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), objects); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kubectl(t.Context(), nil, "wait", "--for=condition=Ready", "--timeout=300s", "pod/told"); err != nil {
		said, _ := c.Kubectl(t.Context(), nil, "describe", "pod", "told")
		t.Fatalf("%v\n%s", err, said)
	}
	have, beside := printed(t, c, "main"), printed(t, c, "beside")
	for _, problem := range have.problems() {
		t.Error(problem)
	}
	eventually.True(t, time.Minute, "an Event about the variable that the pod has set", func() bool {
		said, err := c.Kubectl(t.Context(), nil, "get", "events", "--field-selector=involvedObject.name=told,reason=NetworkVariablesReplaced", "-o", "jsonpath={.items[*].message}")
		return err == nil && strings.HasPrefix(said, `container "main" sets NCCL_SOCKET_IFNAME, which the topology of claim`)
	})
	if own := have.Environment["OWN"]; own != "of the pod" {
		t.Errorf("OWN=%q", own)
	}
	for name, value := range beside.Environment {
		if value == have.Environment[name] && !slices.Contains(ofRuntime, name) || len(beside.RDMA) > 0 {
			t.Errorf("a container that does not list the claim has %s=%s, and of RDMA %v", name, value, beside.RDMA)
		}
	}
	// Files follow an edit, in the container that runs.
	if err := c.Apply(t.Context(), strings.Replace(topology, "{{ rail0.interfaceName }} {{", "first {{", 1)); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, 2*time.Minute, "the file after an edit", func() bool {
		said, err := c.Kubectl(t.Context(), nil, "exec", "told", "-c", "main", "--", "/pod", "show")
		var now container
		return err == nil && json.Unmarshal([]byte(said), &now) == nil && strings.HasPrefix(now.Files[folder+"rails"], "first 198.18.0.7/24\n")
	})
	if _, err := c.Kubectl(t.Context(), nil, "delete", "pod/told", "networktopology/told", "resourceclaimtemplate/told", "--timeout=120s"); err != nil {
		t.Error(err)
	}
}

// folder is where the container finds the files of its topology.
const folder = "/var/run/dra.networking/files/told/"

func printed(t *testing.T, c *cluster.Cluster, name string) (out container) {
	t.Helper()
	eventually.True(t, time.Minute, "output of container "+name, func() bool {
		said, err := c.Kubectl(t.Context(), nil, "logs", "told", "-c", name)
		return err == nil && json.Unmarshal([]byte(said), &out) == nil
	})
	return out
}

// problems compares the environment with what the kernel says.
func (c *container) problems() (out []string) {
	want := func(name, value string) {
		if have := c.Environment[name]; have != value {
			out = append(out, fmt.Sprintf("the container is told %s=%q, but the kernel says %q", name, have, value))
		}
	}
	var names, addresses, macs, pci []string
	for _, rail := range []string{"rail0", "rail1"} {
		i := slices.IndexFunc(c.Interfaces, func(l link) bool { return l.Name == rail })
		if i < 0 {
			return []string{"no interface " + rail}
		}
		link := c.Interfaces[i]
		names, macs, pci = append(names, link.Name), append(macs, link.MAC), append(pci, link.PCI)
		if len(link.Addresses) > 0 {
			addresses = append(addresses, link.Addresses[0])
		}
		if rail == "rail0" && !slices.Contains(link.Addresses, c.Environment["TOLD_SECOND"]) {
			out = append(out, fmt.Sprintf("TOLD_SECOND=%q is no address of %v", c.Environment["TOLD_SECOND"], link))
		}
	}
	want("NCCL_SOCKET_IFNAME", "="+strings.Join(names, ","))
	want("OMPI_MCA_btl_tcp_if_include", strings.Join(names, ","))
	want("TOLD_ADDRESSES", strings.Join(addresses, ","))
	want("TOLD_MACS", strings.Join(macs, ","))
	want("TOLD_PCI", strings.Join(pci, ","))
	want("PCIDEVICE_PLUMBLINE_TEST_RAIL", pci[1])
	if !strings.HasPrefix(c.Environment["DPDK_PCI_ADDRESSES"], strings.Join(pci, ",")+",") {
		out = append(out, fmt.Sprintf("DPDK_PCI_ADDRESSES=%q does not begin with %v", c.Environment["DPDK_PCI_ADDRESSES"], pci))
	}
	if pci[0] < pci[1] {
		out = append(out, fmt.Sprintf("the rails are in the order of the bus, %v, which shows nothing", pci))
	}
	if len(addresses) == 2 && c.Files[folder+"rails"] != "rail0 "+addresses[0]+"\nrail1 "+addresses[1]+"\n" {
		out = append(out, fmt.Sprintf("file rails is %q, addresses %v", c.Files[folder+"rails"], addresses))
	}
	for _, function := range pci {
		if file := c.Files[c.Environment["NCCL_TOPO_FILE"]]; !strings.Contains(file, `busid="`+function+`"`) {
			out = append(out, fmt.Sprintf("%s has no %s: %s", c.Environment["NCCL_TOPO_FILE"], function, file))
		}
	}
	if len(c.Files) != 2 || c.Writable != "" {
		out = append(out, fmt.Sprintf("want two files that cannot be written: %v, %s", c.Files, c.Writable))
	}
	var devices []string // RDMA devices with a file
	for file, of := range c.RDMA {
		if file != "rdma_cm" {
			devices = append(devices, of)
		}
	}
	if _, cm := c.RDMA["rdma_cm"]; len(devices) != 1 || devices[0] == "" || !cm {
		out = append(out, fmt.Sprintf("in /dev/infiniband are %v, want the files of one RDMA device", c.RDMA))
		return out
	}
	want("NCCL_IB_HCA", "="+devices[0])
	want("UCX_NET_DEVICES", devices[0]+":1")
	return out
}
