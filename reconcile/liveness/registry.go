package liveness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// slack is the permitted delay of a part: on a busy node everything is late, and a restart
// does not help.
const slack = 2 * time.Minute

// Registry knows the parts of a process by name. It is safe for concurrent use.
type Registry struct {
	now func() time.Time

	mu    sync.Mutex
	parts map[string]part
}

type part struct {
	due   time.Time // of the next sign of life; zero when none is expected
	ended error     // why the part has stopped, nil while it has not
}

// New returns a registry without parts.
func New(now func() time.Time) *Registry {
	return &Registry{now: now, parts: map[string]part{}}
}

// Alive records that a part has got on, and that it will again within the time
// given, or at any time when that is zero. A part that has ended stays so.
func (r *Registry) Alive(name string, within time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.parts[name]
	p.due = time.Time{}
	if within > 0 {
		p.due = r.now().Add(within + slack)
	}
	r.parts[name] = p
}

// Ended records that a part has stopped permanently, and why.
func (r *Registry) Ended(name string, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if why == nil {
		why = errors.New("it has returned")
	}
	if p := r.parts[name]; p.ended == nil {
		p.ended = why
		r.parts[name] = p
	}
}

// Run runs a part that is to work until ctx ends, and returns its error.
func (r *Registry) Run(ctx context.Context, name string, work func(context.Context) error) error {
	r.Alive(name, 0)
	err := work(ctx)
	if ctx.Err() == nil {
		r.Ended(name, err)
	}
	return err
}

// Check returns an error that names each part that has ended, or is late.
func (r *Registry) Check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(r.parts)) {
		switch p := r.parts[name]; {
		case p.ended != nil:
			errs = append(errs, fmt.Errorf("%s has ended: %w", name, p.ended))
		case !p.due.IsZero() && now.After(p.due):
			errs = append(errs, fmt.Errorf("%s has given no sign of life, %s after it was due", name, now.Sub(p.due).Round(time.Second)))
		}
	}
	return errors.Join(errs...)
}
