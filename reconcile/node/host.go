package node

import (
	"context"
	"time"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/watch"
)

// hostPace is the time between two passes that a change of the host's devices causes,
// on average. Each pod that starts or ends changes some of them, and every sandbox with
// such a device may be affected: without a limit, a pod that starts on a node with
// hundreds would cause hundreds of passes.
const hostPace = 20 * time.Millisecond

// listen turns the watcher's events into work items, until ctx ends.
func (l *Loop) listen(ctx context.Context) {
	var next time.Time // changes of the host wait until then
	timer := time.NewTimer(0)
	defer timer.Stop()
	var due <-chan time.Time // set if one came meanwhile
	host := func() {
		due, next = nil, l.Now().Add(time.Duration(l.hostChanged())*hostPace)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-due:
			host()
		case e, ok := <-l.Watcher.Events():
			if !ok {
				return
			}
			switch wait := next.Sub(l.Now()); {
			case !e.Host:
				l.handleEvent(e)
			case wait <= 0:
				host()
			case due == nil:
				timer.Reset(wait)
				due = timer.C
			}
		}
	}
}

// hostChanged handles the addition, removal or change of a device of the host: a
// sandbox that has one may have drifted, and one that waits for a device may get it. It
// returns how many sandboxes were enqueued.
func (l *Loop) hostChanged() int {
	ids := l.dependentOnHost()
	for _, id := range ids {
		l.sched.enqueueHostChange(id)
	}
	return len(ids)
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

func (l *Loop) dependentOnHost() []reconcile.SandboxID {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []reconcile.SandboxID
	for id := range l.paths {
		if _, failed := l.logged[id]; failed || l.onHost[id] {
			out = append(out, id)
		}
	}
	return out
}
