package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/kernel"
)

// raised is the content of a notification of a link: its fields, and the sysctls of both families
// (IFLA_INET_CONF, IFLA_INET6_CONF), by name.
type raised map[string][]byte

// notification reads a message RTM_NEWLINK.
func notification(t *testing.T, b []byte) (index int, name string, up bool, got raised) {
	t.Helper()
	index = int(int32(binary.NativeEndian.Uint32(b[4:])))
	up = binary.NativeEndian.Uint32(b[8:])&unix.IFF_UP != 0
	got = raised{}
	attrs, err := nl.ParseRouteAttr(b[unix.SizeofIfInfomsg:])
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range attrs {
		switch a.Attr.Type &^ unix.NLA_F_NESTED {
		case unix.IFLA_IFNAME:
			name = string(bytes.TrimRight(a.Value, "\x00"))
		case unix.IFLA_ADDRESS:
			got["mac"] = a.Value
		case unix.IFLA_MTU:
			got["mtu"] = a.Value
		case unix.IFLA_MASTER:
			got["master"] = a.Value
		case unix.IFLA_TXQLEN:
			got["txQueueLen"] = a.Value
		case unix.IFLA_AF_SPEC:
			families, err := nl.ParseRouteAttr(a.Value)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				got.sysctls(t, int(f.Attr.Type&^unix.NLA_F_NESTED), f.Value)
			}
		}
	}
	return index, name, up, got
}

// sysctls adds the per-link sysctls of a family.
func (r raised) sysctls(t *testing.T, family int, b []byte) {
	t.Helper()
	attrs, err := nl.ParseRouteAttr(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range attrs {
		switch {
		case family == unix.AF_INET && a.Attr.Type == unix.IFLA_INET_CONF:
			r.words("ipv4 sysctl", a.Value)
		case family == unix.AF_INET6 && a.Attr.Type == unix.IFLA_INET6_CONF:
			r.words("ipv6 sysctl", a.Value)
		case family == unix.AF_INET6 && a.Attr.Type == unix.IFLA_INET6_ADDR_GEN_MODE:
			r["addr_gen_mode"] = a.Value
		}
	}
}

func (r raised) words(of string, b []byte) {
	for i := 0; i+4 <= len(b); i += 4 {
		r[fmt.Sprintf("%s %d", of, i/4)] = b[i : i+4]
	}
}

// linkListener receives each notification about links of a namespace.
type linkListener struct {
	path   string
	s      *nl.NetlinkSocket
	before map[int]bool // links that are not new, by index
}

func listenToLinks(t *testing.T, path string) *linkListener {
	t.Helper()
	at, err := netns.GetFromPath(path)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	s, err := nl.SubscribeAt(at, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.SetReceiveTimeout(&unix.Timeval{Usec: 200_000}); err != nil { // until the end: the kernel queues them at once
		t.Fatal(err)
	}
	if err := s.SetReceiveBufferSize(8<<20, true); err != nil {
		t.Fatal(err)
	}
	l := &linkListener{path, s, map[int]bool{}}
	for _, b := range l.links(t) {
		index, _, _, _ := notification(t, b)
		l.before[index] = true
	}
	return l
}

// links reads the links as they are now.
func (l *linkListener) links(t *testing.T) (out [][]byte) {
	t.Helper()
	err := kernel.Within(l.path, func() (err error) {
		req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		out, err = req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// settings returns, for each link, what each notification said of it while it was up, since it was
// down last.
func (l *linkListener) settings(t *testing.T) (of map[string][]raised) {
	t.Helper()
	byIndex, names := map[int][]raised{}, map[int]string{}
	read := func(kind uint16, b []byte) {
		if b[0] != unix.AF_UNSPEC { // a bridge about its ports
			return
		}
		index, name, up, got := notification(t, b)
		names[index] = name
		switch {
		case kind == unix.RTM_DELLINK:
			delete(byIndex, index)
		case !up:
			byIndex[index], l.before[index] = nil, false
		case !l.before[index]:
			byIndex[index] = append(byIndex[index], got)
		}
	}
	for {
		messages, _, err := l.s.Receive()
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range messages {
			read(m.Header.Type, m.Data)
		}
	}
	for _, b := range l.links(t) { // a sysctl that is written is not notified
		read(unix.RTM_NEWLINK, b)
	}
	of = map[string][]raised{}
	for index, said := range byIndex {
		of[names[index]] = said
	}
	return of
}

// followed are sysctls that the kernel changes by itself after a link is up.
var followed = []string{
	"master",        // of a port, which its bond brings up before it joins
	"ipv6 sysctl 1", // hop_limit, which an advertisement sets
	"ipv6 sysctl 2", // mtu6, which follows the link's
}

// mustBeSettled checks that no notification said of a link that is up what a later one denies.
func mustBeSettled(t *testing.T, where string, of map[string][]raised) {
	t.Helper()
	ports := map[string]bool{}
	for _, said := range of {
		for _, s := range said {
			if _, member := s["master"]; member {
				ports[string(s["mac"])] = true
			}
		}
	}
	for name, said := range of {
		for i := 1; i < len(said); i++ {
			for field, now := range said[i] {
				was, there := said[i-1][field]
				switch {
				case !there || bytes.Equal(was, now) || slices.Contains(followed, field):
				case field == "mac" && ports[string(now)]: // a bond with failOverMac active has that of its active port
				default:
					t.Errorf("%s: link %q is up with %s %x, and then has %x", where, name, field, was, now)
				}
			}
		}
	}
}

// TestOrder: a reader of the kernel's notifications, in the sandbox and on the host, never sees a link
// up with another MAC, MTU or sysctl than it keeps: at attach, when a repair makes links again, and when an
// edit adds a step. Each link that was made is deleted in turn, with what is on it.
func TestOrder(t *testing.T) {
	each(t, 6, func(t *testing.T, c kernelCase) {
		l, path := newLane(t), c.prepare(t)
		r, sb := l.engine(nil), c.sandbox(path)
		watched := func(what string, do func() (reconcile.Report, error)) (up int) {
			t.Helper()
			inside, host := listenToLinks(t, path), listenToLinks(t, "/proc/1/ns/net")
			if rep, err := do(); err != nil {
				t.Fatalf("%s: %v, %v", what, err, rep.Changes)
			}
			seen := inside.settings(t)
			mustBeSettled(t, what, seen)
			mustBeSettled(t, what+", host", host.settings(t))
			for _, said := range seen {
				up += len(said)
			}
			return up
		}
		if n := watched("attach", func() (reconcile.Report, error) { return r.Ensure(ctxFor(t), sb) }); n == 0 {
			t.Error("no link came up")
		}
		for _, link := range l.madeLinks(r, sb.ID) {
			watched("repair after "+link+" was deleted", func() (reconcile.Report, error) {
				(&foreignWriter{t: t, ns: filepath.Base(path)}).run("$ip link delete dev " + link)
				return r.Repair(ctxFor(t), sb.ID)
			})
		}
		if n := len(sb.Topology.Steps); n > 1 {
			whole, less := sb, *sb.Topology
			less.Steps = less.Steps[:n-1]
			sb.Topology, sb.Given = &less, maps.Clone(sb.Given)
			delete(sb.Given, whole.Topology.Steps[n-1].Name)
			watched("edit, a step less", func() (reconcile.Report, error) { return r.Ensure(ctxFor(t), sb) })
			watched("edit, a step more", func() (reconcile.Report, error) { return r.Ensure(ctxFor(t), whole) })
		}
		if _, err := r.AwaitRelease(ctxFor(t), sb.ID); err != nil {
			t.Fatal(err)
		}
	})
}

// madeLinks lists the links in its namespace that a sandbox has made.
func (l *lane) madeLinks(r *reconcile.Reconciler, id reconcile.SandboxID) (names []string) {
	l.t.Helper()
	rec, _, err := r.Record(id)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, c := range rec.History {
		if made, ok := c.After.(netstate.Link); ok && c.Before == nil && !netstate.OnHost(made.Name) {
			names = append(names, made.Name)
		}
	}
	return names
}
