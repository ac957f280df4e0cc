package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/integration/chassis"
	"github.com/plumbline/plumbline/integration/traffic"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/ovn"
	"github.com/plumbline/plumbline/qos/qostest"
	"github.com/plumbline/plumbline/qos/tc"
	"github.com/plumbline/plumbline/reconcile/kernel"
)

const (
	perRun = 200 // packets: few, so that a busy host disturbs few runs
	// destination is that of all packets. One rule matches it, or none.
	destination = "198.51.100.7"
	mark        = 46
	logical     = "sw0"
	sinkMAC     = "02:00:00:00:00:99"
)

// rulesOf are so many rules, of which one decides about the packets, the first that is evaluated or
// the last.
type rulesOf struct {
	count int
	last  bool
	// masks is how many kinds of destinations they have, 0 for one: addresses, and prefixes of 31 bits.
	masks int
}

var ruleSets = []rulesOf{
	{},
	{count: 1},
	{count: 200},
	{count: 200, last: true},
	{count: 200, last: true, masks: 2},
	{count: 1000, last: true},
}

func (r rulesOf) name() string {
	switch {
	case r.count == 0:
		return "none"
	case r.count == 1:
		return "1"
	case r.masks > 1:
		return fmt.Sprintf("%d in %d masks, the last matches", r.count, r.masks)
	case r.last:
		return fmt.Sprintf("%d, the last matches", r.count)
	}
	return fmt.Sprintf("%d, the first matches", r.count)
}

// rules compiles objects of 20 rules each, as many as one may have.
func (r rulesOf) rules() ([]qos.Rule, error) {
	if r.count == 0 {
		return nil, nil
	}
	decides := r.count - 1 // of those with the same priority, and of all, the later one is evaluated first
	if r.last {
		decides = 0
	}
	var text strings.Builder
	for i := range r.count {
		if i%qos.MaxRules == 0 {
			fmt.Fprintf(&text,
				"---\napiVersion: k8s.ovn.org/v1alpha1\nkind: NetworkQoS\nmetadata: {name: q%d}\nspec:\n  priority: %d\n  egress:\n", i,
				i/qos.MaxRules)
		}
		to, bits, dscp := fmt.Sprintf("203.0.%d.%d", 100+i/250, i%250), 32, i%mark
		if i == decides {
			to, dscp = destination, mark
		}
		if r.masks > 1 && i%r.masks == 0 { // the one that decides is of the mask that is compared last
			to, bits = prefix31(to), 31
		}
		fmt.Fprintf(&text, "  - {dscp: %d, classifier: {to: [{ipBlock: {cidr: %s/%d}}]}}\n", dscp, to, bits)
	}
	network := qos.Network{NetworkID: qos.NetworkID{Kind: qos.DefaultNetwork}, Primary: true}
	rules, _, err := qostest.Compile([]byte(text.String()), network, "", nil)
	if err == nil && len(rules) != r.count {
		err = fmt.Errorf("%d rules are compiled, not %d", len(rules), r.count)
	}
	return rules, err
}

// prefix31 is the first address of the prefix of 31 bits that an address is in.
func prefix31(address string) string {
	return netip.PrefixFrom(netip.MustParseAddr(address), 31).Masked().Addr().String()
}

// path is how packets of a pod are sent, and what enforces its rules.
type path struct {
	name           string
	ovn, filtering bool
}

var paths = []path{{"veth, filters of tc", false, true}, {"OVN port, filters of tc", true, true}, {"OVN port, rows of OVN", true, false}}

// source is a pod that sends.
type source struct {
	path
	rulesOf
	pod   *traffic.Pod
	fd    int // a socket that is connected to the destination
	runs  []time.Duration
	first []time.Duration // of packets for which no flow exists
}

// packets measures what rules cost a packet. All packets of a pod have one destination, and nobody
// receives them: they are dropped in another namespace, after an interface has received them. That
// happens in the call that sends, so that the call's time includes it.
func packets(ctx context.Context, n int) (err error) {
	dir, err := os.MkdirTemp("", "plumbline-benchmark-ovn-")
	if err != nil {
		return err
	}
	c, err := chassis.Start(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	// Flows are kept while others send.
	if _, err := c.Run(ctx, "ovs-vsctl", "set", "Open_vSwitch", ".", "other_config:max-idle=3600000"); err != nil {
		return err
	}
	if _, err := c.Run(ctx, "ovn-nbctl", "ls-add", logical); err != nil {
		return err
	}
	sink, err := newSink(ctx, c)
	if err != nil {
		return err
	}
	var sources []*source
	var rows []netstate.LogicalRule
	for _, p := range paths {
		for _, r := range ruleSets {
			s, err := newSource(ctx, c, sink, path(p), r, len(sources), &rows)
			if err != nil {
				return fmt.Errorf("%s, rules: %s: %w", p.name, r.name(), err)
			}
			sources = append(sources, s)
		}
	}
	if err := c.SetRules(ctx, logical, rows); err != nil {
		return err
	}
	receiver, err := traffic.NewReceiver(sink.Netns)
	if err != nil {
		return err
	}
	for range 2 { // the first one fills caches
		for _, s := range sources {
			if err := s.check(receiver); err != nil {
				return err
			}
		}
	}
	if err := firstPackets(ctx, c, n, sources, receiver); err != nil {
		return err
	}
	for _, s := range sources { // each has its flow again
		if err := s.check(receiver); err != nil {
			return err
		}
	}
	if err := receiver.Close(); err != nil { // it would cost each packet a copy
		return err
	}
	for i := range n + 1 {
		for _, s := range sources {
			d, err := s.run(sink)
			if err != nil {
				return fmt.Errorf("%s, rules: %s: %w", s.path.name, s.rulesOf.name(), err)
			}
			if i > 0 {
				s.runs = append(s.runs, d)
			}
		}
	}
	printPackets(n, sources)
	return nil
}

// firstPackets measures the first packet of each source of OVN, for which Open vSwitch has no flow yet.
func firstPackets(ctx context.Context, c *chassis.Chassis, n int, sources []*source, receiver *traffic.Receiver) error {
	for i := range n + 1 {
		for _, s := range sources {
			if !s.ovn {
				continue
			}
			if _, err := c.Appctl(ctx, chassis.VSwitch, "revalidator/purge"); err != nil {
				return err
			}
			began := time.Now()
			if err := s.check(receiver); err != nil {
				return err
			}
			if i > 0 {
				s.first = append(s.first, time.Since(began))
			}
		}
	}
	return nil
}

func newSink(ctx context.Context, c *chassis.Chassis) (*traffic.Pod, error) {
	sink, err := traffic.Bare("sink")
	if err != nil {
		return nil, err
	}
	if err := traffic.IP(ctx, "link add sink type veth peer name eth0 netns sink address "+sinkMAC+"\nlink set sink up"); err != nil {
		return nil, err
	}
	if err := sink.IP(ctx, "link set eth0 up"); err != nil {
		return nil, err
	}
	if _, err := c.Run(ctx, "ovn-nbctl", "lsp-add", logical, "sink", "--", "lsp-set-addresses", "sink", sinkMAC); err != nil {
		return nil, err
	}
	return sink, c.Plug(ctx, "sink", "sink")
}

// newSource makes a pod. Its filters are set, and its rows are added to those that are wanted.
func newSource(ctx context.Context, c *chassis.Chassis, sink *traffic.Pod, p path, r rulesOf, number int,
	rows *[]netstate.LogicalRule,
) (*source, error) {
	s := &source{path: p, rulesOf: r}
	name := fmt.Sprintf("pod%d", number)
	rules, err := r.rules()
	if err != nil {
		return nil, err
	}
	if s.pod, err = traffic.Bare(name); err != nil {
		return nil, err
	}
	peer := name
	if p.ovn {
		err = traffic.IP(ctx, fmt.Sprintf("link add %s type veth peer name eth0 netns %s\nlink set %s up", name, name, name))
	} else {
		peer = "eth0"
		err = errors.Join(
			traffic.IP(ctx, fmt.Sprintf("link add eth0 netns %s type veth peer name %s netns sink address %s", name, name, sinkMAC)),
			sink.IP(ctx, fmt.Sprintf("link set %s up", name)))
	}
	err = errors.Join(err, s.pod.IP(ctx,
		fmt.Sprintf("link set eth0 up\naddr add 192.0.2.%d/24 dev eth0\naddr add 2001:db8::%d/64 dev eth0 nodad", number+10, number+10)))
	if err != nil {
		return nil, err
	}
	if p.ovn {
		if _, err := c.Run(ctx, "ovn-nbctl", "lsp-add", logical, peer, "--", "lsp-set-addresses", peer, "unknown"); err != nil {
			return nil, err
		}
		if err := c.Plug(ctx, peer, peer); err != nil {
			return nil, err
		}
	}
	if p.filtering {
		err = filter(ctx, s.pod.Netns, rules)
	} else {
		var objects []netstate.LogicalRule
		objects, err = ovn.Objects(rules, nil)
		for _, o := range objects {
			*rows = append(*rows, o.Of(netstate.LogicalPort{Name: peer}, ""))
		}
	}
	if err != nil {
		return nil, err
	}
	return s, s.connect(ctx, "eth0", sinkMAC)
}

// filter sets the filters of rules on eth0.
func filter(ctx context.Context, path string, rules []qos.Rule) error {
	compiled, err := tc.Compile(rules, nil)
	if err != nil || len(rules) == 0 {
		return err
	}
	host, err := kernel.Open(kernel.Options{})
	if err != nil {
		return err
	}
	defer host.Close()
	sandbox, err := host.Sandbox(path)
	if err != nil {
		return err
	}
	defer sandbox.Close()
	if _, err := sandbox.Observe(ctx, nil); err != nil {
		return err
	}
	if err := sandbox.Apply(ctx, netstate.Change{After: netstate.Clsact{Link: "eth0"}}); err != nil {
		return err
	}
	for _, f := range compiled.Objects() {
		f.Link = "eth0"
		if err := sandbox.Apply(ctx, netstate.Change{After: f}); err != nil {
			return err
		}
	}
	return nil
}

// check sends a packet, and requires that it arrives with the mark of the rules.
func (s *source) check(r *traffic.Receiver) error {
	if _, err := unix.Write(s.fd, make([]byte, 64)); err != nil {
		return err
	}
	for {
		p, err := r.Next(20 * time.Second)
		if err != nil {
			return fmt.Errorf("%s, rules: %s: %w", s.path.name, s.rulesOf.name(), err)
		}
		want := uint8(0)
		if s.count > 0 {
			want = mark << 2
		}
		switch {
		case p.Protocol != qos.UDP || p.Port != 9: // of the kernel
		case p.Class != want:
			return fmt.Errorf("%s, rules: %s: a packet has traffic class %d, not %d", s.path.name, s.rulesOf.name(), p.Class, want)
		default:
			return nil
		}
	}
}

// run sends packets, and requires that they arrive.
func (s *source) run(sink *traffic.Pod) (time.Duration, error) {
	before, err := arrived(sink)
	if err != nil {
		return 0, err
	}
	const batch = 50
	payload := make([]byte, 64)
	iov := unix.Iovec{Base: &payload[0]}
	iov.SetLen(len(payload))
	type message struct {
		header unix.Msghdr
		length uint32
		_      [4]byte
	}
	messages := make([]message, batch)
	for i := range messages {
		messages[i].header.Iov = &iov
		messages[i].header.SetIovlen(1)
	}
	began := time.Now()
	for sent := 0; sent < perRun; {
		n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&messages[0])),
			uintptr(min(batch, perRun-sent)), 0, 0, 0)
		if errno != 0 {
			return 0, errno
		}
		sent += int(n)
	}
	elapsed := time.Since(began)
	after, err := arrived(sink)
	if err != nil {
		return 0, err
	}
	if after-before < perRun {
		return 0, fmt.Errorf("%d packets of %d arrive", after-before, perRun)
	}
	return elapsed / perRun, nil
}

// arrived is how many packets the interfaces of a namespace have received.
func arrived(p *traffic.Pod) (uint64, error) {
	ns, err := netns.GetFromPath(p.Netns)
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, err
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		return 0, err
	}
	sum := uint64(0)
	for _, l := range links {
		sum += l.Attrs().Statistics.RxPackets
	}
	return sum, nil
}

func printPackets(n int, sources []*source) {
	fmt.Printf("\n### Cost of rules for a packet (n=%d runs of %d packets)\n\n", n, perRun)
	head, line := "| rules |", "|---|"
	for _, p := range paths {
		head += fmt.Sprintf(" %s: µs a packet | × none |", p.name)
		line += "---|---|"
	}
	fmt.Println(head + "\n" + line)
	for i, r := range ruleSets {
		fmt.Printf("| %s |", r.name())
		for k := range paths {
			s, none := sources[k*len(ruleSets)+i], sources[k*len(ruleSets)]
			fmt.Printf(" %s | %s |", micros(median(s.runs)), ratio(s.runs, none.runs))
		}
		fmt.Println()
	}
	fmt.Printf("\n### The first packet of a flow, until it arrives (n=%d)\n\n", n)
	fmt.Println("| rules | OVN port, filters of tc: ms | × none | OVN port, rows of OVN: ms | × none |\n|---|---|---|---|---|")
	for i, r := range ruleSets {
		fmt.Printf("| %s |", r.name())
		for k, p := range paths {
			if p.ovn {
				s, none := sources[k*len(ruleSets)+i], sources[k*len(ruleSets)]
				fmt.Printf(" %s | %s |", millis(median(s.first)), ratio(s.first, none.first))
			}
		}
		fmt.Println()
	}
}

func micros(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Nanoseconds())/1000) }
