package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// network is a pod's view of its network.
type network struct {
	Hostname   string          `json:"hostname"`
	Interfaces []linkInterface `json:"interfaces"`
	Routes     []route         `json:"routes"`
	// Environment is that of the program, without what the kubelet says of services.
	Environment map[string]string `json:"environment"`
	// RDMA has the files in /dev/infiniband, and of which RDMA device each is; "" if it is of none.
	RDMA map[string]string `json:"rdma,omitempty"`
	// Files are those that the topologies of claims have given the container, by path.
	Files map[string]string `json:"files,omitempty"`
	// Writable is a folder of such files in which the program could make one.
	Writable string `json:"writable,omitempty"`
}

type linkInterface struct {
	Name      string   `json:"name"`
	Kind      string   `json:"kind"` // "device" for a piece of hardware
	MAC       string   `json:"mac,omitempty"`
	MTU       int      `json:"mtu"`
	State     string   `json:"state"`
	Up        bool     `json:"up"`
	Master    string   `json:"master,omitempty"`
	Parent    string   `json:"parent,omitempty"`
	VLAN      int      `json:"vlan,omitempty"`
	Addresses []string `json:"addresses,omitempty"`
	Filters   int      `json:"filters,omitempty"` // of what it sends
	PCI       string   `json:"pci,omitempty"`     // the address of its function
}

type route struct {
	Destination string `json:"destination"`
	Gateway     string `json:"gateway,omitempty"`
	Interface   string `json:"interface,omitempty"`
	Table       int    `json:"table"`
	Metric      int    `json:"metric,omitempty"`
	Protocol    int    `json:"protocol"`
}

// look reads everything from the namespace of this process.
func look() (network, error) {
	handle, err := netlink.NewHandle()
	if err != nil {
		return network{}, fmt.Errorf("open netlink: %w", err)
	}
	defer handle.Close()
	var n network
	if n.Hostname, err = os.Hostname(); err != nil {
		return n, err
	}
	n.Environment, n.RDMA = environment(), rdma()
	n.Files, n.Writable = given()
	links, err := handle.LinkList()
	if err != nil {
		return n, fmt.Errorf("list links: %w", err)
	}
	names := map[int]string{}
	for _, link := range links {
		names[link.Attrs().Index] = link.Attrs().Name
	}
	for _, link := range links {
		attributes := link.Attrs()
		one := linkInterface{
			Name:   attributes.Name,
			Kind:   link.Type(),
			MAC:    attributes.HardwareAddr.String(),
			MTU:    attributes.MTU,
			State:  attributes.OperState.String(),
			Up:     attributes.Flags&net.FlagUp != 0,
			Master: names[attributes.MasterIndex],
		}
		if attributes.ParentIndex != attributes.Index {
			one.Parent = names[attributes.ParentIndex]
		}
		if vlan, ok := link.(*netlink.Vlan); ok {
			one.VLAN = vlan.VlanId
		}
		addresses, err := handle.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			return n, fmt.Errorf("list addresses of %q: %w", one.Name, err)
		}
		for _, address := range addresses {
			one.Addresses = append(one.Addresses, address.IPNet.String())
		}
		if filters, err := handle.FilterList(link, netlink.HANDLE_MIN_EGRESS); err == nil { // there may be no place for any
			one.Filters = len(filters)
		}
		if device, err := os.Readlink("/sys/class/net/" + one.Name + "/device"); err == nil { // it has hardware
			one.PCI = filepath.Base(device)
		}
		n.Interfaces = append(n.Interfaces, one)
	}
	// Of all tables but that of local addresses, which says nothing new.
	routes, err := handle.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return n, fmt.Errorf("list routes: %w", err)
	}
	const localTable = 255
	for _, r := range routes {
		if r.Table == localTable {
			continue
		}
		one := route{Interface: names[r.LinkIndex], Table: r.Table, Metric: r.Priority, Protocol: int(r.Protocol)}
		if r.Dst != nil {
			one.Destination = r.Dst.String()
		}
		if r.Gw != nil {
			one.Gateway = r.Gw.String()
		}
		n.Routes = append(n.Routes, one)
	}
	return n, nil
}

func environment() map[string]string {
	out := map[string]string{}
	for _, variable := range os.Environ() {
		if name, value, _ := strings.Cut(variable, "="); !strings.Contains(name, "_SERVICE_") && !strings.Contains(name, "_PORT") {
			out[name] = value
		}
	}
	return out
}

// rdma reads of which RDMA device each file is: in shared mode sysfs shows those of all pods.
func rdma() map[string]string {
	files, _ := os.ReadDir("/dev/infiniband")
	out := map[string]string{}
	for _, f := range files {
		of, _ := os.ReadFile("/sys/class/infiniband_verbs/" + f.Name() + "/ibdev")
		out[f.Name()] = strings.TrimSpace(string(of))
	}
	return out
}

func given() (files map[string]string, writable string) {
	files = map[string]string{}
	found, _ := filepath.Glob("/var/run/dra.networking/files/*/*")
	for _, path := range found {
		content, _ := os.ReadFile(path)
		files[path] = string(content)
		if folder := filepath.Dir(path); os.WriteFile(folder+"/own", nil, 0o600) == nil {
			writable = folder
		}
	}
	return files, writable
}

// ping sends one echo request and waits for its answer.
func ping(address string, patience time.Duration) error {
	target, err := net.ResolveIPAddr("ip", address)
	if err != nil {
		return err
	}
	protocol, listen, request := 1, "ip4:icmp", icmp.Type(ipv4.ICMPTypeEcho)
	if target.IP.To4() == nil {
		protocol, listen, request = 58, "ip6:ipv6-icmp", ipv6.ICMPTypeEchoRequest
	}
	connection, err := icmp.ListenPacket(listen, "")
	if err != nil {
		return fmt.Errorf("ping %s: %w", address, err)
	}
	defer connection.Close()
	echo := &icmp.Echo{ID: os.Getpid() & 0xffff, Seq: 1, Data: []byte(strings.Repeat("p", 32))}
	packet, err := (&icmp.Message{Type: request, Body: echo}).Marshal(nil)
	if err != nil {
		return fmt.Errorf("ping %s: %w", address, err)
	}
	began := time.Now()
	if err := connection.SetDeadline(began.Add(patience)); err != nil {
		return fmt.Errorf("ping %s: %w", address, err)
	}
	if _, err := connection.WriteTo(packet, target); err != nil {
		return fmt.Errorf("ping %s: %w", address, err)
	}
	for buffer := make([]byte, 1500); ; {
		n, from, err := connection.ReadFrom(buffer)
		if err != nil {
			return fmt.Errorf("ping %s: %w", address, err)
		}
		message, err := icmp.ParseMessage(protocol, buffer[:n])
		if err != nil {
			continue
		}
		answer, ok := message.Body.(*icmp.Echo)
		if ok && message.Type != request && answer.ID == echo.ID {
			_, err := fmt.Fprintf(os.Stdout, "answer from %s after %s\n", from, time.Since(began).Round(time.Microsecond))
			return err
		}
	}
}
