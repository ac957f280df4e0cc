package draplugin

import (
	"context"
	"errors"
	"time"

	"github.com/plumbline/plumbline/reconcile/loop"
)

// The intervals at which a claim that cannot be prepared yet is retried.
const (
	paceFirst = 50 * time.Millisecond
	paceMost  = time.Second
)

// pass is a temporary error, which may end before the kubelet would retry.
type pass struct{ error }

func (p *pass) Unwrap() error { return p.error }

// passing marks an error as temporary; nil stays nil.
func passing(err error) error {
	if err == nil {
		return nil
	}
	return &pass{err}
}

// retry repeats a call that fails with a temporary error, until ctx ends; then it returns
// the last error, or the one before if that says only that ctx has ended. waiting is called once,
// with the first.
func retry[T any](ctx context.Context, try func() (T, error), waiting func(error)) (T, error) {
	var before error
	for pace := paceFirst; ; pace = min(2*pace, paceMost) {
		v, err := try()
		if before != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return v, before
		}
		before = err
		if _, passes := errors.AsType[*pass](err); !passes || ctx.Err() != nil {
			return v, err
		}
		if waiting != nil {
			waiting(err)
			waiting = nil
		}
		if !loop.Wait(ctx, pace, nil) {
			return v, err
		}
	}
}
