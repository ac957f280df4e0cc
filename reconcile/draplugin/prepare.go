package draplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/fault"
	"github.com/plumbline/plumbline/reconcile/claims"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

func invalid(format string, args ...any) error {
	return fault.New(fault.Invalid, fmt.Errorf(format, args...))
}

// prepare decides what a claim is for and records it. It is idempotent by UID.
func (p *Plugin) prepare(ctx context.Context, rc *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	assigned, err := claim.Allocated(rc)
	if err != nil || len(assigned) == 0 {
		return nil, err
	}
	pod, err := onlyPod(rc)
	if err != nil {
		return nil, err
	}
	unlockAll, err := p.Store.LockAll(ctx)
	if err != nil {
		return nil, err
	}
	defer unlockAll()
	e, known, err := p.Store.Get(rc.UID)
	if err != nil {
		p.Log.Error("claims", "error", err) // it is set aside, and decided anew
	}
	switch {
	case known && e.Pod.UID == pod.UID:
		return p.devices(e), nil
	case known && e.Held():
		return nil, fault.New(fault.Conflict, fmt.Errorf("ResourceClaim %q is attached to pod %q still: it will be let go of when that pod has ended", rc.Name, e.Pod.Name))
	}
	c := claims.Claim{UID: rc.UID, Namespace: rc.Namespace, Name: rc.Name, Pod: pod, Prepared: p.Now().UTC()}
	if known {
		// The claim outlived its pod. What was decided for it stays.
		c.Topologies = e.Topologies
	} else if c.Topologies, err = p.resolve(ctx, rc.Name, assigned); err != nil {
		return nil, err
	}
	if err := p.refuseTaken(ctx, &c); err != nil {
		return nil, err
	}
	unlock, err := p.Store.Lock(ctx, c.UID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := p.Store.Put(c); err != nil {
		return nil, err
	}
	p.Log.Info("prepared", "claim", c.Namespace+"/"+c.Name, "pod", c.Pod.Name, "topologies", len(c.Topologies))
	return p.devices(claims.Entry{Claim: c}), nil
}

// onlyPod returns the pod a claim is reserved for.
func onlyPod(rc *resourceapi.ResourceClaim) (claims.Pod, error) {
	switch users := rc.Status.ReservedFor; {
	case len(users) == 0:
		return claims.Pod{}, fault.New(fault.NotReady, fmt.Errorf("ResourceClaim %q is reserved for no pod", rc.Name))
	case len(users) > 1:
		names := make([]string, len(users))
		for i, u := range users {
			names[i] = u.Resource + "/" + u.Name
		}
		return claims.Pod{}, invalid("ResourceClaim %q is shared by %s: its devices are moved into a pod, and a device is in one pod at a time. Give each pod a claim of its own with a ResourceClaimTemplate",
			rc.Name, strings.Join(names, ", "))
	case users[0].APIGroup != "" || users[0].Resource != "pods":
		return claims.Pod{}, invalid("ResourceClaim %q is reserved for %s %q, not for a pod: give each pod a claim of its own with a ResourceClaimTemplate", rc.Name, users[0].Resource, users[0].Name)
	default:
		return claims.Pod{Name: users[0].Name, UID: users[0].UID}, nil
	}
}

// resolve finds the topologies and the devices of the host that are meant.
func (p *Plugin) resolve(ctx context.Context, claimName string, assigned []claim.Assignment) ([]claims.Topology, error) {
	found, partial := p.Discover()
	var out []claims.Topology
	for _, a := range assigned {
		o, err := p.Cluster.Topology(ctx, a.Topology.Name)
		if err != nil {
			return nil, err
		}
		t, err := p.check(ctx, o, a, claimName)
		if err != nil {
			return nil, err
		}
		ct := claims.Topology{Object: claims.Pinned(o)}
		for _, d := range a.Devices {
			host, err := locate(found, d.Name)
			if err != nil {
				return nil, fmt.Errorf("request %q: %w", d.Request, errors.Join(err, partial))
			}
			ct.Devices = append(ct.Devices, claims.Device{Device: d, Host: host})
		}
		if a.Topology.Generation != 0 && a.Topology.Generation != o.Generation {
			if err := stillMatches(ctx, t, ct.Devices, a.Topology.Generation); err != nil {
				return nil, err
			}
		}
		out = append(out, ct)
	}
	return out, nil
}

// check refuses a topology that is wrong, is another than the one the classes
// were made of, or lacks devices. It is what admission checks, once more: nobody
// need have been there to be asked.
func (p *Plugin) check(ctx context.Context, o *v1alpha1.NetworkTopology, a claim.Assignment, claimName string) (*topology.Topology, error) {
	if pin := a.Topology.UID; pin != "" && pin != o.UID {
		return nil, invalid("NetworkTopology %q was deleted and created again since ResourceClaim %q was allocated: delete the claim, or its pod, and create it again", o.Name, claimName)
	}
	t, err := topology.FromObject(o)
	if err != nil {
		return nil, invalid("NetworkTopology %q: %w", o.Name, err)
	}
	if err := topology.Validate(ctx, t, p.Contracts); err != nil {
		if ctx.Err() != nil {
			return nil, fault.New(fault.NotReady, err)
		}
		return nil, fault.New(fault.Invalid, err)
	}
	return t, claim.Incomplete(t, p.Contracts, a, claimName)
}

// locate finds a device by the name it was published with.
func locate(devices []inventory.Device, name string) (inventory.Device, error) {
	i := slices.IndexFunc(devices, func(d inventory.Device) bool { return d.Name == name })
	switch {
	case i < 0:
		return inventory.Device{}, fault.New(fault.NotReady, fmt.Errorf("device %q is not on this node any more", name))
	case devices[i].HostUse != "":
		return inventory.Device{}, fault.New(fault.Conflict, fmt.Errorf("device %q is kept by the node (%s)", name, devices[i].State()))
	}
	return devices[i], nil
}

// stillMatches refuses a device that an edited topology would not have chosen.
func stillMatches(ctx context.Context, t *topology.Topology, devices []claims.Device, allocated int64) error {
	d, err := claims.Unchosen(ctx, t, devices)
	if d == nil {
		return err
	}
	return fault.New(fault.Invalid, errors.Join(fmt.Errorf(
		"NetworkTopology %q was edited since device %q was allocated for step %q (generation %d then, %d now), and the step's selector does not choose it any more: delete the claim, or its pod, and create it again",
		t.Name, d.Name, d.Step, allocated, t.Generation), err))
}

// refuseTaken refuses devices that another claim has. The scheduler may give a
// device away up to seconds before it is let go of, as when a pod is deleted by
// force.
func (p *Plugin) refuseTaken(ctx context.Context, c *claims.Claim) error {
	others, errs := p.Store.List()
	for _, err := range errs {
		p.Log.Error("claims", "error", err)
	}
	for _, other := range others {
		if other.UID == c.UID {
			continue
		}
		device := common(c, &other.Claim)
		if device == "" {
			continue
		}
		held := fmt.Errorf("device %q is held by ResourceClaim %q of pod %q in namespace %q: it is given on when that pod's network is undone", device, other.Name, other.Pod.Name, other.Namespace)
		if over := !other.Held() && len(other.In) > 0; over {
			continue // it has been in a sandbox and is home: only its record waits for kubelet
		}
		lost, err := p.lost(ctx, &other)
		if err != nil || !lost {
			return fault.New(fault.Conflict, errors.Join(held, err))
		}
		if err := p.Keeper.Withdraw(ctx, other.UID); err != nil {
			return fault.New(fault.Conflict, fmt.Errorf("%w: %w", held, err))
		}
	}
	return nil
}

// lost reports whether nobody will ever unprepare a claim: it does not exist any
// more and was never in a sandbox, or in none that is left.
func (p *Plugin) lost(ctx context.Context, e *claims.Entry) (bool, error) {
	if e.Held() {
		return false, nil
	}
	rc, err := p.Cluster.Claim(ctx, e.Namespace, e.Name)
	if err != nil {
		return false, err
	}
	return rc == nil || rc.UID != e.UID || !slices.ContainsFunc(rc.Status.ReservedFor, func(u resourceapi.ResourceClaimConsumerReference) bool {
		return u.UID == e.Pod.UID
	}), nil
}

// common returns a device that both claims have for themselves.
func common(a, b *claims.Claim) string {
	for _, ta := range a.Topologies {
		for _, da := range ta.Devices {
			for _, tb := range b.Topologies {
				if slices.ContainsFunc(tb.Devices, func(db claims.Device) bool {
					return db.Host.ID == da.Host.ID && (da.ShareID == nil || db.ShareID == nil)
				}) {
					return da.Name
				}
			}
		}
	}
	return ""
}
