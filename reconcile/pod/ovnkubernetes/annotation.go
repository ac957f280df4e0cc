package ovnkubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/plumbline/plumbline/ops"
)

// The annotations of a pod.
const (
	// Selection has the networks that a pod is to be on. Its user writes it, and
	// ovn-kubernetes reads it when the pod is created.
	Selection = "k8s.v1.cni.cncf.io/networks"
	// Networks has what ovn-kubernetes has given the pod on each of its networks, as JSON.
	Networks = "k8s.ovn.org/pod-networks"
)

// Bounds of an annotation. All annotations of an object have 256 KiB at most.
const (
	maxAddresses = 8
	maxRoutes    = 64
	maxQuoted    = 256 // bytes of an error about it, which has what somebody wrote
)

// network is the annotation's entry for one network. The fields with one address are from
// before there were lists; a writer repeats the only one of a list in them.
type network struct {
	Addresses []string `json:"ip_addresses"`
	MAC       string   `json:"mac_address"`
	Gateways  []string `json:"gateway_ips"`
	Routes    []struct {
		Destination string `json:"dest"`
		NextHop     string `json:"nextHop"`
	} `json:"routes"`
	Role string `json:"role"`

	Address string `json:"ip_address"`
	Gateway string `json:"gateway_ip"`
}

// errNone is the error of an annotation that has no such network yet.
var errNone = errors.New("has none yet")

// parse reads what an annotation says of one network: addresses, gateways and routes.
func parse(annotation, attachment string) (ops.Given, error) {
	if annotation == "" {
		return ops.Given{}, errNone
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal([]byte(annotation), &all); err != nil {
		return ops.Given{}, fmt.Errorf("is not a JSON object: %w", err)
	}
	raw, ok := all[attachment]
	if !ok {
		return ops.Given{}, errNone
	}
	var n network
	if err := json.Unmarshal(raw, &n); err != nil {
		return ops.Given{}, err
	}
	return n.given()
}

func (n *network) given() (out ops.Given, err error) {
	if len(n.Addresses) == 0 && n.Address != "" {
		n.Addresses = []string{n.Address}
	}
	if len(n.Gateways) == 0 && n.Gateway != "" {
		n.Gateways = []string{n.Gateway}
	}
	switch {
	case n.Role == "primary":
		return out, errors.New("is the pod's own network, which the CNI plugin of ovn-kubernetes attaches: use a secondary network")
	case len(n.Addresses) > maxAddresses || len(n.Gateways) > maxAddresses:
		return out, fmt.Errorf("has more than %d addresses or gateways", maxAddresses)
	case len(n.Routes) > maxRoutes:
		return out, fmt.Errorf("has more than %d routes", maxRoutes)
	}
	for _, text := range n.Addresses {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return out, fmt.Errorf("ip_addresses: %q is not an address with a prefix length", text)
		}
		out.Addresses = append(out.Addresses, p)
	}
	contained := func(a netip.Addr) bool {
		return slices.ContainsFunc(out.Addresses, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	for _, text := range n.Gateways {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			return out, fmt.Errorf("gateway_ips: %q is not an address", text)
		}
		if !contained(a) {
			return out, fmt.Errorf("gateway_ips: %q is not in the network of an address", text)
		}
		out.Gateways = append(out.Gateways, a)
		to := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if a.Is6() {
			to = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		out.Routes = append(out.Routes, ops.Route{Destination: to.String(), Gateway: a.String()})
	}
	for _, r := range n.Routes {
		to, err := netip.ParsePrefix(r.Destination)
		if err != nil {
			return out, fmt.Errorf("routes: %q is not a network", r.Destination)
		}
		route := ops.Route{Destination: to.Masked().String()}
		if r.NextHop != "" {
			via, err := netip.ParseAddr(r.NextHop)
			if err != nil || via.Is4() != to.Addr().Is4() || !contained(via) {
				return out, fmt.Errorf("routes: next hop %q of %q is not an address in a network of the port", r.NextHop, r.Destination)
			}
			route.Gateway = via.String()
		}
		out.Routes = append(out.Routes, route)
	}
	return out, nil
}
