package chassis_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/integration/chassis"
	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/integration/traffic"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/enforce"
	"github.com/plumbline/plumbline/qos/qostest"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// tenant is the topology of a pod on a network of OVN, whose other pod receives.
const tenant = `apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: net, labels: {rail: blue}}
spec:
  steps:
  - {name: blue, type: ovn-k8s-cni-overlay, config: {topology: layer2, name: blue, mtu: 9000, addresses: [192.0.2.2/24, "2001:db8::2/64"], dad: "off"}}
`

// onBlue writes a NetworkQoS on that topology, with these rules.
func onBlue(rules ...string) string {
	return fmt.Sprintf(`apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: blue, namespace: ai}
spec:
  priority: 10
  networkSelectors:
  - networkSelectionType: NetworkTopologies
    networkTopologySelector: {networkSelector: {matchLabels: {rail: blue}}}
  egress: [%s]
`, strings.Join(rules, ", "))
}

var (
	// marked are the rules that a sandbox has at first, and edited those after an edit: one of them
	// differs, one is gone, and one is new.
	marked = onBlue("{dscp: 8}",
		"{dscp: 26, classifier: {to: [{ipBlock: {cidr: 198.51.100.0/24, except: [198.51.100.8/32]}}, {ipBlock: {cidr: '2001:db8:1::/48'}}]}}",
		"{dscp: 46, bandwidth: {rate: 10000, burst: 10000}, classifier: {to: [{ipBlock: {cidr: 203.0.113.0/24}}, {ipBlock: {cidr: '2001:db8:2::/64'}}], ports: [{protocol: UDP}]}}")
	edited = onBlue("{dscp: 10}", "{dscp: 26, classifier: {ports: [{protocol: TCP, port: 443}]}}")
)

// ruled gives a sandbox of tenant the rules of an object, as plumbline apply does, and returns what
// they mean.
func (n *worker) ruled(s *reconcile.Sandbox, object string) decide {
	n.Helper()
	file, err := topology.Parse("", []byte(tenant+"---\n"+object))
	n.ok(err)
	enforced, notes, err := enforce.Objects([]*topology.Manifest{file}, file, enforce.Pod{Namespace: "ai"}, n.registry)
	n.ok(err)
	rules, members, err := qostest.Compile([]byte(object), qos.Network{NetworkID: qos.NetworkID{Kind: qos.NetworkTopology, Name: "net"}, Labels: map[string]string{"rail": "blue"}}, "ai", nil)
	n.ok(err)
	if len(notes) > 0 || len(enforced.LogicalRules) != len(rules) || len(enforced.Filters) > 0 {
		n.Fatalf("notes %q, %d rules, %+v", notes, len(rules), enforced)
	}
	s.Filters, s.LogicalRules = nil, enforced.LogicalRules
	return func(p qos.Packet) *qos.Rule {
		if i := slices.IndexFunc(rules, func(r qos.Rule) bool { return qostest.Matches(&r, p, members) }); i >= 0 {
			return &rules[i]
		}
		return nil
	}
}

// rows lists the rows of ours.
func (n *worker) rows() string {
	n.Helper()
	return n.run("ovn-nbctl", "--bare", "--columns=external_ids", "find", "QoS", "external_ids:dra.networking/owner=plumbline")
}

// TestRules: the engine attaches a pod with rules, which OVN enforces and no filter. Edits decide about
// the next packet, whatever others do to the rows is reported and repaired, and rows of others stay.
func TestRules(t *testing.T) {
	b := start(t)
	n := newWorker(b, b.chassis.Endpoint(), b.chassis.Endpoint())
	// Packets to addresses that a port does not have are dropped before it.
	server := n.sandbox("server", `{topology: layer2, name: blue, mtu: 9000, mac: "02:00:00:00:00:4d"}`)
	pod := n.sandbox("one", `{topology: layer2, name: blue, mtu: 9000, addresses: [192.0.2.2/24, "2001:db8::2/64"], dad: "off"}`)
	means := n.ruled(&pod, marked)
	n.apply(server)
	n.apply(pod)
	const of = "plumbline:layer2:blue"
	n.run("ovn-nbctl", "qos-add", of, "to-lport", "11000", "ip4.dst == 192.0.2.99", "dscp=1")
	theirs := n.run("ovn-nbctl", "--bare", "--columns=priority,match,action", "find", "QoS", "direction=to-lport")
	rec, _, err := n.engine.Record(pod.ID)
	b.ok(err)
	for _, c := range rec.History {
		if k := c.Key().Kind; k == netstate.KindFilter || k == netstate.KindClsact {
			t.Errorf("%s, although OVN enforces the rules", c)
		}
	}
	n.run("ip", "-n", "one", "neigh", "replace", "192.0.2.1", "lladdr", "02:00:00:00:00:4d", "dev", "net1", "nud", "permanent")
	n.run("ip", "-n", "one", "neigh", "replace", "2001:db8::1", "lladdr", "02:00:00:00:00:4d", "dev", "net1", "nud", "permanent")
	n.run("ip", "-n", "one", "route", "replace", "default", "via", "192.0.2.1", "dev", "net1")
	n.run("ip", "-n", "one", "route", "replace", "::/0", "via", "2001:db8::1", "dev", "net1")
	b.sender = traffic.NewSender(pod.Netns, b.sent)
	t.Cleanup(b.sender.Close)
	b.receiver, err = traffic.NewReceiver(server.Netns)
	b.ok(err)
	t.Cleanup(func() { b.receiver.Close() })
	list := slices.DeleteFunc(packets(), func(p qos.Packet) bool { // on the link, without a neighbor
		return p.Destination == traffic.Packet("192.0.2.77", 0, 0).Destination || p.Destination == traffic.Packet("2001:db8::77", 0, 0).Destination
	})
	arrive := func(t *testing.T, means decide) int {
		t.Helper()
		b := b.in(t)
		b.ok(b.chassis.Sync(t.Context()))
		return b.marks(b.sender, b.receiver, list, means)
	}
	if got := arrive(t, means); got != len(list) {
		t.Errorf("%d packets of %d are marked", got, len(list))
	}
	if rep := n.apply(pod); !rep.Unchanged {
		t.Errorf("applied twice: %v", rep.Changes)
	}
	t.Run("limit", func(t *testing.T) {
		b := b.in(t)
		for _, to := range []string{"203.0.113.9", "2001:db8:2::9"} {
			got := b.rate(b.sender, traffic.Packet(to, qos.UDP, 9), traffic.Packet(to, 253, 0))
			t.Logf("to %s %.2f Mbit/s", to, got*8e-6)
			if want := 1_250_000.0; got < 0.7*want || got > 1.2*want {
				t.Errorf("to %s %.0f bytes pass in a second, want %.0f", to, got, want)
			}
		}
	})
	uuid := func(t *testing.T, rule string) string {
		t.Helper()
		return b.in(t).run("ovn-nbctl", "--bare", "--columns=_uuid", "find", "QoS", `external_ids:dra.networking/rule="ai/blue[`+rule+`]"`)
	}
	for name, tt := range map[string]struct {
		change func(t *testing.T) []string
		says   []string
	}{
		"a row is deleted": {func(t *testing.T) []string {
			return []string{"remove", "Logical_Switch", of, "qos_rules", uuid(t, "1")}
		}, []string{"ai/blue[1]"}},
		"the mark is changed": {
			func(t *testing.T) []string { return []string{"set", "QoS", uuid(t, "0"), "action:dscp=1"} },
			[]string{"ai/blue[0]", "dscp is 1, not 8"},
		},
		"the match is changed": {
			func(t *testing.T) []string { return []string{"set", "QoS", uuid(t, "0"), "match=ip6"} },
			[]string{"ai/blue[0]", "match is ip6, not inport =="},
		},
		"the limit is changed": {
			func(t *testing.T) []string { return []string{"set", "QoS", uuid(t, "2"), "bandwidth:rate=1"} },
			[]string{"ai/blue[2]", "rateKbit is 1, not 10000"},
		},
		"all rows are deleted": {func(*testing.T) []string { return []string{"qos-del", of, "from-lport"} }, []string{"ai/blue[0]", "ai/blue[1]", "ai/blue[2]"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := &worker{b.in(t), n.engine, n.registry}
			n.run("ovn-nbctl", tt.change(t)...)
			st, err := n.engine.Check(t.Context(), pod.ID)
			n.ok(err)
			said := fmt.Sprint(st.Drift)
			for _, says := range tt.says {
				if st.State != reconcile.Drifted || !strings.Contains(said, says) {
					t.Errorf("%s, %s: want %q", st.State, said, says)
				}
			}
			_, err = n.engine.Repair(t.Context(), pod.ID)
			n.ok(err)
			arrive(t, means)
		})
	}
	t.Run("the databases are away", func(t *testing.T) {
		n := &worker{b.in(t), n.engine, n.registry}
		b.ok(b.chassis.Kill(chassis.Database))
		other := pod
		n.ruled(&other, edited)
		if _, err := n.engine.Ensure(t.Context(), other); fault.Of(err) != fault.NotReady {
			t.Errorf("edited: %v", err)
		}
		rec, _, err := n.engine.Record(pod.ID)
		n.ok(err)
		for _, c := range rec.History {
			if k := c.Key().Kind; k == netstate.KindFilter || k == netstate.KindClsact {
				t.Errorf("%s, while the database is away", c)
			}
		}
		b.marks(b.sender, b.receiver, list, means) // as before
		b.ok(b.chassis.Start(t.Context(), chassis.Database))
		n.ok(chassis.Eventually(t.Context(), "repaired", func() error {
			_, err := n.engine.Ensure(t.Context(), pod)
			return err
		}))
		arrive(t, means)
	})
	copied := filepath.Join(t.TempDir(), "nb")
	n.run("bash", "-c", "ovsdb-client backup "+b.chassis.Endpoint()+" OVN_Northbound >"+copied)
	// restored restores the copy, and repairs what has come back with it.
	restored := func(t *testing.T, rules ...string) {
		t.Helper()
		n := &worker{b.in(t), n.engine, n.registry}
		n.run("bash", "-c", "ovsdb-client restore "+b.chassis.Endpoint()+" OVN_Northbound <"+copied)
		said := ""
		for range 16 { // one of them searches for rows that nobody knows
			st, err := n.engine.Check(t.Context(), pod.ID)
			n.ok(err)
			if said = fmt.Sprint(st.Drift); strings.Contains(said, "ai/blue[2]") {
				break
			}
		}
		for _, rule := range rules {
			if !strings.Contains(said, rule) {
				t.Errorf("restored: %s, want %q", said, rule)
			}
		}
		// All rows have other UUIDs, so that ovn-controller may install the port again, for which a
		// repair waits only shortly.
		n.repair(pod)
		if left := n.rows(); strings.Contains(left, "ai/blue[2]") {
			t.Errorf("left are %s", left)
		}
	}
	t.Run("edited", func(t *testing.T) {
		n := &worker{b.in(t), n.engine, n.registry}
		means := n.ruled(&pod, edited)
		n.apply(pod)
		if got := arrive(t, means); got != len(list) {
			t.Errorf("%d packets of %d are marked", got, len(list))
		}
		restored(t, "ai/blue[0]", "ai/blue[1]", "ai/blue[2]")
		if got := arrive(t, means); got != len(list) {
			t.Errorf("restored from an older copy, %d packets of %d are marked", got, len(list))
		}
	})
	t.Run("removed", func(t *testing.T) {
		n := &worker{b.in(t), n.engine, n.registry}
		pod.LogicalRules = nil
		n.apply(pod)
		if left := n.rows(); left != "" {
			t.Errorf("left are %s", left)
		}
		restored(t, "ai/blue[0]", "ai/blue[1]", "ai/blue[2]")
		if left := n.rows(); left != "" {
			t.Errorf("restored from an older copy, left are %s", left)
		}
		arrive(t, nil)
	})
	n.ruled(&pod, marked)
	n.apply(pod)
	if now := n.run("ovn-nbctl", "--bare", "--columns=priority,match,action", "find", "QoS", "direction=to-lport"); now != theirs {
		t.Errorf("the row of others was %s, and is %s", theirs, now)
	}
	n.run("ovn-nbctl", "ls-del", of) // with all rows, also of others
	b.ok(chassis.Eventually(t.Context(), "repaired", func() error {
		for _, s := range []reconcile.Sandbox{server, pod} {
			if _, err := n.engine.Repair(t.Context(), s.ID); err != nil {
				return err
			}
		}
		return nil
	}))
	n.apply(pod)
	n.release(pod)
	if left := n.rows(); left != "" {
		t.Errorf("released, and left are %s", left)
	}
	n.release(server)
	n.nothing()
}

// TestRulesDeath: the process ends after any change of attaching a pod with rules, of an edit, of a repair and of
// its release. The next one continues: in the end all rules are there, or nothing is.
func TestRulesDeath(t *testing.T) {
	b := start(t)
	n := newWorker(b, b.chassis.Endpoint(), b.chassis.Endpoint())
	dir := filepath.Join(t.TempDir(), "journal")
	alive := n.engineOf(dir, &life{})
	pod := n.sandbox("one", `{topology: layer2, name: blue, mtu: 9000, addresses: [192.0.2.2/24, "2001:db8::2/64"], dad: "off"}`)
	other := pod
	n.ruled(&pod, marked)
	n.ruled(&other, edited)
	for act, do := range map[string]func(r *reconcile.Reconciler) error{
		"attach": func(r *reconcile.Reconciler) error { _, err := r.Ensure(t.Context(), pod); return err },
		"edit":   func(r *reconcile.Reconciler) error { _, err := r.Ensure(t.Context(), other); return err },
		"repair": func(r *reconcile.Reconciler) error { _, err := r.Repair(t.Context(), pod.ID); return err },
		"release": func(r *reconcile.Reconciler) error {
			_, err := r.Release(t.Context(), pod.ID)
			return err
		},
	} {
		t.Run(act, func(t *testing.T) {
			n, alive := &worker{b.in(t), n.engine, n.registry}, &worker{b.in(t), alive.engine, alive.registry}
			first, step := effort.Stride(t, 6)
			for at, reached := first, true; reached; at += step {
				if act != "attach" {
					alive.apply(pod)
				}
				if act == "repair" {
					n.run("ovn-nbctl", "qos-del", "plumbline:layer2:blue")
				}
				of := &life{changes: at}
				err := do(n.engineOf(dir, of).engine)
				if reached = of.dead; !reached && err != nil {
					t.Fatal(err)
				}
				want := pod
				if act == "edit" {
					want = other
				}
				if act != "release" && at%2 == 0 {
					alive.apply(want)
					if have := strings.Count(n.rows(), "dra.networking/rule=ai/blue"); have != len(want.LogicalRules) {
						t.Errorf("dead after change %d (%v): %d rows of %d", at, err, have, len(want.LogicalRules))
					}
				}
				if _, known, _ := alive.engine.Record(pod.ID); known {
					alive.release(pod)
				}
				if left := n.rows(); left != "" {
					t.Errorf("dead after change %d (%v): left are %s", at, err, left)
				}
				n.nothing()
			}
		})
	}
}
