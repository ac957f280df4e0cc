package dhcp

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/net/bpf"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

var mac = net.HardwareAddr{2, 0, 0, 0, 0, 1}

// answer is an answer of a server to q.
func answer(t testing.TB, q question, kind dhcpv4.MessageType, more ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	t.Helper()
	m, err := dhcpv4.New(append([]dhcpv4.Modifier{
		func(d *dhcpv4.DHCPv4) { d.OpCode = dhcpv4.OpcodeBootReply },
		dhcpv4.WithTransactionID(q.xid), dhcpv4.WithHwAddr(q.mac), dhcpv4.WithMessageType(kind),
		dhcpv4.WithYourIP(net.IP{192, 0, 2, 9}), dhcpv4.WithNetmask(net.IPMask{255, 255, 255, 0}), dhcpv4.WithLeaseTime(600),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IP{192, 0, 2, 1})),
	}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// on puts the headers of a server's packet before a message.
func on(m *dhcpv4.DHCPv4) []byte {
	b := datagram(m.ToBytes(), netip.MustParseAddr("192.0.2.1"), broadcast)
	binary.BigEndian.PutUint16(b[ipHeader:], serverPort)
	binary.BigEndian.PutUint16(b[ipHeader+2:], clientPort)
	return b
}

func TestParse(t *testing.T) {
	q := question{xid: dhcpv4.TransactionID{1, 2, 3, 4}, mac: mac, clientID: []byte{0xff, 1}}
	router := func(ips ...net.IP) dhcpv4.Modifier { return dhcpv4.WithOption(dhcpv4.OptRouter(ips...)) }
	t1 := func(d time.Duration) dhcpv4.Modifier { return dhcpv4.WithOption(dhcpv4.OptRenewTimeValue(d)) }
	t2 := func(d time.Duration) dhcpv4.Modifier { return dhcpv4.WithOption(dhcpv4.OptRebindingTimeValue(d)) }
	mtu := func(b ...byte) dhcpv4.Modifier {
		return dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, b))
	}
	routes := func(all ...string) dhcpv4.Modifier {
		var out []*dhcpv4.Route
		for _, r := range all {
			to, gateway, _ := strings.Cut(r, " ")
			_, dest, err := net.ParseCIDR(to)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, &dhcpv4.Route{Dest: dest, Router: net.ParseIP(gateway).To4()})
		}
		return dhcpv4.WithOption(dhcpv4.OptClasslessStaticRoute(out...))
	}
	for name, c := range map[string]struct {
		with   []dhcpv4.Modifier
		want   Lease
		router string
		says   string
	}{
		"lease":                   {want: Lease{Renew: 400, Rebind: 625, Expires: 700}},
		"times of the server":     {with: []dhcpv4.Modifier{t1(100 * time.Second), t2(200 * time.Second)}, want: Lease{Renew: 200, Rebind: 300, Expires: 700}},
		"renewed too often":       {with: []dhcpv4.Modifier{t1(time.Second), t2(200 * time.Second)}, want: Lease{Renew: 400, Rebind: 625, Expires: 700}},
		"times in no order":       {with: []dhcpv4.Modifier{t1(500 * time.Second), t2(200 * time.Second)}, want: Lease{Renew: 400, Rebind: 625, Expires: 700}},
		"forever":                 {with: []dhcpv4.Modifier{dhcpv4.WithLeaseTime(1<<32 - 1)}, want: Lease{Renew: 100 + 43200, Rebind: 100 + 75600, Expires: 100 + 86400}},
		"router":                  {with: []dhcpv4.Modifier{router(net.IP{192, 0, 2, 1})}, want: Lease{Renew: 400, Rebind: 625, Expires: 700}, router: "192.0.2.1"},
		"second router":           {with: []dhcpv4.Modifier{router(net.IP{198, 51, 100, 1}, net.IP{192, 0, 2, 2})}, want: Lease{Renew: 400, Rebind: 625, Expires: 700}, router: "192.0.2.2"},
		"the pod as the router":   {with: []dhcpv4.Modifier{router(net.IP{192, 0, 2, 9})}, want: Lease{Renew: 400, Rebind: 625, Expires: 700}},
		"the broadcast as router": {with: []dhcpv4.Modifier{router(net.IP{192, 0, 2, 255})}, want: Lease{Renew: 400, Rebind: 625, Expires: 700}},
		"routes": {with: []dhcpv4.Modifier{routes("10.9.0.0/16 192.0.2.1", "0.0.0.0/0 192.0.2.1", "10.10.1.7/16 192.0.2.1", "198.51.100.0/24 0.0.0.0")}, want: Lease{
			Renew: 400, Rebind: 625, Expires: 700, Routes: []netstate.LeasedRoute{
				{Destination: "10.9.0.0/16", Gateway: "192.0.2.1"}, {Destination: "0.0.0.0/0", Gateway: "192.0.2.1"}, {Destination: "10.10.0.0/16", Gateway: "192.0.2.1"}, {Destination: "198.51.100.0/24"},
			},
		}},
		"routes that no pod can have": {with: []dhcpv4.Modifier{routes(
			"0.0.0.0/1 192.0.2.1", "127.0.0.0/8 192.0.2.1", "224.0.0.0/8 192.0.2.1", "192.0.2.0/24 192.0.2.1", "10.1.0.0/16 198.51.100.1", "10.2.0.0/16 192.0.2.9", "10.3.0.0/16 192.0.2.255",
		)}, want: Lease{Renew: 400, Rebind: 625, Expires: 700}},
		"a route twice":             {with: []dhcpv4.Modifier{routes("10.9.0.0/16 192.0.2.1", "10.9.0.0/16 192.0.2.2")}, want: Lease{Renew: 400, Rebind: 625, Expires: 700, Routes: []netstate.LeasedRoute{{Destination: "10.9.0.0/16", Gateway: "192.0.2.1"}}}},
		"an MTU":                    {with: []dhcpv4.Modifier{mtu(5, 120)}, want: Lease{Renew: 400, Rebind: 625, Expires: 700, MTU: 1400}},
		"an MTU too small for IPv6": {with: []dhcpv4.Modifier{mtu(4, 255)}, want: Lease{Renew: 400, Rebind: 625, Expires: 700}},
		"an MTU of one byte":        {with: []dhcpv4.Modifier{mtu(5)}, want: Lease{Renew: 400, Rebind: 625, Expires: 700}},
		"loopback":                  {with: []dhcpv4.Modifier{dhcpv4.WithYourIP(net.IP{127, 0, 0, 1})}, says: "127.0.0.1 is not an address of a host"},
		"link-local":                {with: []dhcpv4.Modifier{dhcpv4.WithYourIP(net.IP{169, 254, 0, 1})}, says: "169.254.0.1 is not an address of a host"},
		"multicast":                 {with: []dhcpv4.Modifier{dhcpv4.WithYourIP(net.IP{239, 0, 0, 1})}, says: "239.0.0.1 is not an address of a host"},
		"reserved":                  {with: []dhcpv4.Modifier{dhcpv4.WithYourIP(net.IP{240, 0, 0, 1})}, says: "240.0.0.1 is not an address of a host"},
		"this network":              {with: []dhcpv4.Modifier{dhcpv4.WithYourIP(net.IP{0, 0, 0, 1})}, says: "0.0.0.1 is not an address of a host"},
		"no address":                {with: []dhcpv4.Modifier{dhcpv4.WithYourIP(net.IPv4zero)}, says: "address is missing"},
		"the address of a network":  {with: []dhcpv4.Modifier{dhcpv4.WithYourIP(net.IP{192, 0, 2, 0})}, says: "is the network's own"},
		"the broadcast address":     {with: []dhcpv4.Modifier{dhcpv4.WithYourIP(net.IP{192, 0, 2, 255})}, says: "is the network's own"},
		"no mask":                   {with: []dhcpv4.Modifier{dhcpv4.WithoutOption(dhcpv4.OptionSubnetMask)}, says: "has no subnet mask"},
		"a mask with holes":         {with: []dhcpv4.Modifier{dhcpv4.WithNetmask(net.IPMask{255, 0, 255, 0})}, says: "subnet mask 255.0.255.0 is none"},
		"half of all addresses":     {with: []dhcpv4.Modifier{dhcpv4.WithNetmask(net.IPMask{128, 0, 0, 0})}, says: "is larger than a /8"},
		"short":                     {with: []dhcpv4.Modifier{dhcpv4.WithLeaseTime(59)}, says: "lasts 59s, which is shorter than 1m0s"},
		"no time":                   {with: []dhcpv4.Modifier{dhcpv4.WithoutOption(dhcpv4.OptionIPAddressLeaseTime)}, says: "lasts 0s"},
		"no server":                 {with: []dhcpv4.Modifier{dhcpv4.WithoutOption(dhcpv4.OptionServerIdentifier)}, says: "server identifier is missing"},
		"a server that is no host":  {with: []dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IP{224, 0, 0, 1}))}, says: "server identifier 224.0.0.1"},
		"another kind":              {with: []dhcpv4.Modifier{dhcpv4.WithMessageType(dhcpv4.MessageTypeAck)}, says: "it is a DHCPACK"},
		"another transaction":       {with: []dhcpv4.Modifier{dhcpv4.WithTransactionID(dhcpv4.TransactionID{})}, says: "another client"},
		"another hardware address":  {with: []dhcpv4.Modifier{dhcpv4.WithHwAddr(net.HardwareAddr{2, 0, 0, 0, 0, 2})}, says: "another client"},
		"another client identifier": {with: []dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptClientIdentifier([]byte{0xff, 2}))}, says: "another client"},
	} {
		t.Run(name, func(t *testing.T) {
			h := Open(Options{Now: func() int64 { return 0 }})
			defer h.Close()
			q.since = 100
			m, err := decode(on(answer(t, q, dhcpv4.MessageTypeOffer, c.with...)))
			if err != nil {
				t.Fatal(err)
			}
			got, err := h.judge(m, q, dhcpv4.MessageTypeOffer)
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("accepted %+v, or says %v, want %q", got, err, c.says)
				}
				return
			}
			c.want.Address, c.want.Server = netip.MustParsePrefix("192.0.2.9/24"), netip.MustParseAddr("192.0.2.1")
			if c.router != "" {
				c.want.Router = netip.MustParseAddr(c.router)
			}
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, %v, want %+v", got, err, c.want)
			}
		})
	}
	h := Open(Options{Now: func() int64 { return 0 }})
	defer h.Close()
	q.server = netip.MustParseAddr("192.0.2.1")
	if _, err := h.judge(answer(t, q, dhcpv4.MessageTypeNak), q, dhcpv4.MessageTypeAck); !errors.Is(err, errNAK) {
		t.Errorf("a refusal is %v", err)
	}
	q.server = netip.MustParseAddr("192.0.2.2")
	if _, err := h.judge(answer(t, q, dhcpv4.MessageTypeNak), q, dhcpv4.MessageTypeAck); err == nil || errors.Is(err, errNAK) {
		t.Errorf("a refusal of another server is %v", err)
	}
}

// FuzzAnswer: a packet of any content gives no lease that a host cannot have.
func FuzzAnswer(f *testing.F) {
	q := question{xid: dhcpv4.TransactionID{1, 2, 3, 4}, mac: mac, clientID: []byte{0xff, 1}}
	for _, kind := range []dhcpv4.MessageType{dhcpv4.MessageTypeOffer, dhcpv4.MessageTypeNak} {
		b := on(answer(f, q, kind, dhcpv4.WithRouter(net.IP{192, 0, 2, 1})))
		f.Add(b)
		f.Add(b[:len(b)/2])
		f.Add(append([]byte{0x46, 0, 0, 0}, b...))
	}
	h := Open(Options{Now: func() int64 { return 0 }})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decode(b)
		if err != nil {
			return
		}
		l, err := h.judge(m, q, dhcpv4.MessageTypeOffer)
		if err != nil {
			if len(err.Error()) > 200 {
				t.Errorf("a refusal of %d bytes", len(err.Error()))
			}
			return
		}
		a := l.Address.Addr()
		switch {
		case !a.Is4() || !a.IsGlobalUnicast() || reserved.Contains(a) || a.As4()[0] == 0 || l.Address.Bits() < broadest,
			l.Router.IsValid() && (!l.Address.Contains(l.Router) || l.Router == a || !l.Router.IsGlobalUnicast()),
			!l.Server.IsGlobalUnicast(),
			l.Renew <= 0 || l.Renew >= l.Rebind || l.Rebind >= l.Expires || l.Expires < 60 || l.Expires > 86400:
			t.Errorf("accepted %+v", l)
		}
	})
}

// TestFilter runs the program that the kernel has, on packets.
func TestFilter(t *testing.T) {
	q := question{xid: dhcpv4.TransactionID{1, 2, 3, 4}, mac: mac}
	raw, err := filter(q.xid)
	if err != nil {
		t.Fatal(err)
	}
	program, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("the program cannot be read")
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	packet := func(change func(b []byte) []byte) []byte {
		return change(on(answer(t, q, dhcpv4.MessageTypeOffer)))
	}
	set := func(at int, to byte) func([]byte) []byte {
		return func(b []byte) []byte { b[at] = to; return b }
	}
	for name, c := range map[string]struct {
		packet []byte
		passes bool
	}{
		"answer":              {packet(func(b []byte) []byte { return b }), true},
		"options of IP":       {packet(func(b []byte) []byte { return append(append(set(0, 0x46)(b)[:20:20], 1, 1, 1, 1), b[20:]...) }), true},
		"TCP":                 {packet(set(9, 6)), false},
		"fragment":            {packet(set(7, 1)), false},
		"more fragments":      {packet(set(6, 0x20)), false},
		"don't fragment":      {packet(set(6, 0x40)), true},
		"another port":        {packet(set(ipHeader+3, 69)), false},
		"a request":           {packet(set(ipHeader+udpHeader, 1)), false},
		"another transaction": {packet(set(ipHeader+udpHeader+7, 9)), false},
		"short":               {packet(func(b []byte) []byte { return b[:30] }), false},
		"empty":               {nil, false},
	} {
		if n, err := vm.Run(c.packet); err != nil || (n > 0) != c.passes {
			t.Errorf("%s: %d bytes pass, %v", name, n, err)
		}
	}
}

// TestMessages: what a client says of itself.
func TestMessages(t *testing.T) {
	r := &record{Client: "ff0000000100040102", Hostname: "web-1", Last: netip.MustParseAddr("192.0.2.9"), Lease: &Lease{
		Address: netip.MustParsePrefix("192.0.2.9/24"), Server: netip.MustParseAddr("192.0.2.1"), Via: "02:00:00:00:00:05",
	}}
	for want, f := range map[string]func() (*dhcpv4.DHCPv4, error){
		"DISCOVER": func() (*dhcpv4.DHCPv4, error) { return discover(r, mac) },
		"REQUEST":  func() (*dhcpv4.DHCPv4, error) { return prolong(r, mac) },
		"RELEASE":  func() (*dhcpv4.DHCPv4, error) { return release(r, mac) },
	} {
		m, err := f()
		if err != nil {
			t.Fatal(err)
		}
		got, err := decode(datagram(m.ToBytes(), r.Last, broadcast))
		if err != nil || got.MessageType().String() != want || !strings.HasPrefix(got.ClientHWAddr.String(), mac.String()) || len(got.Options.Get(dhcpv4.OptionClientIdentifier)) != 9 {
			t.Errorf("%s: %v %v", want, got, err)
		}
		if want != "DISCOVER" && ipv4(got.ClientIPAddr) != r.Last {
			t.Errorf("%s is of %s", want, got.ClientIPAddr)
		}
		if want == "DISCOVER" && (!got.IsBroadcast() || ipv4(got.RequestedIPAddress()) != r.Last || got.HostName() != "web-1") {
			t.Errorf("DISCOVER is %v", got.Summary())
		}
	}
	if to := toServer(r.Lease); to.at.String() != r.Lease.Via || to.to != r.Lease.Server {
		t.Errorf("to the server: %+v", to)
	}
	r.Lease.Via = "01:00:00:00:00:05"
	if to := toServer(r.Lease); to.at.String() != everyone.String() {
		t.Errorf("to a group: %+v", to)
	}
}

// TestTransaction holds which messages are of one transaction: a request has that of the offer which it accepts, and a
// renewal one of its own (RFC 2131 table 5).
func TestTransaction(t *testing.T) {
	r := &record{Client: "ff0000000100040102", Lease: &Lease{Address: netip.MustParsePrefix("192.0.2.9/24"), Server: netip.MustParseAddr("192.0.2.1")}}
	offered, err := discover(r, mac)
	if err != nil {
		t.Fatal(err)
	}
	m, err := request(r, mac, *r.Lease, offered.TransactionID)
	if err != nil || m.TransactionID != offered.TransactionID || ipv4(m.RequestedIPAddress()) != r.Lease.Address.Addr() || ipv4(m.ServerIdentifier()) != r.Lease.Server {
		t.Errorf("%v to the offer in %s, %v", m, offered.TransactionID, err)
	}
	if later, err := prolong(r, mac); err != nil || later.TransactionID == m.TransactionID {
		t.Errorf("the renewal is of the transaction %s, %v", later.TransactionID, err)
	}
}

// TestRenewedAt holds that a lease is renewed by its server, and from the time for that on by any other.
func TestRenewedAt(t *testing.T) {
	l := &Lease{Address: netip.MustParsePrefix("192.0.2.9/24"), Server: netip.MustParseAddr("192.0.2.1"), Via: "02:00:00:00:00:05", Renew: 50, Rebind: 80, Expires: 100}
	other, err := dhcpv4.New(dhcpv4.WithHwAddr(mac), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(192, 0, 2, 2))))
	if err != nil {
		t.Fatal(err)
	}
	other.OpCode = dhcpv4.OpcodeBootReply
	for now, c := range map[int64]struct {
		to       netip.Addr
		at       string
		anyother bool
	}{
		79: {l.Server, l.Via, false},
		80: {broadcast, everyone.String(), true},
	} {
		to, server := renewedAt(l, now)
		q := question{xid: other.TransactionID, mac: mac, server: server}
		if to.from != l.Address.Addr() || to.to != c.to || to.at.String() != c.at || q.answers(other) != c.anyother {
			t.Errorf("at %d: to %+v, and an answer of another server counts: %v", now, to, q.answers(other))
		}
	}
}

// TestRecords: what is on disk survives the process; what is damaged is removed; a record that was
// replaced is not changed by the client of the earlier one; those of another boot are removed.
func TestRecords(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dhcp")
	open := func(boot string) *Host {
		h := Open(Options{
			Dir: dir, BootID: boot, Now: func() int64 { return 100 }, Within: func(string, func() error) error { return errors.New("no namespace here") },
			Prolong: func(context.Context, string, reconcile.NetnsID, netstate.Addr) error { return nil },
		})
		t.Cleanup(h.Close)
		return h
	}
	h := open("one")
	r := &record{Sandbox: "blue/t", Link: "net1", Netns: "/run/netns/blue", BootID: "one", Client: "ff01", Serial: "A", Lease: &Lease{Address: netip.MustParsePrefix("192.0.2.9/24"), Server: netip.MustParseAddr("192.0.2.1"), Renew: 150, Rebind: 180, Expires: 200}}
	file := name(r.Sandbox, r.Link)
	if err := h.locked(func() error { return h.write(r) }); err != nil {
		t.Fatal(err)
	}
	observe := func(h *Host) (netstate.DHCPLease, bool) {
		t.Helper()
		s := netstate.NewSnapshot()
		if err := (view{h, reconcile.Sandbox{ID: r.Sandbox}}).Extend(t.Context(), s, []netstate.Object{netstate.DHCPLease{Link: "net1"}}); err != nil {
			t.Fatal(err)
		}
		got, there := netstate.Lookup(s, netstate.DHCPLease{Link: "net1"})
		if !s.Known(netstate.DHCPLease{Link: "net1"}) {
			t.Error("not known")
		}
		return got, there
	}
	if got, _ := observe(open("one")); got.Address != "192.0.2.9/24" || !*got.Active || got.Expires != 200 {
		t.Errorf("%+v", got)
	}
	if got, err := h.change(file, "B", func(r *record) { r.Lease = nil }); err != nil || got != nil {
		t.Errorf("changed by the client of another record: %+v %v", got, err)
	}
	if _, err := h.change(file, "A", func(r *record) { r.Lease.Expires = 101 }); err != nil {
		t.Fatal(err)
	}
	if got, there := observe(h); !there || got.Address != "" || *got.Active {
		t.Errorf("expired, and nobody requests another one: %+v", got)
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte("1 00000000 {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, there := observe(h); there {
		t.Errorf("damaged: %+v", got)
	}
	if _, err := os.Stat(filepath.Join(dir, file)); !os.IsNotExist(err) {
		t.Errorf("damaged, and kept: %v", err)
	}
	if err := h.locked(func() error { return h.write(r) }); err != nil {
		t.Fatal(err)
	}
	two := open("two")
	if got, there := observe(two); there {
		t.Errorf("of an earlier boot, whose clock was another one: %+v", got)
	}
	two.tidy()
	if got, there := observe(h); there {
		t.Errorf("of an earlier boot: %+v", got)
	}
}

// TestRenewal: the answer to a renewal prolongs the address, and does not replace it.
func TestRenewal(t *testing.T) {
	l := &Lease{Address: netip.MustParsePrefix("192.0.2.9/24"), Router: netip.MustParseAddr("192.0.2.1")}
	for address, same := range map[string]bool{"192.0.2.9/24": true, "192.0.2.10/24": false, "192.0.2.9/8": false} {
		if err := l.renewedBy(Lease{Address: netip.MustParsePrefix(address), Router: netip.MustParseAddr("192.0.2.254")}); (err == nil) != same {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// TestKeepRequested: options that a server gives unasked are not used.
func TestKeepRequested(t *testing.T) {
	for codes, want := range map[string]Lease{
		"":       {},
		"121":    {Routes: []netstate.LeasedRoute{{Destination: "10.9.0.0/16"}}},
		"26":     {MTU: 1400},
		"121,26": {Routes: []netstate.LeasedRoute{{Destination: "10.9.0.0/16"}}, MTU: 1400},
	} {
		l := Lease{Routes: []netstate.LeasedRoute{{Destination: "10.9.0.0/16"}}, MTU: 1400}
		if l.keepRequested(codes); !reflect.DeepEqual(l, want) {
			t.Errorf("%q: %+v, want %+v", codes, l, want)
		}
	}
}
