package chassis

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/plumbline/plumbline/integration/traffic"
)

// Nodes are a central OVN and nodes of it, each a network namespace. This namespace has two bridges that
// all nodes have an interface in: eth0, for databases and tunnels, and eth1, a physical network.
type Nodes struct {
	Central *Chassis
	Node    []*Node
}

// Node is a chassis with a network namespace of its own.
type Node struct {
	*Chassis
	Name  string // of the chassis and the namespace
	Netns string // path
	host  *traffic.Pod
}

// What connects the nodes, in this namespace.
const (
	Underlay = "underlay" // a bridge
	Physical = "physical" // another one
	// UnderlayMTU is that of the network that tunnels go through.
	UnderlayMTU = 1500
)

const (
	central     = "10.1.0.1"
	centralPort = "6641"
)

// StartNodes starts them all, with files in a folder that is empty. Tunnels are of IPv6 if six is true.
func StartNodes(ctx context.Context, dir string, six bool, names ...string) (out *Nodes, err error) {
	out = &Nodes{}
	defer func() {
		if err != nil {
			err = errors.Join(err, out.Close())
		}
	}()
	if err := traffic.IP(ctx, strings.NewReplacer("UNDERLAY", Underlay, "PHYSICAL", Physical, "CENTRAL", central).Replace(
		"link add UNDERLAY type bridge\nlink set UNDERLAY up\naddr add CENTRAL/24 dev UNDERLAY\n"+
			"link add PHYSICAL type bridge\nlink set PHYSICAL up")); err != nil {
		return out, err
	}
	folder := func(name string) (string, error) {
		path := filepath.Join(dir, name)
		return path, os.Mkdir(path, 0o700)
	}
	path, err := folder("central")
	if err != nil {
		return out, err
	}
	if out.Central, err = startCentral(ctx, path, "ptcp:"+centralPort+":"+central); err != nil {
		return out, err
	}
	for i, name := range names {
		path, err := folder(name)
		if err != nil {
			return out, err
		}
		n := &Node{Name: name}
		if n.host, err = traffic.Bare(name); err != nil {
			return out, err
		}
		n.Netns = n.host.Netns
		out.Node = append(out.Node, n)
		four, local := fmt.Sprintf("10.1.0.%d", 10+i), fmt.Sprintf("fd01::%d", 10+i)
		for iface, bridge := range map[string]string{"eth0": Underlay, "eth1": Physical} {
			if err := traffic.IP(ctx, strings.NewReplacer("WIRE", fmt.Sprintf("n%d%s", i, iface), "IFACE", iface, "NODE", name, "BRIDGE",
				bridge).Replace(
				"link add WIRE type veth peer name IFACE netns NODE\nlink set WIRE master BRIDGE up")); err != nil {
				return out, err
			}
		}
		if err := n.host.IP(ctx,
			fmt.Sprintf("link set lo up\nlink set eth0 mtu %d up\nlink set eth1 up\naddr add %s/24 dev eth0\naddr add %s/64 dev eth0 nodad",
				UnderlayMTU, four, local)); err != nil {
			return out, err
		}
		address := four
		if six {
			address = local
		}
		if n.Chassis, err = startNode(ctx, path, name, name, address, out.Central.Endpoint(), out.Endpoint()); err != nil {
			return out, err
		}
	}
	return out, nil
}

// Endpoint is that of both databases that the nodes share, over TCP.
func (n *Nodes) Endpoint() string { return "tcp:" + central + ":" + centralPort }

// Lose ends a node: its programs, and the namespace with its interfaces.
func (n *Node) Lose() error { return errors.Join(n.Crash(), n.host.Close()) }

// Close ends all programs, and removes the namespaces and bridges.
func (n *Nodes) Close() error {
	var errs []error
	for _, node := range n.Node {
		if node.Chassis != nil {
			errs = append(errs, node.Close())
		}
		errs = append(errs, node.host.Close())
	}
	if n.Central != nil {
		errs = append(errs, n.Central.Close())
	}
	return errors.Join(append(errs, traffic.IP(context.Background(), "link del "+Underlay+"\nlink del "+Physical))...)
}
