package main

import (
	"bytes"
	"encoding/json"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/ports"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

func vlan(id uint16) netstate.Link {
	return netstate.Link{Name: "data0", LinkKind: "vlan", VLAN: &netstate.VLAN{ID: &id}}
}

// A link that the kernel cannot change is deleted and created: one line says so.
func TestReplacementIsOneLine(t *testing.T) {
	topo := &topology.Topology{Name: "ai", Steps: []topology.Step{{Name: "data", Type: "vlan"}, {Name: "bond", Type: "bond"}}}
	plan := &ops.Plan{
		Changes: []netstate.Change{
			{Step: "data", Before: vlan(100), After: vlan(200), Recreate: true},
			{Step: "", Before: netstate.Link{Name: "old"}},
			{Step: "data", Before: netstate.Addr{Link: "data0", Address: "10.0.0.1/24"}, Implied: true},
			{Step: "bond", Before: netstate.Link{Name: "bond0", MTU: new(uint32(1500))}, After: netstate.Link{Name: "bond0", MTU: new(uint32(9000))}},
			{Step: "data", After: netstate.Addr{Link: "data0", Address: "10.0.0.1/24"}},
		},
		Pending: []ops.Pending{{Step: "late", Needs: "data.mac"}},
		Notes:   []string{"bond0 goes down for a moment"},
	}
	sb := reconcile.Sandbox{ID: "blue/ai", Netns: "/run/netns/blue", Topology: topo, Given: ops.Givens{}.WithDevices(map[string]string{"vf0": "0000:01:10.0"})}
	var out bytes.Buffer
	text{&out, false}.plan(sb, plan, []topology.Variable{{Name: "NCCL_IB_HCA", Value: "=mlx5_0"}, {Name: "OF_DATA", Needs: "data.mac"}},
		[]topology.File{{Name: "rails", Content: "net1\nnet2\n"}, {Name: "macs", Needs: "data.mac"}})
	want := `topology "ai" in namespace "blue" (sandbox blue/ai)
  step "vf0" has device 0000:01:10.0

step "data" (vlan)
  ∓ link data0 vlan.id 100 → 200
  + address 10.0.0.1/24 on data0

wanted by no step any more
  - link old

step "bond" (bond)
  ~ link bond0 mtu 1500 → 9000

? step "late" needs data.mac (known after apply)

containers that use the claim are told
  NCCL_IB_HCA==mlx5_0
  OF_DATA needs data.mac (known after apply)
  file /var/run/dra.networking/files/ai/rails:
    net1
    net2
  file macs needs data.mac (known after apply)

note: bond0 goes down for a moment

Plan: 1 to create, 1 to change, 1 to replace, 1 to delete. 1 step to be planned then.
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}

	var coloured bytes.Buffer
	text{&coloured, true}.plan(sb, plan, nil, nil)
	if got := coloured.String(); !strings.Contains(got, "\x1b[35m∓ link data0 vlan.id 100 → 200\x1b[0m\n") || !strings.Contains(got, "\x1b[31m- link old\x1b[0m\n") {
		t.Errorf("no colours:\n%q", got)
	}
}

// A release reports the settings that it could not restore on the host.
func TestDeletedNotes(t *testing.T) {
	var out bytes.Buffer
	sb := reconcile.Sandbox{ID: "blue/ai", Netns: "/run/netns/blue", Topology: &topology.Topology{Name: "ai", Steps: []topology.Step{{Name: "data", Type: "vlan"}}}}
	text{&out, false}.deleted(sb, reconcile.Report{Changes: []netstate.Change{{Step: "data", Before: vlan(100)}}, Notes: []string{"route 10.0.0.0/8 of the host is not restored"}})
	want := `topology "ai" in namespace "blue" (sandbox blue/ai)

step "data" (vlan)
  - link data0

note: route 10.0.0.0/8 of the host is not restored

Deleted: sandbox blue/ai, 1 change undone.
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("delete (-want +got):\n%s", diff)
	}
}

func TestNoColoursForFilesAndPipes(t *testing.T) {
	f, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	a := &app{stdio: stdio{out: f}}
	if a.colours() {
		t.Error("colours in a file")
	}
	a.out = &bytes.Buffer{}
	if a.colours() {
		t.Error("colours in a pipe")
	}
}

func TestDriftLines(t *testing.T) {
	link := netstate.LinkKey("data0")
	for want, d := range map[string]reconcile.Drift{
		`~ step "data": link data0: mtu is 1400, not 9000`:   {Step: "data", Action: netstate.Update, Object: link, Field: "mtu", Want: 9000, Have: 1400},
		`+ step "data": link data0 is missing`:               {Step: "data", Action: netstate.Create, Object: link},
		`∓ step "data": link data0: vlan.id is 101, not 100`: {Step: "data", Action: netstate.Replace, Object: link, Field: "vlan.id", Want: 100, Have: 101},
		`- link data0 is not wanted`:                         {Action: netstate.Delete, Object: link},
		`? step "data": needs bond.mac`:                      {Step: "data", Action: netstate.Update, Field: "bond.mac"},
	} {
		if got := driftLine(d); got != want {
			t.Errorf("have %s\nwant %s", got, want)
		}
	}
}

// Without the capabilities nothing is started: no journal is created.
func TestCapabilitiesAreMissing(t *testing.T) {
	runtime.LockOSThread() // capabilities belong to a thread
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		t.Fatal(err)
	}
	none := have
	none[0].Effective, none[1].Effective = 0, 0
	if err := unix.Capset(&header, &none[0]); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Capset(&header, &have[0]); err != nil {
			t.Error(err)
		}
	}()
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{"netns": "", "ai.yaml": "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: ai}\nspec: {steps: [{name: a, type: dummy}]}\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range []string{
		"plan -f ai.yaml --netns ./netns", "apply -f ai.yaml --netns ./netns", "status", "delete --netns ./netns", "run --config .",
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), append(strings.Fields(args), "--state-dir", "state"), stdio{strings.NewReader(""), &out, &errs})
		command, _, _ := strings.Cut(args, " ")
		want := "plumbline: " + command + " enters network namespaces, for which the capabilities CAP_NET_ADMIN and CAP_SYS_ADMIN are missing: run it as root\n"
		if code != exitError || errs.String() != want {
			t.Errorf("%s: exit %d, %q", args, code, errs.String())
		}
	}
	if _, err := os.Stat("state"); err == nil {
		t.Error("a journal was made")
	}
}

// Contention is reported with both values, and in the state.
func TestStatusOfContention(t *testing.T) {
	var out bytes.Buffer
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	text{&out, false}.status([]sandboxStatus{{Status: reconcile.Status{
		Sandbox: "blue/ai", Netns: "/run/netns/blue", State: reconcile.Fighting, Updated: at,
		Fighting: []reconcile.Contention{
			{Step: "tune", Object: netstate.LinkKey("data0"), Field: "mtu", Action: netstate.Update, Want: "4000", Have: "1400", Since: at},
			{Step: "data", Object: netstate.LinkKey("data0"), Action: netstate.Create, Since: at},
		},
	}}})
	want := `blue/ai  Fighting  (namespace /run/netns/blue, applied 2026-11-21 12:00:00)
  ! step "tune": link data0: mtu is set to 1400 by another writer each time it is set to 4000, since 2026-11-21 12:00:00
  ! step "data": link data0 is deleted by another writer each time it is recreated, since 2026-11-21 12:00:00
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

// TestStatusOfDeadNamespace: status says how to release a topology that was applied on the
// command line to a namespace that no longer exists, and only such a topology.
func TestStatusOfDeadNamespace(t *testing.T) {
	const hint = "plumbline delete --netns "
	for name, c := range map[string]struct {
		id    reconcile.SandboxID
		netns string
		kind  fault.Kind
		want  string
	}{
		"by name":      {reconcile.IDByHand("blue", "ai"), "/run/netns/blue", fault.Gone, hint + "blue\n"},
		"by path":      {reconcile.IDByHand("ns", "ai"), "/srv/ns", fault.Gone, hint + "/srv/ns\n"},
		"of a file":    {reconcile.IDOfFile("blue", "ai"), "/run/netns/blue", fault.Gone, ""},
		"of a pod":     {reconcile.IDOfClaim("pod", "uid", "ai"), "/run/netns/cni-1", fault.Gone, ""},
		"not released": {reconcile.IDByHand("blue", "ai"), "/run/netns/blue", fault.Conflict, ""},
	} {
		var out bytes.Buffer
		text{&out, false}.status([]sandboxStatus{{Status: reconcile.Status{Sandbox: c.id, Netns: c.netns, State: reconcile.StateFailed, Failure: "failed", Kind: c.kind}}})
		if have := out.String(); c.want == "" && strings.Contains(have, hint) || !strings.HasSuffix(have, c.want) {
			t.Errorf("%s: %s", name, have)
		}
	}
}

// TestRulesOfBackends: the rules of both backends are named with what enforces them, the one that decides first
// before others; what is not known of counters is left out.
func TestRulesOfBackends(t *testing.T) {
	var out bytes.Buffer
	sb := reconcile.Sandbox{
		ID: "blue/ai", Netns: "/run/netns/blue", Topology: &topology.Topology{Name: "ai"}, Rules: ops.Rules{
			Filters:      []netstate.Filter{{Rule: "ai/a[0]"}},
			LogicalRules: []netstate.LogicalRule{{Rule: "ai/a[0]", Priority: new(uint16(28000))}, {Rule: "ai/a[1]", Priority: new(uint16(28001))}},
		},
	}
	text{&out, false}.header(sb)
	text{&out, false}.rules([]ruleStatus{
		{Rule: "ai/a[0]", Interface: "d0", Backend: "tc", ruleCounters: &ruleCounters{7, 700, new(uint64(0))}},
		{Rule: "ai/a[1]", Interface: "net1", Backend: "OVN"},
		{Rule: "ai/a[0]", Interface: "net1", Backend: "OVN", ruleCounters: &ruleCounters{9, 900, new(uint64(3))}},
		{Rule: "ai/a[3]", Interface: "net1", Backend: "OVN", ruleCounters: &ruleCounters{5, 500, nil}},
		{Rule: "ai/a[2]", Interface: "net2", Backend: "PF", ruleCounters: &ruleCounters{8, 800, new(uint64(0))}},
	})
	want := `topology "ai" in namespace "blue" (sandbox blue/ai)
  NetworkQoS rules for egress traffic: ai/a[0] (the first that matches applies)
  NetworkQoS rules of OVN for egress traffic: ai/a[1], ai/a[0] (the first that matches applies)
  RULE     INTERFACE  BACKEND  MARKED  BYTES  DROPPED
  ai/a[0]  d0         tc       7       700    0
  ai/a[1]  net1       OVN      -       -      -
  ai/a[0]  net1       OVN      9       900    3
  ai/a[3]  net1       OVN      5       500    -
  ai/a[2]  net2       PF       8       800    -
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, tt := range []struct {
		rule ruleStatus
		want string
	}{
		{ruleStatus{Rule: "ai/a[0]", Interface: "d0", Backend: "tc", ruleCounters: countersOf(ports.Reading{Filters: map[ports.FilterKey]ports.FilterCount{}})}, `{"rule":"ai/a[0]","interface":"d0","backend":"tc","markedPackets":0,"markedBytes":0,"droppedPackets":0}`},
		{ruleStatus{Rule: "ai/a[1]", Interface: "net1", Backend: "OVN", ruleCounters: countersOf(ports.Reading{Filters: map[ports.FilterKey]ports.FilterCount{{}: {Packets: 1, Bytes: 2}}, DropsUnknown: true})}, `{"rule":"ai/a[1]","interface":"net1","backend":"OVN","markedPackets":1,"markedBytes":2}`},
		{ruleStatus{Rule: "ai/a[1]", Interface: "net1", Backend: "OVN", ruleCounters: countersOf(ports.Reading{})}, `{"rule":"ai/a[1]","interface":"net1","backend":"OVN"}`},
	} {
		if have, err := json.Marshal(tt.rule); err != nil || string(have) != tt.want {
			t.Errorf("%s, %v, want %s", have, err, tt.want)
		}
	}
}
