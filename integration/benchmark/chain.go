package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// chain runs CNI binaries one after the other, as a runtime would: each ADD
// gets the result of the one before, DEL goes backwards with the last result.
type chain struct {
	dir   string
	calls []pluginCall
	last  json.RawMessage
}

type pluginCall struct {
	ifname string
	config map[string]any
}

func newChain(dir string, vfs [2]vf) (*chain, error) {
	local, err := os.MkdirTemp("", "plumbline-benchmark-cni-")
	if err != nil {
		return nil, err
	}
	c := &chain{dir: local}
	for _, p := range []string{"sriov", "bond", "vlan", "tuning", "static"} {
		if err := copyProgram(filepath.Join(dir, p), filepath.Join(local, p)); err != nil {
			return nil, fmt.Errorf("CNI plugin: %w", err)
		}
	}
	add := func(ifname string, config map[string]any) {
		config["cniVersion"], config["name"] = "1.0.0", "bench-"+ifname
		c.calls = append(c.calls, pluginCall{ifname, config})
	}
	for i, v := range vfs {
		add(fmt.Sprintf("net%d", i+1), map[string]any{"type": "sriov", "deviceID": v.pci, "trust": "on", "spoofchk": "off"})
	}
	add("bond0", map[string]any{
		"type": "bond", "mode": "active-backup", "failOverMac": 1, "miimon": "100", "linksInContainer": true, "mtu": 1450,
		"links": []map[string]any{{"name": "net1"}, {"name": "net2"}},
	})
	for i, name := range []string{"data0", "mgmt0"} {
		add(name, map[string]any{
			"type": "vlan", "vlanId": 100 * (i + 1), "master": "bond0", "linkInContainer": true,
			"ipam": map[string]any{"type": "static", "addresses": []map[string]any{{"address": fmt.Sprintf("10.%d.0.5/24", 100*(i+1))}}},
		})
		add(name, map[string]any{
			"type": "tuning", "mtu": 1450,
			"sysctl": map[string]string{"net.ipv4.conf.IFNAME.rp_filter": "2", "net.ipv4.conf.IFNAME.arp_notify": "1"},
		})
	}
	return c, nil
}

func (c *chain) name() string { return "chain of CNI binaries (7 calls, 2 IPAM calls)" }

func (c *chain) apply(ctx context.Context, netns string) error {
	c.last = nil
	for _, call := range c.calls {
		out, err := c.call(ctx, "ADD", call, netns)
		if err != nil {
			return err
		}
		c.last = out
	}
	return nil
}

func (c *chain) remove(ctx context.Context, netns string) error {
	for _, call := range slices.Backward(c.calls) {
		if _, err := c.call(ctx, "DEL", call, netns); err != nil {
			return err
		}
	}
	return nil
}

func (c *chain) call(ctx context.Context, verb string, call pluginCall, netns string) (json.RawMessage, error) {
	config := maps.Clone(call.config)
	if c.last != nil {
		config["prevResult"] = c.last
	}
	in, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	typ := call.config["type"].(string)
	cmd := exec.CommandContext(ctx, filepath.Join(c.dir, typ))
	cmd.Env = []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + filepath.Base(netns), "CNI_NETNS=" + netns,
		"CNI_IFNAME=" + call.ifname, "CNI_PATH=" + c.dir, "PATH=" + os.Getenv("PATH"),
	}
	cmd.Stdin = bytes.NewReader(in)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s%s", verb, typ, err, out, stderr.String())
	}
	return out, nil
}
