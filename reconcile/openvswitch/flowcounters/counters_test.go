package flowcounters

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/ports"
)

// exchange is a request, without its header, and the replies to it.
type exchange struct{ request, replies []byte }

// recorded are exchanges with ovs-vswitchd 3.5 and flows of OVN 25.03. Lines begin with ">" or "<": what the client
// and what the switch has sent.
func recorded(t testing.TB) []exchange {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "switch.hex"))
	if err != nil {
		t.Fatal(err)
	}
	var out []exchange
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		m, err := hex.DecodeString(strings.TrimSpace(line[1:]))
		if err != nil {
			t.Fatal(err)
		}
		if line[0] == '>' {
			out = append(out, exchange{request: m[headerLength:]})
			continue
		}
		last := &out[len(out)-1]
		last.replies = append(last.replies, m...)
	}
	return out
}

// replay answers as the switch that was recorded, after a change of its replies, and returns the folder of its socket.
func replay(t *testing.T, change func(request, replies []byte) []byte) string {
	t.Helper()
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, "br-int.mgmt"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	known := recorded(t)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				in := &connection{Conn: conn, in: bufio.NewReader(conn)}
				for {
					m, err := in.next()
					if err != nil {
						return
					}
					if m.typ == typeEchoReply {
						change(m.body, nil)
						continue
					}
					i := slices.IndexFunc(known, func(e exchange) bool { return bytes.Equal(e.request, m.body) })
					if i < 0 {
						t.Errorf("an unknown request: %x", m.body)
						return
					}
					replies := change(m.body, slices.Clone(known[i].replies))
					for rest := replies; len(rest) >= headerLength; { // its number is that of the request
						binary.BigEndian.PutUint32(rest[4:], m.xid)
						rest = rest[min(len(rest), max(headerLength, int(binary.BigEndian.Uint16(rest[2:])))):]
					}
					if _, err := conn.Write(replies); err != nil {
						return
					}
				}
			}()
		}
	}()
	return dir
}

func as(_, replies []byte) []byte { return replies }

// reader has the numbers of the recorded switch.
func reader(dir string) *Reader {
	return &Reader{Dir: dir, Timeout: time.Minute, Numbers: func(_ context.Context, of []netstate.OVSPort) (map[string]uint32, error) {
		all, out := map[string]uint32{"host:v1": 1, "host:v2": 2}, map[string]uint32{}
		for _, p := range of {
			if n := all[p.Link]; n != 0 && *p.LogicalPort == "lp-"+p.Link {
				out[p.Link] = n
			}
		}
		return out, nil
	}}
}

func rule(link string, priority uint16, dscp uint8, limited bool) ports.LogicalRule {
	return ports.LogicalRule{Port: "lp-" + link, Link: link, Bridge: "br-int", Priority: priority, DSCP: dscp, Limited: limited}
}

func filters(priority uint16, handle uint32, packets, bytes uint64) map[ports.FilterKey]ports.FilterCount {
	return map[ports.FilterKey]ports.FilterCount{{Pref: priority, Handle: handle}: {Packets: packets, Bytes: bytes}}
}

// TestRead: marked and dropped packets of each rule, also of one whose flows are a conjunction, without those of the
// other port; what cannot be attributed is not known.
func TestRead(t *testing.T) {
	conjunction, limited, rest := rule("host:v1", 28181, 26, false), rule("host:v1", 28180, 46, true), rule("host:v1", 28179, 8, false)
	is := map[*ports.LogicalRule]ports.Reading{
		&conjunction: {Filters: filters(28181, 0x90cc901, 2, 400)},
		&limited:     {Filters: filters(28180, 0x1a528af9, 60, 60000), Dropped: 37},
		&rest:        {Filters: filters(28179, 0xef9f6e24, 5, 500)},
	}
	elsewhere, unbound, nowhere := rest, rest, rest
	elsewhere.Link, elsewhere.Port = "host:v2", "lp-host:v2"
	unbound.Link, nowhere.Bridge = "host:v3", ""
	other := ports.Reading{Filters: filters(28179, 0x611e567e, 3, 300)}
	unlimited := conjunction
	unlimited.Limited = true // as if its meter were elsewhere
	partial := is[&conjunction]
	partial.DropsUnknown = true
	for name, tt := range map[string]struct {
		rules []ports.LogicalRule
		want  []ports.Reading
	}{
		"nothing":            {nil, []ports.Reading{}},
		"one port":           {[]ports.LogicalRule{conjunction, limited, rest}, []ports.Reading{is[&conjunction], is[&limited], is[&rest]}},
		"two ports":          {[]ports.LogicalRule{elsewhere, limited, rest}, []ports.Reading{other, is[&limited], is[&rest]}},
		"no meter":           {[]ports.LogicalRule{unlimited}, []ports.Reading{partial}},
		"another priority":   {[]ports.LogicalRule{rule("host:v1", 28178, 8, false), rest}, []ports.Reading{{}, is[&rest]}},
		"another DSCP":       {[]ports.LogicalRule{rule("host:v1", 28179, 9, false)}, []ports.Reading{{}}},
		"not bound":          {[]ports.LogicalRule{unbound, rest}, []ports.Reading{{}, is[&rest]}},
		"on no bridge":       {[]ports.LogicalRule{nowhere}, []ports.Reading{{}}},
		"a bridge with path": {[]ports.LogicalRule{{Bridge: "../br-int", Link: "host:v1"}}, []ports.Reading{{}}},
	} {
		got, err := reader(replay(t, as)).Read(t.Context(), tt.rules)
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

// TestUncertain: counters that could be those of something else are not shown.
func TestUncertain(t *testing.T) {
	limited := rule("host:v1", 28180, 46, true)
	// replaced changes the first occurrence of bytes in the replies.
	replaced := func(from, to string) func(_, replies []byte) []byte {
		a, _ := hex.DecodeString(from)
		b, _ := hex.DecodeString(to)
		return func(_, replies []byte) []byte { return bytes.Replace(replies, a, b, 1) }
	}
	known := ports.Reading{Filters: filters(28180, 0x1a528af9, 60, 60000), Dropped: 37}
	undropped := ports.Reading{Filters: known.Filters, DropsUnknown: true}
	for name, tt := range map[string]struct {
		change func(request, replies []byte) []byte
		want   ports.Reading
	}{
		"as it is":                    {as, known},
		"two logical flows":           {replaced("000000001a528af9", "000000001a528afa"), ports.Reading{}},
		"in two tables":               {replaced("13006e14", "14006e14"), ports.Reading{}},
		"its number leads to no port": {replaced("00011c0400000001", "0001140400000001"), ports.Reading{}},
		"two meters":                  {replaced("001d000800000001", "001d000800000002"), undropped},
		"a flow without the meter":    {replaced("001d000800000001", "0000000800000001"), undropped},
		"others use the meter":        {replaced("00000001003800000000000000000002", "00000001003800000000000000000003"), undropped},
		"another meter":               {replaced("00000001003800000000000000000002", "00000002003800000000000000000002"), undropped},
	} {
		got, err := reader(replay(t, tt.change)).Read(t.Context(), []ports.LogicalRule{limited})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(tt.want, got[0]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestSwitchFails: a switch that refuses, hangs or answers nonsense is an error, in time.
func TestSwitchFails(t *testing.T) {
	rules := []ports.LogicalRule{rule("host:v1", 28180, 46, true)}
	flows := func(request []byte) bool {
		return len(request) > 8 && binary.BigEndian.Uint16(request) == multipartFlowDesc
	}
	for name, tt := range map[string]struct {
		change func(request, replies []byte) []byte
		says   string
	}{
		"an old switch": {func(request, replies []byte) []byte {
			if !flows(request) {
				replies[0] = 4
			}
			return replies
		}, "add OpenFlow15"},
		"an error": {func(request, replies []byte) []byte {
			if flows(request) {
				return header(typeError, 0, []byte{0, 1, 0, 2})
			}
			return replies
		}, "error 1, code 2"},
		"cut off": {func(request, replies []byte) []byte {
			if flows(request) {
				binary.BigEndian.PutUint16(replies[2:], 40)
				return replies[:40]
			}
			return replies
		}, "malformed"},
		"a header that is too short": {func(_, replies []byte) []byte { replies[3] = 7; replies[2] = 0; return replies }, "malformed"},
		"silence": {func(request, replies []byte) []byte {
			if flows(request) {
				return nil
			}
			return replies
		}, "does not answer"},
		"without end": {func(request, replies []byte) []byte {
			if !flows(request) {
				return replies
			}
			binary.BigEndian.PutUint16(replies[headerLength+2:], replyMore)
			return bytes.Repeat(replies, hostileReplyFlows+1)
		}, "more than 262144 flows"},
	} {
		within := time.Minute
		if name == "silence" {
			within = 100 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), within)
		if _, err := reader(replay(t, tt.change)).Read(ctx, rules); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %q", name, err, tt.says)
		}
		cancel()
	}
	if _, err := reader(t.TempDir()).Read(t.Context(), rules); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no socket: %v", err)
	}
}

// TestInterleaved: requests for an echo, and messages that nobody queried, come between.
func TestInterleaved(t *testing.T) {
	between := append(header(typeEchoRequest, 0, []byte("echo")), header(12, 0, make([]byte, 72))...) // OFPT_PORT_STATUS
	answered := make(chan struct{}, 100)
	dir := replay(t, func(request, replies []byte) []byte {
		if string(request) == "echo" {
			answered <- struct{}{}
			return nil
		}
		if len(replies) <= 16 {
			return replies
		}
		return append(slices.Clone(between), replies...)
	})
	got, err := reader(dir).Read(t.Context(), []ports.LogicalRule{rule("host:v1", 28180, 46, true)})
	if err != nil || got[0].Dropped != 37 {
		t.Errorf("%+v %v", got, err)
	}
	<-answered
}

func TestDirOf(t *testing.T) {
	for endpoint, want := range map[string]string{"unix:/var/run/openvswitch/db.sock": "/var/run/openvswitch", "tcp:192.0.2.1:6640": "", "": ""} {
		if got := DirOf(endpoint); got != want {
			t.Errorf("%s: %q, want %q", endpoint, got, want)
		}
	}
}

// FuzzReplies: no reply makes the decoder read beyond it, or run on.
func FuzzReplies(f *testing.F) {
	for _, e := range recorded(f) {
		if len(e.replies) > multipartLength {
			f.Add(e.replies[multipartLength:])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		if err := decodeFlows(b, func(*flow) error { n++; return nil }); err == nil && n*(flowLength+8) > len(b) {
			t.Errorf("%d flows in %d bytes", n, len(b))
		}
		if all, err := decodeMeters(b); err == nil && len(all)*meterLength > len(b) {
			t.Errorf("%d meters in %d bytes", len(all), len(b))
		}
	})
}
