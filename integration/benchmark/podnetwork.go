package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/netns"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/reconcile/pod/cnisocket"
	"github.com/plumbline/plumbline/reconcile/pod/primary"
	"github.com/plumbline/plumbline/topology/addresspool"
)

// podCIDRs are those of the node, by family.
var podCIDRs = []string{"10.98.0.0/16", "fd00:98::/64"}

// podNetwork compares the pod network, eth0 over a veth pair that the host routes to, with CNI
// binaries that do the same: a runtime's ADD and DEL, each with the processes that it starts.
func podNetwork(ctx context.Context, n int, plugins string) error {
	for _, s := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/net/"+s, []byte("1"), 0o600); err != nil {
			return err
		}
	}
	for _, families := range [][]string{podCIDRs[:1], podCIDRs} {
		if err := comparePodNetworks(ctx, n, plugins, families); err != nil {
			return err
		}
	}
	return nil
}

func comparePodNetworks(ctx context.Context, n int, plugins string, cidrs []string) error {
	dir, err := os.MkdirTemp("", "plumbline-benchmark-pods-")
	if err != nil {
		return err
	}
	socket := filepath.Join(dir, "agent", "agent.sock")
	var passes []reconcile.Pass // one call at a time
	stop, err := servePods(ctx, dir, socket, cidrs, func(p reconcile.Pass) { passes = append(passes, p) })
	if err != nil {
		return err
	}
	defer stop()
	own, err := os.Executable()
	if err != nil {
		return err
	}
	if err := copyProgram(filepath.Join(filepath.Dir(own), "plumbline-cni"), filepath.Join(dir, "plumbline")); err != nil {
		return err
	}
	nets := []*cniNetwork{{title: "plumbline, step type ptp", dir: dir, config: map[string]any{"type": "plumbline", "socket": socket}}}
	if plugins != "" {
		var ranges [][]map[string]string
		var routes []map[string]string
		for _, c := range cidrs {
			ranges = append(ranges, []map[string]string{{"subnet": c}})
			routes = append(routes, map[string]string{"dst": map[bool]string{true: "::/0", false: "0.0.0.0/0"}[strings.Contains(c, ":")]})
		}
		nets = append(nets,
			&cniNetwork{
				title: "ptp and host-local", dir: dir, programs: []string{"ptp", "host-local"},
				config: map[string]any{"type": "ptp", "ipam": map[string]any{
					"type": "host-local", "ranges": ranges, "routes": routes, "dataDir": filepath.Join(dir, "allocated"),
				}},
			},
			&cniNetwork{
				title: "cni-kindnet", dir: dir, programs: []string{"cni-kindnet"}, version: "0.4.0",
				config: map[string]any{"type": "cni-kindnet", "ranges": cidrs},
			})
	}
	got := make([]samples, len(nets))
	for k, c := range nets {
		for _, p := range c.programs {
			if err := copyProgram(filepath.Join(plugins, p), filepath.Join(dir, p)); err != nil {
				return err
			}
		}
		if err := c.open(k); err != nil {
			return err
		}
	}
	for i := range n + 1 {
		for k, c := range nets {
			a, r, err := once(ctx, c, fmt.Sprintf("pod-%d-%d", i, k))
			if err != nil {
				return fmt.Errorf("%s: %w", c.name(), err)
			}
			time.Sleep(500 * time.Millisecond) // see applyAndDelete
			if i > 0 {
				got[k].apply, got[k].remove = append(got[k].apply, a), append(got[k].remove, r)
			}
		}
	}
	fmt.Printf("\n### eth0 of a pod with addresses of %s (n=%d)\n\n", strings.Join(cidrs, " and "), n)
	fmt.Println("| | ADD, ms | × plumbline | DEL, ms | × plumbline |\n|---|---|---|---|---|")
	for k, c := range nets {
		fmt.Printf("| %s | %s | %s | %s | %s |\n", c.name(), millis(median(got[k].apply)), ratio(got[k].apply, got[0].apply),
			millis(median(got[k].remove)), ratio(got[k].remove, got[0].remove))
	}
	phases(passes[2:]) // without the first pod
	return nil
}

// servePods is the agent's part, until stop is called.
func servePods(ctx context.Context, dir, socket string, cidrs []string, recorder recorderFunc) (stop func(), err error) {
	e, err := bareEngine(`apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: pods}
spec:
  role: primary
  steps:
    - {name: eth, type: ptp, config: {isDefaultGateway: true}}
`)
	if err != nil {
		return nil, err
	}
	e.recorder = recorder
	network := primary.Network{Topology: e.topology}
	for _, c := range cidrs {
		network.PodCIDRs = append(network.PodCIDRs, netip.MustParsePrefix(c))
	}
	log := slog.New(slog.DiscardHandler)
	a, err := addresses.Open(addresses.Options{
		NodeName: "bench", File: filepath.Join(dir, "addresses"), Recorded: func() []addresspool.Grant { return nil }, Log: log,
		Now: time.Now,
	})
	if err != nil {
		return nil, err
	}
	host, err := netns.At("/proc/self/ns/net")
	if err != nil {
		return nil, err
	}
	s := primary.New(primary.Options{
		Engine: e.reconciler, Addresses: a, Contracts: e.registry, Network: func() (primary.Network, error) { return network, nil },
		Socket: socket, NetnsDir: "/var/run/netns", HostNetns: host, BootID: e.base.Host.BootID(), Log: log, Now: time.Now,
	})
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	for {
		_, err := cnisocket.Call(ctx, socket, cnisocket.Request{
			Command: cnisocket.Status,
			Config:  json.RawMessage(`{"name": "` + primary.Name + `"}`),
		})
		if err == nil {
			return func() { cancel(); <-ended }, nil //nolint:errcheck // the context has ended
		}
		select {
		case err := <-ended:
			cancel()
			return nil, fmt.Errorf("the server has ended: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// cniNetwork is a network of a container runtime, with the plugins in a folder.
type cniNetwork struct {
	title, dir string
	programs   []string
	version    string // of CNI
	config     map[string]any
	cni        *libcni.CNIConfig
	list       *libcni.NetworkConfigList
}

func (c *cniNetwork) open(number int) error {
	network := primary.Name
	if number > 0 {
		network = fmt.Sprintf("bench%d", number)
	}
	list, err := json.Marshal(map[string]any{"cniVersion": cmp.Or(c.version, "1.0.0"), "name": network, "plugins": []any{c.config}})
	if err != nil {
		return err
	}
	c.list, err = libcni.ConfListFromBytes(list)
	c.cni = libcni.NewCNIConfigWithCacheDir([]string{c.dir}, filepath.Join(c.dir, "cache"), nil)
	return err
}

func (c *cniNetwork) name() string { return c.title }

func (c *cniNetwork) apply(ctx context.Context, netns string) error {
	_, err := c.cni.AddNetworkList(ctx, c.list, pod(netns))
	return err
}

func (c *cniNetwork) remove(ctx context.Context, netns string) error {
	return c.cni.DelNetworkList(ctx, c.list, pod(netns))
}

func pod(netns string) *libcni.RuntimeConf {
	name := filepath.Base(netns)
	return &libcni.RuntimeConf{ContainerID: name, NetNS: netns, IfName: "eth0", Args: [][2]string{
		{"IgnoreUnknown", "1"},
		{"K8S_POD_NAMESPACE", "bench"},
		{"K8S_POD_NAME", name},
		{"K8S_POD_INFRA_CONTAINER_ID", name},
		{"K8S_POD_UID", name},
	}}
}

// copyProgram copies a program to the machine's own file system: the checkout is shared with the
// host, and loading a program from there takes seconds.
func copyProgram(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o700)
}
