package kernel

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile/kernel/ethtoolnl"
)

// hostState is all that the host's namespace holds, by what it is about, as the kernel
// reports it: each attribute of each link, also those that have no name here. It leaves out
// counters and what changes with time.
type hostState map[string]string

// Attributes of a link that are not set by anyone: statistics, and how often and since
// when it has carrier. Its index is in the header, and may be another one when a device
// returns.
var volatile = map[uint16]bool{
	unix.IFLA_STATS: true, unix.IFLA_STATS64: true, unix.IFLA_CARRIER_CHANGES: true, unix.IFLA_CARRIER_UP_COUNT: true,
	unix.IFLA_CARRIER_DOWN_COUNT: true, unix.IFLA_CARRIER: true, unix.IFLA_OPERSTATE: true, unix.IFLA_LINK: true,
	unix.IFLA_LINK_NETNSID: true, unix.IFLA_AF_SPEC: true, unix.IFLA_VFINFO_LIST: true,
	// Padding depends on what is before it.
	unix.IFLA_PAD: true,
	// The queueing discipline is there while the link is up.
	unix.IFLA_QDISC: true,
	// igbvf takes the address that it has when it resets itself for the permanent one
	// (igbvf_reset), and nobody can set it back.
	unix.IFLA_PERM_ADDRESS: true,
}

const ifaCacheInfo, rtaCacheInfo = unix.IFA_CACHEINFO, unix.RTA_CACHEINFO

// readHost reads the host's state; settings as well, which take longer.
func readHost(t *testing.T, settings bool) hostState {
	t.Helper()
	out := hostState{}
	links := out.links(t)
	out.tables(t, links)
	if settings {
		out.settings(t, links)
		out.sysctls(t)
	}
	return out
}

func (s hostState) links(t *testing.T) map[int]string {
	t.Helper()
	names := map[int]string{}
	mask := make([]byte, 8)
	copy(mask, []byte{8, 0, unix.IFLA_EXT_MASK, 0, 1})
	for _, m := range dumpOf(t, unix.RTM_GETLINK, unix.RTM_NEWLINK, append(make([]byte, unix.SizeofIfInfomsg), mask...)) {
		attrs := attributesOf(t, m[unix.SizeofIfInfomsg:])
		name := strings.TrimRight(string(attrs[unix.IFLA_IFNAME]), "\x00")
		names[int(nl.NativeEndian().Uint32(m[4:]))] = name
		flags := nl.NativeEndian().Uint32(m[8:]) &^ (unix.IFF_RUNNING | unix.IFF_LOWER_UP | unix.IFF_DORMANT)
		s["link "+name] = fmt.Sprintf("flags %#x", flags)
		if bytes.Contains(attrs[unix.IFLA_LINKINFO], []byte("bridge\x00")) {
			attrs[unix.IFLA_LINKINFO] = nil // its timers run
		}
		for typ, v := range attrs {
			if !volatile[typ] {
				s[fmt.Sprintf("link %s attribute %d", name, typ)] = hex.EncodeToString(v)
			}
		}
		if vfs, ok := attrs[unix.IFLA_VFINFO_LIST]; ok {
			s.functions(t, name, vfs)
		}
	}
	return names
}

// functions notes what a physical function holds for its virtual ones.
func (s hostState) functions(t *testing.T, pf string, list []byte) {
	t.Helper()
	infos, err := nl.ParseRouteAttr(list)
	if err != nil {
		t.Fatal(err)
	}
	for n, info := range infos {
		for typ, v := range attributesOf(t, info.Value) {
			if typ != nl.IFLA_VF_STATS {
				s[fmt.Sprintf("function %s/%d attribute %d", pf, n, typ)] = hex.EncodeToString(v)
			}
		}
	}
}

// tables notes addresses, routes, rules and permanent neighbours.
func (s hostState) tables(t *testing.T, links map[int]string) {
	t.Helper()
	note := func(what string, m []byte, header int, without ...uint16) {
		var text []string
		for typ, v := range attributesOf(t, m[header:]) {
			if !slices.Contains(without, typ) {
				text = append(text, fmt.Sprintf("%d=%x", typ, v))
			}
		}
		slices.Sort(text)
		s[fmt.Sprintf("%s %x %s", what, m[:4], strings.Join(text, " "))] = ""
	}
	for _, m := range dumpOf(t, unix.RTM_GETADDR, unix.RTM_NEWADDR, make([]byte, unix.SizeofIfAddrmsg)) {
		m[2] = 0 // flags: tentative at first
		note("address "+links[int(nl.NativeEndian().Uint32(m[4:]))], m, unix.SizeofIfAddrmsg, ifaCacheInfo, unix.IFA_FLAGS)
	}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		header := make([]byte, unix.SizeofRtMsg)
		header[0] = family
		for _, m := range dumpOf(t, unix.RTM_GETROUTE, unix.RTM_NEWROUTE, header) {
			if m[4] != unix.RT_TABLE_LOCAL { // the kernel's, which come with an address that is no longer tentative
				note("route", m, unix.SizeofRtMsg, rtaCacheInfo)
			}
		}
		for _, m := range dumpOf(t, unix.RTM_GETRULE, unix.RTM_NEWRULE, slices.Clone(header)) {
			note("rule", m, unix.SizeofRtMsg)
		}
	}
	for _, m := range dumpOf(t, unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH, make([]byte, unix.SizeofNdMsg)) {
		if state := nl.NativeEndian().Uint16(m[8:]); state&unix.NUD_PERMANENT != 0 {
			note("neighbour "+links[int(nl.NativeEndian().Uint32(m[4:]))], m, unix.SizeofNdMsg, unix.NDA_CACHEINFO, unix.NDA_PROBES)
		}
	}
}

// settings notes what ethtool shows.
func (s hostState) settings(t *testing.T, links map[int]string) {
	t.Helper()
	client, err := ethtoolnl.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for index, name := range links {
		for _, class := range []ethtoolnl.Class{ethtoolnl.Feature, ethtoolnl.Ring, ethtoolnl.Channel, ethtoolnl.Coalesce} {
			all, err := client.Get(t.Context(), class, index)
			if err != nil {
				continue // it has none of these
			}
			for _, one := range all {
				s[fmt.Sprintf("link %s %s %s", name, class, one.Name)] = fmt.Sprint(one.Value)
			}
		}
	}
}

func (s hostState) sysctls(t *testing.T) {
	t.Helper()
	for _, top := range []string{"/proc/sys/net/ipv4", "/proc/sys/net/ipv6"} {
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return nil // it went with a link
			}
			if b, err := os.ReadFile(path); err == nil {
				s["sysctl "+strings.TrimPrefix(path, "/proc/sys/net/")] = string(b)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// differs lists the differences, except those that ignored accepts.
func (s hostState) differs(now hostState, ignored func(what string) bool) []string {
	var out []string
	for _, what := range slices.Sorted(maps.Keys(s)) {
		if v, there := now[what]; (!there || v != s[what]) && !ignored(what) {
			out = append(out, fmt.Sprintf("%s: was %q, is %q (%v)", what, s[what], v, there))
		}
	}
	for _, what := range slices.Sorted(maps.Keys(now)) {
		if _, was := s[what]; !was && !ignored(what) {
			out = append(out, fmt.Sprintf("%s: %q is new", what, now[what]))
		}
	}
	return out
}

// dumpOf dumps all objects of a kind. There is room for a link with all
// the names that one can have.
func dumpOf(t *testing.T, typ, reply int, body []byte) [][]byte {
	t.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	req := nl.NewNetlinkRequest(typ, unix.NLM_F_DUMP)
	req.AddRawData(body)
	if err := unix.Sendto(fd, req.Serialize(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		t.Fatal(err)
	}
	var out [][]byte
	buffer := make([]byte, 1<<20)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		messages, err := syscall.ParseNetlinkMessage(slices.Clone(buffer[:n]))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range messages {
			switch {
			case m.Header.Flags&unix.NLM_F_DUMP_INTR != 0:
				return dumpOf(t, typ, reply, body)
			case m.Header.Type == unix.NLMSG_DONE:
				return out
			case m.Header.Type == unix.NLMSG_ERROR:
				t.Fatalf("dump of type %d: %v", typ, m.Data)
			case m.Header.Type == uint16(reply):
				out = append(out, m.Data)
			}
		}
	}
}

func attributesOf(t *testing.T, b []byte) map[uint16][]byte {
	t.Helper()
	list, err := nl.ParseRouteAttr(b)
	if err != nil {
		t.Fatal(err)
	}
	out := map[uint16][]byte{}
	for _, a := range list {
		out[a.Attr.Type&^uint16(unix.NLA_F_NESTED)] = a.Value
	}
	return out
}
