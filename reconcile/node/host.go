package node

import (
	"context"
	"time"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/watch"
)

// hostPace is how much time goes by between two turns that the host's devices are
// the cause of, on average. Each pod that starts or ends changes some of them, and
// every sandbox that has one may be concerned: without it a pod that starts on a
// node with hundreds would cost hundreds of passes.
const hostPace = 20 * time.Millisecond

// listen turns the watcher's events into turns, until ctx ends.
func (l *Loop) listen(ctx context.Context) {
	var next time.Time // the host is not heard before
	timer := time.NewTimer(0)
	defer timer.Stop()
	var due <-chan time.Time // when it has been heard meanwhile
	host := func() {
		due, next = nil, l.Now().Add(time.Duration(l.heardHost())*hostPace)
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
				l.heard(e)
			case wait <= 0:
				host()
			case due == nil:
				timer.Reset(wait)
				due = timer.C
			}
		}
	}
}

// heardHost says that a device of the host has come, gone or changed: whoever has
// one may have drifted, and whoever waits for one may have it. It returns how many
// sandboxes have a turn for it.
func (l *Loop) heardHost() int {
	ids := l.concernedByHost()
	for _, id := range ids {
		l.sched.host(id)
	}
	return len(ids)
}

func (l *Loop) heard(e watch.Event) {
	switch {
	case e.Gone:
		l.sched.ask(e.ID)
	case e.Reason == watch.Resync:
		l.sched.look(e.ID)
	default:
		l.sched.notice(e.ID)
	}
}

func (l *Loop) concernedByHost() []reconcile.SandboxID {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []reconcile.SandboxID
	for id := range l.paths {
		if _, failed := l.said[id]; failed || l.onHost[id] {
			out = append(out, id)
		}
	}
	return out
}
