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
	"github.com/vishvananda/netns"

	"github.com/plumbline/plumbline/integration/namespace"
)

// parent is the interface of the host that the pods of a crowd share.
const parent = "enp3s0f0"

// shared and taken are first steps of the topologies of crowds: one without a device, so that any number of pods has it, and one that
// takes a virtual function.
const (
	shared = `{name: net1, type: macvlan, config: {master: ` + parent + `, mode: bridge, mtu: 1450}}`
	taken  = `{name: net1, type: sriov}`
)

// crowdTopology is a topology whose pods are attached together, on its first step.
func crowdTopology(first string) string {
	return `apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: crowd}
spec:
  steps:
    - ` + first + `
    - {name: data, type: vlan, dependOn: [net1], config: {id: 100, name: data0, addresses: [10.100.0.5/24]}}
    - {name: tune, type: tuning, dependOn: [data], config: {sysctl: {net.ipv4.conf.IFNAME.rp_filter: 2,
        net.ipv4.conf.IFNAME.arp_notify: 1}}}
`
}

// crowds attaches pods at the same time, as a node does that was drained or has booted, and
// measures how long it takes until all of them have their network.
func crowds(ctx context.Context, n int, plugins string) error {
	if err := crowd(ctx, n, "macvlan", shared, plugins, 0, 1, 10, 50); err != nil {
		return err
	}
	links, err := filepath.Glob("/sys/class/net/*/device/virtfn*")
	if err != nil {
		return err
	}
	each := len(links) / 2
	if plugins != "" {
		each = len(links) / 3
	}
	if each == 0 {
		return fmt.Errorf("%d virtual functions are too few", len(links))
	}
	return crowd(ctx, n, "a virtual function", taken, plugins, each, each)
}

// crowd compares, for each number of pods. Each contender has so many functions of its own.
func crowd(ctx context.Context, n int, what, first, plugins string, functions int, counts ...int) error {
	ours, err := bareEngine(crowdTopology(first))
	if err != nil {
		return err
	}
	floor := &crowdFloor{}
	contenders := []contender{ours, floor}
	if functions > 0 {
		if ours.functions, err = newFunctions(0, functions); err != nil {
			return err
		}
		if floor.functions, err = newFunctions(functions, functions); err != nil {
			return err
		}
	}
	if plugins != "" {
		chain, err := newCrowdChain(plugins)
		if err != nil {
			return err
		}
		if functions > 0 {
			if chain.functions, err = newFunctions(2*functions, functions); err != nil {
				return err
			}
		}
		contenders = append(contenders, chain)
	}
	for _, pods := range counts {
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
		fmt.Printf("\n### %d pods at once: %s, VLAN with an address, two sysctls (n=%d)\n\n", pods, what, n)
		fmt.Println("| | all attached, ms | × floor | all released, ms | × floor |\n|---|---|---|---|---|")
		for k, c := range contenders {
			fmt.Printf("| %s | %s | %s | %s | %s |\n", c.name(), millis(median(got[k].apply)), ratio(got[k].apply, got[1].apply),
				millis(median(got[k].remove)), ratio(got[k].remove, got[1].remove))
		}
	}
	return nil
}

// functions are the virtual functions of a contender, given to namespaces.
type functions struct {
	mu   sync.Mutex
	free []vf
	held map[string]vf // by the path of a namespace
}

// newFunctions returns count functions of the machine, from the one at an index on, in an order that takes one of each card in turn.
func newFunctions(from, count int) (*functions, error) {
	f := &functions{held: map[string]vf{}}
	for index := 0; len(f.free) < from+count; index++ {
		port, err := ports(index)
		if err != nil {
			return nil, err
		}
		f.free = append(f.free, port...)
	}
	f.free = f.free[from : from+count]
	return f, nil
}

// of returns the function of a namespace, which has it until done is called.
func (f *functions) of(path string) vf {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, ok := f.held[path]
	if !ok {
		v, f.free = f.free[0], f.free[1:] // there are as many as pods
		f.held[path] = v
	}
	return v
}

func (f *functions) done(path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.free = append(f.free, f.held[path])
	delete(f.held, path)
}

// together applies and removes in as many namespaces at once, and returns how long each took for all.
func together(ctx context.Context, c contender, name string, pods int) (apply, remove time.Duration, err error) {
	paths := make([]string, pods)
	for i := range paths {
		if paths[i], err = namespace.Add(fmt.Sprintf("%s-%d", name, i)); err != nil {
			return 0, 0, err
		}
		defer func() { _ = namespace.Delete(paths[i]) }() // the machine is thrown away
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

// crowdFloor is floor for the topologies of crowds.
type crowdFloor struct{ functions *functions }

func (*crowdFloor) name() string { return "kernel floor (one process, bare netlink)" }

// first makes the link of the first step, or moves it.
func (f *crowdFloor) first(ns netns.NsHandle, path string) error {
	if f.functions != nil {
		link, err := netlink.LinkByName(f.functions.of(path).name)
		if err != nil {
			return err
		}
		return moveAs(link.Attrs().Index, int(ns), "net1", false)
	}
	master, err := netlink.LinkByName(parent)
	if err != nil {
		return err
	}
	return netlink.LinkAdd(&netlink.Macvlan{
		LinkAttrs: netlink.LinkAttrs{Name: "net1", MTU: 1450, ParentIndex: master.Attrs().Index, Namespace: netlink.NsFd(ns)},
		Mode:      netlink.MACVLAN_MODE_BRIDGE,
	})
}

func (f *crowdFloor) apply(_ context.Context, path string) error {
	ns, pod, err := openPod(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	defer pod.Close()
	if err := f.first(ns, path); err != nil {
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

func (f *crowdFloor) remove(_ context.Context, path string) error {
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
	if f.functions == nil {
		return pod.LinkDel(l) // the VLAN goes with it
	}
	v, err := pod.LinkByName("data0")
	if err != nil {
		return err
	}
	if err := pod.LinkDel(v); err != nil {
		return err
	}
	home, err := netns.Get()
	if err != nil {
		return err
	}
	defer home.Close()
	defer f.functions.done(path)
	return moveFrom(ns, l.Attrs().Index, int(home), f.functions.of(path).name)
}

// crowdChain runs a chain of its own in each namespace, since a chain keeps the result of its last plugin.
type crowdChain struct {
	dir       string
	mu        sync.Mutex
	chains    map[string]*chain
	functions *functions
}

func newCrowdChain(dir string) (*crowdChain, error) {
	local, err := os.MkdirTemp("", "plumbline-benchmark-cni-")
	if err != nil {
		return nil, err
	}
	for _, p := range []string{"macvlan", "host-device", "vlan", "tuning", "static"} {
		if err := copyProgram(filepath.Join(dir, p), filepath.Join(local, p)); err != nil {
			return nil, fmt.Errorf("CNI plugin: %w", err)
		}
	}
	return &crowdChain{dir: local, chains: map[string]*chain{}}, nil
}

func (*crowdChain) name() string { return "chain of CNI binaries (3 calls, 1 IPAM call)" }

func (c *crowdChain) apply(ctx context.Context, path string) error {
	first := map[string]any{"type": "macvlan", "master": parent, "mode": "bridge", "mtu": 1450, "ipam": map[string]any{}}
	if c.functions != nil {
		first = map[string]any{"type": "host-device", "pciBusID": c.functions.of(path).pci}
	}
	calls := []pluginCall{
		{"net1", first},
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
	if c.functions != nil {
		defer c.functions.done(path)
	}
	return one.remove(ctx, path)
}
