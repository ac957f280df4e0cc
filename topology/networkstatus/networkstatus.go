// Package networkstatus has the annotation k8s.v1.cni.cncf.io/network-status of pods, in which Multus lists the networks of a pod
// for other programs: which entries a claim's status comes to, their text, and on which pods the annotation is ours. The form is that
// of NetworkStatus in github.com/k8snetworkplumbingwg/network-attachment-definition-client v1.7.7; integration/networkstatus reads
// it by the packages that KubeVirt and Multus use.
package networkstatus

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/plumbline/plumbline/topology/claim"
)

const (
	// Annotation has the networks of a pod.
	Annotation = "k8s.v1.cni.cncf.io/network-status"
	// Mark has the Digest of the text of ours in Annotation: a text with another digest was written by somebody else.
	Mark = "networking.dra.io/network-status"
)

// selections are the annotations by which a pod asks Multus, or ovn-kubernetes, for networks: these report of the pod then.
var selections = []string{"k8s.v1.cni.cncf.io/networks", "v1.multus-cni.io/default-network"}

// Bounds: who can write the status of a claim can write anything there, and all annotations of a pod have 256 KiB.
const (
	maxEntries   = 128 // of a pod
	maxAddresses = 16  // of an interface
	maxBytes     = 48 << 10
)

// ErrTooLarge says that a pod has more interfaces than the annotation may list.
var ErrTooLarge = errors.New("too large")

// Status is an entry: an interface of a pod, or a device that a pod has without an interface.
type Status struct {
	Name       string      `json:"name"` // of the network: NAMESPACE/NAME of a definition, or a topology
	Interface  string      `json:"interface,omitempty"`
	IPs        []string    `json:"ips,omitempty"` // without prefix lengths
	MAC        string      `json:"mac,omitempty"`
	MTU        int         `json:"mtu,omitempty"` // bytes
	DNS        struct{}    `json:"dns"`           // readers expect the key
	DeviceInfo *DeviceInfo `json:"device-info,omitempty"`
}

// DeviceInfo is the PCI function of an entry, by version 1.1.0 of the Device Information specification.
type DeviceInfo struct {
	Type    string `json:"type"`
	Version string `json:"version"`
	PCI     *PCI   `json:"pci,omitempty"`
}

// PCI is the function, such as 0000:03:10.0.
type PCI struct {
	Address string `json:"pci-address,omitempty"`
}

// pciAddress is the form of the kernel.
var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// Of returns the entries of a claim, by the status that its node has written, in the order of the devices and of the
// topology's steps. NameOf is the name of a topology's network. Of a value that is not of the form that nodes write nothing is kept.
func Of(c *resourceapi.ResourceClaim, nameOf func(topology string) string) []Status {
	var out []Status
	uses := claim.Uses(c)
	for i := range c.Status.Devices {
		d := &c.Status.Devices[i]
		var report claim.DeviceReport
		if d.Driver != claim.Driver || d.Data == nil || json.Unmarshal(d.Data.Raw, &report) != nil ||
			!slices.ContainsFunc(uses, func(t claim.TopologyRef) bool { return t.Name == report.Topology }) {
			continue
		}
		name := nameOf(report.Topology)
		if s := ofDevice(d, &report); s.Interface != "" || s.DeviceInfo != nil {
			s.Name = name
			out = add(out, s)
		}
		for _, step := range report.Steps {
			for at, link := range step.Result.Interfaces {
				if link.Sandbox == "" || !isInterface(link.Name) {
					continue
				}
				s := Status{Name: name, Interface: link.Name, MAC: macOf(link.MAC), MTU: max(0, link.MTU), DeviceInfo: deviceOf(link.PCIID)}
				for _, ip := range step.Result.IPs {
					if ip.Interface != nil && *ip.Interface == at {
						s.IPs = addAddress(s.IPs, ip.Address)
					}
				}
				out = add(out, s)
			}
		}
	}
	return out
}

// ofDevice is the entry of a device, without a name.
func ofDevice(d *resourceapi.AllocatedDeviceStatus, report *claim.DeviceReport) Status {
	s := Status{DeviceInfo: deviceOf(report.PCIAddress)}
	if n := d.NetworkData; n != nil && isInterface(n.InterfaceName) {
		s.Interface, s.MAC, s.MTU = n.InterfaceName, macOf(n.HardwareAddress), max(0, report.MTU)
		for _, ip := range n.IPs {
			s.IPs = addAddress(s.IPs, ip)
		}
	}
	return s
}

// add adds an entry, or its data to an interface that is listed already.
func add(all []Status, s Status) []Status {
	at := slices.IndexFunc(all, func(a Status) bool { return s.Interface != "" && a.Interface == s.Interface })
	if at < 0 {
		if len(all) > maxEntries { // one more than there may be: Text says so
			return all
		}
		return append(all, s)
	}
	a := &all[at]
	for _, ip := range s.IPs {
		if !slices.Contains(a.IPs, ip) && len(a.IPs) < maxAddresses {
			a.IPs = append(a.IPs, ip)
		}
	}
	a.MAC, a.MTU = cmp.Or(a.MAC, s.MAC), cmp.Or(a.MTU, s.MTU)
	a.DeviceInfo = cmp.Or(a.DeviceInfo, s.DeviceInfo)
	return all
}

func addAddress(all []string, prefix string) []string {
	p, err := netip.ParsePrefix(prefix)
	if err != nil || p.Addr().Zone() != "" || p.Addr().IsLinkLocalUnicast() || len(all) == maxAddresses {
		return all
	}
	if a := p.Addr().Unmap().String(); !slices.Contains(all, a) {
		return append(all, a)
	}
	return all
}

// isInterface reports whether the kernel would accept a name: at most 15 bytes, without a slash and white space.
func isInterface(name string) bool {
	return name != "" && len(name) < 16 && !strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r <= ' ' || r > '~' })
}

func macOf(text string) string {
	if len(text) > len("00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00") {
		return ""
	}
	mac, err := net.ParseMAC(text)
	if err != nil {
		return ""
	}
	return mac.String()
}

func deviceOf(address string) *DeviceInfo {
	if !pciAddress.MatchString(address) {
		return nil
	}
	return &DeviceInfo{Type: "pci", Version: "1.1.0", PCI: &PCI{address}}
}

// NameOf is the name of a topology's network: the NetworkAttachmentDefinition that it stands for, or its own.
func NameOf(name, definition string) string {
	namespace, n, two := strings.Cut(definition, "/")
	if two && len(validation.IsDNS1123Subdomain(n)) == 0 && len(validation.IsDNS1123Label(namespace)) == 0 {
		return definition
	}
	return name
}

// Text is the text of the annotation, empty without entries. More than a pod may have are ErrTooLarge: a list that lacks
// some would be taken for all.
func Text(all []Status) (string, error) {
	if len(all) == 0 {
		return "", nil
	}
	if len(all) > maxEntries {
		return "", fmt.Errorf("more than %d interfaces: %w", maxEntries, ErrTooLarge)
	}
	text, err := json.Marshal(all)
	if err != nil {
		return "", fmt.Errorf("network status: %w", err)
	}
	if len(text) > maxBytes {
		return "", fmt.Errorf("%d bytes, at most %d are written: %w", len(text), maxBytes, ErrTooLarge)
	}
	return string(text), nil
}

// Digest is the digest of a text, which tells it from one that somebody else has written, and withstands nobody.
func Digest(text string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	return fmt.Sprintf("%016x", h.Sum64())
}

// Ours reports whether the annotation of a pod with these annotations is ours to write: nobody else has, and nobody else
// is asked to.
func Ours(annotations map[string]string) bool {
	for _, key := range selections {
		if _, selects := annotations[key]; selects {
			return false
		}
	}
	text, written := annotations[Annotation]
	return !written || annotations[Mark] == Digest(text)
}
