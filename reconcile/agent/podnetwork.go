package agent

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/hostroutes"
	"github.com/plumbline/plumbline/reconcile/pod/primary"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
)

// podServing are the parts that give pods their own network.
type podServing struct {
	server    *primary.Server
	installer *primary.Installer
}

func (s *Agent) wirePodNetwork() {
	o := s.PodNetwork
	if !o.Enabled {
		return
	}
	p := &podServing{}
	p.server = primary.New(primary.Options{
		Engine: s.Engine, Addresses: s.addresses, Contracts: s.Registry, Vet: s.Registry.Vet, Network: s.podTopology.Network,
		Socket: o.Socket, NetnsDir: o.NetnsDir, HostNetns: s.base.Host.NetnsID(), BootID: s.base.Host.BootID(),
		Damaged: s.base.Damaged, Yield: s.urgent.Begin, Log: s.Log, Now: s.Now,
		Alive: func(within time.Duration) { s.alive.Alive(partCNI, within) },
	})
	p.installer = primary.NewInstaller(primary.InstallerOptions{
		Program: o.Plugin, BinDir: o.BinDir, ConfDir: o.ConfDir, ConfName: o.ConfName, Socket: o.Socket,
		Ready:    func() error { _, err := s.podTopology.Network(); return err },
		Selected: s.podTopology.Selected, InUse: p.server.InUse, Leads: p.server.Leads, LastEnded: p.server.LastEnded,
		WokenBy: []table.Source{&s.podTopology.Decided}, Log: s.Log, Now: s.Now,
	})
	s.pods = p
}

// podCIDRs says whether pods have addresses of the node's pod CIDRs. Those of a topology that
// selects the node no longer keep theirs, also if the agent was started without --pod-network.
func (s *Agent) podCIDRs() hostroutes.PodNetwork {
	n := hostroutes.PodNetwork{Known: true}
	if s.podTopology != nil {
		n.ClusterCIDRs = s.PodNetwork.ClusterCIDRs
		if n.Used, n.Known = s.podTopology.UsesPodCIDRs(); n.Used {
			return n
		}
	}
	grants, err := s.addresses.Grants()
	used := slices.ContainsFunc(grants, func(g addresspool.Grant) bool { return g.Pool == topology.LocalPool && primary.Owns(g.Claim) })
	n.Used = used && s.podTopology != nil
	n.Known = n.Known && err == nil && (!used || n.Used)
	return n
}

// podGrants are the addresses in the records of pods' own networks.
func (s *Agent) podGrants() []addresspool.Grant {
	var out []addresspool.Grant
	ids, _ := s.Engine.IDs()
	for _, id := range ids {
		origin := id.Origin()
		if origin.Container == "" {
			continue
		}
		rec, known, err := s.Engine.Record(id)
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
func (s *Agent) releaseHostPorts(ctx context.Context) {
	tick := time.NewTicker(hostPortsEvery)
	defer tick.Stop()
	for said := ""; ; {
		now := ""
		if err := s.releaseHostPortsOnce(ctx); err != nil {
			now = err.Error()
			if now != said {
				s.Log.Warn("failed to search for host ports without a record", "error", err)
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

func (s *Agent) releaseHostPortsOnce(ctx context.Context) error {
	var networks []netip.Prefix
	if s.podTopology != nil {
		n, _ := s.podTopology.Network() // empty without one
		networks = n.PodCIDRs
	}
	unused, err := s.addresses.Unused(networks)
	if err != nil {
		return err
	}
	deleted, err := s.Engine.ReleaseHostPorts(ctx, unused)
	for _, m := range deleted {
		s.Log.Warn("deleted a host port of a pod without a record", "port", m.Host, "to", *m.To)
	}
	return err
}
