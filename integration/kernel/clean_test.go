package kernel

import (
	"encoding/binary"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology/fault"
)

// passXDP loads an XDP program that lets every packet pass.
func passXDP(t *testing.T) *os.File {
	t.Helper()
	instructions := binary.NativeEndian.AppendUint64(nil, 0xb7|2<<32)   // r0 = XDP_PASS
	instructions = binary.NativeEndian.AppendUint64(instructions, 0x95) // exit
	license := []byte("GPL\x00")
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&instructions[0])
	pin.Pin(&license[0])
	attr := make([]byte, 128) // union bpf_attr
	binary.NativeEndian.PutUint32(attr, unix.BPF_PROG_TYPE_XDP)
	binary.NativeEndian.PutUint32(attr[4:], 2)
	binary.NativeEndian.PutUint64(attr[8:], uint64(uintptr(unsafe.Pointer(&instructions[0]))))
	binary.NativeEndian.PutUint64(attr[16:], uint64(uintptr(unsafe.Pointer(&license[0]))))
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr[0])), uintptr(len(attr)))
	if errno != 0 {
		t.Fatalf("load program: %v", errno)
	}
	f := os.NewFile(fd, "program")
	t.Cleanup(func() { f.Close() })
	return f
}

// setXDP attaches a program to a link of a namespace, "" for the host's; none
// takes away what is attached.
func setXDP(t *testing.T, path, name string, program *os.File) {
	t.Helper()
	set := func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		fd := -1
		if program != nil {
			fd = int(program.Fd())
		}
		return netlink.LinkSetXdpFdWithFlags(l, fd, unix.XDP_FLAGS_SKB_MODE)
	}
	err := error(nil)
	if path == "" {
		err = set()
	} else {
		err = kernel.Within(path, set)
	}
	if err != nil {
		t.Fatal(err)
	}
}

var (
	indexOfLink = regexp.MustCompile(`(?m)^[0-9]+: `)
	// The carrier of a link that is down; and what the kernel itself gives a
	// link when it is up: a queueing discipline without a handle, and all-nodes.
	volatileLines = regexp.MustCompile(`(?m)^(\s*Link detected|\s*Speed|\s*Duplex|qdisc \S+ 0: root|\tlink  33:33:00:00:00:01).*\n|qdisc (noop|fq_codel) state`)
)

// settings is the output of the common tools for a link of the host.
func (s *foreignWriter) settings(link string) string {
	s.t.Helper()
	out := s.run(strings.ReplaceAll(`ip -d link show dev LINK; ip -o address show dev LINK; ip neigh show dev LINK; ip maddr show dev LINK
		ethtool LINK; ethtool -k LINK; ethtool -g LINK; ethtool -c LINK; ethtool -l LINK 2>&1 || true; ethtool -a LINK 2>&1 || true
		ethtool --show-priv-flags LINK 2>&1 || true; cat /proc/sys/net/ipv6/conf/LINK/accept_dad; tc qdisc show dev LINK; tc filter show dev LINK ingress 2>&1 || true`, "LINK", link))
	return volatileLines.ReplaceAllString(indexOfLink.ReplaceAllString(out, ""), "")
}

// TestCleanOnReturn: nothing that a pod sets on a virtual function is there any
// more when it has returned, in any way.
func TestCleanOnReturn(t *testing.T) {
	if !hasCards() {
		return // no PCI there
	}
	const damage = `
		ip link set net1 promisc on allmulticast on group 77 txqueuelen 7 gso_max_size 4000 gso_max_segs 7 alias "see me"
		ip link set net1 multicast off arp off
		ip link property add dev net1 altname foreign
		ip link set net1 gro_max_size 5000
		ip address add 192.0.2.1/24 dev net1; ip neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev net1; ip maddr add 33:33:00:00:00:07 dev net1
		tc qdisc add dev net1 clsact; tc filter add dev net1 ingress matchall action drop
		tc qdisc add dev net1 root fq_codel
		ethtool -K net1 rx off sg off gro off
		ethtool -G net1 rx 128 tx 128
		ethtool -C net1 rx-usecs 77
		ethtool -s net1 msglvl 0xff`
	for _, end := range []string{"release", "death"} {
		t.Run(end, func(t *testing.T) {
			s := movedFunction.fixture(t)
			id := s.sandbox.Given["vf"].Device
			home, _ := s.home.Device(id)
			link := netstate.BaseName(*home.At)
			before := s.settings(link)
			s.prepare("release")
			s.inside(damage)
			setXDP(t, s.path, "net1", passXDP(t))
			if end == "death" {
				deleteNetns(s.path)
			}
			rep, err := s.undisturbed.AwaitRelease(ctxFor(t), s.sandbox.ID)
			if err != nil || rep.Unclean != "" {
				t.Fatal(err, rep.Unclean)
			}
			s.mustEqual(s.home, "", "after release")
			if after := s.settings(link); after != before {
				t.Errorf("it was\n%s\nand is\n%s", before, after)
			}
			if held, _ := s.undisturbed.IDs(); len(held) > 0 {
				t.Errorf("records are left: %v", held)
			}
		})
	}
}

// TestUncleanDevice: what cannot be restored holds up no release. The record
// is kept, with the reason and only that device, which is not allocated until it
// is clean again.
func TestUncleanDevice(t *testing.T) {
	l, path, other := newLane(t), newNetns(t), newNetns(t)
	l.devices = []string{}
	s := &foreignWriter{t, "", ""}
	s.run("ip link add lent0 type dummy")
	t.Cleanup(func() { s.run("ip link delete lent0") })
	program := passXDP(t)
	setXDP(t, "", "lent0", program)
	steps := "    - {name: a, type: host-device}\n    - {name: d, type: dummy, config: {name: d0}}\n"
	sb := box(path, parse(t, "t", steps))
	sb.Given = ops.Givens{}.WithDevices(map[string]string{"a": "if:lent0"})
	r := l.engine(nil)
	if _, err := r.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err)
	}
	setXDP(t, path, "net1", nil) // only the host could attach it again
	for range 2 {
		rep, err := l.engine(nil).Release(ctxFor(t), sb.ID)
		if err != nil || !strings.Contains(rep.Unclean, "xdp.generic: it was attached on the host") {
			t.Fatalf("release: %v, %q", err, rep.Unclean)
		}
		rec, known, err := r.Record(sb.ID)
		if err != nil || !known || rec.Phase != reconcile.Releasing || rec.Failure != rep.Unclean || len(rec.History) != 1 {
			t.Fatalf("record: %v, %v, %+v", known, err, rec)
		}
	}
	if _, ok := l.state(path).Link("d0"); ok {
		t.Error("what else was made in the sandbox is there still")
	}
	next := box(other, parse(t, "next", steps))
	next.Given = sb.Given
	if _, err := r.Ensure(ctxFor(t), next); fault.Of(err) != fault.Conflict {
		t.Errorf("another sandbox took it: %v", err)
	}
	setXDP(t, "", "lent0", program)
	if rep, err := r.Release(ctxFor(t), sb.ID); err != nil || rep.Unclean != "" {
		t.Errorf("release: %v, %q", err, rep.Unclean)
	}
	if _, known, _ := r.Record(sb.ID); known {
		t.Error("its record is left")
	}
	if _, err := r.Ensure(ctxFor(t), next); err != nil {
		t.Error(err)
	}
	if _, err := r.Release(ctxFor(t), next.ID); err != nil {
		t.Error(err)
	}
}

// TestCostOfCleaning: what a device costs in messages when it is moved to a pod and when it
// is back, and that a pass that finds everything in order has none of it.
func TestCostOfCleaning(t *testing.T) {
	if !hasCards() {
		return // no PCI there
	}
	s := movedFunction.fixture(t)
	var attach, pass, release [3]uint64
	count := func(into *[3]uint64) *reconcile.Reconciler {
		return s.engine(func(d reconcile.Domain) reconcile.Domain { return counting{d, &into[0], &into[1], &into[2]} })
	}
	if _, err := count(&attach).Ensure(ctxFor(t), s.sandbox); err != nil {
		t.Fatal(err)
	}
	if _, err := count(&pass).Repair(ctxFor(t), s.sandbox.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := count(&release).Release(ctxFor(t), s.sandbox.ID); err != nil {
		t.Fatal(err)
	}
	t.Logf("dumps, questions, writes: attach %v, pass %v, release %v", attach, pass, release)
	releases := func() (took []time.Duration) {
		times := 1
		if effort.Long() {
			times = 9
		}
		for range times {
			s.prepare("release")
			begun := time.Now()
			if _, err := s.undisturbed.Release(ctxFor(t), s.sandbox.ID); err != nil {
				t.Fatal(err)
			}
			took = append(took, time.Since(begun))
		}
		slices.Sort(took)
		return took
	}
	without := releases()
	s.run("modprobe 8021q") // now VLANs are searched for
	first := releases()     // prepares the query for upper links
	with := releases()
	t.Logf("release in %v, where the kernel has VLANs in %v, at first in %v", without[len(without)/2], with[len(with)/2], first[len(first)-1])
	if pass[0] > 4 || pass[1] > 4 || pass[2] != 0 {
		t.Errorf("a pass that finds everything in order: %v", pass)
	}
	// Of these three are the link's: up, which comes after its settings, and two sysctls.
	if attach[2] > 9 || release[2] > 8 {
		t.Errorf("writes: attach %d, release %d", attach[2], release[2])
	}
}
