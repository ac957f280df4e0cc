package draplugin_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/fault"
)

// ovnKubernetes makes ports of pods.
type ovnKubernetes struct {
	mu           sync.Mutex
	away, absent bool
	ports        map[string]error // by pod and attachment; nil is a port
	bare         bool             // they have no addresses
}

func (o *ovnKubernetes) Used(context.Context) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.away {
		return false, errors.New("the database is away")
	}
	return !o.absent, nil
}

func (o *ovnKubernetes) Given(_ context.Context, namespace string, pod claims.Pod, attachment string) (ops.Given, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	name := pod.Name + " " + attachment
	err, ok := o.ports[name]
	switch {
	case !ok:
		return ops.Given{}, fault.New(fault.NotReady, errors.New("not made yet"))
	case err != nil:
		return ops.Given{}, err
	}
	out := ops.Given{Port: &ops.Port{Name: namespace + " " + name, Holder: string(pod.UID), MAC: "0a:58:00:00:00:01", Attachment: attachment, Topology: "layer2", Addressed: !o.bare}}
	if !o.bare {
		out.Addresses = []netip.Prefix{netip.MustParsePrefix("172.31.0.5/24")}
	}
	return out, nil
}

// change changes what it says.
func (o *ovnKubernetes) change(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
}

// plugged is a claim whose second step joins a network of OVN.
func plugged(t *testing.T, o *ovnKubernetes, config ...string) *given {
	t.Helper()
	g := newGiven(t)
	g.Attachments, g.Addresses = o, &allocator{}
	for i, c := range config {
		g.topology.Spec.Steps[i].Type = "ovn-k8s-cni-overlay"
		g.topology.Spec.Steps[i].Config = &runtime.RawExtension{Raw: []byte(`{"topology":"layer2",` + c + `}`)}
	}
	return g
}

const blueNetwork, greenNetwork = `"netAttachDefName":"default/blue"`, `"netAttachDefName":"default/green"`

// TestPlug holds that a claim is given the ports that ovn-kubernetes has made for its pod, waits for them, and
// has them in its record.
func TestPlug(t *testing.T) {
	inBubble(t, "it waits", func(t *testing.T) {
		o := &ovnKubernetes{away: true, ports: map[string]error{"pod-p1 default/blue": nil}}
		g := plugged(t, o, blueNetwork, greenNetwork)
		rc := allocated("c1", "p1", "0", "1")
		go func() {
			time.Sleep(5 * time.Second)
			o.change(func() { o.away = false })
			time.Sleep(5 * time.Second)
			o.change(func() { o.ports["pod-p1 default/green"] = nil })
		}()
		began := time.Now()
		if _, err := g.prepare(rc); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 10*time.Second || took > 12*time.Second {
			t.Errorf("took %s", took)
		}
		e, _, err := g.store.Get("c1")
		if err != nil {
			t.Fatal(err)
		}
		sandboxes, err := e.Sandboxes("s", "/run/netns/s")
		if err != nil {
			t.Fatal(err)
		}
		for step, want := range map[string]string{"vf0": "ns pod-p1 default/blue", "vf1": "ns pod-p1 default/green"} {
			if given := sandboxes[0].Given[step]; given.Port == nil || given.Port.Name != want || given.Device == "" || fmt.Sprint(given.Addresses) != "[172.31.0.5/24]" {
				t.Errorf("%s is given %+v", step, given)
			}
		}
	})
	for _, c := range []struct {
		name   string
		change func(o *ovnKubernetes)
		config []string
		kind   fault.Kind
		text   string
		waits  time.Duration
	}{
		{"never made", nil, []string{`"netAttachDefName":"default/red"`}, fault.NotReady, `NetworkTopology "pair" step "vf0": not made yet`, patience},
		{"refused", func(o *ovnKubernetes) {
			o.ports["pod-p9 default/blue"] = fault.New(fault.Invalid, errors.New("contradicts"))
		}, []string{blueNetwork}, fault.Invalid, "contradicts", 0},
		{"no attachment", nil, []string{`"name":"blue"`}, fault.Invalid, `step "vf0": netAttachDefName: is missing`, 0},
		{"twice", nil, []string{blueNetwork, blueNetwork}, fault.Invalid, `"default/blue" is also named by step "vf0"`, 0},
		{"two allocators", nil, []string{`"ipam":{"type":"pool","pool":"blue"},` + blueNetwork}, fault.Invalid, "ipam: has no effect", 0},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			o := &ovnKubernetes{ports: map[string]error{"pod-p9 default/blue": nil}}
			if c.change != nil {
				c.change(o)
			}
			g := plugged(t, o, c.config...)
			began := time.Now()
			g.refused(allocated("c9", "p9", "0", "1"), c.kind, c.text)
			if took := time.Since(began); took < c.waits || took > c.waits+2*time.Second {
				t.Errorf("took %s, want %s", took, c.waits)
			}
		})
	}
}

// TestPlugWithoutOVNKubernetes holds that nothing is searched for where plumbline makes the ports itself.
func TestPlugWithoutOVNKubernetes(t *testing.T) {
	g := plugged(t, &ovnKubernetes{absent: true}, blueNetwork)
	if _, err := g.prepare(allocated("c1", "p1", "0", "1")); err != nil {
		t.Fatal(err)
	}
	if e, _, _ := g.store.Get("c1"); e.Topologies[0].Given.Plugged() {
		t.Errorf("recorded %+v", e.Topologies[0].Given)
	}
}

// TestPlugWithoutDatabases holds that nothing is recorded while the agent has no databases of OVN: the claim would
// keep no port when it has.
func TestPlugWithoutDatabases(t *testing.T) {
	inBubble(t, "waits", func(t *testing.T) {
		g := plugged(t, nil, blueNetwork)
		g.Attachments = nil
		g.refused(allocated("c9", "p9", "0", "1"), fault.NotReady, "set agent.ovn.enabled in the chart's values")
	})
}

// TestPlugPool holds that a port without addresses has those of a pool.
func TestPlugPool(t *testing.T) {
	g := plugged(t, &ovnKubernetes{ports: map[string]error{"pod-p1 default/blue": nil}, bare: true}, `"ipam":{"type":"pool","pool":"blue"},`+blueNetwork)
	if _, err := g.prepare(allocated("c1", "p1", "0", "1")); err != nil {
		t.Fatal(err)
	}
	e, _, _ := g.store.Get("c1")
	if got := e.Topologies[0].Given["vf0"]; got.Port == nil || fmt.Sprint(got.Addresses) != "[192.0.2.1/24]" {
		t.Errorf("recorded %+v", got)
	}
}

// TestPlugOnce holds that a pod's port has one interface: a second claim of the pod for it is refused. A claim that
// outlives its pod has the port of the next one.
func TestPlugOnce(t *testing.T) {
	o := &ovnKubernetes{ports: map[string]error{"pod-p1 default/blue": nil, "pod-p2 default/blue": nil}}
	g := plugged(t, o, blueNetwork)
	first := allocated("c1", "p1", "0", "1")
	if _, err := g.prepare(first); err != nil {
		t.Fatal(err)
	}
	e, _, _ := g.store.Get("c1")
	e.Set(claims.Sandbox{ID: "s", PodUID: "p1", Phase: claims.Attached})
	if err := g.store.PutSandboxes(e); err != nil {
		t.Fatal(err)
	}
	inBubble(t, "a second claim", func(t *testing.T) {
		second := allocated("c2", "p1", "2")
		config := &second.Status.Allocation.Devices.Config[0].Opaque.Parameters
		config.Raw = []byte(strings.Replace(string(config.Raw), "pair", "other", 1))
		g.t, g.topology = t, g.topology.DeepCopy()
		g.topology.Name, g.topology.Spec.Steps = "other", g.topology.Spec.Steps[:1]
		g.topology.Spec.Steps[0].Config.Raw = []byte(`{"ifName":"eth7","topology":"layer2",` + blueNetwork + `}`)
		_, err := g.prepare(second)
		if fault.Of(err) != fault.Conflict || err == nil || !strings.Contains(err.Error(), `the port of pod "pod-p1" on network "default/blue" is still used by another claim`) {
			t.Errorf("said %v", err)
		}
	})
	g.t = t
	e.In[0].Phase = claims.Released
	if err := g.store.PutSandboxes(e); err != nil {
		t.Fatal(err)
	}
	next := first.DeepCopy()
	next.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod-p2", UID: "p2"}}
	if _, err := g.prepare(next); err != nil {
		t.Fatal(err)
	}
	if e, _, _ = g.store.Get("c1"); e.Topologies[0].Given["vf0"].Port.Holder != "p2" {
		t.Errorf("the next pod is given %+v", e.Topologies[0].Given["vf0"].Port)
	}
}

// TestPlugSubnets holds that a step with subnets alone has an address of their pool where plumbline makes the port; and that none is
// taken where ovn-kubernetes has made it, whether the port has addresses or not.
func TestPlugSubnets(t *testing.T) {
	for name, c := range map[string]struct {
		of     *ovnKubernetes
		config string
		taken  string
		given  string
	}{
		"alone":                     {of: &ovnKubernetes{absent: true}, taken: "ovn-default-blue-3cb7b5d9", given: "[192.0.2.1/24]"},
		"alone, with an address":    {of: &ovnKubernetes{absent: true}, config: `,"addresses":["172.31.0.7/24"]`, given: "[]"},
		"ovn-kubernetes":            {of: &ovnKubernetes{ports: map[string]error{"pod-p1 default/blue": nil}}, given: "[172.31.0.5/24]"},
		"ovn-kubernetes gives none": {of: &ovnKubernetes{ports: map[string]error{"pod-p1 default/blue": nil}, bare: true}, given: "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			g := plugged(t, c.of, `"subnets":"172.31.0.0/24",`+blueNetwork+c.config)
			a := &allocator{}
			g.Addresses = a
			rc := allocated("c1", "p1", "0", "1")
			for range 2 {
				if _, err := g.prepare(rc); err != nil {
					t.Fatal(err)
				}
			}
			if taken := strings.Join(a.taken, ","); c.taken == "" && taken != "" || !strings.Contains(taken, c.taken) {
				t.Errorf("taken %q, want %q", taken, c.taken)
			}
			e, _, err := g.store.Get("c1")
			if given := e.Topologies[0].Given["vf0"]; err != nil || fmt.Sprint(given.Addresses) != c.given || given.Pool != c.taken {
				t.Errorf("recorded %+v, %v", given, err)
			}
		})
	}
}
