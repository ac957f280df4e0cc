package watch

import (
	"errors"
	"time"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// Event says that a sandbox, or the host, should be looked at.
type Event struct {
	ID     reconcile.SandboxID // "" for the host
	Host   bool                // a device of the host came, went or was altered
	Reason Reason
	// Gone says that the sandbox's namespace is no longer at its path. The
	// watcher has forgotten the sandbox.
	Gone bool
}

// Reason is why an event is told.
type Reason string

// The reasons, from the most to the least specific.
const (
	Changed  Reason = "Changed"  // the kernel gave notice
	Overflow Reason = "Overflow" // notices were lost, there may have been one
	Resync   Reason = "Resync"   // a while has passed
)

// Options are the settings of a Watcher. The zero value is good.
type Options struct {
	// Debounce is how long a sandbox must be quiet before its event is told.
	// Default 10 ms.
	Debounce time.Duration
	// MaxDelay bounds the wait for quiet, from the first notice on. Default
	// 50 ms.
	MaxDelay time.Duration
	// Resync is how long after its last event a sandbox is looked at without
	// notice, give or take a tenth; after it was added, or notices were lost, at
	// some time within that, another one for each. Default 60 s. It is longer
	// where there are so many sandboxes that more than two a second would be due.
	Resync time.Duration
	// ReceiveBufferBytes is how much the kernel holds for us. Default 4 MiB
	// for the shared socket, and 256 KiB for a socket in one namespace.
	ReceiveBufferBytes int
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

const (
	sharedBufferBytes = 4 << 20
	singleBufferBytes = 256 << 10

	// overflowEvery is the shortest time between two Overflow events of a
	// sandbox, and overflowPace that between two of all sandboxes, on average:
	// whoever floods one namespace must not have us look at all of them all the
	// time. The first overflow is told of all at once.
	overflowEvery = time.Second
	overflowPace  = 20 * time.Millisecond
	// resyncPace is the least time between two looks without notice, on average:
	// a node at rest is to be at rest, however many sandboxes it has.
	resyncPace = 500 * time.Millisecond
	// livenessEvery is how often a namespace is looked for that our own socket
	// holds alive, so that it does not for long.
	livenessEvery = 2 * time.Second
)

func (o Options) withDefaults() (Options, error) {
	if o.Debounce < 0 || o.MaxDelay < 0 || o.Resync < 0 || o.ReceiveBufferBytes < 0 {
		return o, fault.New(fault.Invalid, errors.New("a negative option"))
	}
	if o.Debounce == 0 {
		o.Debounce = 10 * time.Millisecond
	}
	if o.MaxDelay == 0 {
		o.MaxDelay = max(50*time.Millisecond, o.Debounce)
	}
	if o.Resync == 0 {
		o.Resync = time.Minute
	}
	if o.Now == nil {
		o.Now = time.Now //nolint:forbidigo // the default of the value that callers give
	}
	return o, nil
}
