package openvswitch_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/integration/ovsdb"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/ovn"
	"github.com/plumbline/plumbline/qos/qostest"
	"github.com/plumbline/plumbline/reconcile"
)

// write makes the rules of a port those that its NetworkQoS objects have, and returns them.
func write(t *testing.T, nb reconcile.External, port netstate.LogicalPort, before []netstate.LogicalRule, rules []qos.Rule, members map[qos.SetID][]netip.Addr) []netstate.LogicalRule {
	t.Helper()
	objects, err := ovn.Objects(rules, func(id qos.SetID) []netip.Addr { return members[id] })
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range before {
		applied(t, nb, netstate.Change{Before: o})
	}
	for i := range objects {
		objects[i] = objects[i].Of(port, "net1")
		applied(t, nb, netstate.Change{After: objects[i]})
	}
	return objects
}

// TestStory: the rows of the objects of OKEP-4380, verbatim, have in a real database the priorities, marks and limits that the enhancement
// writes. They match the port instead of an address set, and are about what it sends (docs/adr/0040).
func TestStory(t *testing.T) {
	chapters, err := qostest.Story("../../qos/testdata/okep-4380")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, ovsdb.Northbound)
	nb, port := s.northbound(), logicalPort("pod", "node1", "", 0)
	applied(t, nb, netstate.Change{After: port})
	var written []netstate.LogicalRule
	for _, chapter := range chapters {
		written = write(t, nb, port, written, chapter.Rules, nil)
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

// TestPackets compiles random rules, lets the real northd make logical flows of the rows, and
// asks ovn-trace about random packets: each is marked and limited as the rules say.
func TestPackets(t *testing.T) {
	server, sb := newServer(t, ovsdb.Northbound), newServer(t, ovsdb.Southbound)
	northd := exec.Command("ovn-northd", "--unixctl="+server.File+".northd", "--ovnnb-db="+server.Endpoint, "--ovnsb-db="+sb.Endpoint)
	if err := northd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = northd.Process.Kill(); _ = northd.Wait() })
	nb, port := server.northbound(), logicalPort("ns_web", "sw0", "", 0)
	applied(t, nb, netstate.Change{After: port})
	// ovn-trace has no source address that port security lets through.
	server.Nbctl("lsp-set-port-security", "ns_web", "--", "lsp-add", "sw0", "ns_other", "--", "lsp-set-addresses", "ns_other", "unknown")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var written []netstate.LogicalRule
	for range 3 {
		rules, members := qostest.Rules(rng, 6)
		written = write(t, nb, port, written, rules, members)
		server.Nbctl("--wait=sb", "sync")
		for range 12 {
			p := qostest.Packet(rng)
			want := slices.IndexFunc(rules, func(r qos.Rule) bool {
				return qostest.Matches(&r, p, func(id qos.SetID) []netip.Addr { return members[id] })
			})
			dscp, rate := -1, 0
			if want >= 0 {
				dscp, rate = int(rules[want].DSCP), int(rules[want].RateKbit)
			}
			trace := server.Must("ovn-trace", "--db="+sb.Endpoint, "sw0", flowOf("ns_web", p))
			if gotDSCP, gotRate := decided(trace); gotDSCP != dscp || gotRate != rate {
				t.Fatalf("packet %+v: marked %d, limited %d, want %d and %d by rule %d of %+v\n%s\n%s", p, gotDSCP, gotRate, dscp, rate, want, rules, server.Nbctl("qos-list", "sw0"), trace)
			}
		}
		// Another port of the switch has no rules.
		if dscp, rate := decided(server.Must("ovn-trace", "--db="+sb.Endpoint, "sw0", flowOf("ns_other", qostest.Packet(rng)))); dscp != -1 || rate != 0 {
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
