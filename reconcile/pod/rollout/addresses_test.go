package rollout

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestAddressesOfEdits holds which edits of ipam reach a running pod: those that change nothing of what its claim was given.
// The others are held back with the step and the field, by the agent and in the preview alike.
func TestAddressesOfEdits(t *testing.T) {
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	const local = `{"type":"host-local","subnet":"192.0.2.0/24"}`
	for _, c := range []struct{ before, after, held string }{
		{local, local, ""},
		{local, `{"type":"host-local","ranges":[[{"subnet":"192.0.2.0/24"}]]}`, ""},
		{local, `{"type":"host-local","subnet":"192.0.2.0/24","rangeStart":"192.0.2.2"}`, ""},
		{local, `{"type":"host-local","subnet":"192.0.2.0/24","exclude":["192.0.2.2"]}`, ""},
		{local, `{"type":"host-local","subnet":"192.0.2.0/24","routes":[{"dst":"203.0.113.0/24"}]}`, ""},
		{local, `{"type":"host-local","subnet":"192.0.2.0/24","rangeStart":"192.0.2.100"}`, `step "s": ipam.ranges: it has [192.0.2.2/24] with gateways [192.0.2.1], which were allocated when its claim was prepared, and the ranges give others now: create the pod again`},
		{local, `{"type":"host-local","subnet":"198.51.100.0/24"}`, `step "s": ipam.ranges: it has [192.0.2.2/24] with gateways [192.0.2.1], which were allocated when its claim was prepared, and the ranges give others now: create the pod again`},
		{local, `{"type":"host-local","subnet":"192.0.2.0/25"}`, `step "s": ipam.ranges: it has [192.0.2.2/24] with gateways [192.0.2.1], which were allocated when its claim was prepared, and the ranges give others now: create the pod again`},
		{local, `{"type":"host-local","subnet":"192.0.2.0/24","gateway":"192.0.2.254"}`, `step "s": ipam.ranges: it has [192.0.2.2/24] with gateways [192.0.2.1], which were allocated when its claim was prepared, and the ranges give others now: create the pod again`},
		{local, `{"type":"host-local","ranges":[[{"subnet":"192.0.2.0/24"}],[{"subnet":"2001:db8::/64"}]]}`, `step "s": ipam.ranges: it has [192.0.2.2/24] with gateways [192.0.2.1], which were allocated when its claim was prepared, and the ranges give others now: create the pod again`},
		{local, `{"type":"pool","pool":"p"}`, `step "s": ipam: it takes addresses of AddressPool "p", which are allocated when a claim is prepared: create the pod again`},
		{local, `{"type":"static","addresses":[{"address":"198.51.100.7/24"}]}`, `step "s": ipam: it has addresses of ipam of type host-local, which are released when the claim ends: create the pod again`},
		{local, ``, `step "s": ipam: it has addresses of ipam of type host-local, which are released when the claim ends: create the pod again`},
		{``, local, `step "s": ipam: it takes addresses of ipam of type host-local, which are allocated when a claim is prepared: create the pod again`},
		{`{"type":"pool","pool":"p"}`, `{"type":"pool"}`, ""},
		{`{"type":"pool"}`, `{"type":"pool","pool":"p"}`, ""},
		{`{"type":"pool"}`, `{"type":"pool","pool":"q"}`, `step "s": ipam: it takes addresses of AddressPool "q", which are allocated when a claim is prepared: create the pod again`},
		{``, `{"type":"pool"}`, `step "s": ipam: it takes addresses of the AddressPool of its physical network, which are allocated when a claim is prepared: create the pod again`},
		{`{"type":"pool"}`, ``, `step "s": ipam: it has addresses of AddressPool "p", which are released when the claim ends: create the pod again`},
		{`{"type":"pool","pool":"p"}`, `{"type":"pool","pool":"q"}`, `step "s": ipam: it takes addresses of AddressPool "q", which are allocated when a claim is prepared: create the pod again`},
		{`{"type":"pool","pool":"p"}`, `{"type":"pool","pool":"p","interface":1}`, `step "s": ipam.interface: it takes addresses of part 1 of AddressPool "p", and has those of part 0, which were allocated when its claim was prepared: create the pod again`},
	} {
		typ, devices := "dummy", []claims.Device(nil)
		if unnamed := `{"type":"pool"}`; c.before == unnamed || c.after == unnamed { // of the network of a device
			typ, devices = "sriov", []claims.Device{{Device: claim.Device{Step: "s"}, Host: inventory.Device{ID: "0000:01:10.0", Kind: inventory.KindVF}}}
		}
		object := func(ipam string) *v1alpha1.NetworkTopology {
			o := &v1alpha1.NetworkTopology{}
			o.Name = "t"
			step := v1alpha1.Step{Name: "s", Type: typ}
			if ipam != "" {
				step.Config = &runtime.RawExtension{Raw: []byte(`{"ipam":` + ipam + `}`)}
			}
			o.Spec.Steps = []v1alpha1.Step{step}
			return o
		}
		was, err := topology.FromObject(object(c.before))
		if err != nil {
			t.Fatal(err)
		}
		given := ops.Givens{"s": {Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.2/24")}, Pool: "p"}}
		if _, _, had := topology.FromPool(&was.Steps[0]); !had {
			given = nil
		}
		if ipam, ok := topology.LocalIPAM(&was.Steps[0]); ok {
			l, err := addresspool.Local(ipam)
			if err != nil {
				t.Fatal(err)
			}
			given["s"] = ops.Allocated(l, given["s"].Addresses)
		}
		later, err := topology.FromObject(object(c.after))
		if err != nil {
			t.Fatal(err)
		}
		agent := Follow(t.Context(), &claims.Topology{Object: *object(c.before), Given: given, Devices: devices}, object(c.after), registry, nil)
		preview, err := PreviewOf(t.Context(), reconcile.Sandbox{ID: "blue/t", Topology: was, Given: given}, later, devices, registry, nil, func(context.Context, reconcile.Sandbox) (*ops.Plan, error) {
			return &ops.Plan{}, nil
		})
		if err != nil {
			t.Errorf("%s to %s: preview: %v", c.before, c.after, err)
		}
		for who, err := range map[string]error{"agent": agent, "preview": preview.HeldBack} {
			switch held, is := errors.AsType[*HeldBack](err); {
			case c.held == "" && err != nil, c.held != "" && (!is || held.Error() != c.held):
				t.Errorf("%s to %s: %s: %v\nwant it held back: %q", c.before, c.after, who, err, c.held)
			}
		}
	}
}

// TestSubnetsOfEdits holds which edits of a network of OVN reach a pod with an address of its subnets: those after which it has that
// address. What is excluded meanwhile it keeps. A pod with a port of ovn-kubernetes has nothing of the pool.
func TestSubnetsOfEdits(t *testing.T) {
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	const subnets = `"name":"blue","subnets":"192.0.2.0/24"`
	for _, c := range []struct {
		before, after, held string
		plugged             bool
	}{
		{before: subnets, after: subnets + `,"routes":[{"dst":"10.0.0.0/8","gw":"192.0.2.1"}]`},
		{before: subnets, after: `"name":"blue","subnets":"192.0.2.0/24,fd00::/64"`},
		{before: subnets, after: `"name":"red","subnets":"192.0.2.0/24"`, held: `it takes addresses of AddressPool "ovn-red-`},
		{before: subnets, after: subnets + `,"ipam":{"type":"pool","pool":"mine"}`, held: `it takes addresses of AddressPool "mine"`},
		{before: subnets, after: `"name":"blue"`, held: `it has addresses of AddressPool "ovn-blue-`},
		{before: subnets, after: subnets + `,"addresses":["192.0.2.7/24"]`, held: `it has addresses of AddressPool "ovn-blue-`},
		{before: `"name":"blue"`, after: subnets, held: `it takes addresses of AddressPool "ovn-blue-`},
		{before: `"name":"blue"`, after: subnets, plugged: true},
		{before: subnets, after: `"name":"blue"`, plugged: true},
	} {
		object := func(config string) *v1alpha1.NetworkTopology {
			o := &v1alpha1.NetworkTopology{}
			o.Name = "t"
			o.Spec.Steps = []v1alpha1.Step{{Name: "s", Type: topology.TypeOVN, Config: &runtime.RawExtension{Raw: []byte(`{"topology":"layer2","netAttachDefName":"default/blue",` + config + `}`)}}}
			return o
		}
		given := ops.Givens{"s": {Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.2/24")}}}
		if c.plugged {
			given["s"] = ops.Given{Port: &ops.Port{Name: "p", Network: "blue", Attachment: "default/blue", Topology: "layer2"}, Addresses: given["s"].Addresses}
		}
		err := Follow(t.Context(), &claims.Topology{Object: *object(c.before), Given: given}, object(c.after), registry,
			func(context.Context) (bool, error) { return c.plugged, nil })
		if held, is := errors.AsType[*HeldBack](err); c.held == "" && err != nil || c.held != "" && (!is || !strings.Contains(held.Error(), c.held)) {
			t.Errorf("%s to %s: %v\nwant it held back: %q", c.before, c.after, err, c.held)
		}
	}
}
