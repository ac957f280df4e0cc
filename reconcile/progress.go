package reconcile

import (
	"context"
	"errors"
)

// Progress is the progress of an Ensure through the changes planned so far. Later stages
// may add some.
type Progress struct {
	Step    string // of the change that is being applied
	Done    int    // changes made
	Planned int    // changes planned, Done included
}

type progressKey struct{}

// WithProgress returns a context with which Ensure calls report before each change. It
// must not block.
func WithProgress(ctx context.Context, report func(Progress)) context.Context {
	return context.WithValue(ctx, progressKey{}, report)
}

// ReportProgress returns the function given to WithProgress, or one that does nothing.
func ReportProgress(ctx context.Context) func(Progress) {
	if report, ok := ctx.Value(progressKey{}).(func(Progress)); ok {
		return report
	}
	return func(Progress) {}
}

// ErrInUse means that a sandbox is locked, by another pass or by another program. The kind of an
// error that wraps it is fault.NotReady.
var ErrInUse = errors.New("in use")

type withoutWaitKey struct{}

// WithoutWait returns a context with which a Store does not wait for a lock: what needs one fails
// with ErrInUse. It is for callers that retry and have other sandboxes to work on.
func WithoutWait(ctx context.Context) context.Context {
	return context.WithValue(ctx, withoutWaitKey{}, true)
}

// Waits reports whether a Store is to wait for a lock.
func Waits(ctx context.Context) bool { return ctx.Value(withoutWaitKey{}) == nil }
