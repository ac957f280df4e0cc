package topology

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// TypeOVN is the type of steps that join networks of OVN.
const TypeOVN = "ovn-k8s-cni-overlay"

// The topologies of networks of OVN.
const (
	OVNLayer2   = "layer2"
	OVNLocalnet = "localnet"
)

// OVN holds the keys of a step that name the network of OVN which it joins.
type OVN struct {
	Topology            string `json:"topology"`
	Name                string `json:"name,omitempty"`
	NetAttachDefName    string `json:"netAttachDefName,omitempty"`
	PhysicalNetworkName string `json:"physicalNetworkName,omitempty"`
	VLANID              uint16 `json:"vlanID,omitempty"`
	Subnets             string `json:"subnets,omitempty"`
	ExcludeSubnets      string `json:"excludeSubnets,omitempty"`
}

// Network is the name of the network.
func (n *OVN) Network() string {
	if n.Name != "" {
		return n.Name
	}
	return n.NetAttachDefName
}

// Physical is the physical network of a localnet network, "" for another one.
func (n *OVN) Physical() string {
	switch {
	case n.Topology != OVNLocalnet:
		return ""
	case n.PhysicalNetworkName != "":
		return n.PhysicalNetworkName
	}
	return n.Name
}

// Switch is the name of the network's logical switch. It has all that decides where packets go, so that no two topologies
// contradict each other about one switch.
func (n *OVN) Switch() string {
	out := strings.Join([]string{"plumbline", n.Topology, n.Network()}, ":")
	if n.Topology == OVNLocalnet {
		out += ":" + n.Physical()
		if n.VLANID != 0 {
			out += fmt.Sprintf(":%d", n.VLANID)
		}
	}
	return out
}

// maxPoolWord bounds the part of a pool's name that is read by people: the whole has 63 bytes.
const maxPoolWord = 48

var notInPoolName = regexp.MustCompile(`[^a-z0-9]+`)

// Pool is the name of the AddressPool of the network's subnets. Two switches have different ones, however alike their names are.
func (n *OVN) Pool() string {
	word := notInPoolName.ReplaceAllString(strings.ToLower(n.Network()), "-")
	sum := sha256.Sum256([]byte(n.Switch()))
	return "ovn-" + strings.Trim(word[:min(len(word), maxPoolWord)], "-") + "-" + hex.EncodeToString(sum[:4])
}

// maxPrefixes bounds a list of networks.
const maxPrefixes = 64

// Prefixes reads a list of networks with commas between them, as OVN has it.
func Prefixes(list string) (out []netip.Prefix, err error) {
	if list == "" {
		return nil, nil
	}
	words := strings.Split(list, ",")
	if len(words) > maxPrefixes {
		return nil, fmt.Errorf("%d networks are more than %d", len(words), maxPrefixes)
	}
	for _, word := range words {
		// ovn-kubernetes allows the length of the part of a node behind that of the network.
		p, err := netip.ParsePrefix(strings.TrimSpace(word))
		switch {
		case err != nil:
			return nil, fmt.Errorf("%q is not a network such as 192.0.2.0/24", word)
		case p != p.Masked():
			return nil, fmt.Errorf("%q has host bits: write %s", word, p.Masked())
		}
		out = append(out, p)
	}
	return out, nil
}

// ovnOf returns the keys of a step of OVN; not ok for others, and with a reference in one of them: then the network is not known before
// its steps are planned.
func ovnOf(s *Step) (n OVN, ok bool) {
	if s.Type != TypeOVN {
		return n, false
	}
	for key, into := range map[string]*string{
		"topology": &n.Topology, "name": &n.Name, "netAttachDefName": &n.NetAttachDefName,
		"physicalNetworkName": &n.PhysicalNetworkName, "subnets": &n.Subnets, "excludeSubnets": &n.ExcludeSubnets,
	} {
		*into, _ = s.Config[key].(string)
		if strings.Contains(*into, "{{") {
			return n, false
		}
	}
	if vlan, tagged := s.Config["vlanID"]; tagged {
		id, err := strconv.ParseUint(fmt.Sprint(vlan), 10, 16)
		if err != nil {
			return n, false
		}
		n.VLANID = uint16(id)
	}
	return n, true
}

// SwitchOf is the logical switch of a step, on which its addresses meet no others: of a network of OVN between nodes; "" for others.
func SwitchOf(s *Step) string {
	if n, ok := ovnOf(s); ok && n.Topology == OVNLayer2 {
		return n.Switch()
	}
	return ""
}

// FromSubnets returns the ipam of a step of OVN that has the addresses of the subnets of its network, as it has neither addresses
// nor ipam; not ok for others.
func FromSubnets(s *Step) (c IPAM, ok bool) {
	n, ok := ovnOf(s)
	list, isList := s.Config["addresses"].([]any)
	if !ok || s.Config["ipam"] != nil || s.Config["addresses"] != nil && !isList || len(list) > 0 {
		return c, false
	}
	within, err := Prefixes(n.Subnets)
	without, err2 := Prefixes(n.ExcludeSubnets)
	if err != nil || err2 != nil || len(within) == 0 {
		return c, false
	}
	c.Pool, c.Switch = n.Pool(), SwitchOf(s)
	for _, p := range within {
		c.Subnets = append(c.Subnets, p.String())
	}
	for _, x := range without {
		if slices.ContainsFunc(within, x.Overlaps) {
			c.ExcludeCIDRs = append(c.ExcludeCIDRs, x.String())
		}
	}
	return c, true
}

// NetworkPool describes the AddressPool of the subnets of a step's network.
type NetworkPool struct {
	Step string
	IPAM
}

// NetworkPools returns those of a topology, in the order of their steps.
func (t *Topology) NetworkPools() (out []NetworkPool) {
	for i := range t.Steps {
		if of, ok := FromSubnets(&t.Steps[i]); ok {
			out = append(out, NetworkPool{t.Steps[i].Name, of})
		}
	}
	return out
}

// Division returns what a step says of the pool that it takes addresses of: how it is divided, with ipam of type multi-nic-ipam, or
// which subnets it has, with those of a network of OVN; not ok for nothing.
func Division(s *Step) (c IPAM, ok bool) {
	if c, ok = FromSubnets(s); ok {
		return c, true
	}
	return decodeIPAM(s, IPAMMultiNIC)
}
