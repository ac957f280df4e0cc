package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/lldp"
	"github.com/plumbline/plumbline/inventory/sysfstest"
)

// node is a machine made of one virtio card, eth1, besides its uplink.
type node struct {
	*Publisher
	dir string
	out []resourceslice.DriverResources // as it was published

	mu     sync.Mutex
	inUse  []string
	failed error // of what asks for default routes
	away   error // of what publishes
	tries  int
}

const card = "pci-0000-00-04-0"

func newNode(t *testing.T, stateFile string) *node {
	t.Helper()
	n := &node{dir: t.TempDir()}
	n.plug(t, "0000:00:03.0", "eth0")
	n.plug(t, "0000:00:04.0", "eth1")
	n.Publisher = New(Options{
		NodeName: "n1", Sysfs: os.DirFS(n.dir), StateFile: stateFile, Log: slog.New(slog.DiscardHandler),
		InUse: func() []string { n.mu.Lock(); defer n.mu.Unlock(); return n.inUse },
		Uplinks: func(context.Context, []inventory.Device) (inventory.Uplinks, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			return inventory.Uplinks{Routes: []string{"eth0"}}, n.failed
		},
	})
	return n
}

func (n *node) plug(t *testing.T, address, ifName string) {
	t.Helper()
	dir := filepath.Join(n.dir, "devices/pci0000:00", address)
	n.write(t, filepath.Join(dir, "class"), "0x020000")
	n.write(t, filepath.Join(dir, "vendor"), "0x1af4")
	n.write(t, filepath.Join(dir, "device"), "0x1041")
	n.link(t, "../../../devices/pci0000:00/"+address, "bus/pci/devices/"+address)
	n.addNetdev(t, address, ifName)
}

func (n *node) addNetdev(t *testing.T, address, ifName string) {
	t.Helper()
	dir := filepath.Join(n.dir, "devices/pci0000:00", address, "net", ifName)
	for file, text := range map[string]string{"type": "1", "mtu": "1500", "address": "02:00:00:00:00:01", "flags": "0x1003", "carrier": "1"} {
		n.write(t, filepath.Join(dir, file), text)
	}
	n.link(t, "../../devices/pci0000:00/"+address+"/net/"+ifName, "class/net/"+ifName)
}

func (n *node) removeNetdev(t *testing.T, address, ifName string) {
	t.Helper()
	must(t, os.Remove(filepath.Join(n.dir, "class/net", ifName)))
	must(t, os.RemoveAll(filepath.Join(n.dir, "devices/pci0000:00", address, "net")))
}

func (n *node) write(t *testing.T, file, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	must(t, os.WriteFile(file, []byte(text+"\n"), 0o644))
}

func (n *node) link(t *testing.T, target, name string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(filepath.Join(n.dir, name)), 0o755))
	must(t, os.Symlink(target, filepath.Join(n.dir, name)))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (n *node) use(names ...string) {
	n.mu.Lock()
	n.inUse = names
	n.mu.Unlock()
	n.rescan()
}

func (n *node) fail(err error) {
	n.mu.Lock()
	n.failed = err
	n.mu.Unlock()
	n.rescan()
}

// PublishResources implements Slices.
func (n *node) PublishResources(_ context.Context, r resourceslice.DriverResources) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tries++; n.away != nil {
		return n.away
	}
	n.out = append(n.out, r)
	return nil
}

// last returns the devices that were published last, and how often something was.
func (n *node) last() ([]resourceapi.Device, int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.out) == 0 {
		return nil, 0
	}
	return n.out[len(n.out)-1].Pools["n1"].Slices[0].Devices, len(n.out)
}

func (n *node) want(t *testing.T, when string, writes int, ifNames ...string) {
	t.Helper()
	synctest.Wait()
	devices, have := n.last()
	var names []string
	for _, d := range devices {
		names = append(names, *d.Attributes["ifName"].StringValue)
	}
	if have != writes || !slices.Equal(names, ifNames) {
		t.Errorf("%s: published %d times, last %q; want %d times, %q", when, have, names, writes, ifNames)
	}
}

func run(t *testing.T, n *node) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := n.Run(ctx, n); err != nil {
			t.Error(err)
		}
	})
	return func() { cancel(); wg.Wait() }
}

func TestPublisher(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sub", "published.json")
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, file)
		n.failed = errors.New("no answer")
		stop := run(t, n)
		n.want(t, "while the default routes are unknown", 0)
		n.fail(nil)
		time.Sleep(time.Second)
		n.want(t, "at first", 1, "eth1")
		time.Sleep(10 * time.Minute)
		n.want(t, "when nothing changes", 1, "eth1")

		n.plug(t, "0000:00:05.0", "eth2")
		n.rescan()
		time.Sleep(time.Second)
		n.want(t, "with a new card", 2, "eth1", "eth2")
		n.plug(t, "0000:00:06.0", "eth3")
		time.Sleep(2 * time.Minute)
		n.want(t, "with one without a notification", 3, "eth1", "eth2", "eth3")

		n.use(card)
		n.removeNetdev(t, "0000:00:04.0", "eth1")
		time.Sleep(time.Second)
		n.want(t, "in a pod", 3, "eth1", "eth2", "eth3")
		stop()

		// The agent is started again; the device is still in the pod.
		next := &node{Publisher: New(n.opts), dir: n.dir}
		n.use(card)
		stop = run(t, next)
		time.Sleep(time.Second)
		next.want(t, "after a restart", 1, "eth1", "eth2", "eth3")

		// The claim's record cannot be read for a while.
		n.use()
		next.rescan()
		time.Sleep(time.Second)
		next.want(t, "in a pod nobody knows of", 2, "eth2", "eth3")
		n.use(card)
		next.rescan()
		time.Sleep(time.Second)
		next.want(t, "in a pod again", 3, "eth1", "eth2", "eth3")

		next.addNetdev(t, "0000:00:04.0", "dev7")
		next.rescan()
		time.Sleep(time.Second)
		next.want(t, "home, and not yet released", 3, "eth1", "eth2", "eth3")
		n.use()
		next.rescan()
		time.Sleep(time.Second)
		next.want(t, "released", 4, "dev7", "eth2", "eth3")

		n.fail(errors.New("no answer"))
		next.removeNetdev(t, "0000:00:05.0", "eth2")
		next.rescan()
		time.Sleep(time.Second)
		next.want(t, "while the default routes are unknown again", 4, "dev7", "eth2", "eth3")
		if w := next.Withheld(); len(w) != 1 {
			t.Errorf("withheld %v", w)
		}
		stop()
	})
}

// TestStateOfAnotherVersion holds that a file that another version has written, before
// or while this one runs, is left as it is, and that devices are still published.
func TestStateOfAnotherVersion(t *testing.T) {
	file := filepath.Join(t.TempDir(), "published.json")
	const later = `{"version":2,"devices":[{"name":"x"}]}`
	is := func(when, want string) {
		t.Helper()
		if b, _ := os.ReadFile(file); (string(b) == later) != (want == later) {
			t.Errorf("%s: the file is %s", when, b)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		must(t, os.WriteFile(file, []byte(later), 0o600))
		n := newNode(t, file)
		stop := run(t, n)
		time.Sleep(time.Second)
		n.want(t, "at first", 1, "eth1")
		n.use(card)
		n.removeNetdev(t, "0000:00:04.0", "eth1")
		n.rescan()
		time.Sleep(2 * time.Minute)
		n.want(t, "in a pod", 1, "eth1") // known from memory
		is("after some scans", later)

		must(t, os.Remove(file))
		time.Sleep(2 * time.Minute)
		is("when it was removed", "ours")
		must(t, os.WriteFile(file, []byte(later), 0o600))
		n.plug(t, "0000:00:05.0", "eth2")
		n.rescan()
		time.Sleep(time.Second)
		n.want(t, "with a new card", 2, "eth1", "eth2")
		is("written while this one runs", later)
		stop()
	})
}

// TestAnHourWithoutServer: while nothing can be published it is tried about once
// a minute, whatever happens on the node, and then once, as the node is by then.
func TestAnHourWithoutServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, filepath.Join(t.TempDir(), "f"))
		n.away = errors.New("connection refused")
		stop := run(t, n)
		for i := range 12 {
			n.plug(t, fmt.Sprintf("0000:00:%02x.0", 5+i), fmt.Sprintf("eth%d", 2+i))
			n.rescan()
			time.Sleep(5 * time.Minute)
		}
		n.want(t, "while the server is away", 0)
		n.mu.Lock()
		n.away = nil
		tries := n.tries
		n.mu.Unlock()
		if tries > 100 {
			t.Errorf("%d attempts in an hour", tries)
		}
		time.Sleep(2 * time.Minute)
		devices, writes := n.last()
		if writes != 1 || len(devices) != 13 {
			t.Errorf("published %d times, %d devices in the end; want once, 13", writes, len(devices))
		}
		stop()
	})
}

// TestStorm counts scans while links come and go all the time.
func TestStorm(t *testing.T) {
	for _, c := range []struct {
		took        time.Duration // by each scan
		least, most int           // scans in 20 s
	}{
		{0, 12, 15},                    // one in 1.5 s
		{300 * time.Millisecond, 4, 5}, // one in 0.3 + 2.7 + 1.5 s
		{10 * time.Second, 2, 2},       // one in 10 + 5 + 1.5 s
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t, filepath.Join(t.TempDir(), "f"))
			scans := 0
			n.opts.InUse = func() []string { scans++; time.Sleep(c.took); return nil }
			stop := run(t, n)
			for range 2000 {
				n.rescan()
				time.Sleep(10 * time.Millisecond)
			}
			synctest.Wait()
			if scans < c.least || scans > c.most {
				t.Errorf("%d scans of %s in 20 s of notices, want %d to %d", scans, c.took, c.least, c.most)
			}
			stop()
		})
	}
}

// wires is a table of what is heard on the ports, without the sockets.
type wires struct {
	mu sync.Mutex
	lldp.Table
}

// Seed, Follow and Mark implement Neighbours.
func (w *wires) Seed(port string, n inventory.Neighbour) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Table.Seed(port, n, time.Now())
}

func (w *wires) Follow(devices []inventory.Device) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	carrier := map[string]bool{}
	for _, d := range devices {
		carrier[d.IfName] = d.Carrier
	}
	w.Table.Follow(carrier, time.Now())
	return nil
}

func (w *wires) Mark(devices []inventory.Device) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range devices {
		devices[i].Neighbour = w.Known(devices[i].IfName, time.Now())
	}
}

func (w *wires) hear(n *node, system string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.Heard("eth1", lldp.Frame{Speaker: "02:00:00:00:00:01/a/b", Neighbour: inventory.Neighbour{Switch: system, Port: "7"}, TTL: 2 * time.Minute}, time.Now()) {
		n.rescan()
	}
}

// TestNeighbours counts what is written while a switch says who it is, says something else
// all the time, and falls silent, and holds that another agent has it from the start.
func TestNeighbours(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	synctest.Test(t, func(t *testing.T) {
		n, w := newNode(t, file), &wires{}
		n.opts.Neighbours = w
		stop := run(t, n)
		is := func(when string, n *node, writes int, system string) {
			t.Helper()
			n.want(t, when, writes, "eth1")
			devices, _ := n.last()
			have := ""
			if a, ok := devices[0].Attributes["switch"]; ok {
				have = *a.StringValue
			}
			if _, ok := devices[0].Attributes["switchPort"]; have != system || ok != (system != "") {
				t.Errorf("%s: %v", when, devices[0].Attributes)
			}
		}
		time.Sleep(time.Second)
		is("before anybody is heard", n, 1, "")
		w.hear(n, "leaf-1")
		time.Sleep(time.Second)
		is("heard", n, 2, "leaf-1")
		for i := range 600 {
			w.hear(n, fmt.Sprint("leaf-", i))
			time.Sleep(time.Second)
		}
		is("with another name each second", n, 2, "leaf-1")
		stop()

		next := &node{Publisher: New(n.opts), dir: n.dir}
		next.opts.Neighbours = &wires{}
		stop = run(t, next)
		time.Sleep(time.Second)
		is("by another agent", next, 1, "leaf-1")
		time.Sleep(4 * time.Minute)
		is("silent", next, 2, "")
		stop()
	})
}

func TestLinkDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, filepath.Join(t.TempDir(), "f"))
		stop := run(t, n)
		carrier := func(c string) {
			n.write(t, filepath.Join(n.dir, "devices/pci0000:00/0000:00:04.0/net/eth1/carrier"), c)
			n.rescan()
		}
		count := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			devices, _ := n.last()
			if have := len(devices[0].Taints); have != want {
				t.Errorf("%s: %d taints, want %d", when, have, want)
			}
		}
		carrier("0")
		time.Sleep(9 * time.Second)
		count("for 9 s", 0)
		time.Sleep(2 * time.Second)
		count("for 11 s", 1)
		stop()

		next := &node{Publisher: New(n.opts), dir: n.dir}
		n, stop = next, run(t, next)
		count("after a restart", 1)
		carrier("1")
		time.Sleep(time.Second)
		count("alive", 0)
		carrier("0")
		time.Sleep(5 * time.Second)
		carrier("1")
		time.Sleep(time.Second)
		carrier("0")
		time.Sleep(9 * time.Second)
		count("flapping", 0)
		// In a cluster without taints the device is withheld instead.
		time.Sleep(5 * time.Second)
		count("dead again", 1)
		n.Handle(&resourceslice.DroppedFieldsError{
			DesiredSlice: &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{{Taints: taints(TaintLinkDown)}}}},
			ActualSlice:  &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{{}}}},
		})
		time.Sleep(time.Second)
		if devices, _ := n.last(); len(devices) != 0 {
			t.Errorf("without taints: %d devices, want none", len(devices))
		}
		if w := n.Withheld(); len(w) != 2 || w[1].Name != card {
			t.Errorf("withheld %v", w)
		}
		stop()
	})
}

// TestFailed holds that an agent learns which device an earlier one has kept from pods, and
// since when, and that the same is published again.
func TestFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := map[string]Failing{card: {Lost: true, Held: true, Since: time.Now().Truncate(time.Second)}}
		n := newNode(t, filepath.Join(t.TempDir(), "f"))
		n.opts.Failing = func() map[string]Failing { return held }
		stop := run(t, n)
		synctest.Wait()
		stop()
		before, _ := n.last()

		var restored map[string]Failing
		n.opts.Failed = func(f map[string]Failing) { restored = f }
		n.opts.Failing = func() map[string]Failing { return restored }
		next := &node{Publisher: New(n.opts), dir: n.dir}
		stop = run(t, next)
		synctest.Wait()
		stop()
		if f := restored[card]; len(restored) != 1 || !f.Held || !f.Since.Equal(held[card].Since) {
			t.Errorf("restored %+v, want %+v", restored, held)
		}
		if after, _ := next.last(); len(after) != 1 || !equality.Semantic.DeepEqual(after, before) {
			t.Errorf("published %+v, before %+v", after, before)
		}
	})
}

// TestFullDisk: a device that fails while nothing can be recorded is tainted all the same. A new device waits until it is recorded.
func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "state")
		n := newNode(t, filepath.Join(dir, "f"))
		var failing atomic.Pointer[map[string]Failing]
		failing.Store(&map[string]Failing{})
		n.opts.Failing = func() map[string]Failing { return *failing.Load() }
		is := func(when string, writes, taints int, ifNames ...string) {
			t.Helper()
			n.rescan()
			time.Sleep(2 * time.Minute)
			n.want(t, when, writes, ifNames...)
			if devices, _ := n.last(); len(devices) > 0 && len(devices[0].Taints) != taints {
				t.Errorf("%s: taints %v, want %d", when, devices[0].Taints, taints)
			}
		}
		must(t, os.WriteFile(dir, nil, 0o600)) // no folder: nothing can be written
		stop := run(t, n)
		is("nothing is recorded", 0, 0)
		must(t, os.Remove(dir))
		is("recorded", 1, 0, "eth1")

		must(t, os.Rename(dir, dir+".full"))
		must(t, os.WriteFile(dir, nil, 0o600))
		n.plug(t, "0000:00:05.0", "eth2")
		is("a new device", 1, 0, "eth1")
		failing.Store(&map[string]Failing{card: {Lost: true, Held: true, Since: time.Now()}})
		is("one device fails", 2, 1, "eth1")
		stop()

		next := &node{Publisher: New(n.opts), dir: n.dir}
		must(t, errors.Join(os.Remove(dir), os.Rename(dir+".full", dir)))
		n, stop = next, run(t, next)
		is("an agent with space", 1, 1, "eth1", "eth2")
		failing.Store(&map[string]Failing{})
		is("returned", 2, 0, "eth1", "eth2")
		stop()
	})
}

func TestState(t *testing.T) {
	file := filepath.Join(t.TempDir(), "published.json")
	if have, err := load(file); len(have) != 0 || err != nil {
		t.Errorf("no file: %v, %v", have, err)
	}
	d := vf(1)
	want := map[string]entry{d.Name: {d.ID, resourceapi.Device{Name: d.Name, Attributes: inventory.Attributes(d)}}}
	must(t, save(file, want))
	have, err := load(file)
	if err != nil || !reflect.DeepEqual(have, want) {
		t.Errorf("have %v, %v", have, err)
	}
	for text, other := range map[string]bool{"": false, "{": false, `{"version":2,"devices":[]}`: true, `{"version":"1.1"}`: true, `{"version":1,"devices":{}}`: true} {
		must(t, os.WriteFile(file, []byte(text), 0o600))
		if have, err := load(file); len(have) != 0 || err == nil || isOtherVersion(err) != other {
			t.Errorf("%q: %v, %v", text, have, err)
		}
		if err := OtherVersion(file); (err != nil) != other {
			t.Errorf("%q: of another version: %v", text, err)
		}
		err := save(file, want)
		if b, _ := os.ReadFile(file); isOtherVersion(err) != other || (string(b) == text) != other {
			t.Errorf("%q: %v, now %s", text, err, b)
		}
	}
	must(t, save(filepath.Join(filepath.Dir(file), "own.json"), want))
	b, err := os.ReadFile(filepath.Join(filepath.Dir(file), "own.json"))
	must(t, err)
	must(t, os.WriteFile(file, append([]byte(`{"later":{"x":[1]},`), b[1:]...), 0o600))
	if have, err := load(file); err != nil || !reflect.DeepEqual(have, want) {
		t.Errorf("with a field that is unknown: %v, %v", have, err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(file), ".*")); len(left) != 0 {
		t.Errorf("left behind %v", left)
	}
}

func TestExplain(t *testing.T) {
	resource := schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}
	dropped := &resourceslice.DroppedFieldsError{DesiredSlice: &resourceapi.ResourceSlice{}, ActualSlice: &resourceapi.ResourceSlice{}}
	for _, c := range []struct {
		err  error
		want Cause
	}{
		{fmt.Errorf("sync: %w", dropped), Dropped},
		{fmt.Errorf("sync: %w", apierrors.NewInvalid(schema.GroupKind{}, "s", nil)), Refused},
		{apierrors.NewForbidden(resource, "s", errors.New("no")), Forbidden},
		{errors.New("gRPC server failed"), Fatal},
	} {
		if have := Explain(c.err); have.Cause != c.want || have.Message == "" || have.NoTaints {
			t.Errorf("%v: %+v, want %s", c.err, have, c.want)
		}
	}
}

// TestFixturesArePublished keeps every known machine within what the API allows.
func TestFixturesArePublished(t *testing.T) {
	trees, _ := filepath.Glob("../testdata/tree/*.txtar")
	if len(trees) < 5 {
		t.Fatalf("fixtures %v", trees)
	}
	for _, tree := range trees {
		devices, _ := inventory.Discover(sysfstest.Open(t, tree), inventory.Options{})
		offered, _ := known{devices: devices}.offer()
		for _, e := range offered {
			if reason := invalid(e.Device); reason != "" {
				t.Errorf("%s: %s", tree, reason)
			}
		}
	}
}

// TestSayDirty holds that the log names the reason of each taint once, and nothing but
// devices of the node: a record of another version tells words of which few are.
func TestSayDirty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, filepath.Join(t.TempDir(), "published.json"))
		var log strings.Builder
		n.opts.Log = slog.New(slog.NewTextHandler(&log, nil))
		n.opts.Dirty = func() map[string]string {
			return map[string]string{"0000:00:04.0": "mentioned", "sriov": "mentioned", "net1": "mentioned"}
		}
		stop := run(t, n)
		time.Sleep(10 * time.Minute)
		stop()
		if said := log.String(); strings.Count(said, "device is tainted") != 1 || !strings.Contains(said, "device=0000:00:04.0") {
			t.Errorf("logged:\n%s", said)
		}
	})
}
