//go:build cluster

package controlplane_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

const (
	// sharePolicy shares one PF of the fixture, of which functions are offered, beside
	// itself as a whole.
	sharePolicy = `{selector: {cel: 'device.attributes["dra.networking"].ifName == "enp3s0f1"'}, exposure: {
  allowMultipleAllocations: true, deviceNameSuffix: -x, besideFunctions: true, capacity: {
    shares: {value: "3", requestPolicy: {default: "1", validRange: {min: "1", max: "1"}}},
    bandwidth: {value: 10G, requestPolicy: {default: 1G, validRange: {min: 1G, max: 10G, step: 1G}}}}}}`
	// sharers are topologies of each kind. The whole is chosen by what the shared form has, too.
	sharers = `
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: stacked}
spec: {steps: [{name: net, type: macvlan}]}
---
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: twice}
spec: {steps: [{name: a, type: ipvlan, config: {name: a}}, {name: b, type: ipvlan, config: {name: b}}]}
---
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: redundant}
spec:
  claimTemplate: {namespaces: [default]}
  steps:
    - {name: a, type: macvlan, config: {name: a}}
    - {name: b, type: macvlan, config: {name: b}}
    - {name: bond, type: bond, dependOn: [a, b], config: {mode: active-backup}}
---
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: other-master}
spec: {steps: [{name: net, type: macvlan, config: {master: enp9s9}}]}
---
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: whole}
spec: {steps: [{name: net, type: host-device, selector: {cel: 'device.attributes["dra.networking"].ifName == "enp3s0f1"'}}]}
---
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: function}
spec: {steps: [{name: net, type: sriov, selector: {cel: 'device.attributes["dra.networking"].pfName == "enp3s0f1"'}}]}
`
	noRoom = "cannot allocate all claims"
)

// sharedName is the device that is shared.
const sharedName = "pci-0000-02-00-0-x"

// results waits until a pod has a node, and returns what was allocated to it.
func (b *bench) results(t *testing.T, pod string) []resourceapi.DeviceRequestAllocationResult {
	t.Helper()
	claims := b.placed(t, pod)
	if len(claims) != 1 {
		t.Fatalf("pod %q has %d claims", pod, len(claims))
	}
	return claims[0].Status.Allocation.Devices.Results
}

// shared lets the scheduler give away a device in all its forms, as the agent's own code
// publishes them.
func (b *bench) shared(t *testing.T) {
	if err := b.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "shared"}}); err != nil {
		t.Fatal(err)
	}
	b.speakFor(t)
	m := &machine{bench: b, name: "shared", state: t.TempDir()}
	m.start(t)
	defer func() { m.stop() }()
	functions := []string{"01-10-0", "02-10-0", "02-10-2", "02-10-4", "02-10-6"}
	m.offered(t, "without policies", functions...)
	b.mustKubectl(t, policy("share", sharePolicy), "create", "--validate=strict", "-f", "-")
	forms := append([]string{"01-10-0", "02-00-0", "02-00-0-x"}, functions[1:]...)
	m.offered(t, "in all forms", forms...)
	b.verdict(t, "share", "Succeeded", "decides for 1 device on 1 node; 1 offered")
	b.mustKubectl(t, sharers, "create", "-f", "-")
	for _, name := range []string{"stacked", "twice", "redundant", "other-master", "whole", "function"} {
		b.ready(t, name, metav1.ConditionTrue)
	}
	limit := func(topology, step string) string {
		return "deviceclass.resource.kubernetes.io/" + topology + "-" + step + ": 1"
	}

	t.Run("shares, and nothing else beside them", func(t *testing.T) {
		seen := map[string]bool{}
		for i := range 3 {
			name := fmt.Sprintf("share-%d", i)
			b.asking(t, name, limit("stacked", "net"))
			for _, r := range b.results(t, name) {
				if r.Device != sharedName || r.ShareID == nil || seen[string(*r.ShareID)] {
					t.Errorf("pod %q has %s, share %v", name, r.Device, r.ShareID)
					continue
				}
				seen[string(*r.ShareID)] = true
				if used := r.ConsumedCapacity["shares"]; used.Value() != 1 {
					t.Errorf("pod %q consumes %v", name, r.ConsumedCapacity)
				}
			}
		}
		b.asking(t, "share-3", limit("stacked", "net"))
		b.unplaced(t, "share-3", noRoom)
		b.asking(t, "whole-beside-shares", limit("whole", "net"))
		b.unplaced(t, "whole-beside-shares", noRoom)
		b.asking(t, "function-beside-shares", limit("function", "net"))
		b.placed(t, "function-beside-shares")
	})
	t.Run("the whole, and nothing else beside it", func(t *testing.T) {
		b.asking(t, "whole", limit("whole", "net"))
		for _, r := range b.results(t, "whole") {
			if r.Device != strings.TrimSuffix(sharedName, "-x") || r.ShareID != nil {
				t.Errorf("the whole is %s, share %v", r.Device, r.ShareID)
			}
		}
		b.asking(t, "share-beside-whole", limit("stacked", "net"))
		b.unplaced(t, "share-beside-whole", noRoom)
		b.asking(t, "function-beside-whole", limit("function", "net"))
		b.unplaced(t, "function-beside-whole", noRoom)
	})
	t.Run("the whole waits for functions", func(t *testing.T) {
		b.asking(t, "function", limit("function", "net"))
		b.placed(t, "function")
		b.asking(t, "whole-beside-function", limit("whole", "net"))
		b.unplaced(t, "whole-beside-function", noRoom)
	})
	t.Run("two shares of one device", func(t *testing.T) {
		b.asking(t, "twice", limit("twice", "a")+", "+limit("twice", "b"))
		r := b.results(t, "twice")
		if len(r) != 2 || r[0].Device != sharedName || r[1].Device != sharedName || *r[0].ShareID == *r[1].ShareID {
			t.Errorf("allocated %+v", r)
		}
		// As ports of a bond they would fail together: the topology's own template says so.
		b.pod(t, claiming("redundant", "redundant"))
		b.unplaced(t, "redundant", noRoom)
		b.asking(t, "other-master", limit("other-master", "net"))
		b.unplaced(t, "other-master", noRoom)
	})
	t.Run("bandwidth", func(t *testing.T) {
		for _, want := range []string{"3G", "6G", "2G"} {
			name := "gets-" + strings.ToLower(want)
			b.pod(t, bandwidth(name, "stacked-net", want)+claiming(name, name))
			if want == "2G" { // 9 of 10 are taken
				b.unplaced(t, name, noRoom)
				continue
			}
			for _, r := range b.results(t, name) {
				if used := r.ConsumedCapacity["bandwidth"]; used.Cmp(resource.MustParse(want)) != 0 { // 1.36 writes 6G as 5859375Ki
					t.Errorf("pod %q consumes %v", name, r.ConsumedCapacity)
				}
			}
		}
	})
	t.Run("what is in use stays", func(t *testing.T) {
		b.asking(t, "using", limit("stacked", "net"))
		b.results(t, "using")
		m.use(sharedName)
		b.mustKubectl(t, "", "delete", "deviceexposurepolicy", "share")
		m.offered(t, "withdrawn in use", append([]string{"01-10-0", "02-00-0-x"}, functions[1:]...)...)
		b.mustKubectl(t, policy("share", "{selector: {cel: 'device.attributes[\"dra.networking\"].ifName == \"enp3s0f1\"'}, exposure: {besideFunctions: true}}"), "create", "-f", "-")
		m.offered(t, "only as a whole, while shares are in use", forms...)
		b.asking(t, "whole-beside-old-shares", limit("whole", "net"))
		b.unplaced(t, "whole-beside-old-shares", noRoom)
		m.use()
		m.offered(t, "shares released", append([]string{"01-10-0", "02-00-0"}, functions[1:]...)...)
	})
	b.mustKubectl(t, "", "delete", "deviceexposurepolicy", "share")
	t.Run("functions as shares, with bandwidth", func(t *testing.T) {
		b.mustKubectl(t, policy("pool", poolPolicy), "create", "--validate=strict", "-f", "-")
		m.offered(t, "the PF instead of its functions", "01-10-0", "02-00-0-shared")
		b.mustKubectl(t, `{apiVersion: networking.dra.io/v1alpha1, kind: NetworkTopology, metadata: {name: part}, spec: {steps: [{name: net, type: sriov, selector: {cel: 'device.attributes["dra.networking"].ifName == "enp3s0f1"'}}]}}`, "create", "-f", "-")
		b.ready(t, "part", metav1.ConditionTrue)
		for _, want := range []string{"3G", "6G", "2G"} {
			name := "part-" + strings.ToLower(want)
			b.pod(t, bandwidth(name, "part-net", want)+claiming(name, name))
			if want == "2G" { // 9 of 10 are taken, and two functions of four
				b.unplaced(t, name, noRoom)
				continue
			}
			for _, r := range b.results(t, name) {
				used, one := r.ConsumedCapacity["bandwidth"], r.ConsumedCapacity["vfs"]
				if used.Cmp(resource.MustParse(want)) != 0 || one.Value() != 1 || r.ShareID == nil {
					t.Errorf("pod %q has %+v", name, r)
				}
			}
		}
		b.mustKubectl(t, "", "delete", "deviceexposurepolicy", "pool")
	})
	// A claim's request is only checked against the range of the device.
	t.Run("less than nothing", func(t *testing.T) {
		m.offered(t, "functions", functions...)
		b.mustKubectl(t, policy("pool", strings.Replace(poolPolicy, ", validRange: {min: 1G, max: 10G, step: 1G}", "", 1)), "create", "-f", "-")
		m.offered(t, "a policy without a range", "01-10-0", "02-00-0-shared")
		for _, want := range []string{"-5G", "0"} {
			name := "part-of" + strings.ToLower(want)
			b.pod(t, bandwidth(name, "part-net", want)+claiming(name, name))
			for _, r := range b.results(t, name) {
				if used := r.ConsumedCapacity["bandwidth"]; used.Value() != 1 {
					t.Errorf("pod %q asks for %s, and has %v", name, want, r.ConsumedCapacity)
				}
			}
		}
		b.mustKubectl(t, "", "delete", "deviceexposurepolicy", "pool")
	})
}

// uplinked has a step that shares an interface of the host, and one that shares a bridge.
const uplinked = `{apiVersion: networking.dra.io/v1alpha1, kind: NetworkTopology, metadata: {name: uplinked}, spec: {steps: [
  {name: net, type: macvlan, config: {master: enp3s0f0}}, {name: hall, type: bridge, config: {bridge: br0}}]}}`

// unshared holds that the condition of a topology says that its devices are not shared, with a policy that can be
// pasted, and follows the policies.
func (b *bench) unshared(t *testing.T) {
	b.mustKubectl(t, uplinked, "create", "-f", "-")
	says := func(what string, status metav1.ConditionStatus, words ...string) string {
		t.Helper()
		var message string
		b.eventually(t, what, func() error {
			c := meta.FindStatusCondition(b.topology(t, "uplinked").Status.Conditions, v1alpha1.ConditionShared)
			if c == nil || c.Status != status {
				return fmt.Errorf("condition %+v", c)
			}
			for _, w := range words {
				if w, without := strings.CutPrefix(w, "no "); strings.Contains(c.Message, w) == without {
					return fmt.Errorf("condition %+v, want %q", c, w)
				}
			}
			message = c.Message
			return nil
		})
		return message
	}
	message := says("no policy", metav1.ConditionFalse, `step "net": requests a share of "enp3s0f0" of the host`, `step "hall": requests a share of "br0"`)
	b.event(t, "uplinked", "NoDeviceExposurePolicy", `step "net": requests a share of "enp3s0f0"`)
	b.ready(t, "uplinked", metav1.ConditionTrue)
	lines := strings.Split(message, "\n")
	if len(lines) != 2 {
		t.Fatalf("message\n%s", message)
	}
	pasted := func(line string) string {
		return line[strings.Index(line, "{apiVersion") : strings.LastIndex(line, "}")+1]
	}
	b.mustKubectl(t, pasted(lines[0]), "create", "--validate=strict", "-f", "-")
	says("one policy", metav1.ConditionFalse, `step "hall"`, `no step "net"`)
	b.mustKubectl(t, pasted(lines[1]), "create", "--validate=strict", "-f", "-")
	says("both policies", metav1.ConditionTrue)
	b.still(t, b.topology(t, "uplinked"))
	b.mustKubectl(t, "", "patch", "devpol", "share-for-net", "--type=merge", "-p", `{"spec":{"exposure":{"supportedCNIPlugins":[{"name":"ipvlan"}]}}}`)
	says("edited for other steps", metav1.ConditionFalse, `step "net"`)
	b.mustKubectl(t, "", "patch", "devpol", "share-for-net", "--type=merge", "-p", `{"spec":{"exposure":{"supportedCNIPlugins":null}}}`)
	says("edited back", metav1.ConditionTrue)
	b.mustKubectl(t, "", "delete", "devpol", "share-for-hall")
	says("deleted", metav1.ConditionFalse, `step "hall"`)
	b.mustKubectl(t, strings.Replace(uplinked, `{name: net, type: macvlan, config: {master: enp3s0f0}}, {name: hall, type: bridge, config: {bridge: br0}}`, `{name: net, type: host-device}`, 1), "apply", "-f", "-")
	b.eventually(t, "no step has a share", func() error {
		o := b.topology(t, "uplinked")
		if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionShared); c != nil || o.Status.ObservedGeneration != o.Generation {
			return fmt.Errorf("status %+v", o.Status)
		}
		return nil
	})
	b.mustKubectl(t, "", "delete", "devpol", "share-for-net")
	b.mustKubectl(t, "", "delete", "nettopo", "uplinked", "--timeout=30s")
}

// warnedOfShares holds the warnings of admission about them.
func (b *bench) warnedOfShares(t *testing.T) {
	said := func() string {
		out, err := b.Kubectl(t.Context(), strings.NewReader(uplinked), "create", "--dry-run=server", "--warnings-as-errors", "-f", "-")
		if err != nil {
			return err.Error()
		}
		return string(out)
	}
	for _, want := range []string{`Warning: NetworkTopology "uplinked", step "net": requests a share of "enp3s0f0" of the host: pods stay Pending without a DeviceExposurePolicy that shares it, such as {`, `step "hall"`} {
		if text := said(); !strings.Contains(text, want) {
			t.Errorf("said\n%s\nwant %s", text, want)
		}
	}
	b.mustKubectl(t, policy("all", "{exposure: {allowMultipleAllocations: true}}"), "create", "-f", "-")
	b.eventually(t, "the webhook knows the policy", func() error {
		if text := said(); strings.Contains(text, "requests a share") {
			return errors.New(text)
		}
		return nil
	})
	b.mustKubectl(t, "", "delete", "devpol", "all")
}

// addressed lets the scheduler choose the master of each interface by the network that the host
// has an address in, as multi-nic-cni's masterNets do.
func (b *bench) addressed(t *testing.T) {
	if err := b.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "addressed"}}); err != nil {
		t.Fatal(err)
	}
	b.speakFor(t)
	// The first device in order is the one of the second network.
	m := &machine{bench: b, name: "addressed", state: t.TempDir(), nets: map[string][]netip.Prefix{
		"enp3s0f0": {netip.MustParsePrefix("10.0.2.0/24")},
		"enp3s0f1": {netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("10.0.1.0/24")},
	}}
	m.start(t)
	defer func() { m.stop() }()
	b.mustKubectl(t, policy("cards", `{selector: {cel: 'device.attributes["dra.networking"].ifName.startsWith("enp3s0f") && device.attributes["dra.networking"].type == "pf"'}, exposure: {
  allowMultipleAllocations: true, besideFunctions: true, capacity: {shares: {value: "8", requestPolicy: {default: "1", validRange: {min: "1", max: "1"}}}}}}`), "create", "--validate=strict", "-f", "-")
	b.mustKubectl(t, `
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: ai}
spec:
  claimTemplate: {namespaces: [default]}
  steps: [{name: net, type: ipvlan, config: {masterNets: [10.0.1.0/24, 10.0.2.0/24], mode: l2}}]
---
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: ai-elsewhere}
spec:
  claimTemplate: {namespaces: [default]}
  steps: [{name: net, type: ipvlan, config: {masterNets: [10.0.1.0/24, 10.0.3.0/24], mode: l2}}]
`, "create", "-f", "-")
	for _, name := range []string{"ai", "ai-elsewhere"} {
		b.ready(t, name, metav1.ConditionTrue)
		b.pod(t, claiming(name, name))
	}
	got := map[string]string{}
	for _, r := range b.results(t, "ai") {
		got[r.Request] = r.Device
	}
	if want := map[string]string{"net-0": "pci-0000-02-00-0-shared", "net-1": "pci-0000-01-00-0-shared"}; !maps.Equal(got, want) {
		t.Errorf("allocated %v, want %v", got, want)
	}
	b.unplaced(t, "ai-elsewhere", noRoom)
	b.mustKubectl(t, "", "delete", "deviceexposurepolicy", "cards")
}

// poolPolicy gives the functions of a PF away as shares.
const poolPolicy = `{selector: {cel: 'device.attributes["dra.networking"].ifName == "enp3s0f1"'}, exposure: {
  allowMultipleAllocations: true, supportedCNIPlugins: [{name: sriov}], capacity: {
    bandwidth: {value: 10G, requestPolicy: {default: 1G, validRange: {min: 1G, max: 10G, step: 1G}}}}}}`

// bandwidth is a template of a claim for a device of a class and so much of its bandwidth.
func bandwidth(name, class, amount string) string {
	return fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: %s, namespace: default}
spec: {spec: {devices: {requests: [{name: net, exactly: {deviceClassName: %s, capacity: {requests: {bandwidth: %s}}}}]}}}
---`, name, class, amount)
}

// claiming is a pod with a claim of a template.
func claiming(name, template string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  tolerations: [{operator: Exists}]
  resourceClaims: [{name: net, resourceClaimTemplateName: %s}]
  containers: [{name: c, image: %s, resources: {requests: {cpu: 1m}, claims: [{name: net}]}}]
`, name, template, cluster.PodImage)
}
