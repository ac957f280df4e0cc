package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/reconcile/kernel"
)

// openTap creates a tap in a namespace. It exists as long as it is open.
func openTap(t *testing.T, path, name string) *os.File {
	t.Helper()
	var fd int
	err := kernel.Within(path, func() (err error) {
		if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		request, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	})
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), name)
	t.Cleanup(func() { f.Close() })
	return f
}

// advertisement is the frame of a router advertisement: a default route, and prefixes for
// addresses (RFC 4861, 4.2), with any other options.
func advertisement(prefixes []string, options ...byte) []byte {
	from, all := net.ParseIP("fe80::9"), net.ParseIP("ff02::1")
	body := []byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0} // hop limit 64, lifetime 1800 s
	for _, p := range prefixes {
		body = append(body, 3, 4, 64, 0xc0, 0, 0, 7, 8, 0, 0, 7, 8, 0, 0, 0, 0) // on link, autonomous
		body = append(body, net.ParseIP(p)...)
	}
	body = append(body, options...)
	sum := uint32(len(body)) + unix.IPPROTO_ICMPV6
	for _, part := range [][]byte{from, all, body} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(body[2:], ^uint16(sum))
	frame := []byte{0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x86, 0xdd, 0x60, 0, 0, 0, byte(len(body) >> 8), byte(len(body)), unix.IPPROTO_ICMPV6, 255}
	frame = append(append(frame, from...), all...)
	return append(frame, body...)
}

// TestRouterAdvertisement: a pod gives a tap of its own the alias of the function it
// was given, and advertises itself as a router on it when the function has returned.
// The tap is where it was, so the pod's own namespace hears of the router, and the
// host does not.
func TestRouterAdvertisement(t *testing.T) {
	if !hasCards() {
		return // no PCI there
	}
	const function = "enp3s0f0v2"
	up := &foreignWriter{t: t}
	up.run("modprobe tun; ip link set " + function + " up; until [ \"$(cat /sys/class/net/" + function + "/carrier)\" = 1 ]; do sleep 0.1; done")
	t.Cleanup(func() { up.run("ip link set " + function + " down") })
	s := movedFunction.fixture(t)
	machine := s.machine()
	s.prepare("release")
	tap := openTap(t, s.path, "evil")
	s.run("$ip link set net1 alias plumbline:nobody; $ip link set evil up; $ip link set evil alias plumbline:" + s.sandbox.Given["vf"].Device)
	if _, err := s.undisturbed.AwaitRelease(ctxFor(t), s.sandbox.ID); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(cleanTime); ; <-tick.C {
		if _, err := tap.Write(advertisement([]string{"2001:db8:bad::"})); err != nil {
			t.Fatal(err)
		}
		if routes := s.run("ip -6 route show proto ra"); routes != "" {
			t.Fatalf("the host has routes of the pod's making:\n%s", routes)
		}
		if strings.Contains(s.run("$ip -6 route show default proto ra"), "via fe80::9 dev evil") {
			break
		}
		if time.Now().After(end) {
			t.Fatal("nobody heard the advertisement")
		}
	}
	s.mustEqual(s.home, "", "after release")
	if now := s.machine(); now != machine {
		t.Errorf("the host was\n%sand is\n%s", machine, now)
	}
}

// TestAdvertisementOfPod: a pod advertises itself as a router on the pair that leads to the host, which hears it and
// takes nothing of it, also where new links of the host accept advertisements while it forwards.
func TestAdvertisementOfPod(t *testing.T) {
	for kind, more := range map[string]string{"ptp": "hostIfName: plp9", "bridge": "macspoofchk: false, raGuard: false, bridge: plbr9"} {
		t.Run(kind, func(t *testing.T) {
			l, w := newLane(t), &foreignWriter{t: t}
			w.run("echo 1 >/proc/sys/net/ipv4/ip_forward; echo 0 >/proc/sys/net/ipv6/conf/all/forwarding; echo 2 >/proc/sys/net/ipv6/conf/default/accept_ra")
			t.Cleanup(func() { w.run("echo 1 >/proc/sys/net/ipv6/conf/default/accept_ra") })
			before := w.run("ip -6 route show; ip -6 -o address show scope global")
			path, r := newNetns(t), l.engine(nil)
			sb := box(path, parse(t, "t", fmt.Sprintf("    - {name: p, type: %s, config: {addresses: [10.9.0.5/24], %s}}\n", kind, more)))
			if _, err := r.Ensure(ctxFor(t), sb); err != nil {
				t.Fatal(err)
			}
			pod := newAdvertiser(t, path, "net1")
			pod.advertise(advertisement([]string{"2001:db8:bad::"}))
			link := more[strings.LastIndex(more, " ")+1:]
			eventually.Succeeds(t, patience, "the network is as wanted", func() error {
				heard := strings.Fields(w.run("grep Icmp6InRouterAdvertisements /proc/net/dev_snmp6/" + link + " || echo none 0"))
				if n, err := strconv.Atoi(heard[1]); err != nil || n < 5 {
					return fmt.Errorf("the host has heard %q", heard)
				}
				return nil
			})
			if now := w.run("ip -6 route show; ip -6 -o address show scope global"); strings.Contains(now, "proto ra") || strings.Contains(now, "2001:db8:bad") {
				t.Errorf("the host had\n%sand has\n%s", before, now)
			}
			pod.advertise(nil)
			if _, err := r.Release(ctxFor(t), sb.ID); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestPairWriteFails: any write that makes the pair of a pod fails, of which one has the host accept no
// advertisements. The error says so, and nothing is left.
func TestPairWriteFails(t *testing.T) {
	l, w := newLane(t), &foreignWriter{t: t}
	w.run("echo 1 >/proc/sys/net/ipv4/ip_forward")
	path := newNetns(t)
	sb := box(path, parse(t, "t", "    - {name: p, type: ptp, config: {addresses: [10.9.0.5/24], hostIfName: plp9}}\n"))
	before := w.machine()
	for n := int64(1); ; n++ {
		var count atomic.Int64
		host, err := kernel.Open(kernel.Options{Disturb: func(m kernel.Message) error {
			if m.Write && !m.Answered && count.Add(1) == n {
				return unix.EBUSY
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		r, err := engine(host, l.dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.Ensure(ctxFor(t), sb)
		if count.Load() < n {
			if err != nil || n < 3 {
				t.Errorf("with %d writes and no failure: %v", n-1, err)
			}
			_, err = r.Release(ctxFor(t), sb.ID)
			host.Close()
			if err != nil {
				t.Error(err)
			}
			return
		}
		if err == nil {
			_, err = r.Release(ctxFor(t), sb.ID) // it was repeated
		} else if errors.Is(err, unix.EBUSY) {
			err = nil
		}
		host.Close()
		if now := w.machine(); err != nil || now != before {
			t.Errorf("write %d fails: %v; the host had\n%sand has\n%s", n, err, before, now)
		}
	}
}
