package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/qos/filters"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/hostengine"
	"github.com/plumbline/plumbline/reconcile/hostports"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/reconcile/node"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/reconcile/pod/attachment"
	"github.com/plumbline/plumbline/reconcile/pod/hostroutes"
	"github.com/plumbline/plumbline/reconcile/pod/primary"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/exposure/follower"
)

// newPodTopology returns nil if the agent gives pods no network of their own.
func newPodTopology(c Config, base *hostengine.Base, policies *follower.Follower) *primary.Follower {
	if !c.PodNetwork.Enabled {
		return nil
	}
	return primary.NewFollower(primary.FollowerOptions{
		Client: c.Clients.Dynamic, NodeName: c.NodeName, Node: policies.Node, Contracts: c.Registry,
		File: filepath.Join(c.StateDir, "primary"),
		Proc: "/proc", TranslateBridged: base.Host.TranslateBridged, ClusterCIDRs: c.PodNetwork.ClusterCIDRs, Log: c.Log,
	})
}

// newCNIServer returns nil if the agent gives pods no network of their own.
func newCNIServer(
	c Config, g started, base *hostengine.Base, e *reconcile.Reconciler, a *addresses.Allocator, pods *primary.Follower,
	rules *filters.Follower, urgent writes[*node.Urgent],
) *primary.Server {
	if pods == nil {
		return nil
	}
	return primary.New(primary.Options{
		Engine: e, Addresses: a, Contracts: c.Registry, Vet: c.Registry.Vet, Network: pods.Network,
		Socket: c.PodNetwork.Socket, NetnsDir: c.PodNetwork.NetnsDir, HostNetns: base.Host.NetnsID(), BootID: base.Host.BootID(),
		Known: rules.KnownOnPrimary, KnownBy: &rules.Learned, Rules: rules.OfPodNetwork, Changed: rules.PodNetworksChanged,
		Damaged: base.Damaged, Yield: urgent.to.Begin, Log: c.Log, Now: c.Now,
		Alive: func(within time.Duration) { g.alive.Alive(partCNI, within) },
	})
}

// newInstaller returns nil if the agent gives pods no network of their own.
func newInstaller(c Config, pods *primary.Follower, server *primary.Server) *primary.Installer {
	if pods == nil {
		return nil
	}
	o := c.PodNetwork
	return primary.NewInstaller(primary.InstallerOptions{
		Program: o.Plugin, BinDir: o.BinDir, ConfDir: o.ConfDir, ConfName: o.ConfName, Socket: o.Socket,
		Ready:    func() error { _, err := pods.Network(); return err },
		Selected: pods.Selected, InUse: server.InUse, Leads: server.Leads, LastEnded: server.LastEnded,
		WokenBy: []table.Source{&pods.Decided}, Log: c.Log, Now: c.Now,
	})
}

// podCIDRs says whether pods have addresses of the node's pod CIDRs. Those of a topology that
// selects the node no longer keep theirs, also if the agent was started without --pod-network.
func podCIDRs(pods *primary.Follower, a *addresses.Allocator, clusterCIDRs []netip.Prefix) hostroutes.PodNetwork {
	n := hostroutes.PodNetwork{Known: true}
	if pods != nil {
		n.ClusterCIDRs = clusterCIDRs
		if n.Used, n.Known = pods.UsesPodCIDRs(); n.Used {
			return n
		}
	}
	grants, err := a.Grants()
	used := slices.ContainsFunc(grants, func(g addresspool.Grant) bool { return g.Pool == topology.LocalPool && primary.Owns(g.Claim) })
	n.Used = used && pods != nil
	n.Known = n.Known && err == nil && (!used || n.Used)
	return n
}

// podGrants are the addresses in the records of pods' own networks.
func podGrants(e *reconcile.Reconciler) []addresspool.Grant {
	var out []addresspool.Grant
	ids, _ := e.IDs()
	for _, id := range ids {
		origin := id.Origin()
		if origin.Container == "" {
			continue
		}
		rec, known, err := e.Record(id)
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

// newUpdates gives running claims, and the own networks of pods, the filters that their objects say now.
func newUpdates(f *filters.Follower, k *attachment.Keeper, pods *primary.Server) *filters.Updates {
	return f.Updates(func(ctx context.Context, uid types.UID) (changed bool, err error) {
		if pods != nil && primary.Owns(string(uid)) {
			return pods.Refilter(ctx, string(uid))
		}
		return k.Refilter(ctx, uid)
	})
}

// hostPortsEvery is the interval of searches for ports of the host without a record.
const hostPortsEvery = 30 * time.Second

// hostPorts deletes ports of the host whose record is lost.
type hostPorts struct {
	engine    *reconcile.Reconciler
	addresses *addresses.Allocator
	pods      *primary.Follower // nil if the agent gives pods no network of their own
	log       *slog.Logger
}

// Run deletes ports of the host whose record is lost, at the start and regularly, until ctx ends.
func (s *hostPorts) Run(ctx context.Context) {
	loop.Loop{
		Every: hostPortsEvery,
		Pass:  func(ctx context.Context) (time.Duration, error) { return 0, s.release(ctx) },
		Warn:  func(err error) { s.log.Warn("failed to search for host ports without a record", "error", err) },
	}.Run(ctx)
}

func (s *hostPorts) release(ctx context.Context) error {
	var networks []netip.Prefix
	if s.pods != nil {
		n, _ := s.pods.Network() // empty without one
		networks = n.PodCIDRs
	}
	unused, err := s.addresses.Unused(networks)
	if err != nil {
		return err
	}
	deleted, err := hostports.Release(ctx, s.engine, unused)
	for _, m := range deleted {
		s.log.Warn("deleted a host port of a pod without a record", "port", m.Host, "to", *m.To)
	}
	guards, guardsErr := hostports.ReleaseGuards(ctx, s.engine)
	for _, port := range guards {
		s.log.Warn("deleted the guard of a bridge port of a pod without a record", "port", port)
	}
	return errors.Join(err, guardsErr)
}
