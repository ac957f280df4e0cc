// Package fault defines the kinds of failure.
//
// The kind of an error decides what happens next (give up, retry, report); it is the reason
// of a condition and the label of a metric. Packages wrap errors with %w as usual; only the
// place that knows why something failed attaches a kind.
package fault

import (
	"errors"
	"reflect"
	"strings"
)

// Kind is a class of failure.
type Kind string

// The kinds.
const (
	Invalid      Kind = "Invalid"      // the topology or the request is wrong; retrying cannot help
	NotReady     Kind = "NotReady"     // something does not exist yet; retrying may help
	Conflict     Kind = "Conflict"     // a foreign object or another sandbox conflicts
	Unsupported  Kind = "Unsupported"  // the kernel, driver or device lacks what was requested
	NotConverged Kind = "NotConverged" // changes were applied, yet the observed state still differs
	Gone         Kind = "Gone"         // the namespace or device disappeared
	Internal     Kind = "Internal"     // everything else, including the kernel's own errors
)

// Kinds lists them all.
func Kinds() []Kind {
	return []Kind{Invalid, NotReady, Conflict, Unsupported, NotConverged, Gone, Internal}
}

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

// SameText reports whether two errors, of which either may be nil, read the same: who logs a condition logs it once. Whoever
// decides by what an error is uses Of, errors.Is or errors.AsType.
func SameText(a, b error) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return a.Error() == b.Error() // as text: this is the place
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

// joined is the type of what errors.Join returns.
var joined = reflect.TypeOf(errors.Join(errors.New("")))

// Each returns the errors that errors.Join has joined, also those that were joined before, and any other error alone. Nil has
// none. An error that wraps joined ones is one.
func Each(err error) []error {
	switch {
	case err == nil:
		return nil
	case reflect.TypeOf(err) != joined:
		return []error{err}
	}
	var out []error
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		out = append(out, Each(e)...)
	}
	return out
}

type detailed struct {
	detail string
	err    error
}

func (e *detailed) Error() string { return e.err.Error() }
func (e *detailed) Unwrap() error { return e.err }

// Detailed attaches to an error what is only for the operators of the node, such
// as which tenant's pod has a device. It is no part of Error, which users of the
// cluster read in events and statuses; Detail returns it. nil stays nil.
func Detailed(err error, detail string) error {
	if err == nil || detail == "" {
		return err
	}
	return &detailed{detail, err}
}

// As returns err as a T if it is one, with no more than a kind or a detail attached: its text is that of
// the T. errors.AsType also returns a T that another error wraps with words of its own.
func As[T error](err error) (t T, ok bool) {
	for {
		switch e := err.(type) { //nolint:errorlint // what wraps it with words is looked at, not through
		case T:
			return e, true
		case *kinded:
			err = e.err
		case *detailed:
			err = e.err
		default:
			return t, false
		}
	}
}

// Detail returns what Detailed has attached to err and to the errors in it, in
// order; "" when nothing.
func Detail(err error) string {
	return strings.Join(details(err, nil), "; ")
}

func details(err error, found []string) []string {
	if d, ok := err.(*detailed); ok { //nolint:errorlint // the tree is walked here
		found = append(found, d.detail)
	}
	switch e := err.(type) { //nolint:errorlint // as above
	case interface{ Unwrap() error }:
		return details(e.Unwrap(), found)
	case interface{ Unwrap() []error }:
		for _, in := range e.Unwrap() {
			found = details(in, found)
		}
	}
	return found
}
