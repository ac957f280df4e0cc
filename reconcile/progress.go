package reconcile

import "context"

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
