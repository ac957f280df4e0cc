package watch

import (
	"cmp"
	"errors"
	"time"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// Event is a request to check a sandbox, or the host.
type Event struct {
	ID     reconcile.SandboxID // "" for the host
	Host   bool                // a device of the host was added, removed or changed
	Reason Reason
	// PodLinks: of the host, only links changed that pods are connected by. A pod changes the carrier
	// of its own as often as it pleases.
	PodLinks bool
	// Gone: the sandbox's namespace is no longer at its path. The
	// watcher has forgotten the sandbox.
	Gone bool
}

// Reason is the cause of an event.
type Reason string

// The reasons, from the most to the least specific.
const (
	Changed  Reason = "Changed"  // the kernel sent a notification
	Overflow Reason = "Overflow" // notifications were lost
	Resync   Reason = "Resync"   // the interval has passed
)

// Options are the settings of a Watcher. The zero value has the defaults.
type Options struct {
	// Debounce is how long a sandbox must be quiet before its event is delivered.
	// Default 10 ms.
	Debounce time.Duration
	// MaxDelay bounds the wait for quiet, from the first notification on. Default 50
	// ms.
	MaxDelay time.Duration
	// Resync is the interval of periodic checks: a sandbox gets a Resync event this
	// long after its last event, plus or minus a tenth. After it was added, or after
	// notifications were lost, the event comes at some time within the interval,
	// different for each sandbox. Default 60 s. The interval is longer where there are
	// so many sandboxes that more than two a second would be due.
	Resync time.Duration
	// ReceiveBufferBytes is the size of a socket's receive buffer. Default 4 MiB for
	// the shared socket, and 256 KiB for a socket in one namespace.
	ReceiveBufferBytes int
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

const (
	sharedBufferBytes = 4 << 20
	singleBufferBytes = 256 << 10

	// overflowEvery is the shortest time between two Overflow events of a sandbox, and
	// overflowPace that between two of all sandboxes, on average: a flood in one
	// namespace must not make us check all of them all the time. The first overflow
	// causes an event of all at once.
	overflowEvery = time.Second
	overflowPace  = 20 * time.Millisecond
	// resyncPace is the shortest time between two Resync events, on average: an idle
	// node stays idle, however many sandboxes it has.
	resyncPace = 500 * time.Millisecond
	// livenessEvery is the interval of checks for a namespace that our own socket keeps
	// alive: whether its path still leads to it.
	livenessEvery = 2 * time.Second
)

func (o Options) withDefaults() (Options, error) {
	if o.Debounce < 0 || o.MaxDelay < 0 || o.Resync < 0 || o.ReceiveBufferBytes < 0 {
		return o, fault.New(fault.Invalid, errors.New("a negative option"))
	}
	o.Debounce = cmp.Or(o.Debounce, 10*time.Millisecond)
	o.MaxDelay = cmp.Or(o.MaxDelay, max(50*time.Millisecond, o.Debounce))
	o.Resync = cmp.Or(o.Resync, time.Minute)
	if o.Now == nil {
		o.Now = time.Now //nolint:forbidigo // the default of the value that callers give
	}
	return o, nil
}
