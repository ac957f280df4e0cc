package watch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

func address(s string) *netlink.Addr {
	a, err := netlink.ParseAddr(s)
	if err != nil {
		panic(err)
	}
	return a
}

func prefix(s string) *net.IPNet {
	_, n, err := net.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	return n
}

// A change in one namespace causes an event of its sandbox and of no other, for every
// group that is joined. With the shared socket this proves that NETLINK_LISTEN_ALL_NSID
// carries them all, and whose they are.
func TestEveryNotificationGroup(t *testing.T) {
	modes(t, func(t *testing.T, share bool) {
		blue, red, green := newRealNetns(t), newRealNetns(t), newRealNetns(t)
		w := running(t, share, Options{})
		l := listenTo(t, w)
		must(t, w.Add("blue", blue.path))
		must(t, w.Add("red", red.path))

		rule := func(family int, src string) func(*netlink.Handle) error {
			return func(h *netlink.Handle) error {
				r := netlink.NewRule()
				r.Family, r.Src, r.Table = family, prefix(src), 7
				return h.RuleAdd(r)
			}
		}
		route := func(dst string) func(*netlink.Handle) error {
			return func(h *netlink.Handle) error {
				return h.RouteAdd(&netlink.Route{LinkIndex: 1, Dst: prefix(dst)})
			}
		}
		steps := []struct {
			name string
			do   func(*realNetns)
		}{
			{"link up", func(n *realNetns) { n.do(func(h *netlink.Handle) error { return h.LinkSetUp(lo(h)) }) }},
			{"mtu", func(n *realNetns) { n.do(func(h *netlink.Handle) error { return h.LinkSetMTU(lo(h), 9000) }) }},
			{"new link", func(n *realNetns) {
				n.do(func(h *netlink.Handle) error {
					attrs := netlink.NewLinkAttrs()
					attrs.Name = "v"
					return h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "p"})
				})
			}},
			{"address", func(n *realNetns) {
				n.do(func(h *netlink.Handle) error { return h.AddrAdd(lo(h), address("10.0.0.1/24")) })
			}},
			{"ipv6 address", func(n *realNetns) {
				n.do(func(h *netlink.Handle) error { return h.AddrAdd(lo(h), address("fd00::1/64")) })
			}},
			{"route", func(n *realNetns) { n.do(route("10.9.0.0/16")) }},
			{"ipv6 route", func(n *realNetns) { n.do(route("fd09::/64")) }},
			{"rule", func(n *realNetns) { n.do(rule(netlink.FAMILY_V4, "10.1.0.0/16")) }},
			{"ipv6 rule", func(n *realNetns) { n.do(rule(netlink.FAMILY_V6, "fd01::/64")) }},
			{"qdisc", func(n *realNetns) {
				n.do(func(h *netlink.Handle) error {
					return h.QdiscAdd(&netlink.GenericQdisc{
						QdiscAttrs: netlink.QdiscAttrs{LinkIndex: 1, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
						QdiscType:  "pfifo",
					})
				})
			}},
			{"address gone", func(n *realNetns) {
				n.do(func(h *netlink.Handle) error { return h.AddrDel(lo(h), address("10.0.0.1/24")) })
			}},
			{"sysctl forwarding", func(n *realNetns) { n.sysctl("ipv4/conf/lo/forwarding", "1") }},
			{"sysctl rp_filter", func(n *realNetns) { n.sysctl("ipv4/conf/lo/rp_filter", "2") }},
			{"sysctl ipv6 forwarding", func(n *realNetns) { n.sysctl("ipv6/conf/lo/forwarding", "1") }},
			{"link gone", func(n *realNetns) {
				n.do(func(h *netlink.Handle) error {
					l, err := h.LinkByName("v")
					if err != nil {
						return err
					}
					return h.LinkDel(l)
				})
			}},
		}
		for _, s := range steps {
			t.Run(s.name, func(t *testing.T) {
				s.do(green) // not watched
				s.do(blue)
				l.want(changed("blue"))
			})
		}
		// Red had no event all the while, and still receives.
		red.change()
		l.want(changed("red"))
	})
}

// Neighbors change by themselves and cause no event. As notifications of one
// namespace are received in order, a later change shows that.
func TestNeighboursAreIgnored(t *testing.T) {
	modes(t, func(t *testing.T, share bool) {
		blue, red := newRealNetns(t), newRealNetns(t)
		w := running(t, share, Options{})
		must(t, w.Add("blue", blue.path))
		must(t, w.Add("red", red.path))
		blue.do(func(h *netlink.Handle) error {
			return h.NeighAdd(&netlink.Neigh{
				LinkIndex: lo(h).Attrs().Index, State: netlink.NUD_PERMANENT, Family: netlink.FAMILY_V4,
				IP: net.IPv4(10, 0, 0, 2), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1},
			})
		})
		red.change()
		listenTo(t, w).next()
	})
}

// Two topologies may share a namespace, and a sandbox may move.
func TestSandboxesOfOneNamespace(t *testing.T) {
	modes(t, func(t *testing.T, share bool) {
		blue, red := newRealNetns(t), newRealNetns(t)
		w := running(t, share, Options{})
		must(t, w.Add("b1", blue.path))
		must(t, w.Add("b2", blue.path))
		must(t, w.Add("b2", blue.path)) // again
		if len(w.namespaces) != 1 {
			t.Errorf("%d namespaces", len(w.namespaces))
		}
		blue.change()
		l := listenTo(t, w)
		l.want(changed("b1"), changed("b2"))
		w.Remove("b1")
		w.Remove("b1") // again
		l.refuse(changed("b1"))
		blue.change()
		l.want(changed("b2"))
		must(t, w.Add("b2", red.path)) // moves
		blue.change()
		red.change()
		l.want(changed("b2"))
		w.Remove("b2")
		if len(w.namespaces)+len(w.numbered)+len(w.sandboxes) > 0 {
			t.Errorf("left: %v, %v, %v", w.namespaces, w.numbered, w.sandboxes)
		}
	})
}

// The kernel reports the end of a watched namespace, which the shared socket does not
// keep alive: the other end of a veth pair is deleted with it.
func TestNamespaceDies(t *testing.T) {
	blue, red := newRealNetns(t), newRealNetns(t)
	blue.veth("v", red)
	w := running(t, true, Options{})
	must(t, w.Add("blue", blue.path))
	must(t, w.Add("red", red.path))
	blue.die()
	l := listenTo(t, w)
	l.want(gone("blue"), changed("red"))
	red.do(func(h *netlink.Handle) error {
		if _, err := h.LinkByName("v"); !errors.As(err, &netlink.LinkNotFoundError{}) {
			return fmt.Errorf("the other end: %w", err)
		}
		return nil
	})
	w.mu.Lock()
	if w.sandboxes["blue"] != nil {
		t.Error("the sandbox was not forgotten")
	}
	w.mu.Unlock()
	w.Remove("blue")

	// Another namespace at the same path is the sandbox's again, once added.
	blue.mount()
	must(t, w.Add("blue", blue.path))
	blue.change()
	l.want(changed("blue"))
}

// A socket in a namespace keeps it alive until Remove, or until the watcher sees that
// its path no longer leads there.
func TestPinnedNamespaceIsReleased(t *testing.T) {
	for name, release := range map[string]func(*Watcher){
		"removed": func(w *Watcher) { w.Remove("blue") },
		"found":   func(*Watcher) {},
	} {
		t.Run(name, func(t *testing.T) {
			blue, red := newRealNetns(t), newRealNetns(t)
			blue.veth("v", red)
			w := running(t, false, Options{})
			must(t, w.Add("blue", blue.path))
			must(t, w.Add("red", red.path))
			blue.die()
			release(w)
			want := []Event{changed("red")} // the end of the pair is gone, so the namespace is
			if name == "found" {
				want = append(want, gone("blue"))
			}
			listenTo(t, w).want(want...)
		})
	}
}

// A path that leads to another namespace, or nowhere, is found at a resync even if
// something else keeps the old one alive.
func TestPathLeadsElsewhere(t *testing.T) {
	modes(t, func(t *testing.T, share bool) {
		for name, change := range map[string]func(*realNetns) error{
			"another":   func(n *realNetns) error { n.mount(); return nil },
			"unmounted": func(n *realNetns) error { n.die(); return nil },
			"unlinked":  func(n *realNetns) error { n.die(); return os.Remove(n.path) },
		} {
			t.Run(name, func(t *testing.T) {
				blue := newRealNetns(t)
				held, err := os.Open(blue.path)
				must(t, err)
				defer held.Close()
				w := running(t, share, Options{Resync: 50 * time.Millisecond})
				must(t, w.Add("blue", blue.path))
				l := listenTo(t, w)
				l.want(resynced("blue"))
				must(t, change(blue))
				l.want(gone("blue"))
				if name == "another" {
					must(t, unix.Unmount(blue.path, 0))
				}
			})
		}
	})
}

// The kernel reuses the numbers of namespaces that no longer exist at once. Their
// notifications must not be taken for those of the next namespace, and no end may be
// missed.
func TestNumbersAreReused(t *testing.T) {
	w := running(t, true, Options{})
	numbers := map[int32]int{}
	const rounds = 30
	for i := range rounds {
		n := newRealNetns(t)
		id := reconcile.SandboxID(fmt.Sprint("s", i))
		must(t, w.Add(id, n.path))
		w.mu.Lock()
		numbers[w.sandboxes[id].ns.number]++
		w.mu.Unlock()
		n.change()
		n.die()
	}
	ended := map[reconcile.SandboxID]bool{}
	for l := listenTo(t, w); len(ended) < rounds; {
		e := l.next()
		if ended[e.ID] {
			t.Errorf("%+v after it was gone", e)
		}
		if e.Gone {
			ended[e.ID] = true
		}
	}
	if len(w.numbered)+len(w.namespaces)+len(w.sandboxes) > 0 {
		t.Errorf("left: %v, %v, %v", w.numbered, w.namespaces, w.sandboxes)
	}
	t.Logf("%d numbers for %d namespaces", len(numbers), rounds)
}

// When notifications are lost, every sandbox they may have been about has an event, and
// the socket goes on receiving.
func TestOverflow(t *testing.T) {
	modes(t, func(t *testing.T, share bool) {
		blue, red := newRealNetns(t), newRealNetns(t)
		w := running(t, share, Options{ReceiveBufferBytes: 8 << 10})
		must(t, w.Add("blue", blue.path))
		must(t, w.Add("red", red.path))
		flood := func(n *realNetns) {
			for range 200 {
				n.change()
			}
		}
		w.mu.Lock() // the readers wait for it
		flood(blue)
		flood(red)
		w.mu.Unlock()
		l := listenTo(t, w)
		l.allowed[changed("blue")], l.allowed[changed("red")] = true, true
		l.want(Event{ID: "blue", Reason: Overflow}, Event{ID: "red", Reason: Overflow})
		// The Overflow event for what was dropped until then comes a second later at
		// the latest; after that all is as before.
		for {
			blue.change()
			if e := l.next(); e == changed("blue") {
				break
			} else if !l.allowed[e] {
				t.Fatalf("%+v", e)
			}
		}
	})
}

// TestFloodByAnotherPod holds that a pod that sends forged notifications, as
// fast as it can, does not delay the events of another pod.
func TestFloodByAnotherPod(t *testing.T) {
	modes(t, func(t *testing.T, share bool) {
		blue, red := newRealNetns(t), newRealNetns(t)
		w := running(t, share, Options{Debounce: 10 * time.Millisecond, MaxDelay: 50 * time.Millisecond})
		must(t, w.Add("blue", blue.path))
		must(t, w.Add("red", red.path))
		ctx, cancel := context.WithCancel(t.Context())
		done, sent := make(chan error), 0
		go func() {
			done <- red.inside(func() (err error) { sent, err = forge(ctx); return err })
		}()
		listenTo(t, w).next()
		var took []time.Duration
		for range 10 {
			blue.change()
			at, late := time.Now(), time.After(patience)
			for received := false; !received; {
				select {
				case e := <-w.Events():
					received = e.ID == "blue"
				case <-late:
					t.Fatal("no event for the change in the other namespace")
				}
			}
			took = append(took, time.Since(at))
		}
		cancel()
		must(t, <-done)
		slices.Sort(took)
		t.Logf("%d datagrams; reported after %s, %s at most", sent, took[len(took)/2], took[len(took)-1])
	})
}

// forge sends notifications until ctx ends, each datagram as large as a socket takes it.
func forge(ctx context.Context) (sent int, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var all []byte
	for len(all) < 32<<10 {
		all = append(all, message(typeNewLink, make([]byte, 16)...)...)
	}
	for ; ctx.Err() == nil; sent++ {
		if err := unix.Sendto(fd, all, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: linkGroup}); err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// The host's devices are watched in the process's namespace, here a namespace
// in its place.
func TestHost(t *testing.T) {
	host, blue := newRealNetns(t), newRealNetns(t)
	var w *Watcher
	host.within(func() error {
		var err error
		w, err = New(Options{Resync: time.Hour})
		return err
	})
	ran := make(chan error)
	go func() { ran <- w.Run(t.Context()) }()
	defer func() {
		w.Close()
		must(t, <-ran)
	}()
	must(t, w.Add("blue", blue.path))
	must(t, w.Add("host", host.path)) // a sandbox may be there, too
	l := listenTo(t, w)
	device := Event{Host: true, Reason: Changed}
	// Addresses are the sandbox's business alone.
	host.do(func(h *netlink.Handle) error { return h.AddrAdd(lo(h), address("10.0.0.1/24")) })
	l.want(changed("host"))
	host.change()
	l.want(device, changed("host"))
	// The owner of the other end decides about the carrier of this one.
	pod := Event{Host: true, Reason: Changed, PodLinks: true}
	host.veth("v", blue)
	l.want(pod, changed("host"), changed("blue"))
	blue.change()
	l.want(changed("blue"))
	host.do(func(h *netlink.Handle) error {
		return h.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: "v"}})
	})
	l.want(pod, changed("host"), changed("blue"))
	host.change()
	l.want(device, changed("host"))
}

func TestAddFails(t *testing.T) {
	modes(t, func(t *testing.T, share bool) {
		w := stopped(t, share, Options{})
		dir := t.TempDir()
		file := filepath.Join(dir, "file")
		must(t, os.WriteFile(file, nil, 0o600))
		fifo := filepath.Join(dir, "fifo")
		must(t, unix.Mkfifo(fifo, 0o600))
		for _, tt := range []struct {
			id   reconcile.SandboxID
			path string
			err  string
			kind fault.Kind
		}{
			{"", file, "watch: sandbox without an ID", fault.Invalid},
			{"x", filepath.Join(dir, "absent"), "no such file or directory", fault.Gone},
			{"x", filepath.Join(file, "absent"), "not a directory", fault.Gone},
			{"x", file, `watch sandbox "x": network namespace "` + file + `": nothing is mounted there`, fault.Gone},
			{"x", fifo, "nothing is mounted there", fault.Gone},
			{"x", "/proc/self/ns/mnt", "a namespace of another kind", fault.Invalid},
		} {
			err := w.Add(tt.id, tt.path)
			if err == nil || !strings.Contains(err.Error(), tt.err) || fault.Of(err) != tt.kind {
				t.Errorf("%s: %v (%s), want %s (%s)", tt.path, err, fault.Of(err), tt.err, tt.kind)
			}
		}
		w.Remove("")
		w.Close()
		if err := w.Add("x", newRealNetns(t).path); !errors.Is(err, os.ErrClosed) {
			t.Errorf("Add after Close: %v", err)
		}
	})
}

func TestClose(t *testing.T) {
	modes(t, func(t *testing.T, share bool) {
		blue := newRealNetns(t)
		t.Run("never run", func(t *testing.T) {
			w := stopped(t, share, Options{})
			must(t, w.Add("blue", blue.path))
			w.Close()
			w.Close()
			if _, open := <-w.Events(); open {
				t.Error("an event after Close")
			}
			if err := w.Run(t.Context()); !errors.Is(err, os.ErrClosed) {
				t.Errorf("Run after Close: %v", err)
			}
		})
		t.Run("context", func(t *testing.T) {
			w := stopped(t, share, Options{})
			must(t, w.Add("blue", blue.path))
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			must(t, w.Run(ctx))
			if _, open := <-w.Events(); open {
				t.Error("an event after Run")
			}
			if err := w.Run(t.Context()); !errors.Is(err, os.ErrClosed) {
				t.Errorf("second Run: %v", err)
			}
			w.Remove("blue")
		})
		t.Run("event not taken", func(t *testing.T) {
			w := running(t, share, Options{Resync: time.Millisecond})
			must(t, w.Add("blue", blue.path))
			listenTo(t, w).next()
			w.Close()
		})
	})
}

// A socket that can no longer be read ends Run.
func TestListenerFails(t *testing.T) {
	w := stopped(t, true, Options{})
	broken := errors.New("broken")
	go w.fail(broken)
	if err := w.Run(t.Context()); !errors.Is(err, broken) {
		t.Errorf("Run: %v", err)
	}
}

// Watching costs nothing once it has ended.
func TestNoLeaks(t *testing.T) {
	modes(t, func(t *testing.T, share bool) {
		blue, red := newRealNetns(t), newRealNetns(t)
		files, goroutines := openFiles(t), runtime.NumGoroutine()
		w := stopped(t, share, Options{})
		ran := make(chan error)
		go func() { ran <- w.Run(t.Context()) }()
		must(t, w.Add("red", red.path))
		filesOfOne, goroutinesOfOne := openFiles(t), runtime.NumGoroutine()
		for i := range 1000 {
			id := reconcile.SandboxID(fmt.Sprint("s", i%3))
			must(t, w.Add(id, blue.path))
			w.Remove(id)
		}
		settled(t, "after 1000 times", filesOfOne, goroutinesOfOne)
		must(t, w.Add("blue", blue.path))
		w.Close()
		must(t, <-ran)
		settled(t, "after Close", files, goroutines)
		// Nothing of ours is left in the namespaces either.
		for _, n := range []*realNetns{blue, red} {
			n.within(func() error {
				data, err := os.ReadFile("/proc/thread-self/net/netlink")
				if err == nil && strings.Count(string(data), "\n") > 1+len(kernelSockets(string(data))) {
					err = fmt.Errorf("sockets:\n%s", data)
				}
				return err
			})
		}
	})
}

// settled wants no more files and goroutines than there were. A goroutine that
// has been waited for may take a moment to end.
func settled(t *testing.T, when string, files, goroutines int) {
	t.Helper()
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > goroutines && time.Now().Before(deadline); {
		runtime.Gosched()
	}
	if f, g := openFiles(t), runtime.NumGoroutine(); f > files || g > goroutines {
		t.Errorf("%s %d files, %d goroutines; before %d, %d", when, f, g, files, goroutines)
	}
}

// kernelSockets returns the lines of /proc/net/netlink of port 0.
func kernelSockets(table string) (lines []string) {
	for line := range strings.Lines(table) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "0" {
			lines = append(lines, line)
		}
	}
	return lines
}

func openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

func FuzzParseOrigin(f *testing.F) {
	oob := make([]byte, unix.CmsgSpace(4))
	f.Add(oob)
	f.Add(unix.PktInfo4(&unix.Inet4Pktinfo{}))
	f.Fuzz(func(t *testing.T, oob []byte) { parseOrigin(oob) })
}

func BenchmarkAddRemove(b *testing.B) {
	for name, share := range map[string]bool{"shared": true, "one each": false} {
		b.Run(name, func(b *testing.B) {
			n := newRealNetns(b)
			w := stopped(b, share, Options{})
			for b.Loop() {
				must(b, w.Add("x", n.path))
				w.Remove("x")
			}
		})
	}
}
