package journal

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// childEnv makes the test binary play another process on the journal whose
// directory is its value; its first argument says which.
const childEnv = "PLUMBLINE_JOURNAL_TEST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := child(dir, os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	limitBytes = 1 << 20 // large records take seconds with -race
	os.Exit(m.Run())
}

func child(dir, role string) error {
	j, err := Open(dir)
	if err != nil {
		return err
	}
	switch role {
	case "write":
		return writeForever(j)
	case "contend":
		return contend(j, filepath.Join(dir, "counter"), 100)
	case "hold":
		if _, err := j.Lock(context.Background(), testID); err != nil {
			return err
		}
		fmt.Println("held")
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	case "limit":
		return fillUnderLimit(j)
	default:
		return fmt.Errorf("unknown role %q", role)
	}
}

func start(t *testing.T, dir, role string) (*exec.Cmd, io.WriteCloser, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0], role)
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	return cmd, in, bufio.NewScanner(out)
}

// writeForever counts in the MTU of a link: each number is intended, printed,
// and now and then settled.
func writeForever(j *Journal) error {
	r, found, err := j.Get(testID)
	if err != nil {
		return err
	}
	if !found {
		r = record(testID, reconcile.Applied, mtu("a", 0, 1))
		r.Failure = strings.Repeat("x", 2000) // so that it compacts often
		if err := j.Put(r); err != nil {
			return err
		}
		fmt.Println(1)
	}
	for n := counter(r) + 1; ; n++ {
		c := mtu("a", n-1, n)
		if err := j.Intend(testID, []netstate.Change{c}); err != nil {
			return err
		}
		fmt.Println(n)
		r.History = netstate.Coalesce(r.History, c)
		switch n % 5 {
		case 0:
			err = j.Settle(r)
		case 3:
			err = j.Put(r)
		}
		if err != nil {
			return err
		}
	}
}

func counter(r reconcile.Record) uint32 {
	return *r.History[0].After.(netstate.Link).MTU
}

// A change for which Intend has returned survives the death of its process at any
// moment, and nothing is invented.
func TestKilledWriter(t *testing.T) {
	dir := t.TempDir()
	rounds := 5
	if effort.Long() {
		rounds = 20
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	last := uint32(0)
	for range rounds {
		cmd, _, out := start(t, dir, "write")
		// Killed by count, at a moment of its own: the writer does not wait
		// for us.
		until := last + 1 + uint32(rnd.IntN(100))
		acked := last
		for out.Scan() {
			n, err := strconv.ParseUint(out.Text(), 10, 32)
			must(t, err)
			if acked = uint32(n); acked == until {
				must(t, cmd.Process.Kill())
			}
		}
		_ = cmd.Wait()
		records, errs := open(t, dir).List()
		if len(errs) > 0 || len(records) != 1 {
			t.Fatalf("%d records, errors %v", len(records), errs)
		}
		if last = counter(records[0]); last != acked && last != acked+1 {
			t.Fatalf("recovered %d after %d was promised", last, acked)
		}
	}
	if d, err := open(t, dir).Damaged(); err != nil || len(d) > 0 {
		t.Errorf("set aside: %q, %v", d, err)
	}
}

// contend adds to a number in a file that only the lock protects.
func contend(j *Journal, path string, times int) error {
	for range times {
		unlock, err := j.Lock(context.Background(), testID)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		n, _ := strconv.Atoi(string(data))
		if err := os.WriteFile(path, []byte(strconv.Itoa(n+1)), 0o600); err != nil {
			return err
		}
		// The lock file is created and removed with the record.
		if n%3 == 0 {
			err = j.Settle(record(testID, reconcile.Applied))
		} else {
			err = j.Remove(testID)
		}
		if err != nil {
			return err
		}
		unlock()
	}
	return nil
}

func TestProcessesContend(t *testing.T) {
	dir := t.TempDir()
	var children []*exec.Cmd
	for range 2 {
		cmd, _, _ := start(t, dir, "contend")
		children = append(children, cmd)
	}
	j := open(t, dir)
	var own sync.WaitGroup
	for range 2 {
		own.Go(func() {
			if err := contend(j, filepath.Join(dir, "counter"), 100); err != nil {
				t.Error(err)
			}
		})
	}
	own.Wait()
	for _, cmd := range children {
		must(t, cmd.Wait())
	}
	data, err := os.ReadFile(filepath.Join(dir, "counter"))
	must(t, err)
	if string(data) != "400" {
		t.Errorf("counted %s, want 400", data)
	}
	if len(j.gates) > 0 {
		t.Errorf("%d gates left", len(j.gates))
	}
}

func TestLockHeldByProcess(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	must(t, j.Put(record(testID, reconcile.Applied)))
	cmd, in, out := start(t, dir, "hold")
	if !out.Scan() {
		t.Fatal("the holder said nothing")
	}

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := j.Lock(ctx, testID)
	if !errors.Is(err, context.DeadlineExceeded) || fault.Of(err) != fault.NotReady || err.Error() != `lock sandbox "blue/ai": in use: context deadline exceeded` {
		t.Errorf("Lock: %v (%s)", err, fault.Of(err))
	}
	mustGet(t, j, testID) // readers need no lock
	other, err := j.Lock(t.Context(), "other")
	must(t, err)
	other()

	// Death unlocks.
	got := make(chan error, 1)
	go func() {
		unlock, err := j.Lock(t.Context(), testID)
		if err == nil {
			unlock()
		}
		got <- err
	}()
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	must(t, <-got)
	in.Close()
}

func TestLockInProcess(t *testing.T) {
	j := open(t, t.TempDir())
	unlock, err := j.Lock(t.Context(), testID)
	must(t, err)
	// The holder writes under its own lock.
	must(t, j.Put(record(testID, reconcile.Applied)))
	must(t, j.Intend(testID, []netstate.Change{made("a")}))

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := j.Lock(ended, testID); !errors.Is(err, context.Canceled) || fault.Of(err) != fault.NotReady {
		t.Errorf("Lock: %v", err)
	}
	second := make(chan struct{})
	go func() {
		defer close(second)
		unlock, err := j.Lock(t.Context(), testID)
		if err != nil {
			t.Error(err)
			return
		}
		unlock()
	}()
	select {
	case <-second:
		t.Error("two hold one lock")
	default:
	}
	unlock()
	unlock() // does nothing
	<-second
	if len(j.gates) > 0 {
		t.Errorf("%d gates left", len(j.gates))
	}
}

// A write without the lock waits for the holder, for a bounded time. The
// other holder is a second journal: to flock that is another process.
func TestWriteWithoutLock(t *testing.T) {
	dir := t.TempDir()
	other := open(t, dir)
	must(t, other.Put(record(testID, reconcile.Applied)))
	unlock, err := other.Lock(t.Context(), testID)
	must(t, err)
	defer unlock()
	synctest.Test(t, func(t *testing.T) {
		j := open(t, dir)
		began := time.Now()
		err := j.Put(record(testID, reconcile.Failed))
		if fault.Of(err) != fault.NotReady || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Put: %v", err)
		}
		if took := time.Since(began); took != lockWait {
			t.Errorf("waited %v", took)
		}
	})
	sameRecord(t, mustGet(t, other, testID), record(testID, reconcile.Applied))
}

// fill intends until the disk is full, and checks that the failure left no
// trace. It returns how many intents there was room for.
func fill(j *Journal, full error) (int, error) {
	want := record(testID, reconcile.Applied)
	if err := j.Put(want); err != nil {
		return 0, err
	}
	for n := range 10000 {
		c := made(fmt.Sprint(strings.Repeat("l", 1200), n))
		err := j.Intend(testID, []netstate.Change{c})
		got, found, getErr := j.Get(testID)
		switch {
		case getErr != nil || !found:
			return n, fmt.Errorf("get after %d intents: %v, %w", n, found, getErr)
		case err == nil && len(got.History) != n+1:
			return n, fmt.Errorf("%d changes after %d intents", len(got.History), n+1)
		case err == nil:
			continue
		case !errors.Is(err, full):
			return n, err
		case len(got.History) != n:
			return n, fmt.Errorf("%d changes after %d intents and a failed one", len(got.History), n)
		}
		if _, errs := j.List(); len(errs) > 0 {
			return n, errors.Join(errs...)
		}
		data, err := os.ReadFile(j.path("blue%2Fai", logSuffix))
		if err == nil && !strings.HasSuffix(string(data), "\n") {
			err = errors.New("the failed append was not cut off")
		}
		return n, err
	}
	return 0, errors.New("the disk never filled")
}

func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=0700"); err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	defer func() { must(t, unix.Unmount(dir, 0)) }()
	j := open(t, dir)
	n, err := fill(j, unix.ENOSPC)
	if err != nil || n < 10 {
		t.Fatalf("after %d intents: %v", n, err)
	}
	// A new sandbox finds no room and leaves nothing behind.
	if err := j.Put(record("new", reconcile.Applied)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Put: %v", err)
	}
	if got := names(t, dir); len(got) > 2 {
		t.Errorf("files: %q", got)
	}
	must(t, j.Remove(testID))
	must(t, j.Put(record("new", reconcile.Applied)))
}

// The same where no file system can be mounted: the limit of a file's size
// makes a write fall short as a full disk does.
func TestFileSizeLimit(t *testing.T) {
	cmd, _, out := start(t, t.TempDir(), "limit")
	if !out.Scan() || out.Text() != "ok" {
		t.Errorf("child: %q", out.Text())
	}
	must(t, cmd.Wait())
}

func fillUnderLimit(j *Journal) error {
	signal.Ignore(unix.SIGXFSZ)
	const limit = 20001 // in the middle of a line
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		return err
	}
	if n, err := fill(j, unix.EFBIG); err != nil || n < 10 {
		return fmt.Errorf("after %d intents: %w", n, err)
	}
	fmt.Println("ok")
	return nil
}
