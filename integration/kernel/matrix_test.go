//go:build soak

package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile"
)

// TestDeathAtEveryChange: the process ends after any change of any act.
func TestDeathAtEveryChange(t *testing.T) {
	eachScenario(t, scenarios, diesAtEveryChange)
}

// TestEveryMessageFails: any message of any act is refused, or its answer is
// lost. Each message meets one of the numbers, and each kernel one of two
// messages, of which the other kernel takes the other; where there is time for a
// long run they meet all.
func TestEveryMessageFails(t *testing.T) {
	eachScenario(t, scenarios, func(t *testing.T, s *fixture, act string) {
		first, step, all := 1, 2, false
		switch {
		case os.Getenv("PLUMBLINE_SOAK") != "":
			step, all = 1, true
		case os.Getenv("PLUMBLINE_KERNEL") == "backports":
			first = 2
		}
		for _, lost := range []bool{false, true} {
			errnos, numbers := errnos(lost), 1
			if all {
				numbers = len(errnos)
			}
			for n, reached := first, true; reached; n += step {
				for i := range numbers {
					errno := errnos[(n/step+i)%len(errnos)]
					s.prepare(act)
					r, fired := s.disturbed(int64(n), lost, errno)
					err := s.act(act, r)
					reached = fired()
					when := fmt.Sprintf("%s, message %d: %v, lost: %v (%v)", act, n, errno, lost, err)
					if !reached && err != nil {
						t.Fatal(when)
					}
					s.invariants(act, when, n/step+i)
				}
			}
		}
	})
}

// TestDiskFull: the journal has no room, from any write of any act on. A release
// is carried out nevertheless, the rest is left, and continues when there is space.
func TestDiskFull(t *testing.T) {
	eachScenario(t, scenarios, func(t *testing.T, s *fixture, act string) {
		disk := t.TempDir()
		if err := unix.Mount("plumbline", disk, "tmpfs", 0, "size=128k,mode=0700"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		s.dir = filepath.Join(disk, "journal")
		s.undisturbed = s.engine(nil)
		filler := filepath.Join(disk, "filler")
		for n, reached := 1, true; reached; n++ {
			s.prepare(act)
			before := s.state(s.path)
			writes := 0
			err := s.act(act, s.killableEngine(&process{}, nil, func(write func() error) error {
				if writes++; writes == n {
					fill(t, filler)
				}
				return write()
			}))
			reached = writes >= n
			when := fmt.Sprintf("%s, disk full from write %d on (%v)", act, n, err)
			switch {
			case err != nil && !errors.Is(err, unix.ENOSPC), err != nil && act == "release":
				t.Fatal(when)
			case err != nil && n == 1 && act != "repair":
				s.mustEqual(before, s.path, when)
			}
			if err := os.Remove(filler); err != nil && reached {
				t.Fatal(err)
			}
			s.invariants(act, when, n)
		}
	})
}

// TestEngineClockJumps: an engine whose clock jumps at each reading leaves nothing half
// done.
func TestEngineClockJumps(t *testing.T) {
	eachScenario(t, scenarios, func(t *testing.T, s *fixture, act string) {
		s.prepare(act)
		store, reg, err := parts(s.dir)
		if err != nil {
			t.Fatal(err)
		}
		looks := 0
		r := reconcile.New(reconcile.Options{
			Registry: reg, Store: store, BootID: s.host.BootID(),
			Open: func(path string) (reconcile.Domain, error) { return open(s.host, path) },
			Now: func() time.Time {
				looks++
				return time.Now().Round(0).Add(time.Duration(looks%7-3) * time.Hour)
			},
		})
		err = s.act(act, r)
		s.invariants(act, fmt.Sprintf("%s with a jumping clock (%v)", act, err), 0)
	})
}

// TestTornJournal: power fails while the journal is written, at any write of any
// act; of what was being written, some part is on the disk.
func TestTornJournal(t *testing.T) {
	eachScenario(t, scenarios[:1], func(t *testing.T, s *fixture, act string) {
		turn := 0
		for n, reached := 1, true; reached; n++ {
			for part := 0; reached; part++ {
				s.prepare(act)
				life, writes, whole := &process{}, 0, false
				err := s.act(act, s.killableEngine(life, nil, func(write func() error) error {
					if writes++; writes != n {
						return write()
					}
					life.dead = true
					whole = s.tear(write, part)
					return nil
				}))
				if reached = life.dead; !reached && err != nil {
					t.Fatal(err)
				}
				turn++
				s.invariants(act, fmt.Sprintf("%s, journal torn in write %d, part %d", act, n, part), turn)
				if whole {
					break
				}
			}
		}
	})
}
