package topology

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/ref"
)

// ErrUnknown marks a value that will exist but is not known yet, such as the MAC address of
// a link before it is created.
var ErrUnknown = errors.New("not known yet")

// Result is passed from a step to the steps that depend on it, modelled after the result of
// CNI ADD.
type Result struct {
	Interfaces []Interface `json:"interfaces,omitempty"`
	IPs        []IP        `json:"ips,omitempty"`
	Routes     []Route     `json:"routes,omitempty"`
	Devices    *Devices    `json:"devices,omitempty"` // of a device-node step
	// Learns says that more IPs may follow, from the network.
	Learns bool `json:"-"`
}

// Interface is one network interface. One on the host has no sandbox.
type Interface struct {
	Name       string `json:"name"`
	MAC        string `json:"mac,omitempty"`
	MTU        int    `json:"mtu,omitempty"` // bytes
	Sandbox    string `json:"sandbox,omitempty"`
	PCIID      string `json:"pciID,omitempty"`
	SocketPath string `json:"socketPath,omitempty"`
}

// IP is one address.
type IP struct {
	Address   string `json:"address"` // with prefix length
	Gateway   string `json:"gateway,omitempty"`
	Interface *int   `json:"interface,omitempty"` // index into Interfaces
}

// Route is one route. A nil table or scope is the kernel's default.
type Route struct {
	Dst      string `json:"dst"`
	GW       string `json:"gw,omitempty"`
	MTU      int    `json:"mtu,omitempty"`    // bytes
	AdvMSS   int    `json:"advmss,omitempty"` // bytes
	Priority int    `json:"priority,omitempty"`
	Table    *int   `json:"table,omitempty"`
	Scope    *int   `json:"scope,omitempty"`
}

// Devices are given by a step besides interfaces, or instead of them. They belong to
// that step alone and are not merged into the results of others.
type Devices struct {
	PCIAddress  string   `json:"pciAddress,omitempty"`
	IOMMUGroup  string   `json:"iommuGroup,omitempty"`
	DeviceNodes []string `json:"deviceNodes,omitempty"` // paths of character devices
	RDMADevice  string   `json:"rdmaDevice,omitempty"`
	GIDIndex    *int     `json:"gidIndex,omitempty"` // of the GID that the step requires, in the table of the device's port
}

// StepResult is the result of one step by name.
type StepResult struct {
	Name   string `json:"name"`
	Type   string `json:"type"`
	Result Result `json:"result"`
}

// Merge joins the results of a step's dependencies, given in the order of its dependOn. An
// interface that several of them have (two VLANs over one bond have the same ports) is kept
// once, at its first position, and so are addresses and routes; addresses refer to their
// interface's new index. The result shares no memory with the arguments.
func Merge(deps ...Result) Result {
	var out Result
	type identity struct{ sandbox, name string }
	at := map[identity]int{}
	for _, dep := range deps {
		out.Learns = out.Learns || dep.Learns
		moved := make([]int, len(dep.Interfaces)) // index in dep to index in out
		for i, iface := range dep.Interfaces {
			id := identity{iface.Sandbox, iface.Name}
			j, known := at[id]
			if !known {
				j = len(out.Interfaces)
				at[id] = j
				out.Interfaces = append(out.Interfaces, iface)
			} else {
				out.Interfaces[j].complete(iface)
			}
			moved[i] = j
		}
		for _, ip := range dep.IPs {
			if i := ip.Interface; i != nil {
				if ip.Interface = nil; *i >= 0 && *i < len(moved) {
					ip.Interface = new(moved[*i])
				}
			}
			if !slices.ContainsFunc(out.IPs, func(o IP) bool { return reflect.DeepEqual(o, ip) }) {
				out.IPs = append(out.IPs, ip)
			}
		}
		for _, r := range dep.Routes {
			if !slices.ContainsFunc(out.Routes, func(o Route) bool { return reflect.DeepEqual(o, r) }) {
				r.Table, r.Scope = clone(r.Table), clone(r.Scope)
				out.Routes = append(out.Routes, r)
			}
		}
	}
	return out
}

// complete fills unknown fields of an interface from another entry for it.
func (i *Interface) complete(o Interface) {
	i.MAC = cmp.Or(i.MAC, o.MAC)
	i.MTU = cmp.Or(i.MTU, o.MTU)
	i.PCIID = cmp.Or(i.PCIID, o.PCIID)
	i.SocketPath = cmp.Or(i.SocketPath, o.SocketPath)
}

func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return new(*p)
}

// Last returns the interface a reference without an index means: the last one
// that is in a sandbox.
func (r Result) Last() (Interface, bool) {
	for _, i := range slices.Backward(r.Interfaces) {
		if i.Sandbox != "" {
			return i, true
		}
	}
	return Interface{}, false
}

// Field returns the value a reference names; its step is not checked. A
// value that will only be known later is an error wrapping ErrUnknown, a value
// that does not exist an error listing what does.
func (r Result) Field(f ref.Ref) (any, error) {
	known, err := f.Lookup()
	if err != nil {
		return nil, err
	}
	switch known.Source {
	case ref.IPs:
		return r.ipField(f)
	case ref.Devices:
		return r.deviceField(f)
	default:
		return r.interfaceField(f)
	}
}

func (r Result) interfaceField(f ref.Ref) (any, error) {
	if f.Field == "interfaces" && f.Index == nil {
		if len(r.Interfaces) == 0 {
			return nil, errors.New("the result has no interfaces")
		}
		out := make([]any, len(r.Interfaces))
		for i := range r.Interfaces {
			out[i] = r.Interfaces[i].object()
		}
		return out, nil
	}
	name := f.Field
	iface, ok := r.Last()
	if f.Index != nil {
		if *f.Index >= len(r.Interfaces) {
			return nil, fmt.Errorf("no interface %d: the result has %s", *f.Index, r.list())
		}
		iface, name, ok = r.Interfaces[*f.Index], f.Sub, true
	}
	if !ok {
		return nil, fmt.Errorf("no interface in a sandbox: the result has %s", r.list())
	}
	switch name {
	case "interfaceName", "name":
		return iface.Name, nil
	case "sandbox":
		return iface.Sandbox, nil
	case "mac":
		if iface.MAC == "" {
			return nil, fmt.Errorf("MAC address of interface %q: %w", iface.Name, ErrUnknown)
		}
		return iface.MAC, nil
	case "mtu":
		if iface.MTU == 0 {
			return nil, fmt.Errorf("MTU of interface %q: %w", iface.Name, ErrUnknown)
		}
		return int64(iface.MTU), nil
	default: // pciID
		if iface.PCIID == "" {
			return nil, fmt.Errorf("interface %q has no PCI address: it is not a device", iface.Name)
		}
		return iface.PCIID, nil
	}
}

func (r Result) ipField(f ref.Ref) (any, error) {
	if *f.Index >= len(r.IPs) {
		if r.Learns {
			return nil, fmt.Errorf("address %d: %w", *f.Index, ErrUnknown)
		}
		if len(r.IPs) == 0 {
			return nil, fmt.Errorf("no address %d: the result has no addresses: set some in that step's config", *f.Index)
		}
		have := excerpt.Texts(r.IPs, func(ip IP) string { return ip.Address })
		return nil, fmt.Errorf("no address %d: the result has %s", *f.Index, count("address", have))
	}
	ip := r.IPs[*f.Index]
	switch {
	case f.Sub == "address":
		return ip.Address, nil
	case ip.Gateway == "":
		return nil, fmt.Errorf("address %q has no gateway", ip.Address)
	default:
		return ip.Gateway, nil
	}
}

func (r Result) deviceField(f ref.Ref) (any, error) {
	if r.Devices == nil && (f.Field == "rdmaDevice" || f.Field == "gidIndex") {
		return nil, errors.New("the result has no RDMA device")
	}
	if r.Devices == nil {
		return nil, errors.New("the result has no device nodes")
	}
	d := *r.Devices
	switch f.Field {
	case "gidIndex":
		if d.GIDIndex == nil {
			return nil, fmt.Errorf("%s: %w", f.Field, ErrUnknown)
		}
		return int64(*d.GIDIndex), nil
	case "deviceNodes":
		if len(d.DeviceNodes) == 0 {
			return nil, fmt.Errorf("%s: %w", f.Field, ErrUnknown)
		}
		if f.Index == nil {
			out := make([]any, len(d.DeviceNodes))
			for i := range d.DeviceNodes {
				out[i] = d.DeviceNodes[i]
			}
			return out, nil
		}
		if *f.Index >= len(d.DeviceNodes) {
			return nil, fmt.Errorf("no device node %d: the result has %s", *f.Index,
				count("device node", d.DeviceNodes))
		}
		return d.DeviceNodes[*f.Index], nil
	}
	v := map[string]string{"pciAddress": d.PCIAddress, "iommuGroup": d.IOMMUGroup, "rdmaDevice": d.RDMADevice}[f.Field]
	if v == "" {
		return nil, fmt.Errorf("%s: %w", f.Field, ErrUnknown)
	}
	return v, nil
}

// object returns the interface as an entry of "{{ step.interfaces }}". Fields
// that are not known yet are left out.
func (i Interface) object() ref.Object {
	o := ref.Object{"name": i.Name}
	for k, v := range map[string]string{"mac": i.MAC, "sandbox": i.Sandbox, "pciID": i.PCIID} {
		if v != "" {
			o[k] = v
		}
	}
	if i.MTU != 0 {
		o["mtu"] = int64(i.MTU)
	}
	return o
}

func (r Result) list() string {
	if len(r.Interfaces) == 0 {
		return "no interfaces"
	}
	return count("interface", excerpt.Texts(r.Interfaces, func(i Interface) string { return i.Name }))
}

// count prints "1 interface [a]", "2 interfaces [a, b]".
func count(what string, names []string) string {
	return fmt.Sprintf("%s [%s]", excerpt.Count(len(names), what), strings.Join(names, ", "))
}

// cniVersion is the first version with mtu, pciID and socketPath.
const cniVersion = "1.1.0"

// CNI returns the result as CNI 1.1 prints it.
func (r Result) CNI() (*types100.Result, error) {
	out := &types100.Result{CNIVersion: cniVersion}
	for _, i := range r.Interfaces {
		out.Interfaces = append(out.Interfaces, &types100.Interface{
			Name: i.Name, Mac: i.MAC, Mtu: i.MTU, Sandbox: i.Sandbox, SocketPath: i.SocketPath, PciID: i.PCIID,
		})
	}
	for _, ip := range r.IPs {
		addr, network, err := net.ParseCIDR(ip.Address)
		if err != nil {
			return nil, fmt.Errorf("address %q: %w", ip.Address, err)
		}
		network.IP = addr
		gw, err := parseIP(ip.Gateway)
		if err != nil {
			return nil, fmt.Errorf("gateway of address %q: %w", ip.Address, err)
		}
		if ip.Interface != nil && (*ip.Interface < 0 || *ip.Interface >= len(r.Interfaces)) {
			return nil, fmt.Errorf("address %q: no interface %d: the result has %s", ip.Address, *ip.Interface, r.list())
		}
		out.IPs = append(out.IPs, &types100.IPConfig{Interface: clone(ip.Interface), Address: *network, Gateway: gw})
	}
	for _, route := range r.Routes {
		dst, err := parseDst(route)
		if err != nil {
			return nil, fmt.Errorf("route %q: %w", route.Dst, err)
		}
		gw, err := parseIP(route.GW)
		if err != nil {
			return nil, fmt.Errorf("gateway of route %q: %w", route.Dst, err)
		}
		out.Routes = append(out.Routes, &cnitypes.Route{
			Dst: *dst, GW: gw, MTU: route.MTU, AdvMSS: route.AdvMSS,
			Priority: route.Priority, Table: clone(route.Table), Scope: clone(route.Scope),
		})
	}
	return out, nil
}

// parseDst reads a destination; "default" is the family of the gateway.
func parseDst(r Route) (*net.IPNet, error) {
	dst := r.Dst
	if dst == "default" {
		dst = "0.0.0.0/0"
		if strings.Contains(r.GW, ":") {
			dst = "::/0"
		}
	}
	_, network, err := net.ParseCIDR(dst)
	return network, err
}

func parseIP(s string) (net.IP, error) {
	if s == "" {
		return nil, nil
	}
	ip := net.ParseIP(s)
	if ip == nil {
		return nil, fmt.Errorf("%q is not an IP address", s)
	}
	return ip, nil
}
