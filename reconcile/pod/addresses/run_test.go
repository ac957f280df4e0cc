package addresses

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// timed is an API server that notes when its pools are read.
type timed struct {
	onlyNode
	*table.Changes
	began time.Time
	at    []time.Duration
	err   error
}

func (s *timed) Wakes(w table.Wake) func() { return s.Changes.Wakes(w) }

func (s *timed) Pools() ([]v1alpha1.AddressPool, error) {
	s.at = append(s.at, time.Since(s.began))
	return nil, s.err
}

// TestRun holds when the leases of a node are compared: at once, when one changes, every half minute, and, while the API server fails,
// after pauses that grow and that no change shortens.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s := &timed{onlyNode: onlyNode{}, Changes: &table.Changes{}, began: time.Now(), err: errors.New("overloaded")}
		a, err := Open(Options{
			Leases: s, NodeName: "n", File: filepath.Join(t.TempDir(), "addresses"), Recorded: func() []addresspool.Grant { return nil },
			Ended: func(context.Context, addresspool.Grant) (bool, error) { return false, nil },
			Log:   slog.New(slog.NewTextHandler(io.MultiWriter(&log), nil)), Now: time.Now, Random: func(below uint64) uint64 { return below / 2 },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
		defer cancel()
		for _, wake := range []time.Duration{500 * time.Millisecond, 2 * time.Second, 45 * time.Second} {
			time.AfterFunc(wake, s.Changed)
		}
		time.AfterFunc(20*time.Second, func() { s.err = nil })
		a.Run(ctx)
		var want []time.Duration
		for _, seconds := range []int{0, 1, 3, 7, 15, 23, 45, 75} {
			want = append(want, time.Duration(seconds)*time.Second)
		}
		for i := range s.at {
			s.at[i] = s.at[i].Truncate(time.Millisecond)
		}
		if !slices.Equal(s.at, want) {
			t.Errorf("the pools were read at %v, want %v", s.at, want)
		}
		if n := strings.Count(log.String(), "address lease pass failed"); n != 1 {
			t.Errorf("one failure was logged %d times:\n%s", n, log.String())
		}
	})
}
