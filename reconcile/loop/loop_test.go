package loop

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// passes runs a loop for a time of the clock of synctest, and returns when its passes began. It is woken at the given times.
func passes(t *testing.T, l Loop, during time.Duration, wakes ...time.Duration) (at []time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), during)
		defer cancel()
		wake := make(chan struct{}, 1)
		l.Wake = wake
		for _, w := range wakes {
			time.AfterFunc(w, func() {
				select {
				case wake <- struct{}{}:
				default:
				}
			})
		}
		pass := l.Pass
		l.Pass = func(ctx context.Context) (time.Duration, error) {
			at = append(at, time.Since(began))
			return pass(ctx)
		}
		l.Run(ctx)
	})
	return at
}

func seconds(all ...float64) (out []time.Duration) {
	for _, s := range all {
		out = append(out, time.Duration(s*float64(time.Second)))
	}
	return out
}

func TestLoop(t *testing.T) {
	broken := errors.New("broken")
	n := 0
	for _, c := range []struct {
		name  string
		loop  Loop
		wakes []time.Duration
		want  []time.Duration
	}{
		{"at intervals", Loop{Every: 10 * time.Second, Pass: func(context.Context) (time.Duration, error) { return 0, nil }}, nil, seconds(0, 10, 20)},
		{"as the pass says", Loop{Every: time.Hour, Pass: func(context.Context) (time.Duration, error) { return 7 * time.Second, nil }}, nil, seconds(0, 7, 14, 21, 28)},
		{"a failure is tried again at intervals", Loop{Every: 10 * time.Second, Pass: func(context.Context) (time.Duration, error) { return 0, broken }}, nil, seconds(0, 10, 20)},
		{
			"failures in succession are tried again later and later, up to the interval", Loop{Every: 5 * time.Second, Retry: time.Second, Pass: func(context.Context) (time.Duration, error) {
				return 0, broken
			}}, nil, seconds(0, 1, 3, 7, 12, 17, 22, 27),
		},
		{
			"a success ends the succession", Loop{Every: 8 * time.Second, Retry: time.Second, Pass: func(context.Context) (time.Duration, error) {
				if n++; n == 3 {
					return 0, nil
				}
				return 0, broken
			}}, nil, seconds(0, 1, 3, 11, 12, 14, 18, 26),
		},
		{
			"woken, and several wakes in a rest are one",
			Loop{
				Every: time.Hour, Rest: func(took time.Duration) time.Duration { return 2*time.Second + took },
				Pass: func(context.Context) (time.Duration, error) { time.Sleep(time.Second); return 0, nil },
			},
			seconds(0.5, 1, 1.5, 2, 4.5, 5, 20),
			seconds(0, 4, 8, 20), // each takes 1 s and rests for 3 s
		},
	} {
		if got := passes(t, c.loop, 29*time.Second, c.wakes...); !slices.Equal(got, c.want) {
			t.Errorf("%s: passes at %v, want %v", c.name, got, c.want)
		}
	}
}

// TestWarn: each error is reported once, until there is another one or none between; with a doubt, when it has come back.
func TestWarn(t *testing.T) {
	results := []string{"a", "a", "b", "a", "", "a", "a", "a"}
	for _, c := range []struct {
		doubt int
		want  []string
	}{
		{0, []string{"a", "b", "a", "a"}},
		{1, []string{"a", "a"}},
		{2, []string{"a"}},
	} {
		var warned []string
		n := 0
		passes(t, Loop{Every: time.Second, Doubt: c.doubt, Warn: func(err error) { warned = append(warned, err.Error()) }, Pass: func(context.Context) (time.Duration, error) {
			if n++; n > len(results) || results[n-1] == "" {
				return 0, nil
			}
			return 0, errors.New(results[n-1])
		}}, 10*time.Second)
		if !slices.Equal(warned, c.want) {
			t.Errorf("with a doubt of %d, %q was reported, want %q", c.doubt, warned, c.want)
		}
	}
}

// TestWait: it returns at its time, when it is woken, and when its context ends.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		wake := make(chan struct{}, 1)
		began := time.Now()
		if !Wait(ctx, time.Minute, nil) || time.Since(began) != time.Minute {
			t.Error("not for its time")
		}
		wake <- struct{}{}
		if !Wait(ctx, time.Hour, wake) || time.Since(began) != time.Minute {
			t.Error("not woken")
		}
		cancel()
		if Wait(ctx, time.Hour, wake) {
			t.Error("the context has ended")
		}
	})
}
