package node

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/watch"
)

// hostPace is the time between two passes that a change of the host's devices causes,
// on average. Each pod that starts or ends changes some of them, and every sandbox with
// such a device may be affected: without a limit, a pod that starts on a node with
// hundreds would cause hundreds of passes.
const hostPace = 20 * time.Millisecond

// podLinkPace is the same for changes of the links by which pods are connected. Some sandboxes are
// built on such a link, but a pod that sets its own up and down all the time must not
// have all of them checked all the time, nor delay the checks after a change of a device.
const podLinkPace = 10 * hostPace

// On a busy node a check takes much longer. hostShare and podLinkShare are the time between two such
// passes as a multiple of what a check takes, so that they take a tenth and a hundredth of a processor. But
// no sandbox waits longer for them than for its periodic check.
const (
	hostShare    = 10
	podLinkShare = 10 * hostShare
)

// A pod decides how long a check of its namespace takes: by the number of its routes, for example. One that
// takes slowTimes as long as half of the others, and slowFor at least, is checked periodically only, so that
// it does not delay the checks of others after a change of the host.
const (
	slowTimes = 8
	slowFor   = 100 * time.Millisecond
)

// maxDuration bounds the effect of one check that waited, for example for a lock.
const maxDuration = 5 * time.Second

// checked records how long the last check of a sandbox took.
func (l *Loop) checked(id reconcile.SandboxID, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.checks[id] = min(took, maxDuration)
}

// listen turns the watcher's events into work items, until ctx ends.
func (l *Loop) listen(ctx context.Context) {
	devices, podLinks := &pace{Loop: l, each: hostPace, share: hostShare}, &pace{Loop: l, each: podLinkPace, share: podLinkShare}
	for {
		select {
		case <-ctx.Done():
			return
		case <-devices.due:
			devices.check()
		case <-podLinks.due:
			podLinks.check()
		case e, ok := <-l.Watcher.Events():
			switch {
			case !ok:
				return
			case !e.Host:
				l.handleEvent(e)
			case e.PodLinks:
				podLinks.changed()
			default:
				devices.changed()
			}
		}
	}
}

// pace limits how often a change of the host has sandboxes checked.
type pace struct {
	*Loop
	each  time.Duration
	share time.Duration    // between two passes, in checks
	next  time.Time        // changes wait until then
	due   <-chan time.Time // set if one came meanwhile
}

// check has the sandboxes checked now.
func (p *pace) check() {
	n, take := p.hostChanged()
	p.due, p.next = nil, p.Now().Add(max(time.Duration(n)*p.each, min(p.share*take, p.Resync)))
}

// changed has them checked as soon as the pace allows.
func (p *pace) changed() {
	switch wait := p.next.Sub(p.Now()); {
	case wait <= 0:
		p.check()
	case p.due == nil:
		p.due = time.After(wait)
	}
}

// hostChanged handles the addition, removal or change of a device of the host: a
// sandbox that has one may have drifted, and one that waits for a device may get it. It
// returns how many sandboxes were enqueued, and how long their last checks took together.
func (l *Loop) hostChanged() (int, time.Duration) {
	ids, took := l.dependentOnHost()
	for _, id := range ids {
		l.sched.enqueueHostChange(id)
	}
	return len(ids), took
}

func (l *Loop) handleEvent(e watch.Event) {
	switch {
	case e.Gone:
		l.sched.enqueue(e.ID)
	case e.Reason == watch.Resync:
		l.sched.enqueueCheck(e.ID)
	default:
		l.sched.enqueueChange(e.ID)
	}
}

// dependentOnHost returns the sandboxes that a change of the host may affect, without those of pods whose
// checks are slow, and how long their last checks took together.
func (l *Loop) dependentOnHost() (out []reconcile.SandboxID, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	slow := slowFor
	if sorted := slices.Sorted(maps.Values(l.checks)); len(sorted) > 0 {
		slow = max(slow, slowTimes*sorted[(len(sorted)-1)/2])
	}
	for id, netns := range l.paths {
		if _, failed := l.logged[id]; (failed || l.onHost[id]) && (netns == "" || l.checks[id] < slow) {
			out, took = append(out, id), took+l.checks[id]
		}
	}
	return out, took
}
