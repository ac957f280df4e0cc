package kernel

import (
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
)

// portMessage is an RTM_NEWLINK message of a port; state is that of its actor in LACP, -1 in
// another mode.
func portMessage(t *testing.T, kind string, state int, flags uint32) ifLink {
	t.Helper()
	info := attr(unix.IFLA_LINKINFO, nil)
	if kind != "" {
		info.AddRtAttr(unix.IFLA_INFO_SLAVE_KIND, nl.ZeroTerminated(kind))
		data := info.AddRtAttr(unix.IFLA_INFO_SLAVE_DATA, nil)
		data.AddRtAttr(unix.IFLA_BOND_SLAVE_STATE, nl.Uint8Attr(0))
		if state >= 0 {
			data.AddRtAttr(unix.IFLA_BOND_SLAVE_AD_ACTOR_OPER_PORT_STATE, nl.Uint8Attr(uint8(state)))
		}
	}
	head := nl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Flags = flags
	raw := append(head.Serialize(), attr(unix.IFLA_IFNAME, nl.ZeroTerminated("pf")).Serialize()...)
	raw = append(raw, info.Serialize()...)
	w, err := decodeLink(raw)
	if err != nil {
		t.Fatal(err)
	}
	w.raw = raw
	return w
}

// TestPartnerSettles: a partner that is back is not stable at once, and one that was never seen
// away is.
func TestPartnerSettles(t *testing.T) {
	const agreed, running = lacpAgreed, unix.IFF_UP | unix.IFF_LOWER_UP
	now := time.Unix(1000, 0)
	p := &lacpPorts{now: func() time.Time { return now }, of: map[string]agreement{}}
	for _, tt := range []struct {
		after time.Duration
		what  string
		w     ifLink
		want  *netstate.LACPPort
	}{
		{0, "no port", portMessage(t, "", -1, running), nil},
		{0, "port of a bridge", portMessage(t, "bridge", -1, running), nil},
		{0, "another mode", portMessage(t, "bond", -1, running), nil},
		{0, "first seen", portMessage(t, "bond", agreed, running), &netstate.LACPPort{Agreed: true}},
		{time.Second, "no carrier", portMessage(t, "bond", agreed, unix.IFF_UP), &netstate.LACPPort{}},
		{time.Second, "carrier", portMessage(t, "bond", agreed, running), &netstate.LACPPort{Agreed: true, SettlesMillis: 5000}},
		{time.Second, "still", portMessage(t, "bond", agreed, running), &netstate.LACPPort{Agreed: true, SettlesMillis: 4000}},
		{time.Second, "no partner", portMessage(t, "bond", agreed|lacpDefaulted, running), &netstate.LACPPort{}},
		{time.Second, "the partner has expired", portMessage(t, "bond", agreed|lacpExpired, running), &netstate.LACPPort{}},
		{time.Second, "does not distribute", portMessage(t, "bond", lacpCollecting, running), &netstate.LACPPort{}},
		{time.Second, "back, after it was lost soon", portMessage(t, "bond", agreed, running), &netstate.LACPPort{Agreed: true, SettlesMillis: 10_000}},
		{2*settleAfter - 1, "not yet", portMessage(t, "bond", agreed, running), &netstate.LACPPort{Agreed: true, SettlesMillis: 1}},
		{1, "stable", portMessage(t, "bond", agreed, running), &netstate.LACPPort{Agreed: true}},
		{time.Hour, "long stable", portMessage(t, "bond", agreed, running), &netstate.LACPPort{Agreed: true}},
		{time.Second, "lost", portMessage(t, "bond", 0, running), &netstate.LACPPort{}},
		{time.Second, "taken out of the bond", portMessage(t, "", -1, running), nil},
		{time.Second, "in another bond", portMessage(t, "bond", agreed, running), &netstate.LACPPort{Agreed: true}},
	} {
		now = now.Add(tt.after)
		got := p.port("0000:03:00.0", tt.w)
		if (got == nil) != (tt.want == nil) || got != nil && *got != *tt.want {
			t.Errorf("%s: %+v, want %+v", tt.what, got, tt.want)
		}
	}
}

// TestPartnerThatComesAndGoes: the longer a partner comes and goes, the longer it has to agree
// before it counts, up to a limit; and one that has been stable is trusted as before.
func TestPartnerThatComesAndGoes(t *testing.T) {
	up, down := portMessage(t, "bond", lacpAgreed, unix.IFF_UP|unix.IFF_LOWER_UP), portMessage(t, "bond", 0, unix.IFF_UP|unix.IFF_LOWER_UP)
	now := time.Unix(1000, 0)
	p := &lacpPorts{now: func() time.Time { return now }, of: map[string]agreement{}}
	port := func(w ifLink) time.Duration {
		return time.Duration(p.port("0000:03:00.0", w).SettlesMillis) * time.Millisecond
	}
	port(down)
	changes := 0
	for end := now.Add(time.Hour); now.Before(end); {
		// As the worst partner would: lost as soon as all pods have their carrier back.
		changes += 2
		now = now.Add(port(up))
		if left := port(up); left != 0 {
			t.Fatalf("not stable after the time it was said to take, %s are left", left)
		}
		port(down)
		now = now.Add(time.Second)
	}
	if changes > 60 {
		t.Errorf("the carrier of the pods changed %d times in an hour", changes)
	}
	if got := port(up); got != settleMost {
		t.Errorf("it has to agree for %s, want %s", got, settleMost)
	}
	now = now.Add(settleMost + calmAfter)
	port(down)
	now = now.Add(time.Second)
	if got := port(up); got != settleAfter {
		t.Errorf("after a calm time it has to agree for %s, want %s", got, settleAfter)
	}
	if other := p.port("0000:03:00.1", up); other.SettlesMillis != 0 {
		t.Errorf("another port has to wait: %+v", other)
	}
}
