package journal

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
)

// TestFields holds that a log with fields of most object types is read in full, and written again as it was, but for the
// order of fields: what changes it needs another version. See docs/adr/0016 for what may be added.
func TestFields(t *testing.T) {
	want, err := os.ReadFile("testdata/format.journal")
	must(t, err)
	for line := range bytes.Lines(want) {
		e, err := decode(bytes.TrimSuffix(line, []byte("\n")))
		must(t, err)
		out, err := e.encode()
		must(t, err)
		if d := cmp.Diff(content(t, line), content(t, out)); d != "" {
			t.Errorf("read and written again (-want +got):\n%s", d)
		}
	}
	j := open(t, t.TempDir())
	must(t, os.WriteFile(j.path("blue%2Fai", logSuffix), want, 0o600))
	r := mustGet(t, j, testID)
	if r.Phase != reconcile.Releasing || r.BootID != "boot" || len(r.Results) != 1 || len(r.Fighting) != 1 || r.Sandbox.Topology.Steps[0].Config["vlan"] != int64(9007199254740993) {
		t.Errorf("record: %+v", r)
	}
	for _, kind := range []netstate.Kind{
		netstate.KindLink, netstate.KindAddress, netstate.KindRoute, netstate.KindSysctl, netstate.KindEthtool, netstate.KindBridgeVLAN, netstate.KindDevice, netstate.KindVF,
	} {
		if !slices.ContainsFunc(r.History, func(c netstate.Change) bool { return c.Key().Kind == kind }) {
			t.Errorf("no change of a %s", kind)
		}
	}
	must(t, j.Put(r))
	if log, err := os.ReadFile(j.path("blue%2Fai", logSuffix)); err != nil || !bytes.HasPrefix(log, want) {
		t.Errorf("the log is another: %v", err)
	}
}

// TestGiven: what is given to steps is in the record, and read as it was.
func TestGiven(t *testing.T) {
	sb := reconcile.Sandbox{ID: testID, Given: ops.Givens{
		"vf0":  {Device: "0000:03:00.2", Share: "3f", VLAN: 102, Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.5/24")}},
		"tune": {Addresses: []netip.Prefix{netip.MustParsePrefix("2001:db8::5/64")}},
	}, Rules: ops.Rules{
		Filters:      []netstate.Filter{{Rule: "ai/a[0]", Pref: 20000, Handle: 1, Family: new("ipv4"), DSCP: new(uint8(26))}},
		LogicalRules: []netstate.LogicalRule{{Rule: "ai/a[0]"}},
		Steps:        map[string]ops.Rules{"vf0": {LogicalRules: []netstate.LogicalRule{{Rule: "ai/b[0]"}}}},
	}}
	line, err := entry{Record: &reconcile.Record{Sandbox: sb, Phase: reconcile.Applied}}.encode()
	must(t, err)
	e, err := decode(bytes.TrimSuffix(line, []byte("\n")))
	must(t, err)
	if !reflect.DeepEqual(e.Record.Sandbox, sb) {
		t.Errorf("%s is read as %+v", line, e.Record.Sandbox)
	}
	for _, format := range []string{
		`},"filters":[{"rule":"ai/a[0]","pref":20000,"handle":1,"family":"ipv4","dscp":26}],"logicalRules":[{"rule":"ai/a[0]"}],`,
		`,"stepRules":{"vf0":{"logicalRules":[{"rule":"ai/b[0]"}]}}},`,
	} {
		if !strings.Contains(string(line), format) {
			t.Errorf("%s has no %s", line, format)
		}
	}
}

// content is a line, without the order of its fields.
func content(t *testing.T, line []byte) (out any) {
	t.Helper()
	payload, err := frame.Decode(bytes.TrimSuffix(line, []byte("\n")))
	must(t, err)
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.UseNumber()
	must(t, dec.Decode(&out))
	return out
}

// TestUnknownFields holds that fields that this version does not know change nothing: a
// later version may add what may be ignored, and lost.
func TestUnknownFields(t *testing.T) {
	s, err := replay(framed(`{"record":{"sandbox":{"id":"blue/ai","more":{}},"more":[1],"phase":"Applied",` +
		`"history":[{"type":"device","before":{"id":"0000:03:00.2","permanent":"02:00:00:00:00:01"},"after":{"id":"0000:03:00.2","at":"net1@pod"},"more":1}]},"more":null}`))
	must(t, err)
	want := reconcile.Record{
		Sandbox: reconcile.Sandbox{ID: testID}, Phase: reconcile.Applied,
		History: []netstate.Change{{Before: netstate.Device{ID: "0000:03:00.2"}, After: netstate.Device{ID: "0000:03:00.2", At: new("net1@pod")}}},
	}
	sameRecord(t, s.record, want)
}
