package chassis_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/chassis"
	"github.com/plumbline/plumbline/integration/traffic"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/openvswitch"
	"github.com/plumbline/plumbline/reconcile/openvswitch/flowcounters"
	"github.com/plumbline/plumbline/reconcile/ports"
)

// counters reads those of the rules of a sandbox, by rule. A rule that is not known has none.
func (n *worker) counters(r *flowcounters.Reader, s reconcile.Sandbox) (map[string]ports.RuleCounters, error) {
	rec, _, err := n.engine.Record(s.ID)
	n.ok(err)
	rules := ports.LogicalRulesOf(&rec)
	readings, err := r.Read(n.Context(), rules)
	out := map[string]ports.RuleCounters{}
	for i, rule := range rules {
		if readings[i].Filters != nil {
			out[rule.Name] = readings[i].Counters()
		}
	}
	return out, err
}

// TestRuleCounters: of each rule of two ports with the same rules, each packet is counted where it was sent, once,
// whether it is IPv4 or IPv6, or matched by one flow or a conjunction; what the limit drops does not arrive, and
// is counted.
func TestRuleCounters(t *testing.T) {
	b := start(t)
	n := newWorker(b, b.chassis.Endpoint(), b.chassis.Endpoint())
	vswitch, err := openvswitch.NewSwitch(openvswitch.Server{Endpoints: []string{b.chassis.Endpoint()}, Timeout: time.Minute})
	b.ok(err)
	t.Cleanup(vswitch.Close)
	r := &flowcounters.Reader{Dir: flowcounters.DirOf(b.chassis.Endpoint()), Numbers: vswitch.Numbers}
	server := n.sandbox("server", `{topology: layer2, name: blue, mtu: 9000, mac: "02:00:00:00:00:4d"}`)
	n.apply(server)
	const (
		both        = "{dscp: 8, classifier: {to: [{ipBlock: {cidr: 198.51.100.0/24}}, {ipBlock: {cidr: '2001:db8:1::/48'}}]}}"
		limited     = "{dscp: 46, bandwidth: {rate: 1, burst: 800}, classifier: {to: [{ipBlock: {cidr: 203.0.113.0/24}}], ports: [{protocol: UDP}]}}"
		conjunction = "{dscp: 26, classifier: {to: [{ipBlock: {cidr: 10.1.0.0/16}}, {ipBlock: {cidr: 10.2.0.0/16}}, {ipBlock: {cidr: 10.3.0.0/16}}], ports: [{protocol: TCP, port: 80}, {protocol: TCP, port: 443}, {protocol: TCP, port: 8080}]}}"
		unused      = "{dscp: 12, bandwidth: {rate: 1, burst: 800}, classifier: {to: [{ipBlock: {cidr: 192.0.2.200/32}}]}}"
	)
	senders := map[string]*traffic.Sender{}
	pods := map[string]reconcile.Sandbox{}
	for i, name := range []string{"one", "two"} {
		pod := n.sandbox(name, fmt.Sprintf(`{topology: layer2, name: blue, mtu: 9000, addresses: [192.0.2.%d/24, "2001:db8::%[1]d/64"], dad: "off"}`, i+2))
		n.ruled(&pod, onBlue(both, limited, conjunction, unused))
		n.apply(pod)
		n.run("ip", "-n", name, "neigh", "replace", "192.0.2.1", "lladdr", "02:00:00:00:00:4d", "dev", "net1", "nud", "permanent")
		n.run("ip", "-n", name, "neigh", "replace", "2001:db8::1", "lladdr", "02:00:00:00:00:4d", "dev", "net1", "nud", "permanent")
		n.run("ip", "-n", name, "route", "replace", "default", "via", "192.0.2.1", "dev", "net1")
		n.run("ip", "-n", name, "route", "replace", "::/0", "via", "2001:db8::1", "dev", "net1")
		senders[name], pods[name] = traffic.NewSender(pod.Netns, b.sent), pod
		t.Cleanup(senders[name].Close)
	}
	receiver, err := traffic.NewReceiver(server.Netns)
	b.ok(err)
	t.Cleanup(func() { receiver.Close() })
	b.ok(b.chassis.Sync(t.Context()))

	// sent are packets with 100 bytes after their header of IP; flows count Ethernet, too.
	const four, six = 100 + 20 + 14, 100 + 40 + 14
	send := func(from, to string, protocol qos.Protocol, port uint16, count int) {
		for range count {
			b.send(senders[from], traffic.Packet(to, protocol, port), 0, 100)
		}
	}
	send("one", "198.51.100.7", qos.UDP, 9, 11)
	send("one", "2001:db8:1::7", qos.TCP, 9, 6)
	send("one", "10.2.0.1", qos.TCP, 443, 3)
	send("one", "10.3.0.1", qos.TCP, 80, 2)
	send("one", "10.3.0.1", qos.TCP, 81, 1) // which no rule matches
	send("two", "198.51.100.7", qos.UDP, 9, 4)
	var offered []uint32
	for range 60 { // the burst is 100,000 bytes
		offered = append(offered, b.send(senders["one"], traffic.Packet("203.0.113.9", qos.UDP, 9), 0, 4000))
	}
	b.ok(b.chassis.Sync(t.Context())) // the next packet says that no other one comes
	arrived := b.await(receiver, b.send(senders["one"], traffic.Packet("203.0.113.9", 253, 0), 0, 100))
	passed := 0
	for _, number := range offered {
		if _, ok := arrived[number]; ok {
			passed++
		}
	}
	dropped := len(offered) - passed
	if dropped == 0 {
		t.Errorf("of %d packets none was dropped", len(offered))
	}
	of := func(packets, bytes, dropped int) ports.RuleCounters {
		return ports.RuleCounters{Marked: ports.FilterCount{Packets: uint64(packets), Bytes: uint64(bytes)}, Dropped: uint64(dropped)}
	}
	holds := func(t *testing.T, name string, want map[string]ports.RuleCounters) {
		t.Helper()
		n := &worker{b.in(t), n.engine, n.registry}
		n.ok(chassis.Eventually(t.Context(), "counters of "+name, func() error {
			got, err := n.counters(r, pods[name])
			if err == nil && !reflect.DeepEqual(got, want) {
				err = fmt.Errorf("are %+v, want %+v", got, want)
			}
			return err
		}))
	}
	one := map[string]ports.RuleCounters{
		"ai/blue[0]": of(17, 11*four+6*six, 0), "ai/blue[1]": of(len(offered), len(offered)*(4000+20+14), dropped),
		"ai/blue[2]": of(5, 5*four, 0), "ai/blue[3]": of(0, 0, 0),
	}
	two := map[string]ports.RuleCounters{"ai/blue[0]": of(4, 4*four, 0), "ai/blue[1]": {}, "ai/blue[2]": {}, "ai/blue[3]": {}}
	holds(t, "one", one)
	holds(t, "two", two)
	t.Logf("%d of %d packets dropped", dropped, len(offered))

	t.Run("ovn-controller restarts", func(t *testing.T) { // it installs all flows once more
		b.ok(b.chassis.Restart(t.Context(), chassis.Controller))
		b.ok(b.chassis.Sync(t.Context()))
		clear(one)
		for rule := range two {
			one[rule], two[rule] = ports.RuleCounters{}, ports.RuleCounters{}
		}
		holds(t, "one", one)
		send("two", "198.51.100.7", qos.UDP, 9, 3)
		two["ai/blue[0]"] = of(3, 3*four, 0)
		holds(t, "two", two)
		holds(t, "one", one)
	})
	t.Run("the rules are edited", func(t *testing.T) {
		n := &worker{b.in(t), n.engine, n.registry}
		pod := pods["two"]
		n.ruled(&pod, onBlue("{dscp: 9}", both))
		n.apply(pod)
		b.ok(b.chassis.Sync(t.Context()))
		send("two", "198.51.100.7", qos.UDP, 9, 2)
		send("two", "203.0.113.9", 253, 0, 3)
		b.ok(chassis.Eventually(t.Context(), "counters", func() error {
			got, err := n.counters(r, pod)
			if err == nil && (got["ai/blue[1]"] != of(2, 2*four, 0) || got["ai/blue[0]"].Marked.Packets < 3) {
				err = fmt.Errorf("are %+v", got)
			}
			return err
		}))
	})
	t.Run("ovs-vswitchd is away", func(t *testing.T) {
		b.ok(b.chassis.Kill(chassis.VSwitch))
		if got, err := n.counters(r, pods["one"]); err == nil || len(got) > 0 {
			t.Errorf("%+v %v", got, err)
		}
		b.ok(b.chassis.Start(t.Context(), chassis.VSwitch))
		b.ok(b.chassis.Sync(t.Context()))
		b.ok(chassis.Eventually(t.Context(), "counters", func() error {
			got, err := n.counters(r, pods["one"])
			if err == nil && len(got) != 4 {
				err = fmt.Errorf("are %+v", got)
			}
			return err
		}))
	})
}
