package effort

import (
	"flag"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The variables of the environment.
const (
	soakEnv = "PLUMBLINE_SOAK" // how long a random test runs in the long form, such as "10m"
	seedEnv = "PLUMBLINE_SEED" // the seed of a run to repeat
)

// longDuration is short enough for make test-all to have many random tests.
const longDuration = 2 * time.Minute

// Long reports whether tests run in their long form.
func Long() bool { return long }

// Duration returns how long a random test runs: as given in the short form,
// as long as PLUMBLINE_SOAK says or two minutes in the long form. It fails the
// test if PLUMBLINE_SOAK is not a duration.
func Duration(t testing.TB, short time.Duration) time.Duration {
	t.Helper()
	value := os.Getenv(soakEnv)
	switch {
	case !long:
		return short
	case value == "":
		return longDuration
	}
	d, err := time.ParseDuration(value)
	if err != nil {
		t.Fatalf("%s: %v", soakEnv, err)
	}
	return d
}

// Seed returns the seed of a random test: PLUMBLINE_SEED, or another one at
// each call. It is logged, and how to repeat the run. It fails the test if
// PLUMBLINE_SEED is not a number.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if value := os.Getenv(seedEnv); value != "" {
		var err error
		if seed, err = strconv.ParseUint(value, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedEnv, err)
		}
	}
	t.Logf("%s=%d repeats this run", seedEnv, seed)
	return seed
}

// Stride returns where a test begins that goes through a numbered series from
// one on, and its step: one and one in the long form. In the short form the step
// is as given, and the beginning is drawn from the first numbers, so that runs
// together go through all. It is logged, and PLUMBLINE_SEED repeats it.
func Stride(t testing.TB, step int) (first, stride int) {
	t.Helper()
	if long || step <= 1 {
		return 1, 1
	}
	return 1 + int(Seed(t)%uint64(step)), step
}

// Sample returns every step'th of the cases of a test, of which the first is drawn: runs together
// go through all. It returns all in the long form, if -run names cases, and if PLUMBLINE_SEED says
// what to repeat.
func Sample[T any](t testing.TB, step int, cases []T) (sample []T) {
	t.Helper()
	step = min(step, len(cases))
	if run := flag.Lookup("test.run"); long || step <= 1 || os.Getenv(seedEnv) != "" || strings.Contains(run.Value.String(), "/") {
		return cases
	}
	for i := rand.IntN(step); i < len(cases); i += step {
		sample = append(sample, cases[i])
	}
	return sample
}
