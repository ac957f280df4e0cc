package openvswitch_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/integration/ovsdb"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/openvswitch"
	"github.com/plumbline/plumbline/topology/fault"
)

// logicalRule is a rule on a port.
func logicalRule(on netstate.LogicalPort, rule string, priority uint16, match string, dscp uint8, rate, burst uint32) netstate.LogicalRule {
	return netstate.LogicalRule{Rule: rule, Direction: new(netstate.FromPort), Priority: &priority, Match: &match, DSCP: &dscp, Rate: &rate, Burst: &burst}.Of(on, "net1")
}

// TestLogicalRules: the life of rows of rules beside foreign ones: whatever others change of ours is
// a difference of that field and restored, and nothing foreign is touched.
func TestLogicalRules(t *testing.T) {
	s := newServer(t, ovsdb.Northbound)
	nb := s.northbound()
	port := logicalPort("plumbline:node-1:pl1", "sw", "", 0)
	applied(t, nb, netstate.Change{After: port})
	s.Nbctl("ls-add", "foreign", "--", "qos-add", "foreign", "from-lport", "30000", `inport == "plumbline:node-1:pl1"`, "dscp=1",
		"--", "qos-add", "sw", "from-lport", "29000", `inport == "plumbline:node-1:pl1"`, "dscp=2")
	// With another owner, and as ovn-kubernetes writes them.
	s.Nbctl("--id=@r", "create", "QoS", "direction=from-lport", "priority=29000", `match="inport == \"plumbline:node-1:pl1\""`, "action:dscp=3",
		"external_ids:dra.networking/owner=\"another\"", `external_ids:dra.networking/id="plumbline:node-1:pl1 ai/storage[0]"`, "--", "add", "Logical_Switch", "sw", "qos_rules", "@r",
		"--", "--id=@k", "create", "QoS", "direction=to-lport", "priority=11000", "match=ip4", "action:dscp=4", "external_ids:k8s.ovn.org/owner-type=NetworkQoS", "--", "add", "Logical_Switch", "sw", "qos_rules", "@k")
	foreign := func() string {
		return s.Nbctl("--bare", "--columns=_uuid,priority,match,action,bandwidth,external_ids", "find", "QoS", "external_ids:dra.networking/owner!=plumbline") + s.Nbctl("qos-list", "foreign")
	}
	before, empty := foreign(), s.Nbctl("qos-list", "sw")

	one := logicalRule(port, "ai/storage[0]", 28981, "ip4.dst == 192.0.2.0/24", 46, 10000, 1000)
	two := logicalRule(port, "ai/storage[1]", 28980, "ip", 8, 0, 0)
	for range 2 { // as after a crash
		applied(t, nb, netstate.Change{After: one})
		applied(t, nb, netstate.Change{After: two})
	}
	if got := s.Nbctl("qos-list", "sw"); !strings.Contains(got, `from-lport 28981 (inport == "plumbline:node-1:pl1" && ip4.dst == 192.0.2.0/24) rate=10000 burst=1000 dscp=46`) ||
		!strings.Contains(got, `from-lport 28980 (inport == "plumbline:node-1:pl1" && ip) dscp=8`) || strings.Count(got, "28981") != 1 {
		t.Errorf("rows:\n%s", got)
	}
	find := func(columns string) []string {
		return []string{"--bare", "--columns=" + columns, "find", "QoS", "external_ids:dra.networking/owner=plumbline", "priority=28981"}
	}
	if got := s.Nbctl(find("external_ids")...); got != "dra.networking/id=plumbline:node-1:pl1 ai/storage[0] dra.networking/owner=plumbline dra.networking/port=plumbline:node-1:pl1 dra.networking/rule=ai/storage[0]" {
		t.Errorf("keys %q", got)
	}
	restored := func(what, field string) {
		t.Helper()
		have := observed(t, nb, one)
		if have == nil {
			if field != "" {
				t.Errorf("%s: the row is gone", what)
			}
			applied(t, nb, netstate.Change{After: one})
			return
		}
		diff := netstate.Diff(one, have)
		if len(diff) != 1 || diff[0].Path != field {
			t.Errorf("%s: differs in %+v, want %s", what, diff, field)
		}
		if len(diff) > 0 && diff[0].Mode == netstate.Immutable {
			applied(t, nb, netstate.Change{Before: have, After: one, Recreate: true})
		} else if update, differs := netstate.NewUpdate[netstate.Object]("", have, one); differs {
			applied(t, nb, update)
		}
		if rest := netstate.Diff(one, observed(t, nb, one)); len(rest) > 0 {
			t.Errorf("%s: left %+v", what, rest)
		}
	}
	for _, c := range []struct {
		field   string
		columns string
	}{
		{"match", "match=ip6"},
		{"dscp", "action:dscp=1"},
		{"dscp", "action={}"},
		{"rateKbit", "bandwidth:rate=5"},
		{"burstKbit", "bandwidth={rate=10000}"},
		{"priority", "priority=7"},
		{"direction", "direction=to-lport"},
	} {
		uuid := s.Nbctl(find("_uuid")...)
		s.Nbctl("set", "QoS", uuid, c.columns)
		restored(c.columns, c.field)
		if now := s.Nbctl(find("_uuid")...); now != uuid {
			t.Errorf("%s: is another row", c.columns)
		}
	}
	uuid := s.Nbctl(find("_uuid")...)
	s.Nbctl("remove", "Logical_Switch", "sw", "qos_rules", uuid)
	restored("the row is deleted", "")
	uuid = s.Nbctl(find("_uuid")...)
	s.Nbctl("add", "Logical_Switch", "foreign", "qos_rules", uuid)
	if !seldom(t, nb, one) {
		t.Error("a second switch with the row is no difference")
	}
	restored("a second switch has the row", "switch")
	s.Nbctl("--id=@r", "create", "QoS", "direction=from-lport", "priority=28981", "match=ip4", "action:dscp=3", "external_ids:dra.networking/owner=plumbline",
		`external_ids:dra.networking/id="plumbline:node-1:pl1 ai/storage[0]"`, `external_ids:dra.networking/port="plumbline:node-1:pl1"`, "--", "add", "Logical_Switch", "sw", "qos_rules", "@r")
	if !seldom(t, nb, one) {
		t.Error("two rows of one rule are no difference")
	}
	applied(t, nb, netstate.Change{Before: observed(t, nb, one), After: one, Recreate: true})
	if got := strings.Fields(s.Nbctl(find("_uuid")...)); len(got) != 1 {
		t.Errorf("%d rows of one rule", len(got))
	}

	if err := nb.Apply(t.Context(), netstate.Change{After: logicalRule(logicalPort(port.Name, "nowhere", "", 0), "ai/storage[2]", 1, "ip", 1, 0, 0)}); fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), `no logical switch "nowhere"`) {
		t.Errorf("without a switch: %v", err)
	}
	if err := nb.Apply(t.Context(), netstate.Change{After: logicalRule(logicalPort(port.Name, "foreign", "", 0), "ai/storage[2]", 1, "ip", 1, 0, 0)}); fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), `"foreign" exists and is not plumbline's`) {
		t.Errorf("on a foreign switch: %v", err)
	}
	for _, c := range []netstate.Change{{Before: one}, {Before: one}, {Before: two}} {
		applied(t, nb, c)
	}
	if got := s.Nbctl("qos-list", "sw"); got != empty {
		t.Errorf("left\n%s\nwas\n%s", got, empty)
	}
	if now := foreign(); now != before {
		t.Errorf("foreign rows are\n%s\nwere\n%s", now, before)
	}
}

// seldom reports whether one of the checks that search for all rows finds a rule different from what
// it was: the others read the rows that are known.
func seldom(t *testing.T, nb reconcile.External, want netstate.LogicalRule) bool {
	t.Helper()
	for range 16 {
		if len(netstate.Diff(want, observed(t, nb, want))) > 0 {
			return true
		}
	}
	return false
}

// TestManyRules: the rules of nodes that share a database, of which each sees its own; a switch that goes with
// its last port takes no rule of another.
func TestManyRules(t *testing.T) {
	s := newServer(t, ovsdb.Northbound)
	var nodes sync.WaitGroup
	for i := range 3 {
		nb := s.northbound()
		nodes.Go(func() {
			port := logicalPort(fmt.Sprintf("plumbline:node-%d:pl", i), "sw", "", 0)
			for range 3 {
				changes := []netstate.Change{{After: port}}
				var rules []netstate.Object
				for n := range 20 {
					r := logicalRule(port, fmt.Sprintf("ai/q[%d]", n), uint16(29000-n), "ip", uint8(i), 0, 0)
					rules, changes = append(rules, r), append(changes, netstate.Change{After: r})
				}
				for _, c := range changes {
					if err := nb.Apply(t.Context(), c); err != nil {
						t.Error(err)
						return
					}
				}
				snapshot := netstate.NewSnapshot()
				if err := nb.Extend(t.Context(), snapshot, append(rules, port)); err != nil {
					t.Error(err)
				}
				for _, r := range rules {
					if have, ok := snapshot.Get(r.Key()); !ok || len(netstate.Diff(r, have)) > 0 {
						t.Errorf("%s: %+v", r.Key(), have)
					}
				}
				for _, c := range slices.Backward(changes) {
					if err := nb.Apply(t.Context(), netstate.Change{Before: c.After}); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	nodes.Wait()
	if got := s.Nbctl("show") + s.Nbctl("list", "QoS"); got != "" {
		t.Errorf("left is %s", got)
	}
}

// BenchmarkRules checks the rules of a port in a database that has those of other nodes, too: as
// they are checked, mostly by the UUIDs of their rows, and by a search for their keys.
func BenchmarkRules(b *testing.B) {
	const others, rules = 10_000, 4
	s := newServer(b, ovsdb.Northbound)
	nb := s.northbound()
	for from := 0; from < others; from += 500 {
		of := fmt.Sprintf("other-%d", from/500)
		command := []string{"ls-add", of}
		for i := from; i < from+500; i++ {
			command = append(command, "--", fmt.Sprintf("--id=@r%d", i), "create", "QoS", "direction=from-lport", "priority=29000", "match=ip", "action:dscp=1",
				`external_ids:dra.networking/owner=plumbline`, fmt.Sprintf(`external_ids:dra.networking/id="port-%d ai/q[0]"`, i), fmt.Sprintf(`external_ids:dra.networking/port="port-%d"`, i),
				"--", "add", "Logical_Switch", of, "qos_rules", fmt.Sprintf("@r%d", i))
		}
		s.Nbctl(command...)
	}
	port := logicalPort("own", "sw", "", 0)
	var wanted []netstate.Object
	for i := range rules {
		wanted = append(wanted, logicalRule(port, fmt.Sprintf("ai/storage[%d]", i), uint16(28900+i), "ip", 1, 0, 0))
	}
	for _, o := range append([]netstate.Object{port}, wanted...) {
		if err := nb.Apply(b.Context(), netstate.Change{After: o}); err != nil {
			b.Fatal(err)
		}
	}
	check := func(b *testing.B, queried []netstate.Object) {
		for b.Loop() {
			snapshot := netstate.NewSnapshot()
			if err := nb.Extend(b.Context(), snapshot, queried); err != nil {
				b.Fatal(err)
			}
			for _, o := range wanted {
				if have, ok := snapshot.Get(o.Key()); !ok || len(netstate.Diff(o, have)) > 0 {
					b.Fatalf("%s: %+v", o.Key(), have)
				}
			}
		}
	}
	b.Run("checked", func(b *testing.B) { check(b, wanted) })
	b.Run("searched", func(b *testing.B) { // a rule without a row has all searched for
		check(b, append(slices.Clone(wanted), logicalRule(port, "ai/storage[9]", 28999, "ip", 1, 0, 0)))
	})
}

// TestRulesAway: rules of a database that is away, and comes back as it was or without them.
func TestRulesAway(t *testing.T) {
	s := newServer(t, ovsdb.Northbound)
	nb, port := s.northboundWithin(5*time.Second), logicalPort("one", "sw", "", 0)
	rule := logicalRule(port, "ai/storage[0]", 28981, "ip", 46, 0, 0)
	applied(t, nb, netstate.Change{After: port})
	applied(t, nb, netstate.Change{After: rule})
	s.Kill()
	for _, c := range []netstate.Change{{After: rule}, {Before: rule}} {
		if err := nb.Apply(t.Context(), c); fault.Of(err) != fault.NotReady {
			t.Errorf("%s while it is away: %v", c, err)
		}
	}
	snapshot := netstate.NewSnapshot()
	if err := nb.Extend(t.Context(), snapshot, []netstate.Object{rule}); fault.Of(err) != fault.NotReady || snapshot.Known(rule) {
		t.Errorf("read while it is away: %v", err)
	}
	s.Start()
	back(t, nb, rule)
	if have := observed(t, nb, rule); have == nil || len(netstate.Diff(rule, have)) > 0 {
		t.Errorf("back, and read as %+v", have)
	}
	// It is restored from a copy without the rows.
	s.Kill()
	s.Must("rm", s.File)
	s.Must("ovsdb-tool", "create", s.File, ovsdb.Northbound)
	s.Start()
	back(t, nb, rule)
	if have := observed(t, nb, rule); have != nil {
		t.Errorf("restored without it, and read as %+v", have)
	}
	applied(t, nb, netstate.Change{Before: rule})
	applied(t, nb, netstate.Change{After: port})
	applied(t, nb, netstate.Change{After: rule})

	// It is restored from a copy with a row that was deleted: nothing queries that, and it is read.
	for _, queried := range [][]netstate.Object{{port, rule}, {port}} {
		gone := logicalRule(port, "ai/gone[0]", 28982, "ip", 8, 0, 0)
		applied(t, nb, netstate.Change{After: gone})
		s.Must("cp", s.File, s.File+".copy")
		applied(t, nb, netstate.Change{Before: gone})
		if len(queried) == 1 {
			applied(t, nb, netstate.Change{Before: rule})
		}
		snapshot := netstate.NewSnapshot()
		if err := nb.Extend(t.Context(), snapshot, queried); err != nil {
			t.Fatal(err)
		} else if all := netstate.All[netstate.LogicalRule](snapshot); len(all) >= len(queried) {
			t.Errorf("read before that: %+v", all)
		}
		s.Kill()
		s.Must("mv", s.File+".copy", s.File)
		s.Start()
		back(t, nb, rule)
		found := false
		for range 16 {
			snapshot := netstate.NewSnapshot()
			if err := nb.Extend(t.Context(), snapshot, queried); err != nil {
				t.Fatal(err)
			}
			have, ok := netstate.Lookup(snapshot, gone)
			found = found || ok && len(netstate.Diff(gone, have)) == 0
		}
		if !found {
			t.Errorf("with %d objects queried, 16 checks have not found a rule of an older copy", len(queried))
		}
		applied(t, nb, netstate.Change{Before: gone})
	}
}

// back waits until a database answers.
func back(t *testing.T, nb reconcile.External, o netstate.Object) {
	t.Helper()
	eventually.Succeeds(t, time.Minute, "the database answers", func() error {
		return nb.Extend(t.Context(), netstate.NewSnapshot(), []netstate.Object{o})
	})
}

// TestAdopt: the rules of a port of ours that no record has are adopted, and no others.
func TestAdopt(t *testing.T) {
	port := netstate.LogicalPort{Name: "p1"}
	recorded, restored, foreign := netstate.LogicalRule{Port: "p1", Rule: "a"}, netstate.LogicalRule{Port: "p1", Rule: "b"}, netstate.LogicalRule{Port: "p2", Rule: "c"}
	s := netstate.NewSnapshot()
	for _, o := range []netstate.Object{recorded, restored, foreign} {
		s.Put(o)
	}
	var nb reconcile.Adopter = &openvswitch.Northbound{}
	got := nb.Adopt(s, []netstate.Change{{Step: "a", After: port}, {Step: "a", After: recorded}})
	if want := []netstate.Change{{Step: "a", After: restored}}; !reflect.DeepEqual(got, want) {
		t.Errorf("adopted %v, want %v", got, want)
	}
	if got := nb.Adopt(s, []netstate.Change{{Step: "a", Before: port, After: port}}); len(got) > 0 {
		t.Errorf("of a port that was there before, %v was adopted", got)
	}
}
