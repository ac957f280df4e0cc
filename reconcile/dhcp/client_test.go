package dhcp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/netns"
)

// recorded returns leases with one record, of a lease that ends 600 s after boot and is renewed after
// 300 s. It is 100 s after boot when the test begins, in a bubble of synctest.
func recorded(t *testing.T, o Options) *Host {
	t.Helper()
	began := time.Now()
	o.Dir, o.BootID = filepath.Join(t.TempDir(), "dhcp"), "one"
	if o.Within == nil {
		o.Within = func(string, func() error) error { return errors.New("no namespace here") }
	}
	if o.Now == nil {
		o.Now = func() int64 { return 100 + seconds(time.Since(began)) }
	}
	h := Open(o)
	r := &record{Sandbox: "blue/t", Link: "net1", Netns: "/run/netns/blue", BootID: "one", Client: "ff01", Serial: "A", Lease: &Lease{
		Address: netip.MustParsePrefix("192.0.2.9/24"), Server: netip.MustParseAddr("192.0.2.1"), Renew: 300, Rebind: 500, Expires: 600,
	}}
	if err := h.locked(func() error { return h.write(r) }); err != nil {
		t.Fatal(err)
	}
	return h
}

// TestRecordCannotBeWritten: a client of which the lease has ended, on a disk that is full, retries at
// intervals.
func TestRecordCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h *Host
		var asked atomic.Int64
		h = recorded(t, Options{
			Now: func() int64 {
				if asked.Add(1) > 1000 {
					h.stop() // a client that does not pause would not let the clock of the bubble advance
				}
				return 700
			},
			Prolong: func(context.Context, string, reconcile.NetnsID, netstate.Addr) error { return nil },
		})
		defer h.Close()
		lock := filepath.Join(h.Dir, "lock")
		if err := errors.Join(os.Remove(lock), os.Mkdir(lock, 0o700)); err != nil {
			t.Fatal(err)
		}
		h.adopt()
		time.Sleep(10 * time.Minute)
		if n := asked.Load(); n == 0 || n > 100 {
			t.Errorf("the clock was read %d times in ten minutes", n)
		}
	})
}

// TestFullDisk: a lease that a server has given counts, although it cannot be written: the kernel keeps the address, the engine
// sees it, and another process finds it once there is space.
func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ends atomic.Int64
		h := recorded(t, Options{Prolong: func(_ context.Context, _ string, _ reconcile.NetnsID, a netstate.Addr) error {
			ends.Store(a.Expires)
			return nil
		}})
		defer h.Close()
		h.adopt()
		file := name("blue/t", "net1")
		for _, c := range []struct{ what, blocked string }{{"the record", file + ".new"}, {"the lock", "lock"}} {
			blocked := filepath.Join(h.Dir, c.blocked)
			if err := errors.Join(os.RemoveAll(blocked), os.MkdirAll(filepath.Join(blocked, "full"), 0o700)); err != nil {
				t.Fatal(err)
			}
			until := h.Now() + 2000
			l := Lease{Address: netip.MustParsePrefix("192.0.2.9/24"), Server: netip.MustParseAddr("192.0.2.1"), Renew: until - 1000, Rebind: until - 500, Expires: until}
			if err := h.running(file).keep(l); err != nil {
				t.Errorf("%s cannot be written: %v", c.what, err)
			}
			time.Sleep(10 * time.Minute)
			if ends.Load() != until {
				t.Errorf("%s cannot be written: the kernel deletes the address at %d, not at %d", c.what, ends.Load(), until)
			}
			s := netstate.NewSnapshot()
			if err := (view{h, reconcile.Sandbox{ID: "blue/t"}}).Extend(t.Context(), s, []netstate.Object{netstate.DHCPLease{Link: "net1"}}); err != nil {
				t.Fatal(err)
			}
			if got, _ := netstate.Lookup(s, netstate.DHCPLease{Link: "net1"}); got.Expires != until {
				t.Errorf("%s cannot be written: the engine sees %+v", c.what, got)
			}
			if err := h.rewrite(); err == nil || !strings.Contains(err.Error(), "net1") {
				t.Errorf("%s cannot be written, and nobody is told: %v", c.what, err)
			}
			if err := errors.Join(os.RemoveAll(blocked), h.rewrite()); err != nil {
				t.Error(err)
			}
			if r, err := Open(h.Options).read(file); err != nil || r == nil || r.Lease.Expires != until {
				t.Errorf("%s was written: %+v, %v", c.what, r, err)
			}
		}
	})
}

// TestFullDiskOfTwo: what one process could not write does not hide what another one has written since, unless its lease ends later; and
// a process that ends writes it.
func TestFullDiskOfTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := recorded(t, Options{Prolong: func(context.Context, string, reconcile.NetnsID, netstate.Addr) error { return nil }})
		defer h.Close()
		another := Open(h.Options)
		file := name("blue/t", "net1")
		blocked := filepath.Join(h.Dir, file+".new")
		until := func(expires int64) func(*record) {
			return func(r *record) {
				r.Lease = nil
				if expires > 0 {
					r.Lease = &Lease{Address: netip.MustParsePrefix("192.0.2.9/24"), Server: netip.MustParseAddr("192.0.2.1"), Expires: expires}
				}
			}
		}
		hold := func(expires int64) {
			t.Helper()
			if err := os.MkdirAll(filepath.Join(blocked, "full"), 0o700); err != nil {
				t.Fatal(err)
			}
			if r, err := h.change(file, "A", until(expires)); r == nil || err == nil {
				t.Fatalf("%+v, %v", r, err)
			}
			if err := os.RemoveAll(blocked); err != nil {
				t.Fatal(err)
			}
		}
		has := func(h *Host) int64 {
			t.Helper()
			r, err := h.read(file)
			if err != nil || r == nil {
				t.Fatal(r, err)
			}
			if r.Lease == nil {
				return 0
			}
			return r.Lease.Expires
		}
		for _, c := range []struct{ held, written, want int64 }{{2000, 3000, 3000}, {0, 4000, 4000}, {6000, 5000, 6000}, {7000, 0, 0}} {
			hold(c.held)
			if got := has(h); got != c.held {
				t.Errorf("held %d: the process sees %d", c.held, got)
			}
			if _, err := another.change(file, "A", until(c.written)); err != nil {
				t.Fatal(err)
			}
			if got := has(h); got != c.want {
				t.Errorf("held %d, and %d was written: the process sees %d", c.held, c.written, got)
			}
			if err := h.rewrite(); err != nil || has(another) != c.want || len(h.unwritten) > 0 {
				t.Errorf("held %d, and %d was written: %d is on disk, %v", c.held, c.written, has(another), err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- h.Run(ctx) }()
		synctest.Wait()
		hold(8000)
		cancel()
		if err := <-done; err != nil || has(another) != 8000 {
			t.Errorf("the process has ended, and %d is on disk, %v", has(another), err)
		}
	})
}

// TestProlongAfterRestart: the client of a record that another process has left has the kernel keep
// the address, which is retried; nothing else waits for it.
func TestProlongAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tried, ends atomic.Int64
		h := recorded(t, Options{Prolong: func(ctx context.Context, _ string, _ reconcile.NetnsID, a netstate.Addr) error {
			if tried.Add(1) < 3 {
				<-ctx.Done() // the kernel does not answer
				return context.Cause(ctx)
			}
			ends.Store(a.Expires)
			return nil
		}})
		defer h.Close()
		began := time.Now()
		h.adopt()
		if took := time.Since(began); took > 0 {
			t.Errorf("other leases wait %s", took)
		}
		time.Sleep(3 * time.Minute)
		if tried.Load() != 3 || ends.Load() != 600 {
			t.Errorf("tried %d times, and the kernel deletes the address at %d", tried.Load(), ends.Load())
		}
	})
}

// TestReportsOfClient: what a client tries is reported at once at first, and later rarely, whatever a
// server answers.
func TestReportsOfClient(t *testing.T) {
	var said []string
	tr := &tried{sent: map[dhcpv4.MessageType]int{}, began: 1000, report: func(text string) { said = append(said, text) }}
	early := 0
	for now := range int64(24 * 60 * 60) {
		tr.sent[dhcpv4.MessageTypeDiscover]++
		tr.refused = fmt.Errorf("lease of 192.0.2.%d lasts 0s", now%200)
		tr.now(1000 + now)
		if now == 10 {
			early = len(said)
		}
	}
	if early != 11 || len(said) > 32 || !strings.Contains(said[len(said)-1], "DHCPDISCOVER in 6") {
		t.Errorf("%d reports in ten seconds, %d in a day, the last is %q", early, len(said), said[len(said)-1])
	}
}

// TestEndOfClient: a client that ends by itself leaves nothing in the context of all clients.
func TestEndOfClient(t *testing.T) {
	h := Open(Options{Dir: t.TempDir()})
	defer h.Close()
	ctx, cancel := context.WithCancel(h.ctx)
	c := &client{h: h, file: "none" + suffix, cancel: cancel, done: make(chan struct{})}
	c.run(ctx)
	<-c.done
	if ctx.Err() == nil {
		t.Error("its context has not ended")
	}
}

// TestManyClients: leases that were given in the same second, as after a power cut, are not
// renewed in the same second, and neither do clients without a server all try in the same seconds.
func TestManyClients(t *testing.T) {
	const clients = 200
	at := map[int64]int{}
	h := recorded(t, Options{})
	defer h.Close()
	given := Lease{Address: netip.MustParsePrefix("192.0.2.9/24"), Server: netip.MustParseAddr("192.0.2.1"), Renew: 1900, Rebind: 3250, Expires: 3700}
	for range clients {
		c := &client{h: h, file: name("blue/t", "net1"), serial: "A"}
		if err := c.keep(given); err != nil {
			t.Fatal(err)
		}
		r, err := h.read(c.file)
		if err != nil || r == nil {
			t.Fatal(r, err)
		}
		if l := r.Lease; l.Renew > given.Renew || l.Renew < 1400 || l.Rebind > given.Rebind || l.Rebind < l.Renew || l.Expires != given.Expires {
			t.Fatalf("%+v is kept as %+v", given, *l)
		}
		at[r.Lease.Renew]++
	}
	if most := slices.Max(slices.Collect(maps.Values(at))); most > clients/20 {
		t.Errorf("%d of %d leases are renewed in one second", most, clients)
	}

	synctest.Test(t, func(t *testing.T) {
		began, tries := time.Now(), map[int64]int{}
		var mu sync.Mutex
		h := recorded(t, Options{Within: func(string, func() error) error {
			mu.Lock()
			defer mu.Unlock()
			tries[seconds(time.Since(began))]++
			return errors.New("the link is down")
		}})
		defer h.Close()
		ns, err := netns.Open("/proc/self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		id, err := netns.Identify(ns)
		if err != nil {
			t.Fatal(err)
		}
		for i := range clients {
			h.clientOf(t, &record{Sandbox: "blue/t", Link: fmt.Sprint("net", i), Netns: "/proc/self/ns/net", NetnsID: id, BootID: "one", Client: "ff01", Serial: "A"})
		}
		time.Sleep(2 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		late := map[int64]int{}
		for second, n := range tries {
			if second > 60 {
				late[second] = n
			}
		}
		if most := slices.Max(append(slices.Collect(maps.Values(late)), 0)); most == 0 || most > clients/2 {
			t.Errorf("%d of %d clients tried in the same second, after a minute", most, clients)
		}
	})
}

// clientOf records a lease that is wanted, and starts its client.
func (h *Host) clientOf(t *testing.T, r *record) {
	t.Helper()
	if err := h.locked(func() error { return h.write(r) }); err != nil {
		t.Fatal(err)
	}
	h.start(r)
}
