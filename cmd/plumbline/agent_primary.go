package main

import (
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/cnisocket"
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
}

func (p *podNetwork) flags(f *pflag.FlagSet) {
	f.BoolVar(&p.enabled, "pod-network", false, "give pods their own network, as the NetworkTopology of role primary says that selects the node: installs a CNI plugin that asks the agent")
	f.StringVar(&p.plugin, "cni-plugin", "/plumbline-cni", "`program` to install as the CNI plugin, with --pod-network")
	f.StringVar(&p.binDir, "cni-bin-dir", "/opt/cni/bin", "`directory` in which the container runtime looks for CNI plugins")
	f.StringVar(&p.confDir, "cni-conf-dir", "/etc/cni/net.d", "`directory` in which the container runtime looks for networks")
	f.StringVar(&p.confName, "cni-conf-name", "10-plumbline.conflist", "`name` of the network's file there: the runtime uses the first")
	f.StringVar(&p.socket, "cni-socket", cnisocket.DefaultPath, "`socket` on which the CNI plugin asks the agent, in a directory of its own")
	f.StringVar(&p.netnsDir, "netns-dir", "/var/run/netns", "`directory` in which the container runtime keeps the network namespaces of pods")
}

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
	p := &podServing{}
	p.follower = primary.NewFollower(primary.FollowerOptions{
		Client: s.dynamic, NodeName: s.nodeName, Node: s.policies.Node, Contracts: s.app.registry,
		File: filepath.Join(s.app.stateDir, "primary"), Proc: "/proc", Changed: func() { p.installer.Changed() }, Log: s.log,
	})
	p.server = primary.New(primary.Options{
		Engine: s.engine.Reconciler, Addresses: s.addresses, Contracts: s.app.registry, Network: p.follower.Network,
		Socket: o.socket, NetnsDir: o.netnsDir, HostNetns: s.engine.host.NetnsID(), BootID: s.engine.host.BootID(),
		Damaged: s.engine.damaged, Yield: func() func() { return s.loop.Yield() }, Log: s.log, Now: time.Now,
		Alive: func(within time.Duration) { s.alive.Alive(partCNI, within) },
	})
	p.installer = primary.NewInstaller(primary.InstallerOptions{
		Program: o.plugin, BinDir: o.binDir, ConfDir: o.confDir, ConfName: o.confName, Socket: o.socket,
		Ready:    func() error { _, err := p.follower.Network(); return err },
		Selected: p.follower.Selected, InUse: p.server.InUse, Log: s.log,
	})
	s.pods = p
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
