package kernel

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// cleanTime bounds how long after the end of all that a pod had its device is clean.
const cleanTime = patience

// TestHiddenUpper: a pod leaves a link on its function, in a namespace
// that outlives it. The release does not wait for it. The function stays down, the
// record names the link, and it is not allocated until the link is deleted.
func TestHiddenUpper(t *testing.T) {
	if !hasCards() {
		return // no PCI there
	}
	for _, tc := range []struct{ name, end, pod, found string }{
		{"macvlan", "release", "type macvlan mode bridge", "upper.receiver"},
		{"passthru", "", "type macvlan mode passthru", "upper.receiver"},
		{"macvtap", "", "type macvtap mode vepa", "upper.receiver"},
		{"ipvlan", "death", "type ipvlan mode l2", "upper.receiver"},
		{"vlan", "release", "type vlan id 100", "upper.802.1q: VLAN 100 "},
		{"last vlan", "", "type vlan id 4094", "upper.802.1q: VLAN 4094 "},
		{"provider vlan", "death", "type vlan proto 802.1ad id 7", "upper.802.1ad: VLAN 7 "},
	} {
		for _, end := range []string{"release", "death"} {
			if end != tc.end && !effort.Long() {
				continue // either takes some ten seconds
			}
			t.Run(tc.name+"/"+end, func(t *testing.T) {
				s := movedFunction.fixture(t)
				machine := s.machine()
				s.prepare("release")
				s.run("$ip link add link net1 name up0 " + tc.pod + "; $ip link set up0 netns $OTHER; ip -n $OTHER link set up0 up")
				if end == "death" {
					deleteNetns(s.path)
				}
				rep, err := s.undisturbed.AwaitRelease(ctxFor(t), s.sandbox.ID)
				if err != nil || !strings.Contains(rep.Unclean, tc.found) || !strings.Contains(rep.Unclean, "rebind its driver: echo "+s.sandbox.Given["vf"].Device) {
					t.Fatalf("release: %v, %q", err, rep.Unclean)
				}
				t.Log(rep.Unclean)
				rec, known, err := s.record()
				if err != nil || !known || rec.Failure != rep.Unclean {
					t.Errorf("record: %v, %v, %q", known, err, rec.Failure)
				}
				if d, ok := s.state("").Device(s.sandbox.Given["vf"].Device); !ok || d.At == nil || !netstate.OnHost(*d.At) || *d.Up {
					t.Errorf("the device: %+v", d)
				}
				next := box(newNetns(t), parse(t, "next", movedSteps))
				next.Given = s.sandbox.Given
				if _, err := s.undisturbed.Ensure(ctxFor(t), next); fault.Of(err) != fault.Conflict {
					t.Errorf("the next pod got it: %v", err)
				}
				if strings.Contains(s.run("ip link"), "up0") || !strings.Contains(s.run("ip -n $OTHER link"), "up0") {
					t.Error("the link is not where the pod has it")
				}
				s.run("ip netns delete $OTHER")
				s.returnsClean()
				s.mustEqual(s.home, "", "after release")
				if now := s.machine(); now != machine {
					t.Errorf("the host was\n%sand is\n%s", machine, now)
				}
				if _, err := s.undisturbed.Ensure(ctxFor(t), next); err != nil {
					t.Error(err)
				}
				if rep, err := s.undisturbed.AwaitRelease(ctxFor(t), next.ID); err != nil || rep.Unclean != "" {
					t.Error(err, rep.Unclean)
				}
			})
		}
	}
}

// returnsClean repeats the release until nothing is left, as the loop does.
func (s *fixture) returnsClean() {
	t := s.lane.t
	t.Helper()
	for end := time.Now().Add(cleanTime); ; {
		rep, err := s.undisturbed.Release(ctxFor(t), s.sandbox.ID)
		if err == nil && rep.Unclean == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%v, %s", err, rep.Unclean)
		}
	}
}

// TestOwnUppers: a device that carries links of the host is the host's, which would lose them with
// it. It is given to a pod once they are gone.
func TestOwnUppers(t *testing.T) {
	l, path := newLane(t), newNetns(t)
	l.devices = []string{}
	s := &foreignWriter{t: t}
	s.run("ip link add lent0 type dummy; ip link add link lent0 name own0 type vlan id 5; ip link add link lent0 name own1 type macvlan mode bridge")
	t.Cleanup(func() { s.run("ip link delete lent0") })
	sb := box(path, parse(t, "t", "    - {name: a, type: host-device}\n"))
	sb.Given = ops.Givens{}.WithDevices(map[string]string{"a": "if:lent0"})
	r := l.engine(nil)
	start := l.state("")
	if _, err := r.Ensure(ctxFor(t), sb); fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), "carries own0, own1") {
		t.Errorf("a device with links of the host: %v", err)
	}
	l.mustEqual(start, "", "after the refusal")
	s.run("ip link delete own0; ip link delete own1")
	if _, err := r.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err)
	}
	if rep, err := r.Release(ctxFor(t), sb.ID); err != nil || rep.Unclean != "" {
		t.Fatal(err, rep.Unclean)
	}
	if _, known, err := r.Record(sb.ID); known || err != nil {
		t.Errorf("its record is left: %v", err)
	}
}

// TestLeftAllmulti: an ipvlan that is deleted with its flag set leaves a count on the
// device below it for good, which receives all multicast then. Nobody is given the
// device until it has been recreated.
func TestLeftAllmulti(t *testing.T) {
	l, path := newLane(t), newNetns(t)
	l.devices = []string{}
	s := &foreignWriter{t, filepath.Base(path), ""}
	const create = "ip link add lent0 type dummy"
	s.run(create)
	t.Cleanup(func() { s.run("ip link delete lent0") })
	sb := box(path, parse(t, "t", "    - {name: a, type: host-device}\n"))
	sb.Given = ops.Givens{}.WithDevices(map[string]string{"a": "if:lent0"})
	r := l.engine(nil)
	for _, tc := range []struct {
		name, pod string
		left      bool
	}{
		{"the pod's flag", "$ip link set net1 allmulticast on", false},
		{"turned off", "$ip link add link net1 name up0 type ipvlan mode l2; $ip link set up0 allmulticast on; $ip link set up0 allmulticast off; $ip link del up0", false},
		{"still there", "$ip link add link net1 name up0 type ipvlan mode l2; $ip link set up0 allmulticast on", false},
		{"left", "$ip link add link net1 name up0 type ipvlan mode l2; $ip link set up0 allmulticast on; $ip link del up0", true},
	} {
		if _, err := r.Ensure(ctxFor(t), sb); err != nil {
			t.Fatal(tc.name, err)
		}
		s.run(tc.pod)
		rep, err := r.Release(ctxFor(t), sb.ID)
		if err != nil || strings.Contains(rep.Unclean, "upper.allmulti") != tc.left || !tc.left && rep.Unclean != "" {
			t.Fatalf("%s: %v, %q", tc.name, err, rep.Unclean)
		}
		t.Log(rep.Unclean)
	}
	next := box(newNetns(t), parse(t, "next", "    - {name: a, type: host-device}\n"))
	next.Given = sb.Given
	if _, err := r.Ensure(ctxFor(t), next); fault.Of(err) != fault.Conflict {
		t.Errorf("the next pod got it: %v", err)
	}
	s.run("ip link delete lent0; " + create)
	if rep, err := r.Release(ctxFor(t), sb.ID); err != nil || rep.Unclean != "" {
		t.Errorf("release: %v, %q", err, rep.Unclean)
	}
	if _, known, err := r.Record(sb.ID); known || err != nil {
		t.Errorf("its record is left: %v", err)
	}
}
