package attachment

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/table"
)

// Nodes are the claims whose device nodes a repair has changed. It is a reconcile.Recorder.
type Nodes struct {
	mu      sync.Mutex
	changed map[types.UID]bool // claims of the node
	wake    table.Wake
}

// NewNodes returns Nodes of no claim.
func NewNodes() *Nodes {
	return &Nodes{changed: map[types.UID]bool{}, wake: table.Woken()}
}

// Pass implements reconcile.Recorder.
func (n *Nodes) Pass(p reconcile.Pass) {
	uid := types.UID(p.Sandbox.Origin().ClaimUID)
	if !p.NodesChanged || uid == "" {
		return
	}
	n.add(uid)
	n.wake.Now()
}

// Drift implements reconcile.Recorder.
func (*Nodes) Drift(reconcile.SandboxID, string, []reconcile.Drift) {}

// Forget implements reconcile.Recorder.
func (*Nodes) Forget(reconcile.SandboxID) {}

func (n *Nodes) add(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changed[uid] = true
}

func (n *Nodes) take() []types.UID {
	n.mu.Lock()
	defer n.mu.Unlock()
	defer clear(n.changed)
	return slices.Sorted(maps.Keys(n.changed))
}

// renew has the open gates of claims whose device nodes have changed give these. A claim that somebody works on is left for the
// next sweep.
func (k *Keeper) renew(ctx context.Context) {
	for _, uid := range k.Nodes.take() {
		err := k.renewOne(ctx, uid)
		if err == nil {
			continue
		}
		k.Nodes.add(uid)
		k.Log.Warn("cannot update the device nodes of the containers of a claim", "claim", uid, "error", err)
	}
}

func (k *Keeper) renewOne(ctx context.Context, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, gateWait)
	defer cancel()
	return k.held(ctx, uid, func(e *claims.Entry) error {
		if s := k.opens(e); s.ID != "" {
			return k.openOrHold(e, s)
		}
		return nil
	})
}

// openOrHold opens the gate of a claim, or closes it if what it gives is not known. A gate that another version of plumbline has
// opened stays as it is, like the record of that version: the containers of the pod can be restarted during an upgrade or a rollback.
func (k *Keeper) openOrHold(e *claims.Entry, s claims.Sandbox) error {
	err := k.openGate(e, s.ID, s.Netns)
	if err == nil || frame.AsOtherVersion(err) != nil && k.Gate.OpenFor(e.UID) == s.ID {
		return err
	}
	return errors.Join(err, k.Gate.Hold(e.UID))
}

// hasNodes reports whether containers of the claim may have device nodes.
func (k *Keeper) hasNodes(e *claims.Entry) bool {
	return slices.ContainsFunc(e.Topologies, func(t claims.Topology) bool { return t.HasNodes(k.Contracts) })
}
