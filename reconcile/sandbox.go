package reconcile

import (
	"context"
	"errors"
	"time"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/topology"
)

// Sandbox is a topology and where to apply it.
type Sandbox struct {
	ID       SandboxID          `json:"id"`
	Netns    string             `json:"netns"` // path of the network namespace; "" for what needs none
	Topology *topology.Topology `json:"topology"`
	// Given are the values that were decided for its steps outside the topology.
	Given ops.Givens `json:"given,omitempty"`
	// Rules are for what its interfaces send. A record has their fields beside those of the sandbox.
	ops.Rules
	// Pod is whose own network the sandbox is. Nil for any other, and if an earlier version has recorded it.
	Pod *Pod `json:"pod,omitempty"`
	// Prepared is the sandbox with the steps that give device nodes, applied before this
	// namespace existed. Here they are only verified. "" if there is none.
	Prepared SandboxID `json:"prepared,omitempty"`
	// AppliedBefore is set by the caller that attaches the sandbox, see ops.Request.
	// Afterwards its own record has it.
	AppliedBefore bool `json:"-"`
}

// Pod names a pod as the container runtime does.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// NetnsID identifies a network namespace beyond its path, at which another one may be
// mounted later. The zero value means unknown.
type NetnsID struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	Cookie uint64 `json:"cookie,omitempty"` // SO_NETNS_COOKIE, unique since boot
}

// Is reports whether both are known to identify one namespace.
func (n NetnsID) Is(other NetnsID) bool { return n == other && n != NetnsID{} }

// Phase is the phase of a record.
type Phase string

// The phases of a record.
const (
	Applying  Phase = "Applying"  // a pass that writes has begun; a crash leaves it so
	Applied   Phase = "Applied"   // the last pass was verified
	Failed    Phase = "Failed"    // the last pass failed; it was rolled back, or keeps what works
	Releasing Phase = "Releasing" // a release has begun, and must be finished
)

// Record must survive a crash: the sandbox and the changes made to it.
type Record struct {
	Sandbox Sandbox `json:"sandbox"`
	BootID  string  `json:"bootID"` // of the boot the history belongs to
	NetnsID NetnsID `json:"netnsID"`
	Phase   Phase   `json:"phase"`
	// History holds, per object, the state before our first change and after
	// our last intended one (netstate.Coalesce), in order of the first.
	History []netstate.Change     `json:"history,omitempty"`
	Results []topology.StepResult `json:"results,omitempty"`
	Failure string                `json:"failure,omitempty"` // the last pass's error
	// Failures is Failure by step.
	Failures []StepFailure `json:"failures,omitempty"`
	// Refused are requests that devices refused and the planner fulfils in another way since, see ops.Request. They are
	// tried again with other rules, and in another sandbox.
	Refused map[string]string `json:"refused,omitempty"`
	// Chosen are the values that the planner has chosen for this sandbox, for as long as it is in
	// this namespace.
	Chosen ops.Choices `json:"chosen,omitempty"`
	// Fighting is the contention at the last check of the loop.
	Fighting []Contention `json:"fighting,omitempty"`
	Updated  time.Time    `json:"updated"`
}

// LastApplied reports whether a topology, with what its steps are given beside devices, was
// the last to be applied as a whole, in this boot or an earlier one. A pass then plans it
// although validation would refuse it for a new sandbox. It is false for a nil record.
func (r *Record) LastApplied(t *topology.Topology, given ops.Givens) bool {
	return r != nil && r.Phase != Releasing && len(r.Results) > 0 && sameTopology(r.Sandbox, Sandbox{Topology: t, Given: given})
}

// Store keeps records. An implementation must survive a crash at any byte: what a method
// has written when it returns is durable.
type Store interface {
	// List returns all records in order of ID, and one error per file that could not be
	// read; such a file is set aside, or left alone if it is of another version
	// (frame.OtherVersion), and does not affect others.
	List() ([]Record, []error)
	// IDs returns the IDs of the records of List, in order, and its errors, without
	// reading the files: a file that was damaged since may be among them.
	IDs() ([]SandboxID, []error)
	// Holders returns the records that may hold one of the devices, and Beside those of the other sandboxes of a
	// namespace, by its path or its ID. Neither reads a record that has not changed, or reports one that cannot be read.
	Holders(devices []string) []Record
	Beside(id SandboxID, netns string, open NetnsID) []Record
	// OtherVersions returns the records of other versions that were met.
	OtherVersions() []*frame.OtherVersion
	// Get returns one record; false when there is none. One of another version
	// is an error (frame.OtherVersion), and so is writing or removing it.
	Get(id SandboxID) (Record, bool, error)
	// Put writes the whole record, durably.
	Put(r Record) error
	// Intend adds changes that are about to be applied to the record's history and sets
	// its phase to Applying (or keeps Releasing), durably, with one fsync. It is called
	// before the first of them is applied.
	Intend(id SandboxID, changes []netstate.Change) error
	// Settle replaces the record after a pass. It need not be durable: after a
	// crash the pass is planned again from what is observed.
	Settle(r Record) error
	// Remove forgets a record; an absent one is no error.
	Remove(id SandboxID) error
	// Lock locks one sandbox against all other processes until unlock is called. It
	// waits until ctx ends, or not at all (WithoutWait), and fails with ErrInUse then.
	Lock(ctx context.Context, id SandboxID) (unlock func(), err error)
}

// ErrPartial means that a sandbox cannot be read in full: it has more objects than the
// bounds allow, or changes faster than it can be read.
var ErrPartial = errors.New("cannot be read in full")

// Domain is an open view of one sandbox and the host objects it uses: the only place
// that touches the kernel. Closed, it keeps no namespace alive.
type Domain interface {
	External
	// Observe dumps the sandbox's links, addresses and routes (one dump each), and
	// reads the given objects (only their keys matter). With an error that wraps
	// ErrPartial it returns what it has read of the host and the devices.
	Observe(ctx context.Context, queried []netstate.Object) (*netstate.Snapshot, error)
	// NetnsID identifies the namespace that is open; zero if it no longer exists.
	NetnsID() NetnsID
}

// Batcher is a Domain that makes changes of kinds with the trait Together at once.
type Batcher interface {
	Domain
	// ApplyAll makes all of the changes, which are of one kind, or none.
	ApplyAll(ctx context.Context, changes []netstate.Change) error
}
