package topology

import (
	"encoding/json"
	"strings"
)

// IPAMMultiNIC is the type of multi-nic-cni: addresses of an AddressPool, with what the step
// expects of its division.
const IPAMMultiNIC = "multi-nic-ipam"

// MultiNICIPAM returns the ipam of a step that says how its pool is divided; not ok for none.
func MultiNICIPAM(s *Step) (c IPAM, ok bool) {
	if ipamType(s.Config) != IPAMMultiNIC {
		return c, false
	}
	data, err := json.Marshal(s.Config["ipam"])
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	return c, err == nil // the contract has been checked
}

func ipamType(config map[string]any) string {
	ipam, _ := config["ipam"].(map[string]any)
	kind, _ := ipam["type"].(string)
	return kind
}

// foldMultiNIC writes ipam of type multi-nic-ipam as the rest of plumbline reads it: the pool
// without a name is that of the topology's name, as in multi-nic-cni the network's name is
// that of its CIDR object; and vlanMode, which is the mode of the ipvlan links and only
// written among the addresses, is the step's mode.
func foldMultiNIC(topology string, s *Step, wrong func(field, format string, args ...any)) {
	if ipamType(s.Config) != IPAMMultiNIC {
		return
	}
	ipam := s.Config["ipam"].(map[string]any)
	if _, named := ipam["pool"]; !named {
		ipam["pool"] = topology
	}
	written, has := ipam["vlanMode"]
	if !has {
		return
	}
	delete(ipam, "vlanMode")
	mode, isText := written.(string)
	own, hasOwn := s.Config["mode"]
	ownText, _ := own.(string)
	switch {
	case s.Type != "ipvlan":
		wrong("config.ipam.vlanMode", "is the mode of ipvlan links, and the step is of type %q: remove it, or change the type", s.Type)
	case !isText || !isVLANMode(mode):
		wrong("config.ipam.vlanMode", "%v is not one of l2, l3, l3s", written)
	case hasOwn && !strings.EqualFold(mode, ownText):
		wrong("config.ipam.vlanMode", "%q is not the step's mode, %v: remove one of them", mode, own)
	default:
		s.Config["mode"] = strings.ToLower(mode)
	}
}

func isVLANMode(mode string) bool {
	switch strings.ToLower(mode) {
	case "l2", "l3", "l3s":
		return true
	}
	return false
}
