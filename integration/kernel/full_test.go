package kernel

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology/fault"
)

// virtualCard makes a link of the host that can be given to a pod, and returns its
// identity.
func virtualCard(t *testing.T, name string) string {
	t.Helper()
	s := &foreignWriter{t: t}
	s.run(makeCard(name))
	t.Cleanup(func() { _, _ = s.try("ip link delete " + name) })
	return "if:" + name
}

func makeCard(name string) string {
	return fmt.Sprintf("ip link add %s address 02:00:00:00:0c:01 type ifb", name)
}

// TestFullSandbox: a pod has more in its namespace than is read of one. The
// sandbox is Failed with the reason, others are not affected, and its release returns
// the devices. The rest of the release is done when the namespace has gone, or
// is readable again.
func TestFullSandbox(t *testing.T) {
	const most = 40
	floods := map[string]string{
		"links":     fmt.Sprintf("for i in $(seq %d); do echo link add own$i type veth peer peer$i; done | $ip -batch -", most/2),
		"addresses": fmt.Sprintf("for i in $(seq %d); do echo address add 10.9.0.$i/32 dev lo; done | $ip -batch -", most+1),
		"routes":    fmt.Sprintf("for i in $(seq %d); do echo route add 10.9.0.$i/32 dev lo; done | $ip -batch -", most+1),
	}
	for _, what := range slices.Sorted(maps.Keys(floods)) {
		t.Run(what, func(t *testing.T) {
			devices := map[string]string{"nic": virtualCard(t, "nic0")}
			// With this index it is the last of a list that ends before it.
			(&foreignWriter{t: t}).run("ip link delete nic0; " + strings.Replace(makeCard("nic0"), "link add", "link add index 800000", 1))
			steps := "    - {name: nic, type: host-device, config: {ifName: net1, addresses: [192.0.2.10/24]}}\n"
			if hasCards() {
				maps.Copy(devices, functions(t, map[string]string{"vf": "enp3s0f0/2"}))
				steps += "    - {name: vf, type: sriov, config: {vlan: 7, addresses: [192.0.3.10/24]}}\n"
			}
			l, path, other := newLane(t), newNetns(t), newNetns(t)
			l.devices = slices.Sorted(maps.Values(devices))
			home := l.state("")
			s := &foreignWriter{t, filepath.Base(path), filepath.Base(other)}
			s.run("ip -n $NS link set lo up")
			host, err := kernel.Open(kernel.Options{Bounds: kernel.Bounds{Links: most, Addresses: most, Routes: most}})
			if err != nil {
				t.Fatal(err)
			}
			defer host.Close()
			r, err := engine(host, l.dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			sb := box(path, parse(t, "full", steps))
			sb.Given = ops.Givens{}.WithDevices(devices)
			if _, err := r.Ensure(ctxFor(t), sb); err != nil {
				t.Fatal(err)
			}
			s.run(floods[what])

			st, err := r.Check(ctxFor(t), sb.ID)
			if err != nil || st.State != reconcile.StateFailed || st.Kind != fault.Conflict {
				t.Fatalf("check: %v, %s (%s)", err, st.State, st.Kind)
			}
			for _, said := range []string{path, fmt.Sprint(most), what} {
				if !strings.Contains(st.Failure, said) {
					t.Errorf("%q does not say %q", st.Failure, said)
				}
			}
			if _, err := r.Repair(ctxFor(t), sb.ID); !errors.Is(err, reconcile.ErrPartial) {
				t.Errorf("repair: %v", err)
			}
			beside := box(other, parse(t, "beside", "    - {name: d, type: bridge, config: {name: br0}}\n"))
			if _, err := r.Ensure(ctxFor(t), beside); err != nil {
				t.Errorf("another sandbox: %v", err)
			}
			if _, err := r.AwaitRelease(ctxFor(t), beside.ID); err != nil { // else the guard of its port stays
				t.Errorf("release another sandbox: %v", err)
			}

			if _, err := r.Release(ctxFor(t), sb.ID); !errors.Is(err, reconcile.ErrUnread) {
				t.Errorf("release: %v", err)
			}
			l.mustEqual(home, "", "released, "+what+" left")
			if rec, known, err := r.Record(sb.ID); err != nil || !known || rec.Phase != reconcile.Releasing || len(rec.Devices()) > 0 {
				t.Errorf("record: %v, %v, %s", err, known, rec.Phase)
			}
			deleteNetns(path)
			if _, err := r.Release(ctxFor(t), sb.ID); err != nil {
				t.Errorf("release without the namespace: %v", err)
			}
			l.mustEqual(home, "", "the namespace has gone")
		})
	}
}
