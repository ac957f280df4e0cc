package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/plumbline/plumbline/reconcile/kernel"
)

// parent is the interface of the host that the pods of a crowd share.
const parent = "enp3s0f0"

// shared is the topology of a crowd: no device, so that any number of pods has it.
const shared = `apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: crowd}
spec:
  steps:
    - {name: net1, type: macvlan, config: {master: ` + parent + `, mode: bridge, mtu: 1450}}
    - {name: data, type: vlan, dependOn: [net1], config: {id: 100, name: data0, addresses: [10.100.0.5/24]}}
    - {name: tune, type: tuning, dependOn: [data], config: {sysctl: {net.ipv4.conf.IFNAME.rp_filter: 2, net.ipv4.conf.IFNAME.arp_notify: 1}}}
`

// crowds attaches pods at the same time, as a node does that was drained or has booted, and
// measures how long it takes until all of them have their network.
func crowds(ctx context.Context, n int, plugins string) error {
	ours, err := bareEngine(shared)
	if err != nil {
		return err
	}
	contenders := []contender{ours, &crowdFloor{}}
	if plugins != "" {
		chain, err := newCrowdChain(plugins)
		if err != nil {
			return err
		}
		contenders = append(contenders, chain)
	}
	for _, pods := range []int{1, 10, 50} {
		got := make([]samples, len(contenders))
		for i := range n + 1 {
			for k, c := range contenders {
				a, r, err := together(ctx, c, fmt.Sprintf("crowd-%d-%d-%d", pods, i, k), pods)
				if err != nil {
					return fmt.Errorf("%s, %d pods: %w", c.name(), pods, err)
				}
				time.Sleep(500*time.Millisecond + time.Duration(pods)*20*time.Millisecond) // as for apply
				if i > 0 {
					got[k].apply, got[k].remove = append(got[k].apply, a), append(got[k].remove, r)
				}
			}
		}
		fmt.Printf("\n### %d pods at once: macvlan, VLAN with an address, two sysctls (n=%d)\n\n", pods, n)
		fmt.Println("| | all attached, ms | × floor | all released, ms | × floor |\n|---|---|---|---|---|")
		for k, c := range contenders {
			fmt.Printf("| %s | %s | %s | %s | %s |\n", c.name(), millis(median(got[k].apply)), ratio(got[k].apply, got[1].apply),
				millis(median(got[k].remove)), ratio(got[k].remove, got[1].remove))
		}
	}
	return nil
}

// together applies and removes in as many namespaces at once, and returns how long each took for all.
func together(ctx context.Context, c contender, name string, pods int) (apply, remove time.Duration, err error) {
	paths := make([]string, pods)
	for i := range paths {
		if paths[i], err = kernel.AddNamed(fmt.Sprintf("%s-%d", name, i)); err != nil {
			return 0, 0, err
		}
		defer func() { _ = kernel.DeleteNamed(paths[i]) }() // the machine is thrown away
	}
	all := func(do func(context.Context, string) error) (time.Duration, error) {
		var wait sync.WaitGroup
		errs := make([]error, pods)
		start := time.Now()
		for i, path := range paths {
			wait.Go(func() { errs[i] = do(ctx, path) })
		}
		wait.Wait()
		return time.Since(start), errors.Join(errs...)
	}
	if apply, err = all(c.apply); err != nil {
		return 0, 0, fmt.Errorf("apply: %w", err)
	}
	if remove, err = all(c.remove); err != nil {
		return 0, 0, fmt.Errorf("delete: %w", err)
	}
	return apply, remove, nil
}

// crowdFloor is floor for the topology of a crowd.
type crowdFloor struct{}

func (*crowdFloor) name() string { return "kernel floor (one process, bare netlink)" }

func (*crowdFloor) apply(_ context.Context, path string) error {
	ns, pod, err := openPod(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	defer pod.Close()
	master, err := netlink.LinkByName(parent)
	if err != nil {
		return err
	}
	below := &netlink.Macvlan{
		LinkAttrs: netlink.LinkAttrs{Name: "net1", MTU: 1450, ParentIndex: master.Attrs().Index, Namespace: netlink.NsFd(ns)},
		Mode:      netlink.MACVLAN_MODE_BRIDGE,
	}
	if err := netlink.LinkAdd(below); err != nil {
		return err
	}
	moved, err := pod.LinkByName("net1")
	if err != nil {
		return err
	}
	v := &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "data0", ParentIndex: moved.Attrs().Index}, VlanId: 100}
	if err := pod.LinkAdd(v); err != nil {
		return err
	}
	if err := writeSysctls(ns, []string{"net1", "data0"}, []string{"data0"}); err != nil {
		return err
	}
	for _, l := range []netlink.Link{moved, v} {
		if err := pod.LinkSetUp(l); err != nil {
			return err
		}
	}
	addr, err := netlink.ParseAddr("10.100.0.5/24")
	if err != nil {
		return err
	}
	return pod.AddrAdd(v, addr)
}

func (*crowdFloor) remove(_ context.Context, path string) error {
	ns, pod, err := openPod(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	defer pod.Close()
	l, err := pod.LinkByName("net1")
	if err != nil {
		return err
	}
	return pod.LinkDel(l) // the VLAN goes with it
}

// crowdChain runs a chain of its own in each namespace, since a chain keeps the result of its last plugin.
type crowdChain struct {
	dir    string
	mu     sync.Mutex
	chains map[string]*chain
}

func newCrowdChain(dir string) (*crowdChain, error) {
	local, err := os.MkdirTemp("", "plumbline-benchmark-cni-")
	if err != nil {
		return nil, err
	}
	for _, p := range []string{"macvlan", "vlan", "tuning", "static"} {
		if err := copyProgram(filepath.Join(dir, p), filepath.Join(local, p)); err != nil {
			return nil, fmt.Errorf("CNI plugin: %w", err)
		}
	}
	return &crowdChain{dir: local, chains: map[string]*chain{}}, nil
}

func (*crowdChain) name() string { return "chain of CNI binaries (3 calls, 1 IPAM call)" }

func (c *crowdChain) apply(ctx context.Context, path string) error {
	calls := []pluginCall{
		{"net1", map[string]any{"type": "macvlan", "master": parent, "mode": "bridge", "mtu": 1450, "ipam": map[string]any{}}},
		{"data0", map[string]any{
			"type": "vlan", "vlanId": 100, "master": "net1", "linkInContainer": true,
			"ipam": map[string]any{"type": "static", "addresses": []map[string]any{{"address": "10.100.0.5/24"}}},
		}},
		{"data0", map[string]any{
			"type":   "tuning",
			"sysctl": map[string]string{"net.ipv4.conf.IFNAME.rp_filter": "2", "net.ipv4.conf.IFNAME.arp_notify": "1"},
		}},
	}
	for _, call := range calls {
		call.config["cniVersion"], call.config["name"] = "1.0.0", "crowd-"+call.ifname
	}
	one := &chain{dir: c.dir, calls: calls}
	c.mu.Lock()
	c.chains[path] = one
	c.mu.Unlock()
	return one.apply(ctx, path)
}

func (c *crowdChain) remove(ctx context.Context, path string) error {
	c.mu.Lock()
	one := c.chains[path]
	delete(c.chains, path)
	c.mu.Unlock()
	return one.remove(ctx, path)
}
