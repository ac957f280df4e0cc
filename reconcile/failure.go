package reconcile

import (
	"errors"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/fault"
)

// StepFailure is one failure of a pass, as a record keeps it.
type StepFailure struct {
	Step    string     `json:"step,omitempty"` // "" when it concerns none
	Kind    fault.Kind `json:"kind"`
	Message string     `json:"message"` // without topology and step
}

// Bounds of the failures in a record.
const (
	maxFailures       = 16
	maxFailureMessage = 1000 // bytes
)

// FailuresOf splits an error into failures by step.
func FailuresOf(err error) []StepFailure {
	var out []StepFailure
	var walk func(err error)
	walk = func(err error) {
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			for _, e := range joined.Unwrap() {
				walk(e)
			}
			return
		}
		if len(out) == maxFailures {
			return
		}
		f := StepFailure{Kind: fault.Of(err), Message: err.Error()}
		if step, ok := errors.AsType[*ops.StepError](err); ok {
			f.Step = step.Step
		}
		if step, ok := fault.As[*ops.StepError](err); ok { // no words were put before it
			f.Message = step.Err.Error()
		}
		f.Message = excerpt.Of(f.Message, maxFailureMessage)
		out = append(out, f)
	}
	if err != nil {
		walk(err)
	}
	return out
}

// fail sets in a record why its last pass failed; nil if it did not.
func (r *Record) fail(err error) {
	r.Failure, r.Failures = "", FailuresOf(err)
	if err != nil {
		r.Failure = err.Error()
	}
}

// FailureError returns the failure of the last pass as an error again, with steps
// and kinds; nil when there was none.
func (r *Record) FailureError() error {
	if r.Failure == "" {
		return nil
	}
	var all []error
	for _, f := range r.Failures {
		err := fault.New(f.Kind, errors.New(f.Message))
		if f.Step != "" {
			step := &ops.StepError{Step: f.Step, Err: err}
			if t := r.Sandbox.Topology; t != nil {
				step.Topology = t.Name
			}
			err = step
		}
		all = append(all, err)
	}
	if len(all) == 1 {
		return all[0]
	}
	return errors.Join(all...)
}
