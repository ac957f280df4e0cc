package rollout

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

// HeldBack is why a later generation needs a new pod.
type HeldBack struct {
	Step string
	Err  error
}

func (h *HeldBack) Error() string { return fmt.Sprintf("step %q: %v", h.Step, h.Err) }
func (h *HeldBack) Unwrap() error { return h.Err }

// Follow returns an error unless a topology of a claim can have a later generation with
// the claim's devices. It is a HeldBack if that takes another device, or another port of
// ovn-kubernetes, which needs a new claim, and of kind Invalid if the generation is not valid here: admission may have
// been bypassed, or be of another version. The topology of the claim keeps the generation as it was decoded.
func Follow(ctx context.Context, t *claims.Topology, o *v1alpha1.NetworkTopology, set contract.Set, ported Ported) error {
	was, err := t.Decoded()
	if err != nil {
		return fault.New(fault.Invalid, err)
	}
	decoded, err := topology.FromObject(o)
	if err == nil {
		if err := permitted(decoded, t.Parameters); err != nil {
			return err
		}
		decoded = decoded.With(t.Parameters)
		t.Keep(o, decoded)
		if err := samePorts(ctx, t.Given, was, decoded, set, ported); err != nil {
			return err
		}
		_, err = validity.Check(ctx, decoded, ops.Giving(set, t.Given.ForSteps(decoded)))
	}
	if err != nil {
		if ctx.Err() != nil {
			return fault.New(fault.NotReady, err)
		}
		return fault.New(fault.Invalid, err)
	}
	return Fits(ctx, t.Given, was, decoded, t.Devices, set)
}

// permitted returns a HeldBack unless a generation permits what the claim has set: the pod keeps the network it has, and a
// new claim is refused.
func permitted(t *topology.Topology, parameters []topology.Parameters) error {
	_, err := t.Permitted(parameters)
	if bad, ok := errors.AsType[*topology.BadParameter](err); ok {
		return &HeldBack{bad.Step, fmt.Errorf("it no longer permits what the claim has set: %s: %w", bad.Key, bad.Err)}
	}
	return err
}

// Fits returns a HeldBack unless a claim's devices are those that a valid topology takes, its addresses are those
// that its steps take, and its containers keep the device nodes of the current version. A device whose step no
// longer exists is accepted: it returns to the host.
func Fits(ctx context.Context, given ops.Givens, was, t *topology.Topology, devices []claims.Device, set contract.Set) error {
	if err := sameNodes(was, t, set); err != nil {
		return err
	}
	if err := sameAddresses(given, was, t); err != nil {
		return err
	}
	required := claim.Required(t, set)
	for _, s := range claim.Roots(t, set) {
		i := slices.IndexFunc(devices, func(d claims.Device) bool { return d.Step == s.Name })
		if i < 0 && !slices.Contains(required, s) {
			continue
		}
		if i < 0 {
			return &HeldBack{s.Name, errors.New("it needs a device that the claim does not have")}
		}
		d := devices[i].Host
		c, _ := set.Contract(s.Type)
		if before, had := was.Step(s.Name); had {
			if from, to := claim.MasterNet(before, c), claim.MasterNet(s, c); to != "" && to != from {
				return &HeldBack{s.Name, fmt.Errorf("it takes a device of the network %q, and device %q was allocated before it did",
					to, d.Name)}
			}
		}
		if fits := c.Input.DeviceTypes; len(fits) > 0 && !slices.Contains(fits, string(d.Kind)) {
			return &HeldBack{s.Name, fmt.Errorf("type %q takes a %s, and device %q is a %s", s.Type, strings.Join(fits, " or "), d.Name,
				d.Kind)}
		}
	}
	d, err := claims.Unchosen(ctx, t, devices)
	if d != nil {
		return &HeldBack{d.Step, errors.Join(fmt.Errorf("its selector does not choose device %q", d.Name), err)}
	}
	return err
}

// sameNodes returns a HeldBack unless two versions give containers the same device
// nodes, which a runtime gives them when it creates a container, and devices the same GUIDs.
func sameNodes(was, later *topology.Topology, set contract.Set) error {
	for _, s := range slices.Concat(was.Steps, later.Steps) {
		known, ok := set.Contract(s.Type)
		before, had := was.Step(s.Name)
		after, has := later.Step(s.Name)
		kept := had && has && before.Type == after.Type
		if !ok || !known.GivesDevices(s.Config) && (!kept || !known.MayGiveNodes(nil)) {
			continue
		}
		if !kept {
			if known.Input.Device && !known.Output.InsteadOfInterface() {
				continue // its device decides
			}
			return &HeldBack{s.Name, errors.New("a container gets its device nodes when it is created")}
		}
		from, to := was.DerivedFrom(before, known), later.DerivedFrom(after, known)
		if !slices.Equal(from, to) || before.Root() != after.Root() && len(known.Input.DerivedFrom) > 0 {
			return &HeldBack{s.Name, errors.New("a container gets its device nodes when it is created, and dependOn says whose")}
		}
		for _, p := range known.Params {
			if from, to := value(known, p, before), value(known, p, after); p.AtCreation && !reflect.DeepEqual(from, to) {
				why := "a container gets its device nodes when it is created"
				if p.Format == contract.GUID {
					why = "a driver reads the GUIDs of its device when it is bound"
				}
				return &HeldBack{s.Name, fmt.Errorf("%s, and %s is %v, not %v", why, p.Name, orNotSet(from), orNotSet(to))}
			}
		}
	}
	return nil
}

// sameAddresses returns a HeldBack unless each step of the later version takes the addresses that the claim was given for
// it: they are allocated when a claim is prepared, and released when it ends. Addresses that are excluded meanwhile
// stay with the pods that have them.
func sameAddresses(given ops.Givens, was, later *topology.Topology) error {
	for i := range later.Steps {
		s := &later.Steps[i]
		before, had := was.Step(s.Name)
		if !had {
			before = &topology.Step{}
		}
		held := func(field, format string, args ...any) error {
			return &HeldBack{s.Name, fmt.Errorf("ipam%s: %s: create the pod again", field, fmt.Sprintf(format, args...))}
		}
		from, was, hadPool := given[s.Name].PoolOf(before)
		to, is, hasPool := given[s.Name].PoolOf(s)
		switch {
		case hadPool && !hasPool:
			return held("", "it has addresses of %s, which are released when the claim ends", addresspool.Title(from))
		case !hadPool && hasPool, from != to:
			return held("", "it takes addresses of %s, which are allocated when a claim is prepared", addresspool.Title(to))
		case was != is:
			return held(".interface",
				"it takes addresses of part %d of %s, and has those of part %d, which were allocated when its claim was prepared", is,
				addresspool.Title(to), was)
		}
		local, ok := topology.LocalIPAM(s)
		if !ok {
			continue
		}
		l, err := addresspool.Local(local)
		if err != nil {
			return fault.New(fault.Invalid, fmt.Errorf("step %q: ipam.%w", s.Name, err))
		}
		if len(given[s.Name].Addresses) == 0 { // it is given some
			continue
		}
		if now := ops.Allocated(l, l.Kept(given[s.Name].Addresses)); !reflect.DeepEqual(now, given[s.Name].Network()) {
			return held(".ranges",
				"it has %v with gateways %v, which were allocated when its claim was prepared, and the ranges give others now",
				given[s.Name].Addresses, given[s.Name].Gateways)
		}
	}
	return nil
}

// joining returns the steps that join a network of ovn-kubernetes where that makes the ports.
func joining(t *topology.Topology, set contract.Set) []*topology.Step {
	var out []*topology.Step
	for i := range t.Steps {
		if known, _ := set.Contract(t.Steps[i].Type); len(known.Output.Attachment) > 0 {
			out = append(out, &t.Steps[i])
		}
	}
	return out
}

// Ported reports whether ovn-kubernetes makes the ports of a node. It is nil without OVN.
type Ported func(context.Context) (bool, error)

// samePorts returns a HeldBack unless the later version uses the ports of ovn-kubernetes that a claim
// was given as the earlier one does: they are made when a pod is created. A claim that has had such
// a step without a port keeps what was decided then. The error is of kind NotReady if it is not
// known who makes the ports.
func samePorts(ctx context.Context, given ops.Givens, was, later *topology.Topology, set contract.Set, ported Ported) error {
	if !given.Plugged() {
		if ported == nil || len(joining(later, set)) == 0 || len(joining(was, set)) > 0 {
			return nil
		}
		if yes, err := ported(ctx); err != nil {
			return fault.New(fault.NotReady, err)
		} else if !yes {
			return nil
		}
	}
	for _, s := range joining(later, set) {
		known, _ := set.Contract(s.Type)
		before, had := was.Step(s.Name)
		if !had || before.Type != s.Type || given[s.Name].Port == nil {
			return &HeldBack{s.Name, errors.New("it joins a network of ovn-kubernetes, which makes ports when a pod is created")}
		}
		for _, p := range known.Params {
			if from, to := value(known, p, before), value(known, p, s); slices.Contains(known.Output.Attachment, p.Name) &&
				!reflect.DeepEqual(from, to) {
				return &HeldBack{s.Name, fmt.Errorf(
					"its port was made by ovn-kubernetes when the pod was created, and %s was another then", p.Name)}
			}
		}
	}
	return nil
}

// value is a step's value for a key, in any spelling or by default.
func value(c contract.Contract, p contract.Param, s *topology.Step) any {
	decoded, _ := c.Decode(s.Config, contract.Options{Unresolved: true}) // validated before
	return decoded[p.Name]
}

// orNotSet is a value in a message.
func orNotSet(value any) any {
	if value == nil {
		return "not set"
	}
	return value
}

// Named reports whether a node may apply the newest generation of a topology to its pods
// now.
func Named(o *v1alpha1.NetworkTopology, node string) bool {
	r := o.Status.Rollout
	return o.Spec.UpdatePolicy == v1alpha1.InPlace && o.DeletionTimestamp.IsZero() &&
		r != nil && r.Generation == o.Generation && r.Failure == nil && slices.Contains(r.Nodes, node)
}
