package agent

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/hostengine"
	"github.com/plumbline/plumbline/reconcile/liveness"
	"github.com/plumbline/plumbline/reconcile/pod/attachment"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/watch"
)

// Agent is the agent of a node.
type Agent struct {
	Config
	// Claims, Engine and Keeper prepare and attach, for tests that play the kubelet and the
	// container runtime.
	Claims *claims.Store
	Engine *reconcile.Reconciler
	Keeper *attachment.Keeper

	parts []built
	alive *liveness.Registry
}

// started holds the parameters of parts that are no data: where reads of devices end, and where they show
// that they work.
type started struct {
	reads context.Context //nolint:containedctx // that of New: the functions that read devices have none
	alive *liveness.Registry
}

// Run builds an agent and runs it until ctx ends.
func Run(ctx context.Context, c Config) error {
	a, err := New(ctx, c)
	if err != nil {
		return err
	}
	defer a.Close()
	return a.Run(ctx)
}

// New builds an agent, which does nothing until Run. Its reads of devices end with ctx.
func New(ctx context.Context, c Config) (*Agent, error) {
	a := &Agent{Config: c, alive: liveness.New(c.Now)}
	var err error
	if a.parts, err = build(declared(), c, started{ctx, a.alive}); err != nil {
		a.Close()
		return nil, err
	}
	a.Claims, a.Engine, a.Keeper = the[*nodeClaims](a.parts).Store, the[*reconcile.Reconciler](a.parts), the[*attachment.Keeper](a.parts)
	return a, nil
}

// Close closes what New has opened. All networks stay as they are.
func (a *Agent) Close() error { return closeAll(a.parts) }

// Checked returns nil once each sandbox has had its first check.
func (a *Agent) Checked() error { return the[*driftLoop](a.parts).Ready() }

// Overflows returns how often the kernel has dropped notifications of changes.
func (a *Agent) Overflows() int64 { return the[*watch.Relay](a.parts).Overflows() }

// Sandbox opens a network namespace, to observe or disturb it.
func (a *Agent) Sandbox(path string) (reconcile.Domain, error) {
	return the[*hostengine.Base](a.parts).Domain(path)
}

// Run runs all parts until ctx ends. A part that ends earlier with an error ends the agent; one that ends
// without an error fails the liveness probe.
func (a *Agent) Run(ctx context.Context) error {
	if err := the[*server](a.parts).listen(ctx, a.Config); err != nil {
		return err
	}
	a.Log.Info("running", "node", a.NodeName, "state", a.StateDir, "listen", a.MetricsAddress, "version", a.Build.Version)
	err := a.run(ctx, a.works())
	a.Log.Info("stopped: all networks stay as they are")
	return err
}

// work is the function that a part runs until ctx ends.
type work struct {
	name string // of the part
	run  func(ctx context.Context) error
}

// works returns what the parts do.
func (a *Agent) works() []work {
	var out []work
	for _, p := range a.parts {
		if run := p.work(); run != nil {
			out = append(out, work{p.name, run})
		}
	}
	return out
}

// run works until ctx ends, or one ends with an error.
func (a *Agent) run(ctx context.Context, works []work) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, w := range works {
		group.Go(func() error { return a.alive.Run(ctx, w.name, w.run) })
	}
	return group.Wait()
}
