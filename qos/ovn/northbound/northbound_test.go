package northbound_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/ovsdb"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/ovn"
	"github.com/plumbline/plumbline/qos/ovn/northbound"
	"github.com/plumbline/plumbline/qos/qostest"
	"github.com/plumbline/plumbline/topology/fault"
)

// server is one that runs, with the client that is tested.
type server struct{ *ovsdb.Server }

func newServer(t *testing.T, schema string, options ...string) *server {
	t.Helper()
	return &server{ovsdb.New(t, schema, options...)}
}

// rows are the UUIDs of the QoS rows and address sets, of everybody.
func (s *server) rows() string {
	s.Helper()
	return s.Nbctl("--bare", "--columns=_uuid,priority,match", "list", "QoS") + "\n" + s.Nbctl("--bare", "--columns=_uuid,name,addresses", "list", "Address_Set")
}

func (s *server) client(owner string) *northbound.Client {
	s.Helper()
	c, err := northbound.New(northbound.Options{Endpoints: []string{s.Endpoint}, Owner: owner, Timeout: 20 * time.Second})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(c.Close)
	return c
}

// applied applies, and holds that nothing is left to do then.
func applied(t *testing.T, c *northbound.Client, want *ovn.Desired) ovn.Changes {
	t.Helper()
	changes, err := c.Apply(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.Plan(t.Context(), want)
	if err != nil || !again.Empty() {
		t.Fatalf("after it was applied, left to do: %q, %v", again.Lines(), err)
	}
	return changes
}

// desired is what rules of a port compile to.
func desired(t *testing.T, owner string, port ovn.Port, rules []qos.Rule, members map[qos.SetID][]netip.Addr) *ovn.Desired {
	t.Helper()
	out, err := ovn.Compile(owner, port, rules, func(id qos.SetID) []netip.Addr { return members[id] })
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func example(t *testing.T, owner string, port ovn.Port, dscp uint8, addresses ...string) *ovn.Desired {
	t.Helper()
	id := qos.SetID{Rule: 1}
	members := map[qos.SetID][]netip.Addr{id: nil}
	for _, a := range addresses {
		members[id] = append(members[id], netip.MustParseAddr(a))
	}
	return desired(t, owner, port, []qos.Rule{
		{Index: 1, Precedence: 10001, DSCP: dscp, RateKbit: 10000, BurstKbit: 1000, Sets: []qos.SetID{id}},
		{Index: 0, Precedence: 10000, DSCP: 10, Any: true, Ports: []qos.Port{{Protocol: qos.TCP, Port: 443}}},
	}, members)
}

// TestRows is the life of the rows of one owner in a real database, beside those of another
// owner and of ovn-kubernetes.
func TestRows(t *testing.T) {
	s := newServer(t, ovsdb.Northbound)
	s.Nbctl("ls-add", "sw0", "--", "ls-add", "sw1")
	// As ovn-kubernetes writes them.
	s.Nbctl("--", "--id=@q", "create", "QoS", "direction=to-lport", "priority=11000", `match="ip4.src == {$a1}"`, "action:dscp=50",
		`external_ids={"k8s.ovn.org/owner-type"=NetworkQoS, "k8s.ovn.org/name"="a:b", "k8s.ovn.org/id"="default-network-controller:NetworkQoS:a:b:0"}`,
		"--", "add", "Logical_Switch", "sw0", "qos_rules", "@q",
		"--", "create", "Address_Set", "name=a1", `addresses="10.0.0.9"`, `external_ids:"k8s.ovn.org/owner-type"=NetworkQoS`)
	other := s.client("node-2")
	applied(t, other, example(t, "node-2", ovn.Port{Switch: "sw0", Name: "other"}, 30))
	theirs := s.rows()
	c := s.client("node-1")
	port := ovn.Port{Switch: "sw0", Name: "ns_web"}

	// The name of an address set is somebody's: nothing is applied.
	taken := example(t, "node-1", port, 46, "10.0.0.1")
	s.Nbctl("create", "Address_Set", "name="+taken.Sets[0].Name)
	between := s.rows()
	if _, err := c.Apply(t.Context(), taken); fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), "constraint violation") {
		t.Fatalf("said: %v", err)
	}
	if now := s.rows(); now != between {
		t.Fatalf("refused, and the rows are\n%s\nwere\n%s", now, between)
	}
	s.Nbctl("destroy", "Address_Set", s.Nbctl("--bare", "--columns=_uuid", "find", "Address_Set", "name="+taken.Sets[0].Name))

	first := applied(t, c, example(t, "node-1", port, 46, "10.0.0.1", "fd00::1"))
	if want := []string{
		`+ address set plumbline_`, `+ address set plumbline_`, `+ qos on switch sw0: /[0], priority 10000, match inport == "ns_web" && ip && tcp.dst == 443, dscp 10`, `+ qos on switch sw0: /[1], priority 10001, match `,
	}; !slices.EqualFunc(first.Lines(), want, strings.HasPrefix) {
		t.Errorf("changes %q", first.Lines())
	}
	before := s.rows()
	if c := applied(t, c, example(t, "node-1", port, 46, "10.0.0.1", "fd00::1")); !c.Empty() {
		t.Errorf("applied twice: %q", c.Lines())
	}
	if c := applied(t, c, example(t, "node-1", port, 47, "10.0.0.1", "10.0.0.2")); len(c.Update) != 1 || len(c.UpdateSets) != 2 || len(c.Lines()) != 3 {
		t.Errorf("an edit: %q", c.Lines())
	}
	applied(t, c, example(t, "node-1", port, 46, "10.0.0.1", "fd00::1"))
	if now := s.rows(); now != before {
		t.Errorf("edited and back, the rows are\n%s\nwere\n%s", now, before)
	}

	t.Run("the port is on another switch", func(t *testing.T) {
		applied(t, c, example(t, "node-1", ovn.Port{Switch: "sw1", Name: "ns_web"}, 46, "10.0.0.1", "fd00::1"))
		if n := len(strings.Fields(s.Nbctl("--bare", "get", "Logical_Switch", "sw1", "qos_rules"))); n != 2 {
			t.Errorf("sw1 has %d rules", n)
		}
		applied(t, c, example(t, "node-1", port, 46, "10.0.0.1", "fd00::1"))
		before = s.rows()
	})
	t.Run("somebody changes them", func(t *testing.T) {
		for _, change := range [][]string{
			{"set", "QoS", "ROW", "action:dscp=1"},
			{"set", "QoS", "ROW", "bandwidth:rate=1"},
			{"set", "QoS", "ROW", `match="ip"`},
			{"set", "QoS", "ROW", "action:mark=7"},
			{"set", "QoS", "ROW", "direction=to-lport"},
			{"set", "QoS", "ROW", `external_ids:"dra.networking/id"=x`},
			{"remove", "Logical_Switch", "sw0", "qos_rules", "ROW"},
			{"add", "Logical_Switch", "sw1", "qos_rules", "ROW"},
			{"--", "--id=@q", "create", "QoS", "direction=from-lport", "priority=1", "match=ip", "action:dscp=1", `external_ids={"dra.networking/owner"=node-1,"dra.networking/id"="ns_web/2018"}`, "--", "add", "Logical_Switch", "sw0", "qos_rules", "@q"},
			{"destroy", "Address_Set", "SET"},
		} {
			for name, found := range map[string]string{
				"ROW": s.Nbctl("--bare", "--columns=_uuid", "find", "QoS", "priority=10001", `external_ids:"dra.networking/owner"=node-1`),
				"SET": s.Nbctl("--bare", "--columns=_uuid", "find", "Address_Set", "addresses=10.0.0.1"),
			} {
				if i := slices.Index(change, name); i >= 0 {
					change[i] = found
				}
			}
			if _, err := s.Try(append([]string{"ovn-nbctl", "--db=" + s.Endpoint}, change...)...); err != nil {
				t.Fatalf("%q: %v", change, err)
			}
			if c := applied(t, c, example(t, "node-1", port, 46, "10.0.0.1", "fd00::1")); c.Empty() {
				t.Errorf("%q is not noticed", change)
			}
		}
	})
	t.Run("a switch is missing", func(t *testing.T) {
		want := example(t, "node-1", port, 46, "10.0.0.1", "fd00::1")
		late := example(t, "node-1", ovn.Port{Switch: "late", Name: "ns_late"}, 46)
		want.QoS = append(want.QoS, late.QoS...)
		var missing *ovn.MissingSwitch
		if _, err := c.Apply(t.Context(), want); fault.Of(err) != fault.NotReady || !errors.As(err, &missing) || missing.Name != "late" {
			t.Errorf("said: %v", err)
		}
		s.Nbctl("ls-add", "late")
		if c := applied(t, c, want); len(c.Create) != 2 || len(c.Lines()) != 2 {
			t.Errorf("when it is there: %q", c.Lines())
		}
		s.Nbctl("ls-del", "late")
		applied(t, c, example(t, "node-1", port, 46, "10.0.0.1", "fd00::1"))
		before = s.rows()
	})
	t.Run("the database restarts", func(t *testing.T) {
		s.Kill()
		if _, err := c.Plan(t.Context(), &ovn.Desired{}); fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), s.Endpoint) {
			t.Errorf("while it is away: %v", err)
		}
		s.Start()
		if c := applied(t, c, example(t, "node-1", port, 46, "10.0.0.1", "fd00::1")); !c.Empty() {
			t.Errorf("when it is back: %q", c.Lines())
		}
		if now := s.rows(); now != before {
			t.Errorf("the rows are\n%s\nwere\n%s", now, before)
		}
	})
	t.Run("an old copy is restored", func(t *testing.T) {
		old, err := os.ReadFile(s.File)
		if err != nil {
			t.Fatal(err)
		}
		applied(t, c, example(t, "node-1", ovn.Port{Switch: "sw1", Name: "ns_new"}, 12))
		s.Kill()
		if err := os.WriteFile(s.File, old, 0o600); err != nil {
			t.Fatal(err)
		}
		s.Start()
		applied(t, c, example(t, "node-1", ovn.Port{Switch: "sw1", Name: "ns_new"}, 12))
	})
	t.Run("it ends within the time of its context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.Apply(ctx, &ovn.Desired{}); fault.Of(err) != fault.NotReady || !errors.Is(err, context.Canceled) {
			t.Errorf("said: %v", err)
		}
	})
	applied(t, c, &ovn.Desired{})
	if now := s.rows(); now != theirs {
		t.Errorf("at the end the rows are\n%s\nwere\n%s", now, theirs)
	}
}

// TestStory: the rows of the objects of OKEP-4380, verbatim, have in a real database the priorities, marks and limits that the enhancement
// writes. They match the port instead of an address set, and are about what it sends (docs/adr/0040).
func TestStory(t *testing.T) {
	chapters, err := qostest.Story("../../testdata/okep-4380")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, ovsdb.Northbound)
	s.Nbctl("ls-add", "node1")
	c := s.client("node1")
	for _, chapter := range chapters {
		applied(t, c, desired(t, "node1", ovn.Port{Switch: "node1", Name: "pod"}, chapter.Rules, nil))
		rows := strings.Join(strings.Fields(s.Nbctl("qos-list", "node1")), " ")
		limit := ""
		if chapter.RateKbit > 0 {
			limit = fmt.Sprintf("rate=%d burst=%d ", chapter.RateKbit, chapter.BurstKbit)
		}
		begin, end := fmt.Sprintf(`from-lport %d (inport == "pod" && `, chapter.Priority), fmt.Sprintf(") %sdscp=%d", limit, chapter.DSCP)
		if !strings.HasPrefix(rows, begin) || !strings.HasSuffix(rows, end) || strings.Count(rows, "from-lport") != 1 {
			t.Errorf("%s: rows %q, want one that begins with %q and ends with %q", chapter.File, rows, begin, end)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, c := range []struct{ endpoint, want string }{
		{"unix:nb.sock", `endpoints[0]: "unix:nb.sock" is no absolute path`},
		{"unix:", "is no absolute path"},
		{"tcp:127.0.0.1", "is none of"},
		{"tcp::6641", "is none of"},
		{"", "is none of"},
		{"ssl:127.0.0.1:6641", "needs a private key"},
		{"tcp:[::1]:6641", ""},
	} {
		_, err := northbound.New(northbound.Options{Owner: "o", Endpoints: []string{c.endpoint}})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q: %v, want %s", c.endpoint, err, c.want)
		}
	}
}

// TestPackets compiles random rules, lets the real northd make logical flows of the rows, and
// asks ovn-trace about random packets: each is marked and limited as the rules say.
func TestPackets(t *testing.T) {
	nb, sb := newServer(t, ovsdb.Northbound), newServer(t, ovsdb.Southbound)
	northd := exec.Command("ovn-northd", "--unixctl="+nb.File+".northd", "--ovnnb-db="+nb.Endpoint, "--ovnsb-db="+sb.Endpoint)
	if err := northd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = northd.Process.Kill(); _ = northd.Wait() })
	nb.Nbctl("ls-add", "sw0", "--", "lsp-add", "sw0", "ns_web", "--", "lsp-add", "sw0", "ns_other", "--", "lsp-set-addresses", "ns_other", "unknown")
	c := nb.client("node-1")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 3 {
		rules, members := qostest.Rules(rng, 6)
		applied(t, c, desired(t, "node-1", ovn.Port{Switch: "sw0", Name: "ns_web"}, rules, members))
		nb.Nbctl("--wait=sb", "sync")
		for range 12 {
			p := qostest.Packet(rng)
			want := slices.IndexFunc(rules, func(r qos.Rule) bool { return r.Matches(p, func(id qos.SetID) []netip.Addr { return members[id] }) })
			dscp, rate := -1, 0
			if want >= 0 {
				dscp, rate = int(rules[want].DSCP), int(rules[want].RateKbit)
			}
			flow := flowOf("ns_web", p)
			trace := nb.Must("ovn-trace", "--db="+sb.Endpoint, "sw0", flow)
			if gotDSCP, gotRate := decided(trace); gotDSCP != dscp || gotRate != rate {
				t.Fatalf("packet %+v: marked %d, limited %d, want %d and %d by rule %d of %+v\n%s\n%s", p, gotDSCP, gotRate, dscp, rate, want, rules, nb.rows(), trace)
			}
		}
		// Another port of the switch has no rules.
		if dscp, rate := decided(nb.Must("ovn-trace", "--db="+sb.Endpoint, "sw0", flowOf("ns_other", qostest.Packet(rng)))); dscp != -1 || rate != 0 {
			t.Errorf("another port is marked %d and limited %d", dscp, rate)
		}
	}
}

// flowOf describes a packet that enters at a port, as ovn-trace(8) reads it.
func flowOf(port string, p qos.Packet) string {
	family := "ip4"
	if p.Destination.Is6() {
		family = "ip6"
	}
	flow := fmt.Sprintf(`inport == %q && eth.src == 02:00:00:00:00:01 && eth.dst == 02:00:00:00:00:02 && %s.dst == %s && ip.ttl == 64`, port, family, p.Destination)
	l4 := map[qos.Protocol]string{qos.TCP: "tcp", qos.UDP: "udp", qos.SCTP: "sctp"}[p.Protocol]
	switch {
	case l4 == "":
		return flow + fmt.Sprintf(" && ip.proto == %d", p.Protocol)
	case p.Fragment: // a later fragment: Open vSwitch has port 0 for it
		return flow + " && ip.later_frag && " + l4
	default:
		return flow + fmt.Sprintf(" && %s.dst == %d", l4, p.Port)
	}
}

var (
	marked  = regexp.MustCompile(`ip\.dscp = (\d+);`)
	limited = regexp.MustCompile(`set_meter\((\d+)[^)]*\)`)
)

// decided returns what the last rule of the ingress pipeline did, -1 for no mark, and 0 for no
// limit, for which the largest number stands.
func decided(trace string) (dscp, rateKbit int) {
	dscp = -1
	if m := marked.FindAllStringSubmatch(trace, -1); m != nil {
		dscp, _ = strconv.Atoi(m[len(m)-1][1])
	}
	if m := limited.FindAllStringSubmatch(trace, -1); m != nil {
		if rateKbit, _ = strconv.Atoi(m[len(m)-1][1]); rateKbit == 1<<32-1 {
			rateKbit = 0
		}
	}
	return dscp, rateKbit
}
