package topology

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/ref"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// preset is a set of variables that a kind of programs reads.
type preset struct {
	name v1alpha1.ExportPreset
	// variables returns those with a value in the results; others are left out.
	variables func(t *Topology, of steps) []Variable
	// lacks says why no pod of the topology can have one; "" if one may.
	lacks func(t *Topology, set contract.Set) string
}

// presets are all presets. An interface is listed if it has an address: one without is a part of another, such as a port of a bond.
//
//   - nccl, also read by RCCL: NCCL_SOCKET_IFNAME and NCCL_IB_HCA, in which "=" before the list means these names and
//     no longer ones, and NCCL_IB_GID_INDEX (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html).
//   - ucx: UCX_IB_GID_INDEX, and UCX_NET_DEVICES, which are RDMA devices with a port, else interfaces. The functions that steps
//     take have one port (https://openucx.readthedocs.io/en/master/faq.html, "Which network devices does UCX use?").
//   - mpi: OMPI_MCA_btl_tcp_if_include, the interfaces of messages over TCP; over RDMA Open MPI asks UCX. Its control connections
//     (oob) stay as they are: the process that launches a job need not be on these networks
//     (https://docs.open-mpi.org/en/main/tuning-apps/networking/tcp.html).
//   - dpdk: DPDK_PCI_ADDRESSES, a name of ours: EAL reads no variable, and takes each address after -a
//     (https://doc.dpdk.org/guides/linux_gsg/linux_eal_parameters.html).
//   - ncclTopology: NCCL_TOPO_FILE, with where the PCI devices of the claim are (package ncclfile).
//   - devicePlugin: PCIDEVICE_ and an extended resource name, as the SR-IOV device plugin sets it
//     (https://github.com/k8snetworkplumbingwg/sriov-network-device-plugin, pkg/resources/pool_stub.go, GetEnvs). Its names have
//     letters, digits, "_", "." and one "/"; what else ours have becomes "_", too.
var presets = []preset{
	{v1alpha1.ExportNCCL, func(_ *Topology, of steps) []Variable {
		return listed(exactly("NCCL_SOCKET_IFNAME", of.addressed()), exactly("NCCL_IB_HCA", of.rdma("")), of.gidIndex("NCCL_IB_GID_INDEX"))
	}, noNetwork},
	{v1alpha1.ExportUCX, func(_ *Topology, of steps) []Variable {
		devices := of.rdma(":1")
		if len(devices) == 0 {
			devices = of.addressed()
		}
		return listed(list("UCX_NET_DEVICES", devices), of.gidIndex("UCX_IB_GID_INDEX"))
	}, noNetwork},
	{v1alpha1.ExportMPI, func(_ *Topology, of steps) []Variable {
		return listed(list("OMPI_MCA_btl_tcp_if_include", of.addressed()))
	}, func(t *Topology, set contract.Set) string {
		return unless(t, set, "no step has an interface with addresses", addresses)
	}},
	{v1alpha1.ExportDPDK, func(t *Topology, of steps) []Variable {
		return listed(list("DPDK_PCI_ADDRESSES", of.pci(t.Roots())))
	}, noDevice},
	{v1alpha1.ExportDevicePlugin, func(t *Topology, of steps) (out []Variable) {
		var done []string
		for _, s := range t.Roots() {
			name := s.ExtendedResourceName
			if name == "" || slices.Contains(done, name) {
				continue
			}
			done = append(done, name)
			same := slices.DeleteFunc(t.Roots(), func(o *Step) bool { return o.ExtendedResourceName != name })
			out = append(out, listed(list(devicePluginName(name), of.pci(same)))...)
		}
		return out
	}, func(t *Topology, _ contract.Set) string {
		if slices.ContainsFunc(t.Roots(), func(s *Step) bool { return s.ExtendedResourceName != "" }) {
			return ""
		}
		return "no step has an extendedResourceName, after which its variable is called: set one, or write a variable of that name in env"
	}},
	{v1alpha1.ExportNCCLTopology, func(t *Topology, _ steps) []Variable {
		return []Variable{{Name: "NCCL_TOPO_FILE", Value: FilesDir + "/" + t.Name + "/" + topologyFile}}
	}, func(t *Topology, set contract.Set) string {
		if noDevice(t, set) == "" {
			return ""
		}
		return unless(t, set, "no step takes a device, or gives its pod the RDMA device of a shared one", rdmaDevice)
	}},
}

// topologyFile is the file of the preset ncclTopology.
const topologyFile = "nccl-topology.xml"

func presetNamed(name v1alpha1.ExportPreset) (preset, bool) {
	i := slices.IndexFunc(presets, func(p preset) bool { return p.name == name })
	if i < 0 {
		return preset{}, false
	}
	return presets[i], true
}

func presetNames() []string {
	return excerpt.Texts(presets, func(p preset) string { return string(p.name) })
}

// ExportNames returns the names of the variables that a topology exports: those that each pod has, and those of presets that depend on
// what its node gives.
func (t *Topology) ExportNames() (sure, perhaps []string) {
	if t.Export == nil {
		return nil, nil
	}
	all := make(steps, len(t.Steps)) // with everything that a preset may tell
	for i := range t.Steps {
		all[i] = StepResult{Name: t.Steps[i].Name, Result: Result{
			Interfaces: []Interface{{Name: "any", Sandbox: "any", PCIID: "any"}},
			IPs:        []IP{{Interface: new(0)}},
			Devices:    &Devices{PCIAddress: "any", RDMADevice: "any", GIDIndex: new(0)},
		}}
	}
	sure = slices.Sorted(maps.Keys(t.Export.Env))
	for _, name := range t.Export.Presets {
		p, _ := presetNamed(name)
		if p.variables == nil {
			continue
		}
		for _, v := range p.variables(t, all) {
			switch {
			case slices.Contains(sure, v.Name):
			case name == v1alpha1.ExportNCCLTopology:
				sure = append(sure, v.Name)
			default:
				perhaps = append(perhaps, v.Name)
			}
		}
	}
	slices.Sort(perhaps)
	return sure, slices.Compact(perhaps)
}

// noDevice says that no step takes a device.
func noDevice(t *Topology, set contract.Set) string {
	if slices.ContainsFunc(t.Roots(), func(s *Step) bool { c, _ := set.Contract(s.Type); return c.Input.Device }) {
		return ""
	}
	return "no step takes a device"
}

// noNetwork says that no step can have an address or an RDMA device.
func noNetwork(t *Topology, set contract.Set) string {
	return unless(t, set, "no step has an interface with addresses, or an RDMA device", addresses, rdmaDevice)
}

var (
	addresses  = ref.Field{Source: ref.IPs}
	rdmaDevice = ref.Field{Path: "rdmaDevice", Source: ref.Devices}
)

// unless returns why, unless a step may have one of these fields.
func unless(t *Topology, set contract.Set, why string, fields ...ref.Field) string {
	for i := range t.Steps {
		if slices.ContainsFunc(fields, func(f ref.Field) bool { return mayHave(set, &t.Steps[i], f) }) {
			return ""
		}
	}
	return why
}

func devicePluginName(resource string) string {
	return "PCIDEVICE_" + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, resource)
}

func list(name string, values []string) Variable {
	return Variable{Name: name, Value: strings.Join(values, ",")}
}

// exactly is a list of whole names, as NCCL reads it.
func exactly(name string, values []string) Variable {
	v := list(name, values)
	if v.Value != "" {
		v.Value = "=" + v.Value
	}
	return v
}

// listed leaves out what is empty.
func listed(all ...Variable) []Variable {
	return slices.DeleteFunc(all, func(v Variable) bool { return v.Value == "" })
}

// addressed returns the interfaces of the pod that have an address.
func (all steps) addressed() (out []string) {
	for i := range all {
		r := &all[i].Result
		for _, ip := range r.IPs {
			if ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(r.Interfaces) {
				continue
			}
			if on := r.Interfaces[*ip.Interface]; on.Sandbox != "" && !slices.Contains(out, on.Name) {
				out = append(out, on.Name)
			}
		}
	}
	return out
}

// rdma returns the RDMA devices, with what is written after each.
func (all steps) rdma(port string) (out []string) {
	for i := range all {
		if d := all[i].Result.Devices; d != nil && d.RDMADevice != "" && !slices.Contains(out, d.RDMADevice+port) {
			out = append(out, d.RDMADevice+port)
		}
	}
	return out
}

// gidIndex is the variable with the index of the GID. It is one for all RDMA devices, so it is left out if they have different
// ones, or if no step requires a GID of one: the library chooses then.
func (all steps) gidIndex(name string) Variable {
	of := map[string]bool{} // RDMA devices, of which a step requires a GID
	var found []string
	for i := range all {
		d := all[i].Result.Devices
		if d == nil || d.RDMADevice == "" {
			continue
		}
		of[d.RDMADevice] = of[d.RDMADevice] || d.GIDIndex != nil
		if d.GIDIndex == nil {
			continue
		}
		if index := strconv.Itoa(*d.GIDIndex); !slices.Contains(found, index) {
			found = append(found, index)
		}
	}
	for _, required := range of {
		if !required || len(found) != 1 {
			return Variable{Name: name}
		}
	}
	return Variable{Name: name, Value: strings.Join(found, "")}
}

// pci returns the PCI addresses of the devices that steps take.
func (all steps) pci(roots []*Step) (out []string) {
	for _, s := range roots {
		r, _ := all.of(s.Name)
		address := ""
		if r.Devices != nil {
			address = r.Devices.PCIAddress
		}
		if i, ok := r.Last(); ok && address == "" {
			address = i.PCIID
		}
		if address != "" && !slices.Contains(out, address) {
			out = append(out, address)
		}
	}
	return out
}
