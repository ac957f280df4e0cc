package claim

import (
	"encoding/json"
	"net/netip"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/topology"
)

// maxAddresses of a claim on one topology are taken into account.
const maxAddresses = 16

// Held describes the networks of a claim's only pod, by topology.
type Held struct {
	Pod       types.NamespacedName
	UID       types.UID
	Addresses map[string][]netip.Addr // by name of the topology
}

// Addresses returns the addresses that a claim's pod has on each topology, by the status that
// its node has written: those of devices, and those of links that steps made on them. Users
// who can write the status of claims can add addresses; of one claim and topology there are at
// most 16.
func Addresses(c *resourceapi.ResourceClaim) map[string][]netip.Addr {
	var out map[string][]netip.Addr
	for i := range c.Status.Devices {
		d := &c.Status.Devices[i]
		if d.Driver != Driver || d.Data == nil || d.NetworkData == nil && len(d.Data.Raw) == 0 {
			continue
		}
		var data struct {
			Topology string                `json:"topology"`
			Steps    []topology.StepResult `json:"steps"`
		}
		if json.Unmarshal(d.Data.Raw, &data) != nil || data.Topology == "" {
			continue
		}
		add := func(prefix string) {
			p, err := netip.ParsePrefix(prefix)
			if err != nil || p.Addr().Zone() != "" || p.Addr().IsLinkLocalUnicast() {
				return
			}
			have, a := out[data.Topology], p.Addr().Unmap()
			if len(have) == maxAddresses || slices.Contains(have, a) {
				return
			}
			if out == nil {
				out = map[string][]netip.Addr{}
			}
			out[data.Topology] = append(have, a)
		}
		if d.NetworkData != nil {
			for _, ip := range d.NetworkData.IPs {
				add(ip)
			}
		}
		for _, s := range data.Steps {
			for _, ip := range s.Result.IPs {
				if i := ip.Interface; i != nil && *i >= 0 && *i < len(s.Result.Interfaces) && s.Result.Interfaces[*i].Sandbox != "" {
					add(ip.Address)
				}
			}
		}
	}
	for name := range out {
		if !slices.ContainsFunc(Uses(c), func(t TopologyRef) bool { return t.Name == name }) {
			delete(out, name)
		}
	}
	return out
}
