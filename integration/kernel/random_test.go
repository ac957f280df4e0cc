package kernel

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/integration/namespace"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// actor is a sandbox of the random run.
type actor struct {
	*foreignWriter
	*lane      // compares only the devices of this one
	path, name string
	pod        string
	versions   []reconcile.Sandbox // of its topology; the first is whole
	spoils     []drifted
	owns       []drifted // what the pod may do
	devices    map[string]string
	made       []netstate.Object // what it has on the host beyond devices
	// disturbedBefore: it was disturbed since it was attached, and things of
	// theirs may be left.
	disturbedBefore bool
	start           *netstate.Snapshot
}

// chaos is a random run.
type chaos struct {
	*lane
	rng         *rand.Rand
	seed        uint64
	actors      []*actor
	home        *netstate.Snapshot
	undisturbed *reconcile.Reconciler
	story       []string // the last steps
}

// TestRandom: sandboxes are attached, edited, disturbed, repaired and released at
// random, by engines that crash, fail and misread at random. After every step all is as
// the records say, and everything else is as it was.
func TestRandom(t *testing.T) {
	length, seed := effort.Duration(t, 20*time.Second), effort.Seed(t)
	l := newLane(t)
	l.devices = []string{} // none is not all
	for _, g := range driftFixtures {
		if hasCards() {
			l.devices = slices.AppendSeq(l.devices, maps.Values(functions(t, g.devices)))
		}
	}
	c := &chaos{lane: l, rng: rand.New(rand.NewPCG(seed, 0)), seed: seed, home: l.state(""), undisturbed: l.engine(nil)}
	for _, g := range driftFixtures {
		if g.host != "" { // it changes the host, which is compared
			continue
		}
		if g.devices == nil || hasCards() {
			c.enroll(g)
		}
	}
	steps := 0
	for end := time.Now().Add(length); time.Now().Before(end); steps++ {
		c.step()
	}
	for _, a := range c.actors {
		c.release(a)
	}
	l.mustEqual(c.home, "", c.when("at the end"))
	if records, errs := c.undisturbed.List(); len(records) > 0 || len(errs) > 0 {
		c.fatal("left: %v, %v", records, errs)
	}
	t.Logf("%d steps", steps)
}

func (c *chaos) enroll(g driftFixture) {
	path, other := newNetns(c.t), newNetns(c.t)
	devices := functions(c.t, g.devices)
	a := &actor{
		foreignWriter: &foreignWriter{c.t, filepath.Base(path), filepath.Base(other)}, path: path, name: g.name, pod: g.pod, devices: devices, made: g.made,
		lane: &lane{t: c.t, host: c.host, dir: c.dir, devices: append([]string{}, slices.Sorted(maps.Values(devices))...), beside: true}, // none is not all
	}
	lines := strings.Split(strings.Trim(g.steps, "\n"), "\n")
	for _, n := range []int{len(lines), max(1, len(lines)-1), max(1, len(lines)-2)} { // steps that are removed and added
		sb := box(path, parse(c.t, "t", strings.Join(lines[:n], "\n")+"\n"))
		sb.Given = ops.Givens{}.WithDevices(devices)
		a.versions = append(a.versions, sb)
	}
	for _, row := range g.rows {
		switch {
		case row.refused != "", row.cleanUp != "": // no pass would undo it
		case row.drift == "":
			a.owns = append(a.owns, row)
		default:
			a.spoils = append(a.spoils, row)
		}
	}
	c.furnish(a)
	c.actors = append(c.actors, a)
}

// furnish makes a namespace what the pod makes of it.
func (c *chaos) furnish(a *actor) {
	a.run("ip -n $NS link set lo up")
	a.inside(a.pod)
	a.start, a.disturbedBefore = a.state(a.path), false
}

// when tells how a failure came about, and how to have it again.
func (c *chaos) when(what string) string {
	return fmt.Sprintf("%s\n%s\nagain with PLUMBLINE_SEED=%d", what, strings.Join(c.story[max(0, len(c.story)-12):], "\n"), c.seed)
}

func (c *chaos) fatal(format string, args ...any) {
	c.t.Helper()
	c.t.Fatal(c.when(fmt.Sprintf(format, args...)))
}

func pick[T any](rng *rand.Rand, from []T) T { return from[rng.IntN(len(from))] }

// step does something to one sandbox, and checks all of them.
func (c *chaos) step() {
	a := pick(c.rng, c.actors)
	others := map[*actor]*netstate.Snapshot{}
	for _, o := range c.actors {
		if o != a {
			others[o] = o.state(o.path)
		}
	}
	rec, known := c.record(a)
	switch dice := c.rng.IntN(100); {
	case !known && dice < 90, known && rec.Phase == reconcile.Releasing && dice < 50:
		c.act(a, "attach", pick(c.rng, a.versions))
	case !known:
		c.reuse(a)
	case dice < 35:
		c.disturb(a, pick(c.rng, a.spoils))
	case dice < 42 && len(a.owns) > 0:
		c.disturb(a, pick(c.rng, a.owns))
	case dice < 75:
		c.act(a, "repair", rec.Sandbox)
	case dice < 90:
		c.act(a, "update", pick(c.rng, a.versions))
	default:
		c.act(a, "release", rec.Sandbox)
	}
	for o, was := range others {
		if diff := netstatetest.Differences(was, o.state(o.path)); len(diff) > 0 {
			c.fatal("sandbox %q was not meant: %v", o.name, diff)
		}
	}
	c.checkDevices()
}

func (c *chaos) logStep(format string, args ...any) {
	c.story = append(c.story, fmt.Sprintf(format, args...))
	if !effort.Long() {
		c.t.Log(c.story[len(c.story)-1])
	}
}

func (c *chaos) record(a *actor) (reconcile.Record, bool) {
	recs, errs := c.undisturbed.List()
	if len(errs) > 0 {
		c.fatal("records: %v", errs)
	}
	for _, r := range recs {
		if r.Sandbox.ID == a.versions[0].ID {
			return r, true
		}
	}
	return reconcile.Record{}, false
}

// disturb runs a command, which need not succeed: others were there before.
func (c *chaos) disturb(a *actor, row drifted) {
	out, err := a.try(row.disturb)
	c.logStep("%s: %s (%v %s)", a.name, row.name, err, strings.TrimSpace(out))
	a.disturbedBefore = true
}

// act does something to a sandbox, as a rule by an engine to which something
// happens, and then once more by one to which nothing does.
func (c *chaos) act(a *actor, act string, sb reconcile.Sandbox) {
	r, injected := c.engine()
	do := func(r *reconcile.Reconciler) (err error) {
		switch act {
		case "repair":
			_, err = r.Repair(ctxFor(c.t), sb.ID)
		case "release":
			_, err = r.AwaitRelease(ctxFor(c.t), sb.ID)
		default:
			_, err = r.Ensure(ctxFor(c.t), sb)
		}
		return err
	}
	err := do(r)
	c.logStep("%s: %s, %s (%v)", a.name, act, injected, err)
	c.consistent(a)
	if injected != "undisturbed" && c.rng.IntN(3) == 0 {
		return // it stays so for now
	}
	rec, known := c.record(a)
	switch {
	case act == "release" || known && rec.Phase == reconcile.Releasing:
		c.release(a)
		return
	case !known && act == "repair":
		return
	case known && c.rng.IntN(2) == 0:
		act = "repair"
	}
	if err = do(c.undisturbed); fault.Of(err) == fault.Conflict && a.disturbedBefore {
		c.logStep("%s: %v", a.name, err)
		c.release(a) // the conflicting object ends with the namespace
		return
	}
	if err != nil {
		c.fatal("%s: %s, undisturbed: %v", a.name, act, err)
	}
	if st, err := c.undisturbed.Check(ctxFor(c.t), sb.ID); err != nil || st.State != reconcile.InSync {
		c.fatal("%s: after %s: %v, %s %s: %s", a.name, act, err, st.State, st.Failure, summary(st.Drift))
	}
}

// engine returns an engine with an injected failure.
func (c *chaos) engine() (*reconcile.Reconciler, string) {
	n, life := 1+c.rng.IntN(12), &process{}
	count := 0
	switch c.rng.IntN(6) {
	case 0:
		return c.killableEngine(life, func() { count++; life.dead = life.dead || count == n }, nil), fmt.Sprintf("dead after change %d", n)
	case 1:
		return c.lane.engine(func(d reconcile.Domain) reconcile.Domain {
			return faulty{Domain: d, applied: &count, at: n, before: func() error { return errInjected }}
		}), fmt.Sprintf("change %d failed", n)
	case 2:
		lost := c.rng.IntN(2) == 0
		errno := pick(c.rng, errnos(lost))
		n := 1 + c.rng.IntN(60)
		r, _ := c.disturbed(int64(n), lost, errno)
		return r, fmt.Sprintf("message %d: %v, lost: %v", n, errno, lost)
	case 3:
		n, part := 1+c.rng.IntN(3), c.rng.IntN(tearParts)
		return c.killableEngine(life, nil, func(write func() error) error {
			if count++; count != n {
				return write()
			}
			life.dead = true
			c.tear(write, part)
			return nil
		}), fmt.Sprintf("journal torn in write %d, part %d", n, part)
	default:
		return c.undisturbed, "undisturbed"
	}
}

// consistent asserts that the engine reports what it has not restored.
func (c *chaos) consistent(a *actor) {
	c.t.Helper()
	if _, known := c.record(a); !known {
		return
	}
	st, err := c.undisturbed.Check(ctxFor(c.t), a.versions[0].ID)
	if err != nil || st.State == reconcile.StateFailed && (st.Failure == "" || st.Kind == fault.Internal) {
		c.fatal("%s: check: %v, %+v", a.name, err, st)
	}
}

// release ends a sandbox, with its namespace; the next one has its path.
func (c *chaos) release(a *actor) {
	c.t.Helper()
	if _, err := c.undisturbed.AwaitRelease(ctxFor(c.t), a.versions[0].ID); err != nil {
		c.fatal("%s: release: %v", a.name, err)
	}
	if _, known := c.record(a); known {
		c.fatal("%s: released, and there is a record", a.name)
	}
	if !a.disturbedBefore {
		a.mustEqual(a.start, a.path, c.when(a.name+" is released"))
	}
	c.reuse(a)
}

// reuse puts another namespace at the path.
func (c *chaos) reuse(a *actor) {
	c.t.Helper()
	deleteNetns(a.path)
	if _, err := namespace.Add(a.ns); err != nil {
		c.t.Fatal(err)
	}
	c.furnish(a)
}

// checkDevices asserts that no device is lost, and that the host is unchanged except for
// devices in sandboxes.
func (c *chaos) checkDevices() {
	c.t.Helper()
	moved, made := map[string]*actor{}, []string{}
	for _, a := range c.actors {
		if _, known := c.record(a); !known {
			continue
		}
		for _, id := range a.devices {
			moved[id] = a
		}
		for _, o := range a.made {
			made = append(made, o.Key().String())
		}
	}
	var diff []string
	for range 200 { // a VF reports its carrier and MTU with delay
		diff = slices.DeleteFunc(netstatetest.Differences(c.home, c.state("")), func(d string) bool {
			return slices.ContainsFunc(slices.AppendSeq(slices.Clone(made), maps.Keys(moved)), func(of string) bool { return strings.Contains(d, of) })
		})
		if len(diff) == 0 {
			break
		}
	}
	if len(diff) > 0 {
		c.fatal("on the host: %v", diff)
	}
	for id, a := range moved {
		if lost(a.state(a.path), id) {
			c.fatal("%s: device %q is nowhere", a.name, id)
		}
	}
}
