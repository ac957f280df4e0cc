package kernel

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/topology/fault"
)

// rewrite changes the devices in the record of a sandbox.
func (l *lane) rewrite(id reconcile.SandboxID, change func(before, after *netstate.Device)) {
	l.t.Helper()
	store, err := journal.Open(l.dir)
	if err != nil {
		l.t.Fatal(err)
	}
	rec, known, err := store.Get(id)
	if err != nil || !known {
		l.t.Fatal(known, err)
	}
	for i, c := range rec.History {
		before, isDevice := c.Before.(netstate.Device)
		after, _ := c.After.(netstate.Device)
		if isDevice {
			change(&before, &after)
			rec.History[i].Before, rec.History[i].After = before, after
		}
	}
	if err := store.Put(rec); err != nil {
		l.t.Fatal(err)
	}
}

// notNoted makes of a record that of an attachment that was cut off after the device
// had been moved.
func notNoted(_, after *netstate.Device) { after.Index = 0 }

// TestDeviceKnownByIndex: of a link that was made somewhere the record may hold no more
// than the index it had on the host, if the attachment was interrupted. The link is returned; if it cannot be distinguished from the
// pod's own the release reports that and the record is kept.
func TestDeviceKnownByIndex(t *testing.T) {
	const index = 4711
	for _, tc := range []struct {
		name    string
		record  func(before, after *netstate.Device)
		kind    string
		pod     string // commands, before
		damage  string // and after the attachment
		restore string // what makes it known again
	}{
		{"cut off", notNoted, "veth peer name far0", "", "", ""},
		{"cut off, index taken", notNoted, "veth peer name far0", "$ip link add index 4711 name eth0 type veth peer name far1", "", ""},
		{"cut off, index taken and renamed", notNoted, "dummy", "$ip link add index 4711 name eth0 type veth peer name far1", "$ip link set net1 down; $ip link set net1 name other", "$ip link set other name net1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, path := newLane(t), newNetns(t)
			l.devices = []string{"if:lent0"}
			s := &foreignWriter{t, strings.TrimPrefix(path, "/run/netns/"), ""}
			s.run(fmt.Sprintf("ip link add index %d name lent0 type %s", index, tc.kind))
			t.Cleanup(func() { _, _ = s.try("ip link delete lent0") })
			s.run(tc.pod)
			home := l.state("")
			sb := box(path, parse(t, "t", "    - {name: a, type: host-device}\n"))
			sb.Given = ops.Givens{}.WithDevices(map[string]string{"a": "if:lent0"})
			r := l.engine(nil)
			if _, err := r.Ensure(ctxFor(t), sb); err != nil {
				t.Fatal(err)
			}
			l.rewrite(sb.ID, tc.record)
			s.run(tc.damage)
			rep, err := r.Release(ctxFor(t), sb.ID)
			if tc.restore != "" {
				if fault.Of(err) != fault.NotReady || !errors.Is(err, reconcile.ErrAbsent) || !strings.Contains(err.Error(), `under another name than "net1"`) {
					t.Fatalf("release: %v", err)
				}
				if _, known, err := r.Record(sb.ID); !known || err != nil {
					t.Fatalf("the record is gone: %v", err)
				}
				s.run(tc.restore)
				rep, err = r.Release(ctxFor(t), sb.ID)
			}
			if err != nil || rep.Unclean != "" {
				t.Fatal(err, rep.Unclean)
			}
			l.mustEqual(home, "", "after release")
			if tc.pod != "" && !strings.Contains(s.run("$ip link show eth0"), "eth0") {
				t.Error("the pod's own link was taken")
			}
		})
	}
}
