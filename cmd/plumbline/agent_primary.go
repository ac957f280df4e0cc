package main

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/cnisocket"
	"github.com/plumbline/plumbline/reconcile/pod/hostroutes"
	"github.com/plumbline/plumbline/reconcile/pod/primary"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
)

// podNetwork holds the flags of the agent for the own network of pods.
type podNetwork struct {
	enabled                   bool
	plugin, binDir            string
	confDir, confName, socket string
	netnsDir                  string
	clusterCIDRs              []string
}

func (p *podNetwork) flags(f *pflag.FlagSet) {
	f.BoolVar(&p.enabled, "pod-network", false, "give pods their own network, as the NetworkTopology of role primary says that selects the node: installs a CNI plugin that asks the agent")
	f.StringVar(&p.plugin, "cni-plugin", "/plumbline-cni", "`program` to install as the CNI plugin, with --pod-network")
	f.StringVar(&p.binDir, "cni-bin-dir", "/opt/cni/bin", "`directory` in which the container runtime looks for CNI plugins")
	f.StringVar(&p.confDir, "cni-conf-dir", "/etc/cni/net.d", "`directory` in which the container runtime looks for networks")
	f.StringVar(&p.confName, "cni-conf-name", "10-plumbline.conflist", "`name` of the network's file there: the runtime uses the first")
	f.StringVar(&p.socket, "cni-socket", cnisocket.DefaultPath, "`socket` on which the CNI plugin asks the agent, in a directory of its own")
	f.StringSliceVar(&p.clusterCIDRs, "cluster-cidr", nil, "`CIDR` that contains pod CIDRs of nodes, as kube-controller-manager has it: routes lead to no other, and it is not masqueraded; may be repeated. Default: routes to private addresses")
	f.StringVar(&p.netnsDir, "netns-dir", "/var/run/netns", "`directory` in which the container runtime keeps the network namespaces of pods")
}

// clusters are the CIDRs of the cluster.
func (p *podNetwork) clusters() (out []netip.Prefix, err error) {
	for _, text := range p.clusterCIDRs {
		c, err := netip.ParsePrefix(text)
		if err != nil || c != c.Masked() {
			return nil, fmt.Errorf("--cluster-cidr: %q is not a CIDR, such as 10.244.0.0/16", text)
		}
		out = append(out, c)
	}
	if len(out) > maxClusterCIDRs {
		return nil, fmt.Errorf("--cluster-cidr: has %d CIDRs, and can have %d: name larger ones", len(out), maxClusterCIDRs)
	}
	return out, nil
}

// maxClusterCIDRs bounds them: a step that masquerades can except 64 networks.
const maxClusterCIDRs = 16

// podServing are the parts that give pods their own network.
type podServing struct {
	follower  *primary.Follower
	server    *primary.Server
	installer *primary.Installer
}

func (s *serving) wirePodNetwork() {
	o := s.podNetwork
	if !o.enabled {
		return
	}
	clusters, _ := o.clusters() // were checked
	p := &podServing{}
	p.follower = primary.NewFollower(primary.FollowerOptions{
		Client: s.dynamic, NodeName: s.nodeName, Node: s.policies.Node, Contracts: s.app.registry,
		File: filepath.Join(s.app.stateDir, "primary"), Proc: "/proc", ClusterCIDRs: clusters, Changed: func() { p.installer.Changed(); s.routes.Changed() }, Log: s.log,
	})
	p.server = primary.New(primary.Options{
		Engine: s.engine.Reconciler, Addresses: s.addresses, Contracts: s.app.registry, Vet: s.app.registry.Vet, Network: p.follower.Network,
		Socket: o.socket, NetnsDir: o.netnsDir, HostNetns: s.engine.host.NetnsID(), BootID: s.engine.host.BootID(),
		Damaged: s.engine.damaged, Yield: func() func() { return s.loop.Yield() }, Log: s.log, Now: time.Now,
		Alive: func(within time.Duration) { s.alive.Alive(partCNI, within) },
	})
	p.installer = primary.NewInstaller(primary.InstallerOptions{
		Program: o.plugin, BinDir: o.binDir, ConfDir: o.confDir, ConfName: o.confName, Socket: o.socket,
		Ready:    func() error { _, err := p.follower.Network(); return err },
		Selected: p.follower.Selected, InUse: p.server.InUse, Leads: p.server.Leads, LastEnded: p.server.LastEnded, Log: s.log, Now: time.Now,
	})
	s.pods = p
}

// podCIDRs says whether pods have addresses of the node's pod CIDRs. Those of a topology that
// selects the node no longer keep theirs, also if the agent was started without --pod-network.
func (s *serving) podCIDRs() hostroutes.PodNetwork {
	n := hostroutes.PodNetwork{Known: true}
	if s.pods != nil {
		n.ClusterCIDRs, _ = s.podNetwork.clusters()
		if n.Used, n.Known = s.pods.follower.UsesPodCIDRs(); n.Used {
			return n
		}
	}
	grants, err := s.addresses.Grants()
	used := slices.ContainsFunc(grants, func(g addresspool.Grant) bool { return g.Pool == topology.LocalPool && primary.Owns(g.Claim) })
	n.Used = used && s.pods != nil
	n.Known = n.Known && err == nil && (!used || n.Used)
	return n
}

// podGrants are the addresses in the records of pods' own networks.
func (s *serving) podGrants() []addresspool.Grant {
	var out []addresspool.Grant
	ids, _ := s.engine.IDs()
	for _, id := range ids {
		origin := id.Origin()
		if origin.Container == "" {
			continue
		}
		rec, known, err := s.engine.Record(id)
		if err != nil || !known {
			continue // damage is reported by the loop
		}
		owner := reconcile.OwnerOfPrimary(origin.Container, origin.Interface)
		for i := range rec.Sandbox.Topology.Steps {
			step := &rec.Sandbox.Topology.Steps[i]
			pool, _, ok := topology.FromPool(step)
			if given := rec.Sandbox.Given[step.Name].Addresses; ok && len(given) > 0 {
				out = append(out, addresspool.Grant{
					Owner: addresspool.Owner{Claim: owner, Topology: origin.Topology, Step: step.Name}, Pool: pool, Addresses: given,
				})
			}
		}
	}
	return out
}

// hostPortsEvery is the interval of searches for ports of the host without a record.
const hostPortsEvery = 30 * time.Second

// releaseHostPorts deletes ports of the host whose record is lost, at the start and regularly.
func (s *serving) releaseHostPorts(ctx context.Context) {
	tick := time.NewTicker(hostPortsEvery)
	defer tick.Stop()
	for said := ""; ; {
		now := ""
		if err := s.releaseHostPortsOnce(ctx); err != nil {
			now = err.Error()
			if now != said {
				s.log.Warn("search for ports of the host without a record", "error", err)
			}
		}
		said = now
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *serving) releaseHostPortsOnce(ctx context.Context) error {
	var networks []netip.Prefix
	if s.pods != nil {
		n, _ := s.pods.follower.Network() // empty without one
		networks = n.PodCIDRs
	}
	unused, err := s.addresses.Unused(networks)
	if err != nil {
		return err
	}
	deleted, err := s.engine.ReleaseHostPorts(ctx, unused)
	for _, m := range deleted {
		s.log.Warn("deleted a port of the host that led to a pod without a record", "port", m.Host, "to", *m.To)
	}
	return err
}
