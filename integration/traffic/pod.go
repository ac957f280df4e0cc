package traffic

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/plumbline/plumbline/integration/namespace"
)

// Pod is a network namespace with one interface, eth0. All addresses are behind one neighbor.
type Pod struct {
	Netns string // path
	MAC   string
	IPv4  string // 192.0.2.HOST
	IPv6  string // 2001:db8::HOST
	name  string
}

// NewPod makes a namespace, and a veth whose other end is in this namespace and has its name.
func NewPod(ctx context.Context, name string, host uint8) (*Pod, error) {
	p, err := Bare(name)
	if err != nil {
		return nil, err
	}
	p.MAC, p.IPv4, p.IPv6 = fmt.Sprintf("02:00:00:00:00:%02x", host), fmt.Sprintf("192.0.2.%d", host), fmt.Sprintf("2001:db8::%d", host)
	if err := IP(ctx, fmt.Sprintf("link add %s mtu 9000 type veth peer name eth0 mtu 9000 netns %s address %s\nlink set %s up", name, name,
		p.MAC, name)); err != nil {
		return nil, err
	}
	return p, p.IP(ctx, fmt.Sprintf("link set eth0 up\naddr add %s/24 dev eth0\naddr add %s/64 dev eth0 nodad", p.IPv4, p.IPv6))
}

// Bare makes a namespace without an interface.
func Bare(name string) (*Pod, error) {
	path, err := namespace.Add(name)
	return &Pod{Netns: path, name: name}, err
}

// Close deletes the namespace, with its interface.
func (p *Pod) Close() error { return namespace.Delete(p.Netns) }

// SendTo makes a MAC address the neighbor behind which all addresses are.
func (p *Pod) SendTo(ctx context.Context, iface, mac string) error {
	return p.IP(ctx, strings.NewReplacer("IFACE", iface, "MAC", mac).Replace(`neigh replace 192.0.2.1 lladdr MAC dev IFACE nud permanent
neigh replace 2001:db8::1 lladdr MAC dev IFACE nud permanent
route replace default via 192.0.2.1 dev IFACE
route replace ::/0 via 2001:db8::1 dev IFACE`))
}

// IP runs commands of ip(8) in the namespace, one a line.
func (p *Pod) IP(ctx context.Context, commands string) error {
	return ip(ctx, commands, "-n", filepath.Base(p.Netns))
}

// IP runs commands of ip(8) in this namespace, one a line.
func IP(ctx context.Context, commands string) error { return ip(ctx, commands) }

func ip(ctx context.Context, commands string, options ...string) error {
	cmd := exec.CommandContext(ctx, "ip", append(options, "-batch", "-")...)
	cmd.Stdin = strings.NewReader(commands + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip: %w: %s\n%s", err, out, commands)
	}
	return nil
}
