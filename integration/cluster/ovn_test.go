//go:build cluster

package cluster_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
)

// startOVN starts Debian's Open vSwitch and OVN on a node that is a chassis by itself, with a bridge
// for the physical network localnet1.
const startOVN = `
/usr/share/openvswitch/scripts/ovs-ctl --system-id=node-1 start
/usr/share/ovn/scripts/ovn-ctl start_northd
ovs-vsctl set Open_vSwitch . external_ids:ovn-remote=unix:/var/run/ovn/ovnsb_db.sock \
	external_ids:ovn-encap-type=geneve external_ids:ovn-encap-ip=127.0.0.1
ovs-vsctl --may-exist add-br br-phys -- set Open_vSwitch . external_ids:ovn-bridge-mappings=localnet1:br-phys
/usr/share/ovn/scripts/ovn-ctl start_controller
`

// localnet is a shared uplink for a localnet network, with an address of a pool and a name that the
// emulated card has.
const localnet = `
apiVersion: networking.dra.io/v1alpha1
kind: DeviceExposurePolicy
metadata: {name: localnet}
spec:
  selector: {cel: 'device.attributes["dra.networking"].ifName == "enp3s0f1"'}
  action: expose
  exposure:
    deviceNameSuffix: "-localnet"
    allowMultipleAllocations: true
    capacity: {connections: {value: "128", requestPolicy: {default: "1"}}}
    supportedCNIPlugins:
    - {name: ovn-k8s-cni-overlay, exclusive: false, consumePerAllocation: {connections: 1}}
    additionalAttributes: {"dra.networking/physicalNetworkName": "localnet1"}
---
apiVersion: networking.dra.io/v1alpha1
kind: AddressPool
metadata: {name: blue}
spec:
  subnets: [{prefix: 192.168.100.0/24, gateway: 192.168.100.1}]
  quarantineSeconds: 0
---
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: ovnk-localnet}
spec:
  claimTemplate: {namespaces: [default]}
  steps:
  - name: localnet-port
    type: ovn-k8s-cni-overlay
    selector:
      cel: >-
        device.driver == "dra.networking" &&
        device.attributes["dra.networking"].physicalNetworkName == "localnet1"
    config:
      topology: localnet
      role: secondary
      physicalNetworkName: "localnet1"
      netAttachDefName: "default/localnet-blue"
      subnets: "192.168.100.0/24"
      vlanID: 200
      ipam: {type: pool, pool: blue}
`

const markedBlue = `
apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: blue, namespace: default}
spec:
  priority: 10
  netAttachRefs: [{kind: NetworkTopology, name: ovnk-localnet}]
  egress: [{dscp: %d}]
`

// toPeers marks what pods send to those with the label peer on the same network.
const toPeers = `
apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: to-peers, namespace: default}
spec:
  priority: 11
  netAttachRefs: [{kind: NetworkTopology, name: %s}]
  egress: [{dscp: 1, classifier: {to: [{podSelector: {matchLabels: {peer: "yes"}}}]}}]
`

// TestOVN attaches pods of a cluster to networks of OVN.
func TestOVN(t *testing.T) {
	b := newAgentBenchOf(t, cluster.NodeOptions{Packages: []string{"ovn"}, Start: startOVN}, thisRelease, "agent.ovn.enabled=true", "networkQoS.enabled=true")
	b.applied(t, localnet)
	t.Run("alone", b.testOVN)
	t.Run("beside ovn-kubernetes", b.testBesideOVNKubernetes)
}

// testOVN holds that pods are attached to a network of OVN by claims: they reach one another, have the rules of a
// NetworkQoS in the database, and keep both while parts of OVN and the agent fail.
func (b *agentBench) testOVN(t *testing.T) {
	kubectl(t, b.Cluster, "", "wait", "--for=condition=Ready", "--timeout=60s", "networktopology/ovnk-localnet", "deviceexposurepolicy/localnet")
	b.applied(t, fmt.Sprintf(markedBlue, 46))
	ports := func() []string {
		t.Helper()
		return strings.Fields(b.shell(t, `ovn-nbctl --bare --columns=name find Logical_Switch_Port external_ids:dra.networking/owner=plumbline type!=localnet`))
	}
	rules := func() string {
		t.Helper()
		return strings.Join(strings.Fields(b.shell(t, `ovn-nbctl --bare --columns=action find QoS external_ids:dra.networking/owner=plumbline`)), " ")
	}
	address := func(pod string) string {
		t.Helper()
		own := b.addressesOf(t, pod, "net1")
		if len(own) != 1 || own[0].Masked().String() != "192.168.100.0/24" {
			t.Fatalf("pod %s has %v", pod, own)
		}
		return own[0].Addr().String()
	}
	reach := func(from, to string) {
		t.Helper()
		until(t, from+" reaches "+to, time.Minute, func() bool {
			said, err := b.Kubectl(t.Context(), nil, "exec", from, "--", "/pod", "ping", address(to))
			return err == nil && strings.Contains(said, "answer from")
		})
	}
	for _, pod := range []string{"one", "two"} {
		b.create(t, claimingPod(pod, "ovnk-localnet"))
	}
	for _, pod := range []string{"one", "two"} {
		b.ready(t, pod)
		b.startedOnceWith(t, pod, "net1")
	}
	reach("one", "two")
	if have := ports(); len(have) != 2 {
		t.Errorf("ports of OVN: %q, want two", have)
	}
	if have := rules(); have != "dscp=46 dscp=46" {
		t.Errorf("rules of OVN: %q", have)
	}
	b.applied(t, fmt.Sprintf(markedBlue, 10))
	until(t, "an edit reaches the database", time.Minute, func() bool { return rules() == "dscp=10 dscp=10" })
	until(t, "the object says that OVN enforces it", 2*time.Minute, func() bool {
		return strings.Contains(kubectl(t, b.Cluster, "", "get", "networkqos", "blue", "-o", "jsonpath={.status}"), "OVN")
	})

	marked := regexp.MustCompile(`plumbline_networkqos_marked_packets_total\{backend="OVN",.*pod="one",.*\} [1-9]`)
	until(t, "the agent shows what OVN has marked", time.Minute, func() bool {
		reach("one", "two")
		return marked.MatchString(b.metrics(t))
	})

	t.Log("destinations that are pods")
	b.applied(t, fmt.Sprintf(toPeers, "ovnk-localnet"))
	kubectl(t, b.Cluster, "", "label", "pod", "two", "peer=yes")
	until(t, "both ports have a rule for the address of the pod", time.Minute, func() bool {
		return strings.Count(b.shell(t, `ovn-nbctl --bare --columns=match find QoS action:dscp=1`), "ip4.dst == "+address("two")) == 2
	})
	reach("one", "two")
	kubectl(t, b.Cluster, "", "label", "pod", "two", "peer-")
	until(t, "no rule is left without a destination", time.Minute, func() bool { return rules() == "dscp=10 dscp=10" })
	kubectl(t, b.Cluster, "", "delete", "networkqos", "to-peers")

	t.Log("a port and its rule are deleted by another")
	before := ports()
	b.shell(t, "ovn-nbctl lsp-del "+before[0])
	until(t, "the port is there again", 3*time.Minute, func() bool {
		now := ports()
		return len(now) == 2 && slices.Contains(now, before[0]) && rules() == "dscp=10 dscp=10"
	})
	reach("two", "one")

	t.Log("the Northbound database is away")
	b.shell(t, "ovn-appctl -t /var/run/ovn/ovnnb_db.ctl exit")
	b.create(t, claimingPod("late", "ovnk-localnet"))
	until(t, "an event says what the pod waits for", 4*time.Minute, func() bool {
		said := kubectl(t, b.Cluster, "", "get", "events", "--field-selector=involvedObject.name=late", "-o", `jsonpath={range .items[*]}{.message}{"\n"}{end}`)
		return strings.Contains(said, "ovnnb_db.sock") || strings.Contains(said, "Northbound")
	})
	if started := b.get(t, "late", ".status.containerStatuses[0].state.running"); started != "" {
		t.Errorf("a pod without its network runs: %s", started)
	}
	reach("one", "two")
	b.agent(t, "KILL")
	b.shell(t, "/usr/share/ovn/scripts/ovn-ctl start_northd")
	b.ready(t, "late")
	b.has(t, "late", "net1") // while no agent ran, the kubelet tried to start its container, in vain
	reach("late", "one")
	for _, pod := range []string{"one", "two"} {
		if n := b.get(t, pod, ".status.containerStatuses[0].restartCount"); n != "0" {
			t.Errorf("pod %s was restarted %s times", pod, n)
		}
	}

	b.drop(t, "one", "two", "late")
	until(t, "nothing is left in the databases", 2*time.Minute, func() bool {
		return b.shell(t, `ovn-nbctl --bare --columns=name list Logical_Switch; ovn-nbctl --bare --columns=_uuid list QoS; ovs-vsctl list-ports br-int | grep -v '^patch' || true`) == ""
	})
}

// plugged is a localnet network of ovn-kubernetes, on the uplink of localnet, and the rule that marks what is sent on it.
const plugged = `
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: ovnk-plugged}
spec:
  claimTemplate: {namespaces: [default]}
  steps:
  - name: net
    type: ovn-k8s-cni-overlay
    selector: {cel: 'device.attributes["dra.networking"].physicalNetworkName == "localnet1"'}
    config: {topology: localnet, role: secondary, physicalNetworkName: localnet1, netAttachDefName: default/local-blue, vlanID: 200}
---
apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: plugged, namespace: default}
spec:
  priority: 10
  netAttachRefs: [{kind: NetworkTopology, name: ovnk-plugged}]
  egress: [{dscp: 46}]
`

// attachOVNKubernetes writes what ovn-kubernetes has in the databases of a node that it has attached, with one network.
const attachOVNKubernetes = `
ovs-vsctl add-port br-int ovn-k8s-mp0 -- set Interface ovn-k8s-mp0 type=internal external_ids:iface-id=k8s-node-1
ovn-nbctl ls-add local.blue_ovn_localnet_switch -- set Logical_Switch local.blue_ovn_localnet_switch \
	external_ids:k8s.ovn.org/network=local-blue external_ids:k8s.ovn.org/topology=localnet external_ids:k8s.ovn.org/role=secondary \
	-- lsp-add local.blue_ovn_localnet_switch local.blue_ovn_localnet_port -- lsp-set-addresses local.blue_ovn_localnet_port unknown \
	-- lsp-set-type local.blue_ovn_localnet_port localnet -- set Logical_Switch_Port local.blue_ovn_localnet_port options:network_name=localnet1 tag_request=200
`

// testBesideOVNKubernetes holds that pods are bound to the ports that ovn-kubernetes makes for them, have what it
// gives, and that its rows are not changed. The test writes what ovn-kubernetes does, once a pod is on the node.
func (b *agentBench) testBesideOVNKubernetes(t *testing.T) {
	b.shell(t, attachOVNKubernetes)
	b.applied(t, plugged)
	kubectl(t, b.Cluster, "", "wait", "--for=condition=Ready", "--timeout=60s", "networktopology/ovnk-plugged")
	rows := func() string {
		t.Helper()
		return b.shell(t, `ovn-nbctl --columns=_uuid,name,ports,qos_rules,external_ids list Logical_Switch
			ovn-nbctl --columns=_uuid,name,type,options,addresses,port_security,external_ids list Logical_Switch_Port; ovn-nbctl list QoS`)
	}
	pods := map[string]string{"worker-a": "192.168.100.5", "worker-b": "192.168.100.6"}
	for _, pod := range slices.Sorted(maps.Keys(pods)) {
		b.create(t, strings.Replace(claimingPod(pod, "ovnk-plugged"), "namespace: default}", "namespace: default, annotations: {k8s.v1.cni.cncf.io/networks: default/local-blue}}", 1))
		until(t, pod+" is on the node", time.Minute, func() bool { return b.get(t, pod, ".spec.nodeName") != "" })
		mac := "0a:58:c0:a8:64:0" + pods[pod][len(pods[pod])-1:]
		b.shell(t, fmt.Sprintf(`port=default.local.blue_default_%[1]s
			ovn-nbctl lsp-add local.blue_ovn_localnet_switch $port -- lsp-set-addresses $port "%[2]s %[3]s" -- lsp-set-port-security $port "%[2]s %[3]s" \
				-- set Logical_Switch_Port $port options:iface-id-ver=%[4]s options:requested-chassis=node-1 external_ids:pod=true external_ids:namespace=default \
				external_ids:k8s.ovn.org/network=local-blue 'external_ids:k8s.ovn.org/nad="default/local-blue"' external_ids:k8s.ovn.org/topology=localnet`,
			pod, mac, pods[pod], b.get(t, pod, ".metadata.uid")))
		networks := fmt.Sprintf(`{"metadata":{"annotations":{"k8s.ovn.org/pod-networks":%q}}}`, fmt.Sprintf(`{"default/local-blue":{"ip_addresses":["%s/24"],"mac_address":"%s","role":"secondary"}}`, pods[pod], mac))
		if _, err := b.Kubectl(t.Context(), nil, "patch", "pod", pod, "--type=merge", "-p", networks); err == nil || !strings.Contains(err.Error(), "may only be written by ovn-kubernetes") {
			t.Errorf("a user writes the addresses of a pod: %v", err)
		}
		kubectl(t, b.Cluster, "", "patch", "pod", pod, "--subresource=status", "--type=merge", "-p", networks)
	}
	before := rows()
	for pod, address := range pods {
		b.ready(t, pod)
		b.startedOnceWith(t, pod, "net1")
		if own := fmt.Sprint(b.addressesOf(t, pod, "net1")); own != "["+address+"/24]" {
			t.Errorf("pod %s has %s, want %s", pod, own, address)
		}
	}
	reach := func(from, to string) {
		t.Helper()
		until(t, from+" reaches "+to, time.Minute, func() bool {
			said, err := b.Kubectl(t.Context(), nil, "exec", from, "--", "/pod", "ping", pods[to])
			return err == nil && strings.Contains(said, "answer from")
		})
	}
	reach("worker-a", "worker-b")
	until(t, "the object says that tc enforces it", 2*time.Minute, func() bool {
		said := kubectl(t, b.Cluster, "", "get", "networkqos", "plugged", "-o", "jsonpath={.status}")
		return strings.Contains(said, `"tc"`) && !strings.Contains(said, `"OVN"`)
	})

	t.Log("the port of Open vSwitch is deleted by another, and the agent dies")
	b.shell(t, `ovs-vsctl del-port $(ovs-vsctl --bare --columns=name find Interface external_ids:iface-id=default.local.blue_default_worker-a)`)
	until(t, "the port is there again", 3*time.Minute, func() bool {
		return b.shell(t, `ovs-vsctl --bare --columns=name find Interface external_ids:iface-id=default.local.blue_default_worker-a external_ids:ovn-installed=true`) != ""
	})
	b.agent(t, "KILL")
	reach("worker-b", "worker-a")
	if now := rows(); now != before {
		t.Errorf("the rows of ovn-kubernetes are\n%s\nwere\n%s", now, before)
	}
	b.drop(t, slices.Sorted(maps.Keys(pods))...)
	if now := rows(); now != before {
		t.Errorf("released, and the rows are\n%s\nwere\n%s", now, before)
	}
	if left := b.shell(t, `ovs-vsctl list-ports br-int | grep ^pl || true`); left != "" {
		t.Errorf("ports are left: %s", left)
	}
	kubectl(t, b.Cluster, "", "delete", "networkqos", "plugged")
}
