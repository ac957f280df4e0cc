package rollout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// pair is a topology with two root steps, in which the node may update.
func pair(generation int64) *v1alpha1.NetworkTopology {
	return &v1alpha1.NetworkTopology{
		ObjectMeta: metav1.ObjectMeta{Name: "pair", UID: "t-uid", Generation: generation},
		Spec: v1alpha1.NetworkTopologySpec{
			UpdatePolicy: v1alpha1.InPlace,
			Steps: []v1alpha1.Step{
				{Name: "vf0", Type: "sriov", Selector: &v1alpha1.Selector{CEL: `device.attributes["dra.networking"].pfName == "enp3s0f0"`}},
				{Name: "vf1", Type: "sriov"},
			},
		},
		Status: v1alpha1.NetworkTopologyStatus{Rollout: &v1alpha1.RolloutStatus{Generation: generation, Nodes: []string{"n1"}}},
	}
}

func given() *claims.Topology {
	t := &claims.Topology{Object: *pair(1), Given: ops.Givens{"vf1": {Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.5/24")}}}}
	for i, step := range []string{"vf0", "vf1"} {
		name := fmt.Sprintf("pci-0000-03-10-%d", i)
		t.Devices = append(t.Devices, claims.Device{
			Device: claim.Device{Step: step, Request: step, Pool: "n1", Name: name},
			Host: inventory.Device{
				ID: fmt.Sprintf("0000:03:10.%d", i), Name: name, Kind: inventory.KindVF, Driver: "igbvf",
				PF: &inventory.PF{PCIAddress: "0000:03:00.0", IfName: "enp3s0f0"}, IfName: fmt.Sprintf("enp3s0f0v%d", i),
			},
		})
	}
	return t
}

func TestFollow(t *testing.T) {
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	steps := func(o *v1alpha1.NetworkTopology, s ...v1alpha1.Step) { o.Spec.Steps = s }
	for _, c := range []struct {
		name string
		edit func(o *v1alpha1.NetworkTopology)
		held string // the reason it is held back with
		kind fault.Kind
	}{
		{name: "the same", edit: func(*v1alpha1.NetworkTopology) {}},
		{name: "a derived step more", edit: func(o *v1alpha1.NetworkTopology) {
			o.Spec.Steps = append(o.Spec.Steps, v1alpha1.Step{Name: "tune", Type: "tuning", DependOn: []string{"vf0"}})
		}},
		{name: "a root step of nothing more", edit: func(o *v1alpha1.NetworkTopology) {
			o.Spec.Steps = append(o.Spec.Steps, v1alpha1.Step{Name: "d", Type: "dummy"})
		}},
		{name: "a root step less", edit: func(o *v1alpha1.NetworkTopology) { o.Spec.Steps = o.Spec.Steps[:1] }},
		{name: "a root step that needs nothing now", edit: func(o *v1alpha1.NetworkTopology) {
			steps(o, o.Spec.Steps[0], v1alpha1.Step{Name: "vf1", Type: "dummy"})
		}},
		{name: "a device more", edit: func(o *v1alpha1.NetworkTopology) {
			o.Spec.Steps = append(o.Spec.Steps, v1alpha1.Step{Name: "vf2", Type: "sriov"})
		}, held: `step "vf2": it needs a device that the claim does not have`},
		{name: "another selector", edit: func(o *v1alpha1.NetworkTopology) {
			o.Spec.Steps[1].Selector = &v1alpha1.Selector{CEL: `device.attributes["dra.networking"].pfName == "enp9s0"`}
		}, held: `step "vf1": its selector does not choose device "pci-0000-03-10-1"`},
		{name: "another type of device", edit: func(o *v1alpha1.NetworkTopology) {
			o.Spec.Steps[1].Type = "host-device"
		}, held: `step "vf1": type "host-device" takes a nic or pf, and device "pci-0000-03-10-1" is a vf`},
		{name: "a network of the host", edit: func(o *v1alpha1.NetworkTopology) {
			o.Spec.Steps[1] = v1alpha1.Step{Name: "vf1", Type: "macvlan", Config: &runtime.RawExtension{Raw: []byte(`{"masterNet":"10.0.1.0/24"}`)}}
		}, held: `step "vf1": it takes a device of the network "10.0.1.0/24", and device "pci-0000-03-10-1" was allocated before it did`},
		{name: "a gateway among the addresses that it has", edit: func(o *v1alpha1.NetworkTopology) {
			o.Spec.Steps[1].Config = &runtime.RawExtension{Raw: []byte(`{"routes":[{"destination":"203.0.113.0/24","gateway":"192.0.2.1"}]}`)}
		}},
		{name: "a gateway among no addresses", edit: func(o *v1alpha1.NetworkTopology) {
			o.Spec.Steps[1].Config = &runtime.RawExtension{Raw: []byte(`{"routes":[{"destination":"203.0.113.0/24","gateway":"198.51.100.1"}]}`)}
		}, kind: fault.Invalid},
		{name: "a device for user space", edit: func(o *v1alpha1.NetworkTopology) {
			o.Spec.Steps[0].Type = "vfio-pci"
		}, held: `step "vf0": a container gets its device nodes when it is created`},
		{name: "nonsense", edit: func(o *v1alpha1.NetworkTopology) { o.Spec.Steps[1].Type = "srov" }, kind: fault.Invalid},
		{name: "another bound of what the claim has set", edit: func(o *v1alpha1.NetworkTopology) {
			o.Spec.ClaimParameters[0].MACPrefix = "02:00:5e"
		}, held: `step "vf0": it no longer permits what the claim has set: mac: 02:00:00:00:00:07 does not begin with 02:00:5e`},
		{name: "nothing that a claim sets", edit: func(o *v1alpha1.NetworkTopology) {
			o.Spec.ClaimParameters = nil
		}, held: `step "vf0": it no longer permits what the claim has set: mac: NetworkTopology "pair" does not let a claim set it: it has no claimParameters`},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := pair(2)
			o.Spec.ClaimParameters = []v1alpha1.ClaimParameter{{Step: "vf0", Key: v1alpha1.ParameterMAC, MACPrefix: "02"}}
			c.edit(o)
			of := given()
			if strings.Contains(c.name, "claim") {
				of.Parameters = []topology.Parameters{{Step: "vf0", MAC: "02:00:00:00:00:07"}}
			}
			err := Follow(t.Context(), of, o, registry, nil)
			held, isHeld := errors.AsType[*HeldBack](err)
			switch {
			case c.held != "":
				if !isHeld || held.Error() != c.held {
					t.Errorf("error %v, want it held back: %s", err, c.held)
				}
			case isHeld || fault.Of(err) != c.kind:
				t.Errorf("error %v, want kind %q", err, c.kind)
			}
		})
	}
}

// TestFollowFirstPort: where ovn-kubernetes makes the ports, an edit that adds the first step that
// needs one is held back. A claim that had such a step without a port keeps what was decided then.
func TestFollowFirstPort(t *testing.T) {
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	overlay := v1alpha1.Step{Name: "net", Type: "ovn-k8s-cni-overlay", Config: &runtime.RawExtension{Raw: []byte(`{"topology":"layer2","netAttachDefName":"default/blue"}`)}}
	away := errors.New("the database is away")
	for name, c := range map[string]struct {
		had    bool
		ported func(context.Context) (bool, error)
		held   string
		kind   fault.Kind
	}{
		"ports of ovn-kubernetes": {
			ported: func(context.Context) (bool, error) { return true, nil },
			held:   `step "net": it joins a network of ovn-kubernetes, which makes ports when a pod is created`,
		},
		"ports of ours":        {ported: func(context.Context) (bool, error) { return false, nil }},
		"no OVN":               {},
		"unknown":              {ported: func(context.Context) (bool, error) { return false, away }, kind: fault.NotReady},
		"a step that it knows": {had: true, ported: func(context.Context) (bool, error) { return true, away }},
	} {
		was := given()
		o := was.Object.DeepCopy()
		o.Generation = 2
		o.Spec.Steps = append(o.Spec.Steps, overlay)
		if c.had {
			was.Object.Spec.Steps = append(was.Object.Spec.Steps, overlay)
		}
		err := Follow(t.Context(), was, o, registry, c.ported)
		held, isHeld := errors.AsType[*HeldBack](err)
		switch {
		case c.held != "":
			if !isHeld || held.Error() != c.held {
				t.Errorf("%s: error %v, want it held back: %s", name, err, c.held)
			}
		case isHeld, c.kind == "" && err != nil, c.kind != "" && fault.Of(err) != c.kind:
			t.Errorf("%s: error %v, want kind %q", name, err, c.kind)
		}
	}
}

// TestFollowPlugged: ovn-kubernetes makes the ports of a pod when it is created, so an edit that needs another one is
// held back, and is no failure.
func TestFollowPlugged(t *testing.T) {
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	raw := func(config string) *runtime.RawExtension { return &runtime.RawExtension{Raw: []byte(config)} }
	const config = `{"topology":"localnet","physicalNetworkName":"phys","vlanID":200,"netAttachDefName":"default/blue"}`
	const held = "its port was made by ovn-kubernetes when the pod was created, and %s was another then"
	for name, c := range map[string]struct {
		edit func(o *v1alpha1.NetworkTopology)
		held string
	}{
		"the same": {edit: func(*v1alpha1.NetworkTopology) {}},
		"the MTU": {edit: func(o *v1alpha1.NetworkTopology) {
			o.Spec.Steps[1].Config = raw(config[:len(config)-1] + `,"mtu":1450}`)
		}},
		"a later step": {edit: func(o *v1alpha1.NetworkTopology) {
			o.Spec.Steps = append(o.Spec.Steps, v1alpha1.Step{Name: "tune", Type: "tuning", DependOn: []string{"vf1"}})
		}},
		"the step less": {edit: func(o *v1alpha1.NetworkTopology) { o.Spec.Steps = o.Spec.Steps[:1] }},
		"the VLAN": {edit: func(o *v1alpha1.NetworkTopology) {
			o.Spec.Steps[1].Config = raw(strings.Replace(config, "200", "201", 1))
		}, held: fmt.Sprintf(held, "vlanID")},
		"the network": {edit: func(o *v1alpha1.NetworkTopology) {
			o.Spec.Steps[1].Config = raw(strings.Replace(config, "blue", "red", 1))
		}, held: fmt.Sprintf(held, "netAttachDefName")},
		"another name": {edit: func(o *v1alpha1.NetworkTopology) { o.Spec.Steps[1].Name = "net" }, held: "it joins a network of ovn-kubernetes, which makes ports when a pod is created"},
		"one more": {edit: func(o *v1alpha1.NetworkTopology) {
			o.Spec.Steps = append(o.Spec.Steps, v1alpha1.Step{Name: "more", Type: "ovn-k8s-cni-overlay", Config: raw(`{"topology":"layer2","netAttachDefName":"default/red"}`)})
		}, held: "it joins a network of ovn-kubernetes, which makes ports when a pod is created"},
	} {
		was := given()
		was.Object.Spec.Steps[1] = v1alpha1.Step{Name: "vf1", Type: "ovn-k8s-cni-overlay", Config: raw(config)}
		was.Devices = was.Devices[:1]
		was.Given = ops.Givens{"vf1": {
			Port:      &ops.Port{Name: "default.blue_ns_pod", Holder: "uid", MAC: "0a:58:00:00:00:01", Attachment: "default/blue", Topology: "localnet", PhysicalNetwork: "phys", VLAN: 200, Addressed: true},
			Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.5/24")},
		}}
		o := was.Object.DeepCopy()
		o.Generation = 2
		c.edit(o)
		err := Follow(t.Context(), was, o, registry, nil)
		reason := ""
		if h, ok := errors.AsType[*HeldBack](err); ok {
			reason = h.Err.Error()
		}
		if reason != c.held || c.held == "" && err != nil {
			t.Errorf("%s: %v, want it held back: %q", name, err, c.held)
		}
	}
}

// TestSameNodes: a container gets its device nodes when it is created, so only edits that
// do not change them reach a running pod.
func TestSameNodes(t *testing.T) {
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		step v1alpha1.Step
		held string
	}{
		"another VLAN":                 {step: v1alpha1.Step{Name: "vf1", Type: "vfio-pci", Config: &runtime.RawExtension{Raw: []byte(`{"vlan":8}`)}}},
		"the driver that it has":       {step: v1alpha1.Step{Name: "vf1", Type: "vfio-pci", Config: &runtime.RawExtension{Raw: []byte(`{"driver":"vfio-pci"}`)}}},
		"another driver":               {step: v1alpha1.Step{Name: "vf1", Type: "vfio-pci", Config: &runtime.RawExtension{Raw: []byte(`{"driver":"igb_uio","allowUnprotectedDMA":true}`)}}, held: "driver is vfio-pci, not igb_uio"},
		"a GUID":                       {step: v1alpha1.Step{Name: "vf1", Type: "vfio-pci", Config: &runtime.RawExtension{Raw: []byte(`{"portGUID":"00:02:c9:03:00:21:6e:78"}`)}}, held: "a driver reads the GUIDs of its device when it is bound, and portGUID is not set, not 00:02:c9:03:00:21:6e:78"},
		"an interface":                 {step: v1alpha1.Step{Name: "vf1", Type: "sriov"}, held: "when it is created"},
		"the step under another name":  {step: v1alpha1.Step{Name: "vf2", Type: "vfio-pci"}, held: "when it is created"},
		"no device, but the same name": {step: v1alpha1.Step{Name: "vf1", Type: "dummy"}, held: "when it is created"},
	} {
		has := given()
		has.Given = nil
		has.Object.Spec.Steps[1].Type = "vfio-pci"
		later := pair(2)
		later.Spec.Steps[1] = c.step
		err := Follow(t.Context(), has, later, registry, nil)
		held, isHeld := errors.AsType[*HeldBack](err)
		if isHeld != (c.held != "") || isHeld && !strings.Contains(held.Error(), c.held) || !isHeld && err != nil {
			t.Errorf("%s: error %v, want it held back: %q", name, err, c.held)
		}
	}
}

// TestSameNodesOfInterface: an RDMA device in software comes with a step and no device, so an edit that adds one is held back,
// and one that changes what is required of it is not.
func TestSameNodesOfInterface(t *testing.T) {
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	soft := func(config string) v1alpha1.Step {
		return v1alpha1.Step{Name: "roce", Type: "rxe", DependOn: []string{"vf1"}, Config: &runtime.RawExtension{Raw: []byte(config)}}
	}
	verbs := func(on, config string) v1alpha1.Step {
		return v1alpha1.Step{Name: "verbs", Type: "rdma", DependOn: []string{on}, Config: &runtime.RawExtension{Raw: []byte(config)}}
	}
	shared := func(config string) v1alpha1.Step {
		return v1alpha1.Step{Name: "link", Type: "ipvlan", Config: &runtime.RawExtension{Raw: []byte(config)}}
	}
	for name, c := range map[string]struct {
		was, later []v1alpha1.Step
		held       string
	}{
		"added":             {nil, []v1alpha1.Step{soft(`{}`)}, `step "roce": a container gets its device nodes when it is created`},
		"removed":           {[]v1alpha1.Step{soft(`{}`)}, nil, `step "roce": a container gets its device nodes when it is created`},
		"another interface": {[]v1alpha1.Step{soft(`{}`)}, []v1alpha1.Step{soft(`{"netdev":"net1"}`)}, "a container gets its device nodes when it is created, and netdev is not set, not net1"},
		"what it requires":  {[]v1alpha1.Step{soft(`{}`)}, []v1alpha1.Step{soft(`{"require":{"state":"ACTIVE"}}`)}, ""},
		"nothing at all":    {[]v1alpha1.Step{soft(`{}`)}, []v1alpha1.Step{soft(`{}`)}, ""},
		"verbs added":       {nil, []v1alpha1.Step{verbs("vf1", `{}`)}, `step "verbs": a container gets its device nodes when it is created`},
		"verbs removed":     {[]v1alpha1.Step{verbs("vf1", `{}`)}, nil, `step "verbs": a container gets its device nodes when it is created`},
		"verbs of another":  {[]v1alpha1.Step{verbs("vf0", `{}`)}, []v1alpha1.Step{verbs("vf1", `{}`)}, `step "verbs": a container gets its device nodes when it is created, and dependOn says whose`},
		"another of verbs":  {[]v1alpha1.Step{verbs("vf1", `{}`)}, []v1alpha1.Step{verbs("vf1", `{"rdmaDevice":"mlx5_3"}`)}, `and rdmaDevice is not set, not mlx5_3`},
		"required of verbs": {[]v1alpha1.Step{verbs("vf1", `{}`)}, []v1alpha1.Step{verbs("vf1", `{"require":{"state":"ACTIVE"}}`)}, ""},
		"a link":            {nil, []v1alpha1.Step{{Name: "link", Type: "macvlan", DependOn: []string{"vf1"}}}, ""},
		"of the same link":  {[]v1alpha1.Step{shared(`{"master":"eth9"}`)}, []v1alpha1.Step{shared(`{"master":"eth9","rdma":true}`)}, "a container gets its device nodes when it is created, and rdma is not set, not true"},
		"not of that link":  {[]v1alpha1.Step{shared(`{"master":"eth9","rdma":true}`)}, []v1alpha1.Step{shared(`{"master":"eth9"}`)}, "a container gets its device nodes when it is created, and rdma is true, not not set"},
	} {
		has := given()
		has.Given = nil
		has.Object.Spec.Steps = append(has.Object.Spec.Steps, c.was...)
		later := pair(2)
		later.Spec.Steps = append(later.Spec.Steps, c.later...)
		err := Follow(t.Context(), has, later, registry, nil)
		held, isHeld := errors.AsType[*HeldBack](err)
		if isHeld != (c.held != "") || isHeld && !strings.Contains(held.Error(), c.held) || !isHeld && err != nil {
			t.Errorf("%s: error %v, want it held back: %q", name, err, c.held)
		}
	}
}

func TestNamed(t *testing.T) {
	for name, c := range map[string]struct {
		change func(o *v1alpha1.NetworkTopology)
		want   bool
	}{
		"named":                 {func(*v1alpha1.NetworkTopology) {}, true},
		"not named":             {func(o *v1alpha1.NetworkTopology) { o.Status.Rollout.Nodes = []string{"n2"} }, false},
		"no rollout yet":        {func(o *v1alpha1.NetworkTopology) { o.Status.Rollout = nil }, false},
		"of the edit before":    {func(o *v1alpha1.NetworkTopology) { o.Generation++ }, false},
		"stopped":               {func(o *v1alpha1.NetworkTopology) { o.Status.Rollout.Failure = &v1alpha1.RolloutFailure{} }, false},
		"immutable by now":      {func(o *v1alpha1.NetworkTopology) { o.Spec.UpdatePolicy = v1alpha1.Immutable }, false},
		"on its way out":        {func(o *v1alpha1.NetworkTopology) { o.DeletionTimestamp = new(metav1.Now()) }, false},
		"without update policy": {func(o *v1alpha1.NetworkTopology) { o.Spec.UpdatePolicy = "" }, false},
	} {
		o := pair(2)
		c.change(o)
		if got := Named(o, "n1"); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

// node records the updates and the reports of a Follower.
type node struct {
	*Follower
	t       *testing.T
	entries []claims.Entry
	fails   map[types.UID]error
	done    []string
}

func newNode(t *testing.T, uids ...types.UID) *node {
	n := &node{t: t, fails: map[types.UID]error{}}
	for _, uid := range uids {
		n.entries = append(n.entries, claims.Entry{
			Claim: claims.Claim{UID: uid, Name: "claim-" + string(uid), Topologies: []claims.Topology{*given()}},
			In:    []claims.Sandbox{{ID: "s-" + string(uid), Phase: claims.Attached}},
		})
	}
	n.Follower = New(Options{
		NodeName: "n1", Claims: func() []claims.Entry { return n.entries }, Reporter: n, Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Update: func(_ context.Context, uid types.UID, o *v1alpha1.NetworkTopology) error {
			if err := n.fails[uid]; err != nil {
				return err
			}
			n.done = append(n.done, fmt.Sprintf("update %s to %d", uid, o.Generation))
			for i := range n.entries {
				if n.entries[i].UID == uid {
					n.entries[i].Topologies[0].Object = claims.Pinned(o)
				}
			}
			return nil
		},
	})
	return n
}

func (n *node) Runs(c claims.Claim, _ string, generation int64) {
	n.done = append(n.done, fmt.Sprintf("%s runs %d", c.UID, generation))
}

func (n *node) HeldBack(c claims.Claim, _ string, from, to int64, _ error) {
	n.done = append(n.done, fmt.Sprintf("%s held back at %d, not %d", c.UID, from, to))
}

func (n *node) UpdateFailed(c claims.Claim, _ string, from, to int64, _ error) {
	n.done = append(n.done, fmt.Sprintf("%s failed at %d, not %d", c.UID, from, to))
}

func (n *node) UpdateDelayed(c claims.Claim, _ string, from, to int64, attempts int, _ error) {
	n.done = append(n.done, fmt.Sprintf("%s delayed at %d, not %d: attempt %d", c.UID, from, to, attempts))
}

func (n *node) want(done ...string) {
	n.t.Helper()
	n.pass(n.t.Context(), slices.Clone(n.entries))
	if !slices.Equal(n.done, done) {
		n.t.Errorf("done:\n  %s\nwant\n  %s", strings.Join(n.done, "\n  "), strings.Join(done, "\n  "))
	}
	n.done = nil
}

func TestPass(t *testing.T) {
	t.Run("rollout at this node", func(t *testing.T) {
		n := newNode(t, "a", "b")
		n.want("a runs 1", "b runs 1") // an earlier agent may not have reported it
		o := pair(2)
		o.Status.Rollout.Nodes = nil
		n.Topologies.Put("pair", o)
		n.want()
		n.Topologies.Put("pair", pair(2))
		n.want("update a to 2", "a runs 2", "update b to 2", "b runs 2")
		n.want()
		n.Topologies.Put("pair", nil)
		n.want()
	})
	t.Run("a failure", func(t *testing.T) {
		n := newNode(t, "a", "b")
		n.want("a runs 1", "b runs 1")
		n.fails["a"] = fault.New(fault.Unsupported, errors.New("no"))
		n.Topologies.Put("pair", pair(2))
		n.want("a failed at 1, not 2", "update b to 2", "b runs 2")
		n.want()
		n.fails["a"] = nil
		n.want() // already reported
		n.Topologies.Put("pair", pair(3))
		n.want("update a to 3", "a runs 3", "update b to 3", "b runs 3")
	})
	t.Run("what fails", func(t *testing.T) {
		for _, err := range []error{
			fault.New(fault.Invalid, errors.New("no")),
			fault.New(fault.NotConverged, errors.New("somebody changes it back")),
			&ops.StepError{Step: "vf0", Err: unix.EINVAL}, // the kernel, of an MTU
		} {
			n := newNode(t, "a", "b")
			n.want("a runs 1", "b runs 1")
			n.fails["a"] = err
			n.Topologies.Put("pair", pair(2))
			n.want("a failed at 1, not 2", "update b to 2", "b runs 2")
			n.want()
		}
	})
	t.Run("prevented by the pod", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			for _, err := range []error{
				fault.New(fault.Conflict, errors.New("the name mv0 is taken")), // by the pod
				fault.New(fault.NotReady, errors.New("lock")),
				fmt.Errorf("journal: %w", unix.ENOSPC),
				context.DeadlineExceeded,
				&ops.StepError{Step: "vf0", Err: unix.ENOMEM},
			} {
				n := newNode(t, "a", "b")
				n.want("a runs 1", "b runs 1")
				n.fails["a"] = err
				n.Topologies.Put("pair", pair(2))
				n.want("a delayed at 1, not 2: attempt 1", "update b to 2", "b runs 2")
				n.want()
				time.Sleep(10 * time.Second)
				n.want("a delayed at 1, not 2: attempt 2")
				time.Sleep(10 * time.Second)
				n.want() // with backoff
				time.Sleep(10 * time.Second)
				n.fails["a"] = nil
				n.want("update a to 2", "a runs 2")
				n.fails["a"] = err
				n.Topologies.Put("pair", pair(3))
				n.want("a delayed at 2, not 3: attempt 1", "update b to 3", "b runs 3")
			}
		})
	})
	t.Run("held back", func(t *testing.T) {
		n := newNode(t, "a", "b")
		n.want("a runs 1", "b runs 1")
		n.fails["a"] = &HeldBack{"vf2", errors.New("no device")}
		n.Topologies.Put("pair", pair(2))
		n.want("a held back at 1, not 2", "update b to 2", "b runs 2")
		n.want()
		n.fails["a"] = nil // now the devices fit
		n.want("update a to 2", "a runs 2")
	})
	t.Run("a pod that ends", func(t *testing.T) {
		n := newNode(t, "a", "b")
		n.want("a runs 1", "b runs 1")
		n.fails["a"] = fault.New(fault.Gone, errors.New("has ended"))
		n.entries[1].In[0].Phase = claims.Released
		n.Topologies.Put("pair", pair(2))
		n.want("update b to 2") // for the next pod of the claim; nothing runs
	})
	t.Run("another topology of the name", func(t *testing.T) {
		n := newNode(t, "a")
		n.want("a runs 1")
		o := pair(2)
		o.UID = "other"
		n.Topologies.Put("pair", o)
		n.want()
	})
	t.Run("the agent stops", func(t *testing.T) {
		n := newNode(t, "a")
		n.want("a runs 1")
		n.Topologies.Put("pair", pair(2))
		ctx, cancel := context.WithCancel(t.Context())
		n.Update = func(ctx context.Context, _ types.UID, _ *v1alpha1.NetworkTopology) error {
			cancel()
			return ctx.Err()
		}
		n.pass(ctx, n.entries)
		if len(n.done) > 0 {
			t.Errorf("done: %q", n.done)
		}
	})
}
