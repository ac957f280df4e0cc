package draplugin

import (
	"context"
	"errors"
	"time"
)

// The pace at which a claim is tried again that cannot be prepared yet.
const (
	paceFirst = 50 * time.Millisecond
	paceMost  = time.Second
)

// pass is an error that may pass by itself, in less time than the kubelet takes to
// come again.
type pass struct{ error }

func (p *pass) Unwrap() error { return p.error }

// passing marks an error so; nil stays nil.
func passing(err error) error {
	if err == nil {
		return nil
	}
	return &pass{err}
}

// retry repeats what fails with an error that may pass, until ctx ends; then it
// returns the last one. waiting is called once, with the first.
func retry[T any](ctx context.Context, try func() (T, error), waiting func(error)) (T, error) {
	for pace := paceFirst; ; pace = min(2*pace, paceMost) {
		v, err := try()
		if _, passes := errors.AsType[*pass](err); !passes || ctx.Err() != nil {
			return v, err
		}
		if waiting != nil {
			waiting(err)
			waiting = nil
		}
		timer := time.NewTimer(pace)
		select {
		case <-ctx.Done():
			timer.Stop()
			return v, err
		case <-timer.C:
		}
	}
}
