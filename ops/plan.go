package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/ref"
)

// Request is everything a plan depends on.
type Request struct {
	Topology *topology.Topology
	// Netns is the path shown as "sandbox" in results.
	Netns string
	// Given holds what was decided for steps outside the topology.
	Given Givens
	Rules Rules // of the pod, see rules.want
	// Refused are the objects of which a field was refused, by their IDs, with the reason: what is Avoidable is planned in
	// another way.
	Refused map[string]string
	Have    *netstate.Snapshot
	// Owned is the history of our changes to this sandbox (netstate.Coalesce): only
	// objects that we made may be replaced or removed.
	Owned []netstate.Change
	// Others are the other topologies of the namespace.
	Others []Other
	// Chosen are the values that earlier plans for this sandbox have chosen.
	Chosen Choices
	// Interrupted: the last pass over this sandbox did not end, so foreign objects that
	// it deleted may not have been recreated.
	Interrupted bool
	// Kept says that all of this topology was applied in this sandbox before, perhaps
	// by an earlier version: see Planner.Kept.
	Kept bool
	// AppliedBefore says that all of this topology was applied for the same user in an
	// earlier sandbox, before a reboot: it is refused no more than one that is kept.
	AppliedBefore bool
	// Sandbox names the sandbox among all of the cluster, for rows of databases.
	Sandbox string
	// BootID is that of the host: links of the host that sandboxes share are its.
	BootID string
	// Client identifies the owner of the network to DHCP servers: it is the same for each sandbox of one claim, and
	// different for all others. "" stands for the namespace and the topology.
	Client string
	// Prepared says that steps with device nodes are applied elsewhere, and only verified
	// here.
	Prepared bool
	// imagined, unless nil, fills Have with what is queried, see Vet.
	imagined *imagination
}

// Plan is the list of changes to make, as data.
type Plan struct {
	// Changes in order of execution. Implied changes are not executed: they list what the
	// kernel deletes with the change before them.
	Changes []netstate.Change
	// Held are the settings that outlive the sandbox and that steps want, changed
	// or not, before and after. A record has them from the first pass on, so that a
	// release restores the original values, not later foreign ones.
	Held []netstate.Change
	// Shared are the objects that steps want and that another topology of the namespace has made
	// the same way, before and after. A record has them before the first change, too, so that
	// the last release restores what was there before the first.
	Shared []netstate.Change
	// Results of the steps as they will be, in topological order; pending
	// steps have none.
	Results []topology.StepResult
	// Pending lists the steps that need a value only known after Changes.
	Pending []Pending
	// Missing lists what must be observed before a plan can be made. If it is not
	// empty, the rest of the plan is empty.
	Missing []netstate.Object
	// Notes are remarks for the user, one line each.
	Notes []string
	// Chosen are the values that this plan depends on and that no topology says. They have to
	// be recorded before the first change is made.
	Chosen Choices
	// SettlesMillis is the time after which a wanted value may be another one, without any
	// notification; 0 is never.
	SettlesMillis uint32
	// ViaHost says that the host sends packets on to addresses of the sandbox: a port of the host
	// that leads to one of them reaches the sandbox.
	ViaHost bool
	// by made the plan.
	by *Planner
	// leadsTo is the state after Changes, for Confirm.
	leadsTo *prospect
}

// Pending is a step that cannot be planned yet.
type Pending struct {
	Step  string `json:"step"`
	Needs string `json:"needs"` // e.g. "dummy0.mac"
	// Withheld is set if the step waits for an object that cannot be observed, rather than
	// for a value that is known after Changes.
	Withheld error `json:"-"`
	// Complete reports that Needs is a whole sentence, the text of Withheld.
	Complete bool `json:"-"`
}

// Wants reports whether a step wants the object.
func (p *Plan) Wants(k netstate.Key) bool { return p.by != nil && p.by.Wanted(k) }

// Empty reports whether nothing is left to do.
func (p *Plan) Empty() bool {
	return len(p.Changes) == 0 && len(p.Pending) == 0 && len(p.Missing) == 0
}

// Settling returns the step that waits for nothing but what happens without a change, such as
// duplicate address detection or an address of a router; "" if there is none, or something is to be done.
func (p *Plan) Settling() (step string) {
	if len(p.Changes) > 0 || len(p.Missing) > 0 {
		return ""
	}
	for _, w := range p.Pending {
		if w.Withheld == nil {
			continue // for another step, which may be the one
		}
		if _, ok := errors.AsType[*settling](w.Withheld); !ok {
			return ""
		}
		step = w.Step
	}
	return step
}

// Equal reports whether another plan makes the same changes, and waits for the same.
func (p *Plan) Equal(other *Plan) bool {
	same := func(a, b Pending) bool { return a.Step == b.Step && a.Needs == b.Needs }
	implied := func(c netstate.Change) bool { return c.Implied }
	return slices.EqualFunc(p.Pending, other.Pending, same) &&
		reflect.DeepEqual(slices.DeleteFunc(slices.Clone(p.Changes), implied), slices.DeleteFunc(slices.Clone(other.Changes), implied))
}

// String writes one change a line, and pending steps at the end.
func (p *Plan) String() string {
	var b strings.Builder
	for _, c := range p.Changes {
		if !c.Implied {
			fmt.Fprintln(&b, c)
		}
	}
	for _, w := range p.Pending {
		fmt.Fprintf(&b, "? step %q (needs %s, known after apply)\n", w.Step, w.Needs)
	}
	return b.String()
}

// Plan computes the changes that apply the topology. It is pure. An error is a *StepError,
// concerns the topology as a whole, or is that of a context that has ended.
func (r *Registry) Plan(ctx context.Context, req Request) (*Plan, error) {
	settled := map[string]uint32{}
	req.Owned = withOwnMTUs(req.Owned, req.Have)
	for range len(req.Topology.Steps) + 1 {
		p := newPlanner(ctx, req, settled)
		plan, err := r.plan(p)
		if !p.mtus.misread(plan) {
			return plan, err
		}
	}
	return nil, fault.New(fault.Invalid, errors.New("the MTUs that steps refer to depend on one another: write one of them as a number"))
}

func newPlanner(ctx context.Context, req Request, settled map[string]uint32) *Planner {
	p := &Planner{
		ctx:     ctx,
		req:     req,
		claims:  claims{},
		missing: map[netstate.Key]netstate.Object{},
		steps:   stepStates{},
		results: map[string]topology.Result{},
		makers:  makers{},
		ipv6:    ipv6Addrs{},

		unsettledLinks: map[string]bool{},

		plan: Plan{Chosen: Choices{}},
	}
	p.mtus = mtus{p: p, settled: settled}
	p.rules = rules{p, map[string]netstate.LogicalPort{}}
	p.leases = leases{p: p, expires: map[netstate.Key]int64{}}
	p.leftovers = newLeftovers(p)
	p.guards.p, p.renames.p, p.ownership.req = p, p, &p.req
	p.routes = routes{p: p, sourced: map[uint32]string{}, ungated: map[string]string{}}
	return p
}

func (r *Registry) plan(p *Planner) (*Plan, error) {
	req := p.req
	order, err := topology.Order(req.Topology)
	if err != nil {
		return nil, err
	}
	if err := p.req.checkRecipients(); err != nil {
		return nil, err
	}
	if p.renames.recognize(); len(p.missing) > 0 {
		return &Plan{Missing: sortedObjects(p.missing)}, nil
	}
	p.view = p.req.Have.Clone()
	if im := p.req.imagined; im != nil {
		im.have, im.view = p.req.Have, p.view
	}
	p.leftovers.reset()
	refused, err := r.planSteps(p, order)
	if err != nil {
		return nil, err
	}
	if len(refused) > 0 {
		return nil, errors.Join(refused...)
	}
	for _, want := range []func() error{p.leftovers.leave, p.rules.want, p.ignoreRouters, p.guards.want, p.leftovers.find} {
		if err := want(); err != nil {
			return nil, err
		}
	}
	if len(p.missing) > 0 {
		return &Plan{Missing: sortedObjects(p.missing)}, nil
	}
	if err := p.renames.attribute(req.Have); err != nil {
		return nil, err
	}
	p.leases.settleMTUs()
	stacking := newStacking(p)
	for _, settle := range []func() error{
		stacking.check, stacking.checkGIDs, p.mtus.settle, p.leftovers.settleMTUs, p.routes.settle, p.leases.settleRoutes,
		p.leftovers.findRoutes,
	} {
		if err := settle(); err != nil {
			return nil, err
		}
	}
	if err := p.routes.checkOverlaps(); err != nil {
		return nil, err
	}
	return p.sequence(order)
}

// planSteps plans the steps in order. Those that depend on a step which is blocked or pending are not planned. It
// returns what Vet collects: the refusal of each step.
func (r *Registry) planSteps(p *Planner, order []*topology.Step) (refused []error, err error) {
	results, blocked := p.results, map[string]bool{}
	for _, step := range order {
		if err := ended(p.ctx); err != nil {
			return nil, err
		}
		st := &stepState{step: step, gateway: map[netstate.Key]string{}}
		p.steps[step.Name], p.current = st, st
		if dep := firstIn(step.DependOn, blocked); dep != "" {
			blocked[step.Name] = true
			continue
		}
		if dep := p.steps.pendingDependency(step); dep != "" {
			st.pending = "step " + dep
			continue
		}
		inputs := pick(results, step.DependOn)
		if err := p.req.imagined.spendMerge(inputs); err != nil {
			return nil, err
		}
		st.inputs = topology.Merge(inputs...)
		err := r.planStep(p, step, results)
		if err == nil {
			err = st.allTaken(p.req.Given[step.Name])
		}
		switch {
		case err == nil:
			results[step.Name] = p.mtus.withSettled(st.result(p.req.Netns, p.view, pick(results, step.DependOn)))
		case p.waits(st, err):
		case errors.Is(err, errMissing):
			blocked[step.Name] = true
		case len(p.missing) > 0 && fault.Of(err) == fault.NotReady:
			blocked[step.Name] = true // what it lacks may come from a step that is not planned yet
		case p.req.imagined != nil && !errors.Is(err, errUnaffordable) && p.ctx.Err() == nil:
			// Vet continues, to report all problems; steps that depend on this one are
			// skipped.
			refused = append(refused, p.req.stepError(step.Name, err))
			blocked[step.Name] = true
		default:
			return nil, p.req.stepError(step.Name, err)
		}
	}
	return refused, nil
}

// waits reports whether a step that failed waits for a value that is known after an earlier
// stage, and records which.
func (p *Planner) waits(st *stepState, err error) bool {
	var unknown *unknownRef
	var held *withheld
	switch {
	case errors.As(err, &held):
		st.pending, st.withheld, st.complete = held.Error(), held.err, true
	case errors.Is(err, errMissing):
		return false
	case errors.As(err, &unknown):
		st.pending = unknown.Error()
		if unknown.ref.Field == "ips" {
			st.withheld = cmp.Or(p.steps.routerless(unknown.ref.Step), p.steps.amongDependencies(unknown.ref.Step, p.leases.awaits))
		}
	default:
		return false
	}
	return true
}

// maker returns the step that makes a link or would make it, "" if there is none.
func (all wants) maker(link string) string {
	for _, w := range all {
		if l, ok := w.obj.(netstate.Link); ok && l.Name == link && l.LinkKind != "" {
			return w.step
		}
	}
	return ""
}

func (r *Registry) planStep(p *Planner, step *topology.Step, results map[string]topology.Result) error {
	op, ok := r.ops[step.Type]
	if !ok && p.req.imagined != nil {
		return &unknownRef{ref.Ref{Step: step.Name, Field: "type"}} // described by a schema, for others to run
	}
	if !ok {
		return fault.New(fault.Invalid,
			fmt.Errorf("type: unknown step type %q; known types are %s", step.Type, strings.Join(r.Types(), ", ")))
	}
	if err := p.req.Given[p.stepName()].check(op.Contract()); err != nil {
		return err
	}
	p.current.userspace = step.Root() && op.Contract().Output.InsteadOfInterface()
	p.current.prepared = p.req.Prepared && p.current.userspace
	expanded, err := ref.Expand(step.Config, func(t ref.Ref) (any, error) {
		res, ok := results[t.Step]
		if !ok {
			return nil, fault.New(fault.Invalid, fmt.Errorf("reference to step %q, which is not among its dependencies", t.Step))
		}
		v, err := res.Field(t)
		p.mtus.note(res, t, v)
		if err != nil && t.Sub == "gateway" && p.steps.routerless(t.Step) != nil {
			return nil, &unknownRef{t}
		}
		if errors.Is(err, topology.ErrUnknown) {
			if imagined, ok := p.req.imagined.value(t); ok {
				return imagined, nil
			}
			return nil, &unknownRef{t}
		}
		return v, err
	})
	if err != nil {
		return err
	}
	config, _ := expanded.(map[string]any)
	p.current.config = config
	known, canPrepare := op.(preparer)
	canPrepare = canPrepare && p.req.imagined == nil // topologies that are only validated are not cached
	if canPrepare {
		if c, ok := r.prepared.get(step.Type, config); ok {
			return known.planPrepared(p, c)
		}
	}
	canonical, problems := op.Contract().Decode(config, contract.Options{})
	if len(problems) > 0 {
		errs := make([]error, len(problems))
		for i, f := range problems {
			errs[i] = f
		}
		return fault.New(fault.Invalid, errors.Join(errs...))
	}
	if !canPrepare {
		return op.Plan(p, canonical)
	}
	c, err := known.prepare(canonical)
	if err != nil {
		return err
	}
	r.prepared.put(step.Type, config, c)
	return known.planPrepared(p, c)
}

// withheld stops a step that depends on an object that cannot be observed.
type withheld struct{ err error }

func (w *withheld) Error() string { return w.err.Error() }

// unknownRef is a reference to a value that is known only after applying.
type unknownRef struct{ ref ref.Ref }

func (u *unknownRef) Error() string { return u.ref.Step + "." + u.ref.Path() }

func (s stepStates) pendingDependency(step *topology.Step) string {
	for _, d := range step.DependOn {
		if st, ok := s[d]; ok && st.pending != "" {
			return d
		}
	}
	return ""
}

func firstIn(names []string, set map[string]bool) string {
	for _, n := range names {
		if set[n] {
			return n
		}
	}
	return ""
}

func pick(results map[string]topology.Result, names []string) []topology.Result {
	out := make([]topology.Result, 0, len(names))
	for _, n := range names {
		out = append(out, results[n])
	}
	return out
}

func sortedObjects(m map[netstate.Key]netstate.Object) []netstate.Object {
	return slices.SortedFunc(maps.Values(m), func(a, b netstate.Object) int {
		return strings.Compare(a.Key().String(), b.Key().String())
	})
}
