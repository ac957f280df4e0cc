package kernel_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestMasquerades: what is written is read back, in both families and for prefixes of any
// length; elements of others in the sets stay; with the last address the table is gone.
func TestMasquerades(t *testing.T) {
	b := newBench(t)
	hostNS := b.hostNS
	all := []netstate.Masquerade{
		{Source: "192.0.2.1", Except: []string{"10.0.0.0/8", "192.0.2.0/24", "198.51.100.7/32"}},
		{Source: "192.0.2.3", Except: []string{"0.0.0.0/0"}},
		{Source: "2001:db8::1", Except: []string{"2001:db8::/64", "ff00::/8"}},
		{Source: "2001:db8::2", Except: []string{"::/0"}},
		{Source: "2001:db8::3", Except: []string{"2001:db8:1::1/128"}},
	}
	for _, m := range all {
		b.absent(m)
		b.create(m)
		b.holds(m)
		b.create(m) // idempotent: a crash may have come between the change and the record
	}
	for _, m := range all {
		b.holds(m)
		m.Except = []string{"203.0.113.0/24"}
		if m.Source[4] == ':' {
			m.Except = []string{"2001:db8:2::/47"}
		}
		b.update(m)
		b.holds(m)
	}
	nftIn(t, hostNS, "add", "element", "inet", "plumbline", "excepts4", "{ 192.0.2.1 . 192.0.2.5-192.0.2.9 }")
	b.update(netstate.Masquerade{Source: "192.0.2.1", Except: []string{"192.0.2.0/24"}})
	b.holds(netstate.Masquerade{Source: "192.0.2.1", Except: []string{"192.0.2.0/24"}})
	for i, m := range all {
		b.remove(m)
		b.absent(m)
		b.remove(m)
		if i < len(all)-1 {
			b.holds(netstate.Masquerade{Source: all[len(all)-1].Source, Except: []string{"2001:db8:2::/47"}})
		}
	}
	if out := nftIn(t, hostNS, "list", "ruleset"); out != "" {
		t.Errorf("left behind:\n%s", out)
	}
	b.refused(fault.Invalid, netstate.Change{After: netstate.Masquerade{Source: "192.0.2.1", Except: []string{"::/0"}}}, "is not a prefix of the family")
	b.refused(fault.Invalid, netstate.Change{After: netstate.Masquerade{Source: "nowhere"}}, "is not an address")
}

// TestMasqueradeOfMany: a node full of pods, whose table is written again at once.
func TestMasqueradeOfMany(t *testing.T) {
	b := newBench(t)
	hostNS := b.hostNS
	var all []netstate.Object
	elements := map[string][]string{} // by set
	for i := range 500 {
		m := netstate.Masquerade{Source: fmt.Sprintf("10.1.%d.%d", i/250, i%250+1), Except: []string{"10.0.0.0/8", "192.0.2.0/24", "224.0.0.0/4"}}
		six := netstate.Masquerade{Source: fmt.Sprintf("2001:db8::%x", i+1), Except: []string{"2001:db8:1::/48", "2001:db8::/64", "ff00::/8"}}
		if i == 0 {
			b.create(m, six)
		}
		all = append(all, m, six)
		elements["sources4"], elements["sources6"] = append(elements["sources4"], m.Source), append(elements["sources6"], six.Source)
		for j := range m.Except {
			elements["excepts4"] = append(elements["excepts4"], m.Source+" . "+m.Except[j])
			elements["excepts6"] = append(elements["excepts6"], six.Source+" . "+six.Except[j])
		}
	}
	for set, list := range elements {
		nftIn(t, hostNS, "add", "element", "inet", "plumbline", set, "{ "+strings.Join(list, ", ")+" }")
	}
	complete := func(when string) {
		t.Helper()
		have := b.observe(all...)
		for _, m := range all {
			got, ok := have.Get(m.Key())
			if !ok || len(netstate.Diff(m, got)) > 0 {
				t.Fatalf("%s: %s: %v", when, m.Key(), got)
			}
		}
	}
	complete("created")
	nftIn(t, hostNS, "flush", "chain", "inet", "plumbline", "postrouting")
	b.absent(all[0])
	b.create(all[0])
	complete("created again with the first")
	b.remove(all[1])
	all = slices.Delete(all, 1, 2)
	complete("one removed")
}

// TestMasqueradesAtOnce: pods come and go at the same time, so that the table is deleted and
// created between others' changes. No pod loses its element to another one.
func TestMasqueradesAtOnce(t *testing.T) {
	b := newBench(t)
	var all sync.WaitGroup
	for i := range 8 {
		s := b.open()
		all.Go(func() {
			m := netstate.Masquerade{Source: fmt.Sprintf("10.1.0.%d", i+1), Except: []string{"10.0.0.0/8"}}
			for range 10 {
				if err := s.Apply(b.ctx, netstate.Change{After: m}); err != nil {
					t.Errorf("create: %v", err)
				}
				have, err := s.Observe(b.ctx, []netstate.Object{m})
				if err != nil {
					t.Error(err)
					return
				}
				if got, ok := have.Get(m.Key()); !ok || len(netstate.Diff(m, got)) > 0 {
					t.Errorf("%s: %v", m.Key(), got)
				}
				if err := s.Apply(b.ctx, netstate.Change{Before: m}); err != nil {
					t.Errorf("delete: %v", err)
				}
			}
		})
	}
	all.Wait()
	b.absent(netstate.Masquerade{Source: "10.1.0.1"})
}

// TestMasqueradesBesideOthers: foreign chains in a table of our name are not
// deleted, neither with the last pod nor to write the table again.
func TestMasqueradesBesideOthers(t *testing.T) {
	b := newBench(t)
	hostNS := b.hostNS
	one, two := netstate.Masquerade{Source: "192.0.2.1", Except: []string{"10.0.0.0/8"}}, netstate.Masquerade{Source: "2001:db8::1", Except: []string{"ff00::/8"}}
	kept := func(when string) {
		t.Helper()
		if out := nftIn(t, hostNS, "list", "ruleset"); !strings.Contains(out, "chain theirs") {
			t.Errorf("%s, the foreign chain is gone:\n%s", when, out)
		}
	}
	nftIn(t, hostNS, "add", "table", "inet", "plumbline")
	nftIn(t, hostNS, "add", "chain", "inet", "plumbline", "theirs")
	b.refused(fault.Conflict, netstate.Change{After: one}, `remove its chain "theirs", or the table`)
	b.remove(one)
	kept("after a refusal")
	nftIn(t, hostNS, "delete", "table", "inet", "plumbline")
	b.create(one)
	nftIn(t, hostNS, "add", "chain", "inet", "plumbline", "theirs")
	b.create(two)
	b.holds(one)
	b.holds(two)
	b.remove(two)
	b.absent(two)
	b.remove(one)
	b.absent(one)
	kept("after the last pod")
	b.create(one)
	b.holds(one)
	nftIn(t, hostNS, "flush", "chain", "inet", "plumbline", "postrouting")
	b.refused(fault.Conflict, netstate.Change{After: two}, `remove its chain "theirs", or the table`)
	b.remove(one)
	kept("after a release without rules")
	nftIn(t, hostNS, "delete", "chain", "inet", "plumbline", "theirs")
	b.create(two)
	b.holds(two)
	b.remove(two)
	if out := nftIn(t, hostNS, "list", "ruleset"); out != "" {
		t.Errorf("left behind:\n%s", out)
	}
}

// nftIn runs nft in a namespace.
func nftIn(t *testing.T, ns *netns, args ...string) string {
	t.Helper()
	return inNetns(t, ns, "nft", args...)
}

// inNetns runs a program in a namespace.
func inNetns(t *testing.T, ns *netns, program string, args ...string) string {
	t.Helper()
	in := fmt.Sprintf("--net=/proc/%d/fd/%d", os.Getpid(), ns.Fd())
	out, err := exec.CommandContext(t.Context(), "nsenter", append([]string{in, program}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
	return string(out)
}
