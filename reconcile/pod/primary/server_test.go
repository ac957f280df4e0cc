package primary

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/reconcile/pod/cnisocket"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
)

// book has the records of an engine that changes nothing.
type book struct {
	mu       sync.Mutex
	records  map[reconcile.SandboxID]reconcile.Record
	errs     []error // of IDs, which then lists nothing
	others   []*frame.OtherVersion
	checking func() // during Check
	unread   bool   // of every release: the namespace cannot be read in full
	// fail is the result of Ensure instead, with the changes that were made before and rolled back.
	fail func(reconcile.Sandbox) (changes []netstate.Change, err error)
}

func (b *book) Ensure(_ context.Context, sb reconcile.Sandbox) (reconcile.Report, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		if changes, err := b.fail(sb); err != nil {
			return reconcile.Report{Sandbox: sb.ID, Changes: changes}, err
		}
	}
	b.records[sb.ID] = reconcile.Record{Sandbox: sb, Phase: reconcile.Applied, BootID: "boot"}
	return reconcile.Report{Sandbox: sb.ID}, nil
}

func (b *book) Check(context.Context, reconcile.SandboxID) (reconcile.Status, error) {
	if b.checking != nil {
		b.checking()
	}
	return reconcile.Status{State: reconcile.InSync}, nil
}

func (b *book) Release(_ context.Context, id reconcile.SandboxID) (reconcile.Report, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if rec, known := b.records[id]; b.unread && known {
		rec.Phase = reconcile.Releasing
		b.records[id] = rec
		return reconcile.Report{}, fmt.Errorf("release sandbox %q: %w", id, reconcile.ErrUnread)
	}
	delete(b.records, id)
	return reconcile.Report{}, nil
}

func (b *book) Record(id reconcile.SandboxID) (reconcile.Record, bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, known := b.records[id]
	return r, known, nil
}

func (b *book) IDs() ([]reconcile.SandboxID, []error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.errs) > 0 {
		return nil, b.errs
	}
	return slices.Sorted(maps.Keys(b.records)), nil
}

func (b *book) OtherVersions() []*frame.OtherVersion { return b.others }

// oneType is a set of contracts.
type oneType struct{}

func (oneType) Contract(typ string) (contract.Contract, bool) {
	return contract.Contract{Params: []contract.Param{{Name: "ifName"}, {Name: "ipam"}, {Name: "ipMasqExcept", Aliases: []string{"nonMasqueradeCIDRs"}}}}, typ == "bridge"
}

func (oneType) Types() []string { return []string{"bridge"} }

// server is a Server on a node whose clock stands still.
type server struct {
	*Server
	t    *testing.T
	book *book
	now  time.Time
	sync func(*os.File) error // of the ledger; nil succeeds
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{t: t, book: &book{records: map[reconcile.SandboxID]reconcile.Record{}}, now: time.Unix(1_700_000_000, 0)}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	a, err := addresses.Open(addresses.Options{
		NodeName: "n", File: filepath.Join(t.TempDir(), "addresses"), Recorded: func() []addresspool.Grant { return nil }, Log: log, Now: func() time.Time { return s.now },
		Sync: func(f *os.File) error {
			if s.sync != nil {
				return s.sync(f)
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Server = New(Options{
		Engine: s.book, Addresses: a, Contracts: oneType{}, NetnsDir: t.TempDir(), BootID: "boot", HostNetns: reconcile.NetnsID{Inode: 1},
		Network: func() (Network, error) {
			return Network{
				Topology: &topology.Topology{Name: "pods", Steps: []topology.Step{{Name: "eth", Type: "bridge"}}},
				PodCIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
			}, nil
		},
		Identify: func(string) (reconcile.NetnsID, error) { return reconcile.NetnsID{Inode: 2}, nil },
		Log:      log, Now: func() time.Time { return s.now },
	})
	return s
}

// call returns the error of a call for eth0 of a container.
func (s *server) call(command cnisocket.Command, container, more string) string {
	s.t.Helper()
	reply := s.Do(s.t.Context(), cnisocket.Request{
		Command: command, Container: container, IfName: "eth0", Netns: filepath.Join(s.NetnsDir, container), Config: json.RawMessage(`{"name": "plumbline"` + more + `}`),
	})
	if reply.Error != nil {
		return reply.Error.Error()
	}
	return ""
}

// have returns the containers with a record and those with addresses.
func (s *server) have() (records, granted string) {
	s.t.Helper()
	grants, err := s.Addresses.Grants()
	if err != nil {
		s.t.Fatal(err)
	}
	var with []string
	for _, g := range grants {
		container, _, _ := reconcile.ParseOwner(g.Claim)
		with = append(with, container)
	}
	var recorded []string
	for id := range s.book.records {
		recorded = append(recorded, id.Origin().Container)
	}
	slices.Sort(with)
	slices.Sort(recorded)
	return strings.Join(recorded, " "), strings.Join(with, " ")
}

func (s *server) want(when, records, granted string) {
	s.t.Helper()
	if r, g := s.have(); r != records || g != granted {
		s.t.Errorf("%s: records of %q, addresses of %q; want %q, %q", when, r, g, records, granted)
	}
}

func (s *server) add(containers ...string) {
	s.t.Helper()
	for _, c := range containers {
		if err := s.call(cnisocket.Add, c, ""); err != "" {
			s.t.Fatalf("ADD %s: %s", c, err)
		}
	}
}

// TestCollect: GC ends what the runtime does not list, and nothing if it gives no list.
func TestCollect(t *testing.T) {
	s := newServer(t)
	s.add("a", "b", "c")
	for _, more := range []string{``, `, "cni.dev/valid-attachments": {"a": 1}`, `, "cni.dev/valid-attachments": "a"`} {
		if err := s.call(cnisocket.GC, "", more); !strings.Contains(err, "cni.dev/valid-attachments") {
			t.Errorf("GC with %q: %q", more, err)
		}
		s.want("GC with "+more, "a b c", "a b c")
	}
	for _, step := range []struct{ more, left string }{
		{`, "cni.dev/valid-attachments": [{"containerID": "a", "ifname": "eth0"}, {"containerID": "b", "ifname": "eth0"}, {"containerID": "c", "ifname": "eth1"}]`, "a b"},
		{`, "cni.dev/attachments": [{"containerID": "b", "ifname": "eth0"}]`, "b"},
		{`, "cni.dev/valid-attachments": null`, ""},
	} {
		if err := s.call(cnisocket.GC, "", step.more); err != "" {
			t.Errorf("GC with %q: %s", step.more, err)
		}
		s.want("GC with "+step.more, step.left, step.left)
	}
}

// TestUnreadNamespace: a pod that fills its namespace ends all the same, as the runtime deletes the namespace only after a DEL that
// succeeds. Its record and addresses stay until the namespace has gone.
func TestUnreadNamespace(t *testing.T) {
	s := newServer(t)
	s.add("a", "b")
	s.seen = map[string]bool{} // by this process
	s.book.unread = true
	for range 2 {
		if err := s.call(cnisocket.Del, "a", ""); err != "" {
			t.Errorf("DEL: %s", err)
		}
		if err := s.call(cnisocket.GC, "", `, "cni.dev/valid-attachments": [{"containerID": "b", "ifname": "eth0"}]`); err != "" {
			t.Errorf("GC: %s", err)
		}
		s.sweep(t.Context())
		s.want("the namespace is there", "a b", "a b")
	}
	if err := s.call(cnisocket.Add, "a", ""); !strings.Contains(err, reconcile.ErrUnread.Error()) {
		t.Errorf("ADD beside what is left: %q", err)
	}
	s.book.unread = false
	s.Identify = func(path string) (reconcile.NetnsID, error) {
		if filepath.Base(path) == "a" {
			return reconcile.NetnsID{}, fault.New(fault.Gone, errors.New("no such file"))
		}
		return reconcile.NetnsID{Inode: 2}, nil
	}
	s.sweep(t.Context())
	s.want("the namespace has gone", "b", "b")
}

// TestUnlistedRecords: while the journal cannot be listed, nobody's addresses are given back, no
// pod counts as ended, and the network is in use.
func TestUnlistedRecords(t *testing.T) {
	s := newServer(t)
	s.add("a", "b")
	s.book.errs = []error{errors.New("too many open files")}
	for _, c := range []struct {
		command cnisocket.Command
		more    string
	}{{cnisocket.Del, ""}, {cnisocket.Check, ""}, {cnisocket.Add, ""}, {cnisocket.GC, `, "cni.dev/valid-attachments": []`}} {
		if err := s.call(c.command, "a", c.more); !strings.Contains(err, "too many open files") {
			t.Errorf("%s: %q", c.command, err)
		}
		s.want(string(c.command), "a b", "a b")
	}
	for range 3 {
		s.sweep(t.Context())
		s.now = s.now.Add(orphanedFor)
	}
	s.want("swept", "a b", "a b")
	if used, err := s.InUse(); err == nil {
		t.Errorf("in use: %v, without an error", used)
	}
	// Damage that was found is no reason: the file was set aside.
	s.book.errs = []error{&frame.Damage{Err: errors.New("torn")}}
	s.now = s.now.Add(time.Hour)
	if err := s.call(cnisocket.Del, "a", ""); err != "" {
		t.Errorf("DEL: %s", err)
	}
	if !s.LastEnded().Equal(s.now) {
		t.Errorf("the last pod ended at %s, not %s", s.LastEnded(), s.now)
	}
}

// TestOrphans: addresses without a record come back after a while, unless there may be one
// that this version cannot read.
func TestOrphans(t *testing.T) {
	for what, c := range map[string]struct {
		others  []*frame.OtherVersion
		damaged []string
		granted string
	}{
		"nothing else":                  {},
		"a record of another version":   {[]*frame.OtherVersion{{Mentions: map[string]bool{"cni/a/eth0/pods": true}}}, nil, "a"},
		"another version's, of a claim": {[]*frame.OtherVersion{{Mentions: map[string]bool{"s/u/pods": true, "cni": true}}}, nil, ""},
		"a damaged record":              {nil, []string{"x.damaged-1"}, "a"},
	} {
		s := newServer(t)
		s.add("a")
		clear(s.book.records)
		s.book.others, s.Damaged = c.others, func() ([]string, error) { return c.damaged, nil }
		for range 2 {
			s.sweep(t.Context())
			s.want(what, "", "a")
			s.now = s.now.Add(orphanedFor / 2)
		}
		s.sweep(t.Context())
		s.want(what, "", c.granted)
		if used, err := s.InUse(); err != nil || used != (len(c.others) > 0 && c.granted != "") {
			t.Errorf("%s: in use: %v, %v", what, used, err)
		}
	}
}

// locked reports whether something is done for an owner, or waits.
func (l *locks) locked(owner string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[owner] != nil
}

// TestSweepAndAdd: whether a pod has ended is decided while no call for it changes that.
func TestSweepAndAdd(t *testing.T) {
	s := newServer(t)
	s.add("a", "b")
	asked := 0
	s.Identify = func(path string) (reconcile.NetnsID, error) {
		asked++
		if owner := reconcile.OwnerOfPrimary(filepath.Base(path), "eth0"); !s.locks.locked(owner) {
			t.Errorf("%s: a call could change it meanwhile", owner)
		}
		if filepath.Base(path) == "a" {
			return reconcile.NetnsID{}, fault.New(fault.Gone, errors.New("no such file"))
		}
		return reconcile.NetnsID{Inode: 2}, nil
	}
	s.sweep(t.Context())
	s.want("the namespace of a has ended", "b", "b")
	if asked != 2 {
		t.Errorf("%d namespaces were identified", asked)
	}
}

// TestGCAndSweep: GC also ends a container that a search for ended pods examines.
func TestGCAndSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.add("a", "b")
		look := make(chan struct{})
		s.Identify = func(path string) (reconcile.NetnsID, error) {
			if filepath.Base(path) == "a" {
				<-look
			}
			return reconcile.NetnsID{Inode: 2}, nil
		}
		var wg sync.WaitGroup
		wg.Go(func() { s.sweep(t.Context()) })
		synctest.Wait()
		wg.Go(func() {
			if err := s.call(cnisocket.GC, "", `, "cni.dev/valid-attachments": [{"containerID": "b", "ifname": "eth0"}]`); err != "" {
				t.Errorf("GC: %s", err)
			}
		})
		synctest.Wait()
		close(look)
		wg.Wait()
		s.want("GC knows b only", "b", "b")
	})
}

// TestGCDuringCall: GC leaves to another call what that works on, and does not wait for it.
func TestGCDuringCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.add("a", "b")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // passes only if GC waits for the call that waits for it
		defer cancel()
		s.book.checking = func() {
			if reply := s.Do(ctx, cnisocket.Request{Command: cnisocket.GC, Config: json.RawMessage(`{"name": "plumbline", "cni.dev/valid-attachments": []}`)}); reply.Error != nil {
				t.Errorf("GC: %v", reply.Error)
			}
		}
		if err := s.call(cnisocket.Check, "a", ""); err != "" {
			t.Errorf("CHECK during GC: %s", err)
		}
		s.want("GC knows none, and CHECK works on a", "a", "a")
	})
}

// TestEarlierBoot: what pods had before the machine was booted is released, and does not
// count as in use until then.
func TestEarlierBoot(t *testing.T) {
	s := newServer(t)
	s.add("a")
	if used, err := s.InUse(); err != nil || !used {
		t.Errorf("in use: %v, %v", used, err)
	}
	s.BootID = "next"
	if used, err := s.InUse(); err != nil || used {
		t.Errorf("in use: %v, %v", used, err)
	}
	s.sweep(t.Context())
	s.want("booted", "", "")
}

// TestKilledInAdd: an ADD that an earlier process has recorded is released when its namespace
// does not exist any more and no DEL comes, if this process sees those of pods that run.
func TestKilledInAdd(t *testing.T) {
	for what, c := range map[string]struct {
		runs, propagates bool
		left             string
	}{
		"sees another pod":                       {true, true, "runs"},
		"sees no pod":                            {false, true, "killed"},
		"does not see what was created later":    {true, false, "killed runs"},
		"does not see the folder of the runtime": {false, false, "killed"},
	} {
		s := newServer(t)
		s.add("killed")
		if c.runs {
			s.add("runs")
		}
		s.seen, s.sees = map[string]bool{}, false // the next process
		s.Propagates = func(string) bool { return c.propagates }
		s.Identify = func(path string) (reconcile.NetnsID, error) {
			if filepath.Base(path) == "killed" {
				return reconcile.NetnsID{}, fault.New(fault.Gone, errors.New("no such file"))
			}
			return reconcile.NetnsID{Inode: 2}, nil
		}
		for range 2 {
			s.sweep(t.Context())
		}
		s.want(what, c.left, c.left)
	}
}

func TestPropagates(t *testing.T) {
	for mountinfo, want := range map[string]bool{
		"":                                      true,
		"31 2 0:5 / /run rw - tmpfs tmpfs rw\n": true,
		"31 2 0:5 /netns /var/run/netns rw,nosuid master:11 - tmpfs tmpfs rw\n":                                         true,
		"31 2 0:5 /netns /var/run/netns rw,nosuid shared:11 master:2 - tmpfs tmpfs rw\n":                                true,
		"31 2 0:5 /netns /var/run/netns rw,nosuid - tmpfs shared:1 rw\n":                                                false,
		"31 2 0:5 /netns /var/run/netns rw master:11 - tmpfs t rw\n32 31 0:5 / /var/run/netns rw - tmpfs t rw\n":        false,
		"31 2 0:5 /netns /var/run/netns rw master:11 - tmpfs t rw\n32 31 0:4 net:[1] /var/run/netns/a rw - nsfs n rw\n": true,
	} {
		if have := propagatesIn(mountinfo, "/var/run/netns"); have != want {
			t.Errorf("%v, want %v:\n%s", have, want, mountinfo)
		}
	}
}

// TestDelBesideAdds: pods that wait in ADD, perhaps for a server that does not answer, do not
// delay those that end.
func TestDelBesideAdds(t *testing.T) {
	s := newServer(t)
	if err := s.call(cnisocket.Add, "a", ""); err != "" {
		t.Fatal(err)
	}
	for i := range s.Parallel {
		if _, err := s.slots.take(t.Context(), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	s.Timeout = 10 * time.Millisecond
	if err := s.call(cnisocket.Add, "b", ""); !strings.Contains(err, "at most 8 calls run at a time") {
		t.Errorf("one ADD too many: %q", err)
	}
	s.now = s.now.Add(time.Hour)
	if err := s.call(cnisocket.Del, "a", ""); err != "" {
		t.Errorf("DEL: %s", err)
	}
	if !s.LastEnded().Equal(s.now) {
		t.Errorf("the last pod ended at %s, not %s", s.LastEnded(), s.now)
	}
}

// TestPortMappings: the ports of the host that the runtime names are those of the topology's first
// step, for this pod only.
func TestPortMappings(t *testing.T) {
	s := newServer(t)
	config := func(container string) any {
		t.Helper()
		rec, known, err := s.book.Record(reconcile.IDOfPrimary(container, "eth0", "pods"))
		if err != nil || !known {
			t.Fatalf("no record of %q: %v", container, err)
		}
		return rec.Sandbox.Topology.Steps[0].Config["portMappings"]
	}
	mappings := `, "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "TCP", "hostIP": ""},
{"hostPort": 0, "containerPort": 81, "protocol": "tcp"}, {"hostPort": -1, "containerPort": 70000, "hostIP": "192.0.2.9"}]}`
	if err := s.call(cnisocket.Add, "a", mappings); err != "" {
		t.Fatal(err)
	}
	// A config that no step can have is refused when it is planned.
	want := []any{
		map[string]any{"hostPort": int64(8080), "containerPort": int64(80), "protocol": "tcp"},
		map[string]any{"hostPort": int64(-1), "containerPort": int64(70000), "hostIP": "192.0.2.9"},
	}
	if have := config("a"); !reflect.DeepEqual(have, want) {
		t.Errorf("ports %v, want %v", have, want)
	}
	if err := s.call(cnisocket.Add, "b", ""); err != "" {
		t.Fatal(err)
	}
	if have := config("b"); have != nil {
		t.Errorf("a pod without ports has %v", have)
	}
	for _, wrong := range []string{`{"hostPort": "8080"}`, `{"hostPort": 1e30}`, `8080`} {
		if err := s.call(cnisocket.Add, "c", `, "runtimeConfig": {"portMappings": [`+wrong+`]}`); !strings.Contains(err, "configuration of the network") {
			t.Errorf("%s: %q", wrong, err)
		}
	}
	s.want("what cannot be read", "a b", "a b")
}

// TestStatusLog: a runtime queries the status every five seconds, also of a node that has no network
// for a day. The log has each reason once.
func TestStatusLog(t *testing.T) {
	s := newServer(t)
	var out strings.Builder
	s.Log = slog.New(slog.NewTextHandler(&out, nil))
	works, reason := s.Network, ""
	s.Network = func() (Network, error) {
		if reason != "" {
			return Network{}, errors.New(reason)
		}
		return works()
	}
	for i, now := range []string{"", "no topology", "no pod CIDR", "", "no pod CIDR"} {
		reason = now
		for range 100 {
			if got := s.call(cnisocket.Status, "", ""); !strings.Contains(got, reason) || (got == "") != (reason == "") {
				t.Fatalf("STATUS: %q, want %q", got, reason)
			}
		}
		lines := 0
		if reason != "" {
			lines = 1
		}
		if n := strings.Count(out.String(), "\n"); n != lines || !strings.Contains(out.String(), reason) {
			t.Errorf("after change %d: %d lines of 100 calls, want %d with %q:\n%.500s", i, n, lines, reason, out.String())
		}
		out.Reset()
	}
}
