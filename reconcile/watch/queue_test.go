package watch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

const ms = time.Millisecond

// bench is a queue in a synctest bubble.
type bench struct {
	*queue
	t     *testing.T
	began time.Time

	mu      sync.Mutex
	gone    map[reconcile.SandboxID]bool
	counted map[reconcile.SandboxID]int
}

// setGone sets whether checks find the sandbox's namespace gone from now on.
func (b *bench) setGone(id reconcile.SandboxID, gone bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone[id] = gone
}

// checks returns how often that was checked.
func (b *bench) checks(id reconcile.SandboxID) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.counted[id]
}

// inBubble runs f beside a queue.
func inBubble(t *testing.T, f func(*bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		opts, err := Options{}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		b := &bench{t: t, began: time.Now(), gone: map[reconcile.SandboxID]bool{}, counted: map[reconcile.SandboxID]int{}}
		b.queue = newQueue(opts, func(id reconcile.SandboxID) bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.counted[id]++
			return b.gone[id]
		})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { b.run(ctx, nil) })
		defer running.Wait()
		defer cancel()
		f(b)
	})
}

// at waits until that long after the beginning.
func (b *bench) at(d time.Duration) {
	time.Sleep(d - time.Since(b.began))
	synctest.Wait()
}

// want receives an event, which must be delivered at that time.
func (b *bench) want(at time.Duration, want Event) {
	b.t.Helper()
	got := <-b.events
	if now := time.Since(b.began); got != want || now != at {
		b.t.Fatalf("after %v: %+v\nwant after %v: %+v", now, got, at, want)
	}
	synctest.Wait()
}

// none fails if an event is delivered now.
func (b *bench) none() {
	b.t.Helper()
	synctest.Wait()
	select {
	case e := <-b.events:
		b.t.Fatalf("after %v: %+v, want nothing", time.Since(b.began), e)
	default:
	}
}

func TestDebounce(t *testing.T) {
	changed := Event{ID: "a", Reason: Changed}
	for _, tt := range []struct {
		name          string
		notifications []time.Duration
		events        []time.Duration
	}{
		{"one", []time.Duration{0}, []time.Duration{10 * ms}},
		{"burst", []time.Duration{0, 1 * ms, 2 * ms, 9 * ms}, []time.Duration{19 * ms}},
		{"two", []time.Duration{0, 11 * ms}, []time.Duration{10 * ms, 21 * ms}},
		{"never quiet", []time.Duration{0, 8 * ms, 16 * ms, 24 * ms, 32 * ms, 40 * ms, 48 * ms, 56 * ms}, []time.Duration{50 * ms, 66 * ms}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				b.add("a", 0)
				b.add("other", 0)
				var notifying sync.WaitGroup
				notifying.Go(func() {
					for _, at := range tt.notifications {
						time.Sleep(at - time.Since(b.began))
						b.changed("a")
					}
				})
				for _, at := range tt.events {
					b.want(at, changed)
				}
				notifying.Wait()
				b.at(5 * time.Second)
				b.none()
			})
		})
	}
}

func TestSlowConsumer(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.add("a", 0)
		b.add("b", 0)
		b.changed("a")
		b.at(1 * ms)
		for i := range 1000 {
			b.changed("a")
			b.changed("b")
			b.at(time.Duration(i+1) * 7 * ms)
		}
		// A change before the event is received is covered by it.
		b.want(7*time.Second, Event{ID: "a", Reason: Changed})
		b.want(7*time.Second, Event{ID: "b", Reason: Changed})
		b.none()
		b.changed("a")
		b.want(7010*ms, Event{ID: "a", Reason: Changed})

		// A worse reason, and the end, change an event that is offered and not yet
		// received.
		b.changed("b")
		b.at(8 * time.Second)
		b.overflow("b")
		synctest.Wait()
		b.want(8*time.Second, Event{ID: "b", Reason: Overflow})
		b.changed("b")
		b.at(9 * time.Second)
		b.setGone("b", true)
		b.suspect("b")
		b.want(9*time.Second, Event{ID: "b", Reason: Changed, Gone: true})
		b.none()
	})
}

func TestRemove(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.add("a", 0)
		b.changed("a")
		b.at(20 * ms) // on offer
		b.remove("a")
		b.none()
		b.changed("a")
		b.suspect("a")
		b.overflow("a")
		b.remove("never was")
		b.at(time.Hour)
		b.none()
		b.add("a", 0)
		b.changed("a")
		b.want(time.Hour+10*ms, Event{ID: "a", Reason: Changed})
		// After it was added again, the past is forgotten.
		b.changed("a")
		b.add("a", 0)
		b.at(time.Hour + 30*time.Second)
		b.none()
	})
}

func TestResync(t *testing.T) {
	inBubble(t, func(b *bench) {
		const n = 100
		last := map[reconcile.SandboxID]time.Duration{}
		for i := range n {
			id := reconcile.SandboxID(fmt.Sprint("s", i))
			b.add(id, 0)
			last[id] = 0
		}
		times := map[time.Duration]int{}
		for range 5 * n {
			e := <-b.events
			now := time.Since(b.began)
			earliest := 54 * time.Second
			if last[e.ID] == 0 {
				earliest = 6 * time.Second
			}
			if after := now - last[e.ID]; e.Reason != Resync || e.Gone || after < earliest || after > 66*time.Second {
				t.Fatalf("%+v after %v", e, after)
			}
			last[e.ID] = now
			times[now]++
		}
		if len(times) < 4*n {
			t.Errorf("%d events at %d moments", 5*n, len(times))
		}
		for id := range last {
			if b.checks(id) < 4 || b.checks(id) > 7 {
				t.Errorf("%d checks for %s", b.checks(id), id)
			}
			b.remove(id)
		}
		// An event with another reason is a check as well.
		b.add("", 0)
		began := time.Since(b.began)
		for i := range 20 {
			b.at(began + time.Duration(i)*50*time.Second)
			b.changed("")
			b.want(began+time.Duration(i)*50*time.Second+10*ms, Event{Host: true, Reason: Changed})
		}
		if e := <-b.events; e != (Event{Host: true, Reason: Resync}) {
			t.Errorf("%+v", e)
		}
	})
}

// TestPodLinkEvents holds that an event says whether all that changed are links of pods: one
// notification about another link is enough for a device, and none is left over for later
// events.
func TestPodLinkEvents(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.add("", 0)
		pod, device := Event{Host: true, Reason: Changed, PodLinks: true}, Event{Host: true, Reason: Changed}
		for i, want := range []Event{pod, device, pod, device, device, pod} {
			began := time.Since(b.began)
			switch i {
			case 1:
				b.podLinkChanged()
				b.changed("")
			case 3:
				b.changed("")
				b.podLinkChanged()
			case 4:
				b.changed("")
			default:
				b.podLinkChanged()
			}
			b.want(began+10*ms, want)
		}
	})
}

// TestResyncsAreSpread holds that what happens to all sandboxes of a node at one time
// does not cause checks of all of them at one time later, and that the rate of checks
// is limited.
func TestResyncsAreSpread(t *testing.T) {
	inBubble(t, func(b *bench) {
		const n, bins = 500, 10
		const period = n * resyncPace
		for i := range n {
			b.add(reconcile.SandboxID(fmt.Sprint("s", i)), 0)
		}
		spread := func(when string, most int) {
			t.Helper()
			began := time.Since(b.began)
			var in [bins + 2]int
			for range n {
				e := <-b.events
				if e.Reason != Resync {
					t.Fatalf("%s: %+v", when, e)
				}
				in[(time.Since(b.began)-began)/(period/bins)]++
			}
			for i, checked := range in {
				if checked > most {
					t.Errorf("%s: %d of %d within the %d. tenth of the period: %v", when, checked, n, i+1, in)
				}
			}
		}
		spread("after they were added", n/bins*3/2)
		spread("in the next period", n/bins*3/2)
		for i := range n {
			b.overflow(reconcile.SandboxID(fmt.Sprint("s", i)))
		}
		for range n {
			if e := <-b.events; e.Reason == Changed {
				t.Fatalf("%+v", e)
			}
		}
		spread("after an overflow", n/bins*3/2)
		spread("in the period after that", n/bins*3/2)
	})
}

func TestOverflowIsRateLimited(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.add("a", 0)
		over := Event{ID: "a", Reason: Overflow}
		b.overflow("a")
		b.overflow("a")
		b.want(10*ms, over)
		if b.checks("a") != 1 { // the notification of its end may have been lost
			t.Errorf("%d checks", b.checks("a"))
		}
		b.overflow("a")
		b.at(500 * ms)
		b.overflow("a")
		b.want(1010*ms, over)
		// A notification does not wait, and covers the overflow.
		b.overflow("a")
		b.changed("a")
		b.want(1020*ms, over)
		b.at(3 * time.Second)
		b.none()
		b.overflow("a")
		b.want(3010*ms, over)
	})
}

// One namespace that is flooded for a minute must not cause a check of each of hundreds
// of others every second.
func TestOverflowOfManyIsPaced(t *testing.T) {
	inBubble(t, func(b *bench) {
		const n = 500
		for i := range n {
			b.add(reconcile.SandboxID(fmt.Sprint("s", i)), 0)
		}
		checked := 0
		b.flood(n, time.Minute, func(e Event) {
			if e.Reason == Overflow {
				checked++
			}
		})
		if most := n + int(time.Minute/overflowPace); checked < n || checked > most {
			t.Errorf("%d checks, want %d to %d", checked, n, most)
		}
	})
}

// flood reports lost notifications of every sandbox all the time, and receives the
// events.
func (b *bench) flood(n int, length time.Duration, f func(Event)) {
	tick := time.NewTicker(100 * ms)
	defer tick.Stop()
	for end := time.Now().Add(length); time.Now().Before(end); {
		select {
		case e := <-b.events:
			f(e)
		case <-tick.C:
			for i := range n {
				b.overflow(reconcile.SandboxID(fmt.Sprint("s", i)))
			}
		}
	}
}

func TestGone(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.add("a", 0)
		b.add("pinned", livenessEvery)
		b.suspect("a")
		b.none() // it was there
		if b.checks("a") != 1 {
			t.Errorf("%d checks", b.checks("a"))
		}
		b.at(20 * time.Second)
		b.none()
		if b.checks("pinned") != 9 && b.checks("pinned") != 10 {
			t.Errorf("%d checks", b.checks("pinned"))
		}
		b.setGone("pinned", true)
		b.want(22*time.Second, Event{ID: "pinned", Reason: Changed, Gone: true})
		b.setGone("a", true)
		b.overflow("a")
		b.want(22*time.Second+10*ms, Event{ID: "a", Reason: Changed, Gone: true})
		b.changed("a")
		b.suspect("a")
		b.at(time.Hour)
		b.none()

		// Added again before its end was delivered, it starts from the beginning.
		b.add("a", 0)
		b.suspect("a")
		synctest.Wait()
		b.setGone("a", false)
		b.add("a", 0)
		b.none()
		b.changed("a")
		b.want(time.Hour+10*ms, Event{ID: "a", Reason: Changed})
	})
}

// TestGoneMeanwhile holds that the end of a namespace is found if the kernel reports it, or may have, while an event of
// its sandbox is received or while an earlier check looks at its path.
func TestGoneMeanwhile(t *testing.T) {
	for name, meanwhile := range map[string]func(*queue) (done func()){
		"an event is received": func(q *queue) func() {
			q.changed("a")
			time.Sleep(time.Second)
			o, _ := q.next()
			q.suspect("a")
			return func() { q.delivered(o) }
		},
		"an event is received, and notifications are lost": func(q *queue) func() {
			q.changed("a")
			time.Sleep(time.Second)
			q.overflow("a")
			o, _ := q.next()
			time.Sleep(time.Second)
			return func() { q.delivered(o) }
		},
		"a check looks": func(q *queue) func() {
			q.suspect("a")
			o, _ := q.next()
			q.suspect("a")
			return func() { q.checked(o, false) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts, err := Options{}.withDefaults()
				if err != nil {
					t.Fatal(err)
				}
				q := newQueue(opts, nil)
				q.add("a", 0)
				meanwhile(q)()
				o, wait := q.next()
				if o.item == nil || !o.check {
					t.Fatalf("%+v, to wait %v: want a check", o.event, wait)
				}
				q.checked(o, false)
				if o, _ := q.next(); o.item != nil {
					t.Errorf("%+v after the check, check: %v", o.event, o.check)
				}
			})
		})
	}
}

// Every notification is followed by an event in time, whatever else comes.
func TestNothingIsLost(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(b *bench) {
				rnd := rand.New(rand.NewPCG(seed, 0))
				pending := map[reconcile.SandboxID]time.Duration{} // the oldest notification without an event
				ids := []reconcile.SandboxID{"", "a", "b", "c"}
				for _, id := range ids {
					b.add(id, 0)
				}
				var events int
				receive := func() {
					select {
					case e := <-b.events:
						events++
						delete(pending, e.ID)
					default:
					}
				}
				const steps, tick = 5000, 5 * ms
				for range steps {
					if id := ids[rnd.IntN(len(ids))]; rnd.IntN(20) == 0 {
						switch rnd.IntN(4) {
						case 0:
							b.suspect(id)
						case 1:
							b.overflow(id)
						default:
							b.changed(id)
							if _, ok := pending[id]; !ok {
								pending[id] = time.Since(b.began)
							}
						}
					}
					b.at(time.Since(b.began) + tick)
					for range len(ids) {
						receive()
						synctest.Wait()
					}
					for id, since := range pending {
						if late := time.Since(b.began) - since; late > b.opts.MaxDelay+tick {
							t.Fatalf("no event for a notification of %q for %v", id, late)
						}
					}
				}
				if events < 50 || events > steps/10 {
					t.Errorf("%d events", events)
				}
			})
		})
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Debounce: -1}, {MaxDelay: -1}, {Resync: -1}, {ReceiveBufferBytes: -1}} {
		if _, err := o.withDefaults(); fault.Of(err) != fault.Invalid {
			t.Errorf("%+v: %v", o, err)
		}
	}
	o, err := Options{Debounce: time.Second}.withDefaults()
	if err != nil || o.MaxDelay != time.Second || o.Resync != time.Minute {
		t.Errorf("%+v, %v", o, err)
	}
}
