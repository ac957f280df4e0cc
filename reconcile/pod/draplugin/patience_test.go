package draplugin

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestRetryReason holds that the error of the last try is returned, or that of the one before if
// the last one was only cut short: the kubelet's event has nothing else.
func TestRetryReason(t *testing.T) {
	for name, c := range map[string]struct {
		takes time.Duration // of each try but the first
		want  string
	}{
		"between two tries": {0, "not yet"},
		"in a try":          {10 * time.Second, "not yet"},
		"in the first try":  {0, "context deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				first := name != "in the first try"
				_, err := retry(ctx, func() (struct{}, error) {
					if !first && c.takes > 0 || name == "in the first try" {
						<-ctx.Done()
						return struct{}{}, passing(ctx.Err())
					}
					first = false
					return struct{}{}, passing(errors.New("not yet"))
				}, nil)
				if err == nil || err.Error() != c.want {
					t.Errorf("said %v, want %q", err, c.want)
				}
			})
		})
	}
}
