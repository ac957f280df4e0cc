package agent

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/hostengine"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/draplugin"
	"github.com/plumbline/plumbline/reconcile/pod/primary"
	"github.com/plumbline/plumbline/reconcile/ports"
	"github.com/plumbline/plumbline/topology/addresspool"
)

// nodeClaims are the claims of the node, and the sandboxes that use them.
type nodeClaims struct {
	*claims.Store
	log *slog.Logger
}

func openClaims(c Config, base *hostengine.Base) (*nodeClaims, error) {
	store, err := claims.Open(claims.Options{
		Dir: filepath.Join(c.StateDir, "claims"), Locker: base.Journal, BootID: base.Host.BootID(),
	})
	if err != nil {
		return nil, err
	}
	return &nodeClaims{store, c.Log}, nil
}

// claim returns the record of a claim.
func (n *nodeClaims) claim(uid types.UID) (claims.Claim, bool) {
	e, known, err := n.Get(uid)
	return e.Claim, known && err == nil
}

// podOf is the pod of a sandbox.
func (n *nodeClaims) podOf(id reconcile.SandboxID) (ports.Pod, bool) {
	c, ok := n.claim(types.UID(id.Origin().ClaimUID))
	return ports.Pod{Namespace: c.Namespace, Name: c.Pod.Name, Claim: c.Name}, ok
}

// list lists the claims.
func (n *nodeClaims) list() []claims.Entry {
	entries, errs := n.List()
	for _, err := range errs {
		n.log.Error("cannot read claim records", "error", err)
	}
	return entries
}

// inUse lists the names of the devices that claims have.
func (n *nodeClaims) inUse() []string {
	used, err := n.InUse()
	if err != nil {
		n.log.Error("cannot read claim records", "error", err)
	}
	return slices.Collect(maps.Keys(used))
}

// chosen lists the functions that claims have as shares of their PF.
func (n *nodeClaims) chosen() map[string]bool {
	out := map[string]bool{}
	for _, e := range n.list() {
		for _, t := range e.Topologies {
			for _, d := range t.Devices {
				if d.Offered != nil {
					out[d.Host.ID] = true
				}
			}
		}
	}
	return out
}

// grants are the addresses in the records.
func (n *nodeClaims) grants() []addresspool.Grant {
	var out []addresspool.Grant
	entries, _ := n.List() // damage is reported on attachment
	for _, e := range entries {
		var literals []netip.Addr
		for i := range e.Topologies {
			t, err := e.Topologies[i].Decoded()
			if err != nil {
				continue
			}
			for _, l := range addresses.Literals(t, e.Topologies[i].Parameters) {
				literals = append(literals, l.Address)
			}
			for j := range t.Steps {
				step := &t.Steps[j]
				given := e.Topologies[i].Given[step.Name]
				if pool, _, ok := given.PoolOf(step); ok && len(given.Addresses) > 0 {
					out = append(out, addresspool.Grant{
						Owner: addresspool.Owner{Claim: string(e.UID), Topology: t.Name, Step: step.Name}, Of: e.Namespace + "/" + e.Name,
						Pool: pool, Addresses: given.Addresses,
					})
				}
			}
		}
		if len(literals) > 0 {
			out = append(out, addresspool.Literal(string(e.UID), e.Namespace+"/"+e.Name, e.Namespace+"/"+e.Pod.Name, literals))
		}
	}
	return out
}

// ended reports whether the kubelet will never unprepare a claim with addresses: the agent has no
// record of it, and it does not exist any more.
func (n *nodeClaims) ended(ctx context.Context, cluster draplugin.Cluster, g addresspool.Grant) (bool, error) {
	if primary.Owns(g.Claim) {
		return false, nil // its server ends it
	}
	if _, known, err := n.Get(types.UID(g.Claim)); err != nil || known {
		return false, err
	}
	namespace, name, ok := strings.Cut(g.Of, "/")
	if !ok {
		return false, nil
	}
	rc, err := cluster.Claim(ctx, namespace, name)
	return err == nil && (rc == nil || string(rc.UID) != g.Claim), err
}
