// Package fault names the few kinds of failure plumbline knows.
//
// The kind of an error decides what happens next (give up, retry, report) and
// is the same word in a condition's reason and in a metric's label. Packages
// wrap errors with %w as usual; only the place that knows why something failed
// attaches a kind.
package fault

import "errors"

// Kind is a class of failure.
type Kind string

// The kinds, from the user's mistake to ours.
const (
	Invalid      Kind = "Invalid"      // the topology or the request is wrong; retrying cannot help
	NotReady     Kind = "NotReady"     // something is not there yet; retrying may help
	Conflict     Kind = "Conflict"     // a foreign object or another sandbox stands in the way
	Unsupported  Kind = "Unsupported"  // the kernel, driver or device lacks what was asked for
	NotConverged Kind = "NotConverged" // changes were applied, yet the observed state still differs
	Gone         Kind = "Gone"         // the namespace or device disappeared
	Internal     Kind = "Internal"     // everything else, including the kernel's own errors
)

type kinded struct {
	kind Kind
	err  error
}

func (e *kinded) Error() string { return e.err.Error() }
func (e *kinded) Unwrap() error { return e.err }

// New attaches a kind to an error; nil stays nil.
func New(kind Kind, err error) error {
	if err == nil {
		return nil
	}
	return &kinded{kind, err}
}

// Of returns the outermost kind attached to err, Internal when none is, and
// "" for nil.
func Of(err error) Kind {
	if err == nil {
		return ""
	}
	if k, ok := errors.AsType[*kinded](err); ok {
		return k.kind
	}
	return Internal
}
