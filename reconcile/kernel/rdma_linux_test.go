package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestRDMAAsk: drivers that do not answer hold up each read for a short time only, and so do many of
// them. A late answer is not lost. A long silence is counted.
func TestRDMAAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRDMALinks()
		answer := make(chan struct{})
		var answered atomic.Int32
		took := func(cookie uint64, f func(context.Context)) (time.Duration, bool) {
			began, called := time.Now(), make(chan struct{})
			r.ask(t.Context(), reconcile.NetnsID{Cookie: cookie}, func(ctx context.Context) {
				close(called)
				f(ctx)
			})
			synctest.Wait()
			select {
			case <-called:
				return time.Since(began), true
			default:
				return time.Since(began), false
			}
		}
		late := func(ctx context.Context) {
			<-answer
			if ctx.Err() == nil {
				answered.Add(1)
			}
		}
		prompt := func(context.Context) {}
		for range 2 {
			if d, called := took(1, prompt); d != 0 || !called {
				t.Errorf("a driver that answers: %v, %v", d, called)
			}
		}
		if d, called := took(1, late); d != rdmaPatience || !called {
			t.Errorf("a driver that does not: waited for %v, %v", d, called)
		}
		if d, called := took(1, late); d != 0 || called {
			t.Errorf("while it has not answered: waited for %v, asked again: %v", d, called)
		}
		if d, called := took(2, prompt); d != 0 || !called {
			t.Errorf("another namespace meanwhile: waited for %v, %v", d, called)
		}
		for i := range uint64(2 * rdmaAsking) {
			took(10+i, late)
		}
		if n := len(r.asking); n != rdmaAsking {
			t.Errorf("%d are asked at the same time, want %d", n, rdmaAsking)
		}
		if n := r.silence(); n != 0 {
			t.Errorf("%d are silent at once, want 0", n)
		}
		time.Sleep(rdmaSilence)
		synctest.Wait()
		if n := r.silence(); n != rdmaAsking {
			t.Errorf("%d are silent after %s, want %d", n, rdmaSilence, rdmaAsking)
		}
		close(answer)
		synctest.Wait()
		if n := r.silence(); n != 0 {
			t.Errorf("%d are silent after they have answered, want 0", n)
		}
		if n := answered.Load(); n != rdmaAsking || len(r.asking) > 0 {
			t.Errorf("%d late answers, want %d; %d are still asked", n, rdmaAsking, len(r.asking))
		}
		if d, called := took(1, prompt); d != 0 || !called {
			t.Errorf("after a late answer: waited for %v, %v", d, called)
		}
		slow := func(context.Context) { time.Sleep(time.Second) }
		for i, want := range []time.Duration{rdmaPatience, 0, 0} {
			if d, called := took(5, slow); d != want || !called {
				t.Errorf("call %d of a driver that takes a second: waited for %v, want %v; %v", i, d, want, called)
			}
			time.Sleep(time.Minute)
		}
		took(5, prompt)
		if d, called := took(5, slow); d != rdmaPatience || !called {
			t.Errorf("once it has answered in time: waited for %v, %v", d, called)
		}
		time.Sleep(time.Minute)
		for i := range 2 * rdmaKnown {
			r.put(rdmaLink{netns: reconcile.NetnsID{Cookie: 3}, index: i + 1}, knownRDMAPort{})
		}
		if len(r.of) > rdmaKnown {
			t.Errorf("%d links are remembered", len(r.of))
		}
	})
}

// TestRDMAReads: a driver that does not answer holds up one read of its device for a short time, in one goroutine, and no later one, and none
// of another device. Once it has answered, it is asked again.
func TestRDMAReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r rdmaReads
		answer := make(chan struct{})
		var calls atomic.Int32
		hung := func(at func(string)) {
			calls.Add(1)
			at("ports/1/rate")
			<-answer
		}
		for _, want := range []time.Duration{rdmaPortPatience, 0, 0} {
			began := time.Now()
			err := r.read(t.Context(), "mlx5_2", hung)
			var silent *silentDriver
			if fault.Of(err) != fault.NotReady || !errors.As(err, &silent) || silent.device != "mlx5_2" || silent.file != "ports/1/rate" || time.Since(began) != want {
				t.Errorf("a driver that does not answer: %v after %s, want %s", err, time.Since(began), want)
			}
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("it was asked %d times, want once", n)
		}
		if err := r.read(t.Context(), "mlx5_3", func(func(string)) { calls.Add(1) }); err != nil || calls.Load() != 2 {
			t.Errorf("another device meanwhile: %v", err)
		}
		close(answer)
		synctest.Wait()
		if err := r.read(t.Context(), "mlx5_2", func(func(string)) { calls.Add(1) }); err != nil || calls.Load() != 3 || len(r.running) != 0 {
			t.Errorf("after an answer: %v; %d are running", err, len(r.running))
		}
		slow := func(at func(string)) { // each file takes a while, and less than the patience
			for range 4 {
				at("ports/1/gids/0")
				time.Sleep(rdmaPortPatience / 2)
			}
		}
		first := make(chan error)
		go func() { first <- r.read(t.Context(), "mlx5_2", slow) }()
		synctest.Wait()
		if err := r.read(t.Context(), "mlx5_2", slow); err != nil || <-first != nil {
			t.Errorf("after one that took long: %v", err)
		}
		began := time.Now()
		err := r.read(t.Context(), "mlx5_4", func(at func(string)) { // each file answers in time, and there are many
			for range maxGIDs {
				at("ports/1/gids/0")
				time.Sleep(rdmaPortPatience / 2)
			}
		})
		if fault.Of(err) != fault.NotReady || time.Since(began) != rdmaPortLimit {
			t.Errorf("a driver that is always slow: %v after %s, want %s", err, time.Since(began), rdmaPortLimit)
		}
		time.Sleep(maxGIDs * rdmaPortPatience)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		forever := make(chan struct{})
		if err := r.read(ended, "mlx5_2", func(func(string)) { <-forever }); !errors.Is(err, context.Canceled) {
			t.Errorf("after the end of the caller: %v", err)
		}
		close(forever)
	})
}

// TestRDMAReadBlocks: a read that blocks in the kernel ends with the file's name, and a hundred more keep no thread.
func TestRDMAReadBlocks(t *testing.T) {
	const rate = "class/infiniband/mlx5_2/ports/1/rate"
	f := tree(t, map[string]string{"class/infiniband/mlx5_2/ports/1/state": "4: ACTIVE\n"})
	file := filepath.Join(f.root, rate)
	if err := unix.Mkfifo(file, 0o600); err != nil { // opened by nobody for writing, it blocks who opens it for reading
		t.Fatal(err)
	}
	r := rdmaReads{patience: time.Millisecond}
	read := func() (port netstate.RDMAPort, err error) {
		ended := make(chan netstate.RDMAPort, 1)
		err = r.read(t.Context(), "mlx5_2", func(at func(string)) {
			port, _ := f.rdmaPort(netstate.RDMAPort{Device: "mlx5_2"}, at)
			ended <- port
		})
		if err != nil {
			return port, err
		}
		return <-ended, nil
	}
	before := runtime.NumGoroutine()
	eventually.True(t, 10*time.Second, "a read that blocks", func() bool {
		_, err := read()
		var silent *silentDriver
		return errors.As(err, &silent) && silent.file == "ports/1/rate"
	})
	for range 100 {
		_, err := read()
		const want = `RDMA device "mlx5_2": its driver has not answered a read of ports/1/rate for 1ms: look for its messages in the kernel's log (dmesg)`
		if fault.Of(err) != fault.NotReady || !strings.HasPrefix(err.Error(), want) {
			t.Fatalf("a read that blocks: %v, want %s", err, want)
		}
	}
	if n := runtime.NumGoroutine() - before; n > 1 {
		t.Errorf("%d goroutines are left, want the one that reads", n)
	}
	driver, err := os.OpenFile(file, os.O_WRONLY, 0) // the driver answers
	if err != nil {
		t.Fatal(err)
	}
	if _, err := driver.WriteString("100 Gb/sec (4X EDR)\n"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(driver.Close(), os.Remove(file), os.WriteFile(file, []byte("100 Gb/sec (4X EDR)\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	r.patience = 0
	eventually.Succeeds(t, 10*time.Second, "a port", func() error {
		port, err := read()
		if err == nil && port.RateMbps != 100_000 {
			return fmt.Errorf("a port of %d Mbit/s", port.RateMbps)
		}
		return err
	})
}

// TestRDMAPortsHung: of several devices, those whose drivers do not answer are waited for at the same time, and only their facts are withheld.
func TestRDMAPortsHung(t *testing.T) {
	files := map[string]string{}
	for _, device := range []string{"mlx5_2", "mlx5_3", "mlx5_4"} {
		files["class/infiniband/"+device+"/ports/1/state"] = "4: ACTIVE\n"
	}
	f := tree(t, files)
	for _, hung := range []string{"mlx5_2", "mlx5_4"} {
		rate := filepath.Join(f.root, "class/infiniband", hung, "ports/1/rate")
		if err := unix.Mkfifo(rate, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { // the driver answers
			if driver, err := os.OpenFile(rate, os.O_RDWR, 0); err == nil {
				_ = errors.Join(os.WriteFile(rate, []byte("\n"), 0), driver.Close())
			}
		})
	}
	const patience = 2 * time.Second
	o := &observer{
		Sandbox: &Sandbox{host: &Host{sysfs: f, rdmaReads: rdmaReads{patience: patience}}, outside: &conn{host: true}}, snap: netstate.NewSnapshot(),
	}
	began := time.Now()
	var queried []netstate.Object
	for _, device := range []string{"mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5"} {
		queried = append(queried, netstate.RDMAPort{Device: device})
	}
	if err := o.query(t.Context(), queried); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took >= 2*patience {
		t.Errorf("two drivers that do not answer were waited for %s, want %s", took, patience)
	}
	for _, q := range queried {
		device := q.(netstate.RDMAPort).Device
		why := o.snap.Withheld(q)
		var silent *silentDriver
		if hung := device == "mlx5_2" || device == "mlx5_4"; hung != (errors.As(why, &silent) && silent.device == device) {
			t.Errorf("%s is withheld: %v", device, why)
		}
		if _, there := o.snap.Get(q.Key()); there != (device == "mlx5_3") || !there && why == nil && !o.snap.Known(q) {
			t.Errorf("%s is there: %v, known: %v", device, there, o.snap.Known(q))
		}
	}
}

// TestRDMASysfs: in exclusive mode a thread that reads sysfs of a pod is not in the pod's network namespace, which can end meanwhile.
func TestRDMASysfs(t *testing.T) {
	InMachine(t)
	host, err := Open(Options{Sysfs: tree(t, map[string]string{"module/ib_core/parameters/netns_mode": "N\n"}).root})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	var ns *os.File
	err = host.own.away(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		if out, err := exec.CommandContext(t.Context(), "ip", "link", "add", "pod0", "type", "dummy").CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		ns, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	sb, err := host.Sandbox(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	pod, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	called := false
	err = sb.rdmaSysfs(sb.inside, func(f sysfs) {
		called = true
		if _, err := os.Stat(filepath.Join(f.root, "class/net/pod0")); err != nil {
			t.Errorf("sysfs does not show the pod's link: %v", err)
		}
		if at, err := os.Readlink("/proc/thread-self/ns/net"); err != nil || at == pod {
			t.Errorf("the thread is in %s, that of the pod: %v", at, err)
		}
	})
	if err != nil || !called {
		t.Errorf("called: %v; %v", called, err)
	}
	for name, id := range map[string]reconcile.NetnsID{"the pod's": sb.NetnsID(), "another by now": {Inode: 1, Device: 1}} {
		seen := false
		err := host.RDMASysfs(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), id, func(sys fs.FS) {
			_, err := fs.Stat(sys, "class/net/pod0")
			seen = err == nil
		})
		if err != nil || seen != (id == sb.NetnsID()) {
			t.Errorf("namespace %s: seen %v, %v", name, seen, err)
		}
	}
	if err := host.RDMASysfs("/run/netns/none", sb.NetnsID(), func(fs.FS) { t.Error("sysfs of no namespace") }); err == nil {
		t.Error("no namespace, and no error")
	}
}
