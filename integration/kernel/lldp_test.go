package kernel

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mdlayher/packet"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/lldp"
)

// announcement is an LLDP data unit of a switch, port Ethernet7.
func announcement(system string) []byte {
	tlv := func(typ int, value string) string {
		return string(binary.BigEndian.AppendUint16(nil, uint16(typ<<9|len(value)))) + value
	}
	return []byte(tlv(1, "\x04\x02\x00\x00\x00\x00\xaa") + tlv(2, "\x05Ethernet7") + tlv(3, "\x00\x78") + tlv(5, system) + tlv(0, ""))
}

var promiscuity = regexp.MustCompile(`promiscuity \d+`).FindString

// TestLLDP: frames of the other end of a wire are received on a PF, also as the port of a bond,
// and holds for its virtual functions; what the port itself has sent does not. The card's filter takes the frames
// without promiscuous mode, and no longer after the listener is closed.
func TestLLDP(t *testing.T) {
	if !hasCards() {
		return // no port with a wire
	}
	const port, far, group = "enp3s0f0", "enp4s0f0", "01:80:c2:00:00:0e"
	ifi, err := net.InterfaceByName(far)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := packet.Listen(ifi, packet.Datagram, 0x88cc, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	to, _ := net.ParseMAC(group)
	devices := func() []inventory.Device {
		found, err := inventory.Discover(os.DirFS("/sys"), inventory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	for _, c := range []struct{ name, before, after string }{
		{"by itself", "", ""},
		{"port of a bond", "ip link add lldp0 type bond mode active-backup; ip link set " + port + " down; ip link set " + port + " master lldp0; ip link set lldp0 up; ip link set " + port + " up", "ip link del lldp0; ip link set " + port + " up mtu 9000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			host := &foreignWriter{t: t}
			host.run(c.before + "\n:")
			t.Cleanup(func() { host.run(c.after + "\n:") })
			before := promiscuity(host.run("ip -d link show " + port))
			changed := make(chan struct{}, 1)
			l := lldp.NewListener(lldp.Options{Now: time.Now, Changed: func() {
				select {
				case changed <- struct{}{}:
				default:
				}
			}})
			defer l.Close()
			var found []inventory.Device
			heard := func() bool {
				found = devices()
				if err := l.Follow(found); err != nil {
					t.Fatal(err)
				}
				if _, err := conn.WriteTo(announcement("leaf-1"), &packet.Addr{HardwareAddr: to}); err != nil {
					t.Fatal(err)
				}
				select {
				case <-changed:
					return true
				case <-time.After(time.Second): // the port may have no carrier yet
					return false
				}
			}
			for end := time.Now().Add(time.Minute); !heard(); {
				if time.Now().After(end) {
					t.Fatal("nothing is heard")
				}
			}
			if !strings.Contains(host.run("ip maddr show dev "+port), group) {
				t.Error("the card's filter does not have the group")
			}
			if now := promiscuity(host.run("ip -d link show " + port)); now != before || now == "" {
				t.Errorf("%q, before %q", now, before)
			}
			l.Mark(found)
			marked := 0
			for _, d := range found {
				switch wired := d.IfName == port || d.PF != nil && d.PF.IfName == port; {
				case wired && (d.Neighbour == nil || *d.Neighbour != inventory.Neighbour{Switch: "leaf-1", Port: "Ethernet7"}):
					t.Errorf("%s: %+v", d.Name, d.Neighbour)
				case wired:
					marked++
				case d.Neighbour != nil:
					t.Errorf("%s has no such wire: %+v", d.Name, d.Neighbour)
				}
			}
			if marked != 5 {
				t.Errorf("%d devices have the neighbour, want the PF and its 4 functions", marked)
			}
			l.Close()
			if strings.Contains(host.run("ip maddr show dev "+port), group) {
				t.Error("the group is left in the card's filter")
			}
		})
	}
}

// TestForgedLLDP: a pod floods the port of its function with announcements from the function's address and from others. Those of
// the function do not count, and the switch is heard and stays known.
func TestForgedLLDP(t *testing.T) {
	if !hasCards() {
		return // no port with a wire
	}
	const port, function, far = "enp3s0f0", "enp3s0f0v2", "enp4s0f0"
	l, w := newLane(t), &foreignWriter{t: t}
	ns := filepath.Base(newNetns(t))
	w.run("ip link set " + port + " vf 2 spoofchk off trust on; ip link set " + function + " netns " + ns + " && ip -n " + ns + " link set " + function + " name net1 up")
	t.Cleanup(func() {
		w.run("ip -n " + ns + " link set net1 down name " + function + " && ip -n " + ns + " link set " + function + " netns 1; ip link set " + port + " vf 2 spoofchk on trust off\n:")
	})
	mac, err := net.ParseMAC(strings.TrimSpace(w.run("ip netns exec " + ns + " cat /sys/class/net/net1/address")))
	if err != nil {
		t.Fatal(err)
	}
	to, _ := net.ParseMAC("01:80:c2:00:00:0e")
	pod := newSender(t, "/run/netns/"+ns, "net1")
	wire := newSender(t, "", far)
	leaf := net.HardwareAddr{2, 0, 0, 0, 0, 0xaa}
	var seconds atomic.Int64 // of the listener's clock
	changed := make(chan struct{}, 1)
	heard := lldp.NewListener(lldp.Options{
		Now:       func() time.Time { return time.Unix(seconds.Load(), 0) },
		Functions: func(port string) ([]string, error) { return l.host.FunctionMACs(t.Context(), port) },
		Changed: func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		},
	})
	defer heard.Close()
	known := func() string {
		found, err := inventory.Discover(os.DirFS("/sys"), inventory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := heard.Follow(found); err != nil {
			t.Fatal(err)
		}
		heard.Mark(found)
		for _, d := range found {
			if d.IfName == port && d.Neighbour != nil {
				return d.Neighbour.Switch
			}
		}
		return ""
	}
	until := func(system string, flood ...net.HardwareAddr) {
		t.Helper()
		eventually.Succeeds(t, patience, "the network is as wanted", func() error {
			for range 100 {
				for _, from := range flood {
					pod.frame(from, to, 0x88cc, announcement("forged"))
				}
			}
			wire.frame(leaf, to, 0x88cc, announcement(system))
			select {
			case <-changed:
			case <-time.After(200 * time.Millisecond): // the port may have no carrier yet
			}
			if now := known(); now != system {
				seconds.Add(5)
				return fmt.Errorf("%q is known", now)
			}
			return nil
		})
	}
	if now := known(); now != "" {
		t.Errorf("%q is known before anything was sent", now)
	}
	until("leaf-1", mac)
	until("leaf-2", mac, net.HardwareAddr{2, 0, 0, 0, 0, 0xbb}) // its new name counts after a minute, in which it is heard
}
