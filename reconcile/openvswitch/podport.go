package openvswitch

import (
	"context"
	"net"
	"net/netip"
	"strings"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/plumbline/plumbline/qos/ovn/connection"
)

// PodPort is a logical switch port that ovn-kubernetes has made for a pod, as it is in the
// Northbound database. plumbline never changes it.
type PodPort struct {
	Name string
	// PodUID is the option iface-id-ver, "" for a port that an early version has made.
	PodUID string
	// MAC and Addresses are those that the port may send from. Without addresses it may
	// send from any.
	MAC       string
	Addresses []netip.Addr
	// Attachment, Network and Topology are k8s.ovn.org/nad, network and topology.
	Attachment, Network, Topology string
	// PhysicalNetwork and VLAN are those of the switch's localnet port.
	PhysicalNetwork string
	VLAN            uint16
}

// Keys of rows of ovn-kubernetes (external_ids).
const (
	attachmentKey = "k8s.ovn.org/nad"
	networkKey    = "k8s.ovn.org/network"
	topologyKey   = "k8s.ovn.org/topology"
)

// localnet is a topology of ovn-kubernetes, and the type of a port.
const localnet = "localnet"

// macBytes is the length of a MAC address of Ethernet.
const macBytes = 6

// PodPortName returns ovn-kubernetes' name for the port of a pod on the network of a
// NetworkAttachmentDefinition, NAMESPACE/NAME.
func PodPortName(attachment, namespace, pod string) string {
	return strings.NewReplacer("-", ".", "/", ".").Replace(attachment) + "_" + namespace + "_" + pod
}

// PodPort reads a port of ovn-kubernetes; false if there is none of the name. One that is not
// of ovn-kubernetes has no Attachment.
func (n *Northbound) PodPort(ctx context.Context, name string) (PodPort, bool, error) {
	out := PodPort{Name: name}
	row, err := n.named(ctx, name, true)
	if err != nil || row == nil {
		return out, false, err
	}
	ids := connection.Pairs(row["external_ids"])
	out.PodUID = connection.Text(connection.Pairs(row["options"])["iface-id-ver"])
	out.Attachment, out.Network, out.Topology = connection.Text(ids[attachmentKey]), connection.Text(ids[networkKey]),
		connection.Text(ids[topologyKey])
	for _, list := range connection.Texts(row["addresses"]) {
		for word := range strings.FieldsSeq(list) {
			if mac, err := net.ParseMAC(word); err == nil && len(mac) == macBytes && out.MAC == "" {
				out.MAC = mac.String()
			} else if address, err := netip.ParseAddr(word); err == nil {
				out.Addresses = append(out.Addresses, address)
			}
		}
	}
	if out.Topology != localnet {
		return out, true, nil
	}
	results, err := n.db.Read(ctx, []ovsdb.Operation{
		selecting(tableSwitch, withPort(connection.UUID(row["_uuid"])), "ports"),
		selecting(tablePort, []ovsdb.Condition{
			ovsdb.NewCondition("type", ovsdb.ConditionEqual, localnet),
		}, "_uuid", "type", "options", "tag", "tag_request"),
	})
	if err != nil {
		return out, false, err
	}
	beside := map[string]bool{}
	for _, of := range results[0].Rows {
		for _, port := range connection.UUIDs(of["ports"]) {
			beside[port] = true
		}
	}
	for _, localnet := range results[1].Rows {
		if beside[connection.UUID(localnet["_uuid"])] {
			out.PhysicalNetwork, out.VLAN = connection.Text(connection.Pairs(localnet["options"])["network_name"]), tag(localnet)
		}
	}
	return out, true, nil
}

// OVNKubernetes reports whether ovn-kubernetes has attached the node to OVN.
func (s *Switch) OVNKubernetes(ctx context.Context) (bool, error) {
	c, err := s.chassis(ctx)
	return c.OVNKubernetes, err
}
