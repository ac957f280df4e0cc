package kernel

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/topology/fault"
)

// TestSquatter: a pod has given its ipvlan link, or one it has made, the address of the next pod on the master.
// The next pod gets its address, the first one loses it and nothing else, and that is reported. An address that
// the first one's topology wants stays, and the refusal says which sandbox has it.
func TestSquatter(t *testing.T) {
	for _, mode := range []string{"l2", "l3"} {
		for _, with := range []string{"net1", "own1"} {
			t.Run(mode+"/"+with, func(t *testing.T) { squat(t, mode, with) })
		}
	}
}

func squat(t *testing.T, mode, with string) {
	l, s := newLane(t), &foreignWriter{t: t}
	virtualCard(t, "nic0")
	s.run("ip link set nic0 up")
	r := l.engine(nil)
	step := func(n int) string {
		return fmt.Sprintf("    - {name: net, type: ipvlan, config: {master: nic0, mode: %s, addresses: [192.0.2.%[2]d/24, \"2001:db8::%[2]d/64\"]}}\n", mode, n)
	}
	first, next, third := box(newNetns(t), parse(t, "t", step(1))), box(newNetns(t), parse(t, "t", step(2))), box(newNetns(t), parse(t, "t", step(1)))
	first.ID, next.ID, third.ID = "t/first", "t/next", "t/third"
	if _, err := r.Ensure(ctxFor(t), first); err != nil {
		t.Fatal(err)
	}
	s.ns = filepath.Base(first.Netns)
	if with != "net1" {
		s.run(fmt.Sprintf("$ip link add %s link net1 type ipvlan mode %s && $ip link set %[1]s up", with, mode))
	}
	s.run(fmt.Sprintf("$ip address add 192.0.2.2/32 dev %[1]s && $ip address add 2001:db8::2/128 dev %[1]s nodad && $ip address add 192.0.2.77/32 dev %[1]s", with))

	rep, err := r.Ensure(ctxFor(t), next)
	if err != nil {
		t.Fatalf("the next pod: %v (%s)", err, fault.Detail(err))
	}
	if notes := strings.Join(rep.Notes, "\n"); strings.Count(notes, "another sandbox") != 2 || strings.Contains(notes, string(first.ID)) {
		t.Errorf("notes: %s", notes)
	}
	if has := s.run("$ip -o address show dev " + with); strings.Contains(has, "192.0.2.2/") || strings.Contains(has, "2001:db8::2/") || !strings.Contains(has, "192.0.2.77/") {
		t.Errorf("the first pod has now:\n%s", has)
	}
	if again, err := r.Ensure(ctxFor(t), first); err != nil || !again.Unchanged {
		t.Errorf("the first pod, applied again: %v %v", again.Changes, err)
	}
	before := s.run("$ip -o address show | sed 's/tentative //'")
	_, err = r.Ensure(ctxFor(t), third)
	if fault.Of(err) != fault.Conflict || !strings.Contains(fault.Detail(err), `sandbox "t/first" has it on link "net1"`) {
		t.Errorf("a pod that wants the address of the first: %v (%s)", err, fault.Detail(err))
	}
	if now := s.run("$ip -o address show | sed 's/tentative //'"); now != before {
		t.Errorf("addresses of the first pod before and after that:\n%s\n%s", before, now)
	}
}

// TestPersistentSquatter: a pod that adds the address repeatedly keeps no other pod from it for long, and a
// refused attempt ends.
func TestPersistentSquatter(t *testing.T) {
	l, s := newLane(t), &foreignWriter{t: t}
	virtualCard(t, "nic0")
	s.run("ip link set nic0 up")
	r := l.engine(nil)
	step := "    - {name: net, type: ipvlan, config: {master: nic0, addresses: [192.0.2.%d/24]}}\n"
	first, next := box(newNetns(t), parse(t, "t", fmt.Sprintf(step, 1))), box(newNetns(t), parse(t, "t", fmt.Sprintf(step, 2)))
	if _, err := r.Ensure(ctxFor(t), first); err != nil {
		t.Fatal(err)
	}
	loop := exec.CommandContext(t.Context(), "sh", "-c", "while :; do echo address replace 192.0.2.2/32 dev net1; done | ip -n "+filepath.Base(first.Netns)+" -force -batch - 2>/dev/null")
	if err := loop.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = loop.Process.Kill(); _ = loop.Wait() }()
	var err error
	for range 50 {
		if _, err = r.Ensure(ctxFor(t), next); err == nil {
			break
		}
		if detail := fault.Detail(err); fault.Of(err) != fault.Conflict || !strings.Contains(detail, string(first.ID)) {
			t.Fatalf("%v (%s)", err, detail)
		}
	}
	if err != nil {
		t.Error(err)
	}
}
