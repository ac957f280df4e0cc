package reconcile

import "context"

// Progress is how far an Ensure has come with the changes it has planned so far.
// Later stages may add some.
type Progress struct {
	Step    string // of the change that is made now
	Done    int    // changes made
	Planned int    // changes planned, Done included
}

type progressKey struct{}

// WithProgress lets report be called before each change an Ensure with the context
// makes. It must not block.
func WithProgress(ctx context.Context, report func(Progress)) context.Context {
	return context.WithValue(ctx, progressKey{}, report)
}

// ReportProgress returns what WithProgress was given, or what does nothing.
func ReportProgress(ctx context.Context) func(Progress) {
	if report, ok := ctx.Value(progressKey{}).(func(Progress)); ok {
		return report
	}
	return func(Progress) {}
}
