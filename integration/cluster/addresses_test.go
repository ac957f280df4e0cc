//go:build cluster

package cluster_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
)

// seats is a topology with an address of two pools each. An address of the first can be
// given again at once, one of the second rests for a day.
const seats = `
apiVersion: networking.dra.io/v1alpha1
kind: DeviceExposurePolicy
metadata: {name: hall}
spec:
  selector: {cel: 'device.attributes["dra.networking"].ifName == "enp3s0f0"'}
  exposure: {allowMultipleAllocations: true, supportedCNIPlugins: [{name: macvlan}]}
---
apiVersion: networking.dra.io/v1alpha1
kind: AddressPool
metadata: {name: seats}
spec:
  subnets: [{prefix: 198.51.100.0/28, gateway: 198.51.100.1, last: 198.51.100.4}]
  routes: [{destination: 10.99.0.0/16}]
  quarantineSeconds: 0
---
apiVersion: networking.dra.io/v1alpha1
kind: AddressPool
metadata: {name: coats}
spec:
  subnets: [{prefix: 203.0.113.0/24}, {prefix: "2001:db8:c0a7::/64"}]
  quarantineSeconds: 86400
---
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: seat}
spec:
  claimTemplate: {namespaces: [default]}
  steps:
  - {name: net, type: macvlan, config: {name: seat0, ipam: {type: pool, pool: seats}}}
  - {name: loop, type: dummy, config: {name: coat0, ipam: {type: pool, pool: coats}}}
`

// addressesOf returns the addresses of a link in the sandbox of a pod.
func (b *agentBench) addressesOf(t *testing.T, pod, link string) []netip.Prefix {
	t.Helper()
	var out []netip.Prefix
	for line := range strings.Lines(b.inSandbox(t, pod, "-o address show dev "+link+" scope global")) {
		p, err := netip.ParsePrefix(strings.Fields(line)[3])
		if err != nil {
			t.Fatalf("pod %s: %v", pod, err)
		}
		out = append(out, p)
	}
	return out
}

// inSandbox returns what ip says in the sandbox of a pod, of which the gate is open.
func (b *agentBench) inSandbox(t *testing.T, pod, arguments string) string {
	t.Helper()
	return b.shell(t, `for gate in $(ls /var/run/cdi/dra.networking-gate-* | grep -E '`+b.claims(t, pod)+`'); do
	ip -n "$(basename "$(jq -r '.devices[0].containerEdits.mounts[0].hostPath' "$gate")")" `+arguments+`
done`)
}

// testAddresses gives pods of one topology addresses of pools: each its own, the same after
// the agent was killed, and again to another pod when its pod has ended. A pod for which
// there is none waits, and its event says of which pool.
func (b *agentBench) testAddresses(t *testing.T) {
	b.applied(t, seats)
	kubectl(t, b.Cluster, "", "wait", "--for=condition=Ready", "--timeout=60s", "networktopology/seat", "deviceexposurepolicy/hall")
	kubectl(t, b.Cluster, "", "wait", "--for=condition=Valid", "--timeout=60s", "addresspool/seats", "addresspool/coats")
	b.published(t, "with the shared one", 9)

	seat, coat := map[string]netip.Prefix{}, map[netip.Prefix]string{}
	sit := func(pod string) {
		t.Helper()
		b.ready(t, pod)
		b.has(t, pod, "seat0", "coat0")
		own := b.addressesOf(t, pod, "seat0")
		if len(own) != 1 || own[0].Masked().String() != "198.51.100.0/28" || own[0].Addr().String() == "198.51.100.1" {
			t.Fatalf("pod %s has %v of pool seats", pod, own)
		}
		for other, a := range seat {
			if a == own[0] {
				t.Errorf("pods %s and %s both have %s", pod, other, a)
			}
		}
		seat[pod] = own[0]
		resting := b.addressesOf(t, pod, "coat0")
		if len(resting) != 2 {
			t.Errorf("pod %s has %v of pool coats, want one address of each family", pod, resting)
		}
		for _, a := range resting {
			if other := coat[a]; other != "" {
				t.Errorf("pod %s has %s, which is still to rest after pod %s", pod, a, other)
			}
			coat[a] = pod
		}
	}
	reach := func(from, to string) {
		t.Helper()
		a := seat[to].Addr().String()
		if said := kubectl(t, b.Cluster, "", "exec", from, "--", "/pod", "ping", a); !strings.Contains(said, "answer from "+a) {
			t.Errorf("pod %s does not reach %s at %s: %s", from, to, a, said)
		}
	}
	kept := func(pod string) {
		t.Helper()
		if now := b.addressesOf(t, pod, "seat0"); len(now) != 1 || now[0] != seat[pod] {
			t.Errorf("pod %s had %s and has %v", pod, seat[pod], now)
		}
	}

	for _, pod := range []string{"seat-0", "seat-1"} {
		b.create(t, claimingPod(pod, "seat"))
	}
	sit("seat-0")
	sit("seat-1")
	if route := b.inSandbox(t, "seat-0", "route show 10.99.0.0/16"); !strings.Contains(route, "via 198.51.100.1 dev seat0") {
		t.Errorf("the pool's route in the pod: %q", route)
	}
	reach("seat-0", "seat-1")
	reach("seat-1", "seat-0")
	until(t, "the claim's status has the address", time.Minute, func() bool {
		said := kubectl(t, b.Cluster, "", "get", "resourceclaims", "-o", `jsonpath={range .items[*]}{.status.reservedFor[0].name} {.status.devices[*].networkData.ips}{"\n"}{end}`)
		return strings.Contains(said, fmt.Sprintf(`seat-0 ["%s"]`, seat["seat-0"]))
	})

	// Another process gives a third pod what neither has.
	b.agent(t, "KILL")
	b.create(t, claimingPod("seat-2", "seat"))
	until(t, "the agent runs again", 2*time.Minute, func() bool {
		return strings.TrimSpace(kubectl(t, b.Cluster, "", "-n", cluster.ProductNamespace, "get", "daemonset/plumbline-agent", "-o", "jsonpath={.status.numberUnavailable}")) == ""
	})
	sit("seat-2")
	kept("seat-0")
	kept("seat-1")
	reach("seat-2", "seat-0")

	// There is no fourth.
	kubectl(t, b.Cluster, "", "wait", "--for=condition=Exhausted", "--timeout=60s", "addresspool/seats")
	b.create(t, claimingPod("seat-3", "seat"))
	until(t, "an event says why the pod waits", 3*time.Minute, func() bool {
		said := kubectl(t, b.Cluster, "", "get", "events", "--field-selector=involvedObject.name=seat-3", "-o", `jsonpath={range .items[*]}{.message}{"\n"}{end}`)
		return strings.Contains(said, `step "net": AddressPool "seats": no address is free on this node`) && strings.Contains(said, "of its 3 addresses")
	})
	if phase := b.get(t, "seat-3", ".status.phase"); phase != "Pending" {
		t.Errorf("without an address the pod is %s", phase)
	}
	kubectl(t, b.Cluster, "", "delete", "pod", "seat-1", "--timeout=120s")
	freed := seat["seat-1"]
	delete(seat, "seat-1")
	sit("seat-3")
	if seat["seat-3"] != freed {
		t.Errorf("the last pod has %s, where %s was free", seat["seat-3"], freed)
	}
	reach("seat-3", "seat-0")
	kept("seat-0")
	kept("seat-2")

	// The pool stays until its last address is given back.
	kubectl(t, b.Cluster, "", "delete", "addresspool", "seats", "--wait=false")
	kubectl(t, b.Cluster, "", "delete", "pod", "seat-0", "seat-2", "seat-3", "--timeout=120s")
	kubectl(t, b.Cluster, "", "wait", "--for=delete", "--timeout=120s", "addresspool/seats")
	if left := kubectl(t, b.Cluster, "", "get", "addressleases", "-o", "name"); strings.Contains(left, "/seats-") {
		t.Errorf("leases of the pool that is gone: %s", left)
	}
	kubectl(t, b.Cluster, "", "delete", "networktopology/seat", "deviceexposurepolicy/hall", "--timeout=60s")
	b.published(t, "no shared one", 8)
	b.nothingLeft(t)
}
