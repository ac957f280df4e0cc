//go:build cluster

package cluster_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/eventually"
)

// roceRails is a topology of rails: functions with a soft RoCE device each, which must have a GID of a family.
func roceRails(name, family string, rails int) string {
	var values []string
	for rail := range rails {
		values = append(values, fmt.Sprintf("%q", fmt.Sprint(rail)))
	}
	each := strings.Join(values, ", ")
	return fmt.Sprintf(`---
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: %s}
spec:
  claimTemplate: {namespaces: [default]}
  steps:
  - name: rail
    forEach: [%s]
    type: sriov
    selector: {cel: 'device.attributes["dra.networking"].type == "vf"'}
    config: {name: "rail{{ each.value }}", ipam: {type: pool, pool: "rail-{{ each.value }}"}}
  - name: roce
    forEach: [%s]
    type: rxe
    dependOn: [rail]
    config: {require: {gid: {type: RoCEv2, family: %s, scope: global}, state: ACTIVE, mtu: 1024}}
  export:
    presets: [nccl, ucx]
    env: {RAIL_ADDRESSES: "{{ rail*.ips[0].address }}", RAIL_GIDS: "{{ roce*.gidIndex }}"}
`, name, each, each, family)
}

// verbsPod is a pod on a node with a claim, and with the programs of the node's machine.
func verbsPod(name, node, template string) string {
	var volumes, mounts strings.Builder
	for i, m := range [][2]string{{"/usr", "/usr"}, {"/usr/lib", "/lib"}, {"/usr/lib64", "/lib64"}, {"/etc/libibverbs.d", "/etc/libibverbs.d"}} {
		fmt.Fprintf(&volumes, "\n  - {name: of-node-%d, hostPath: {path: %s}}", i, m[0])
		fmt.Fprintf(&mounts, "\n    - {name: of-node-%d, mountPath: %s, readOnly: true}", i, m[1])
	}
	return strings.NewReplacer(
		"\nspec:", "\nspec:\n  nodeSelector: {kubernetes.io/hostname: "+node+"}\n  volumes:"+volumes.String(),
		"imagePullPolicy: Never", "imagePullPolicy: Never\n    volumeMounts:"+mounts.String(),
	).Replace(claimingPod(name, template))
}

// TestRDMAOfTwoNodes holds that programs in pods of two nodes exchange data over the soft RoCE devices of their claims, see no device of
// others, and are told what the kernel says, also after the agent was killed, the sandbox ended, or the node lost its power; that pods keep
// them while the agent is replaced; that a GID that a device does not have keeps containers from starting; and that one pod gets eight
// rails. On the hosts each function has a soft RoCE device, too, which is there again in the end. The kernel is the one that delivers data
// between soft RoCE devices outside of the host's namespace.
func TestRDMAOfTwoNodes(t *testing.T) {
	c := start(t, cluster.Options{})
	var p nodePair
	for i := range p {
		options := cluster.NodeOptions{
			Kernel: "backports", RDMA: true, Packages: []string{"rdma"}, Start: rdmaNode,
			Containerd: "1.7", CPUs: 1, NRITimeout: 10 * time.Second, // Debian's: nothing has to be built
			// Agents are killed: the kubelet soon starts them, and what it could not prepare, again.
			Kubelet: "\nsyncFrequency: 10s\ncrashLoopBackOff: {maxContainerRestartPeriod: 1s}",
		}
		if i > 0 {
			options.Wired = p[0].node.Name
		}
		p[i] = &agentBench{Cluster: c, node: addNode(t, c, options)}
	}
	p[0].install(t, cluster.Release{})
	objects := roceRails("roce", "IPv4", 1) + roceRails("roce-ipv6", "IPv6", 1) + roceRails("rails", "IPv4", 8)
	for rail := range 8 {
		objects += fmt.Sprintf(`---
apiVersion: networking.dra.io/v1alpha1
kind: AddressPool
metadata: {name: rail-%[1]d}
spec: {subnets: [{prefix: 10.100.%[1]d.0/24}]}
`, rail)
	}
	for _, b := range p {
		b.home, b.rdma = b.vfs(t), b.rdmaLinks(t)
	}
	p[0].applied(t, objects+managing)
	for _, template := range []string{"roce", "roce-ipv6", "rails", "managing"} {
		kubectl(t, c, "", "wait", "--for=create", "--timeout=300s", "resourceclaimtemplate/"+template)
	}
	t.Run("traffic", p.testRDMATraffic)
	t.Run("another GID", p[0].testOtherGID)
	t.Run("device nodes", p[0].testManaging)
	t.Run("eight rails", p[0].testEightRails)
	t.Run("agent killed", func(t *testing.T) { p[0].testRDMAStruck(t, "preparing", "applying", "open") })
	t.Run("sandbox killed", p.testRDMANewSandbox)
	t.Run("device replaced before the container starts", p[0].testRDMAReplaced)
	t.Run("agent of another image", p.testRDMAImage)
	t.Run("a node in exclusive mode", p.testRDMAExclusive)
	t.Run("reboot", p.testRDMAReboot)
}

// rdmaLinks are the RDMA devices of the node.
func (b *agentBench) rdmaLinks(t *testing.T) string {
	t.Helper()
	return b.shell(t, "rdma link | sort")
}

// rail is what the container of a pod was told of a rail.
type rail struct{ device, gid, address string }

// toldRails fails the test unless the container of a pod was told what the kernel says of its rails, and has the device nodes of their RDMA
// devices, and of no others.
func (b *agentBench) toldRails(t *testing.T, pod string, count int) (out []rail) {
	t.Helper()
	network := networkAtStart(t, b.Cluster, pod)
	told := func(name string) []string {
		return strings.Split(strings.TrimPrefix(network.Environment[name], "="), ",")
	}
	devices, gids, addresses := told("NCCL_IB_HCA"), told("RAIL_GIDS"), told("RAIL_ADDRESSES")
	if len(devices) != count || len(gids) != count || len(addresses) != count {
		t.Fatalf("pod %s was told %v, want %d rails", pod, network.Environment, count)
	}
	var names, ports, gidFiles []string
	var want strings.Builder // in these files
	for i := range count {
		name := fmt.Sprintf("rail%d", i)
		link := network.Interface(name)
		if link == nil || len(link.Addresses) == 0 || link.Addresses[0].String() != addresses[i] {
			t.Fatalf("pod %s was told %q of %s, and has %+v", pod, addresses[i], name, network.Interfaces)
		}
		of := fmt.Sprintf("/sys/class/infiniband/%s/ports/1/", devices[i])
		names, ports = append(names, name), append(ports, devices[i]+":1")
		gidFiles = append(gidFiles, of+"gids/"+gids[i], of+"gid_attrs/types/"+gids[i])
		four := link.Addresses[0].Addr().As4()
		fmt.Fprintf(&want, "0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x\nRoCE v2\n", four[0], four[1], four[2], four[3])
		out = append(out, rail{devices[i], gids[i], link.Addresses[0].Addr().String()})
	}
	if have := kubectl(t, b.Cluster, "", append([]string{"exec", pod, "--", "/usr/bin/cat"}, gidFiles...)...); have != want.String() {
		t.Errorf("pod %s was told the GIDs %v, which are\n%swant\n%s", pod, gids, have, &want)
	}
	if !slices.Equal(told("NCCL_SOCKET_IFNAME"), names) || !slices.Equal(told("UCX_NET_DEVICES"), ports) {
		t.Errorf("pod %s was told %v, want %v and %v", pod, network.Environment, names, ports)
	}
	index := "" // one for all, if they have one
	if len(slices.Compact(slices.Clone(gids))) == 1 {
		index = gids[0]
	}
	for _, name := range []string{"NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX"} {
		if have := network.Environment[name]; have != index {
			t.Errorf("pod %s was told %s=%q, want %q", pod, name, have, index)
		}
	}
	nodes := maps.Clone(network.RDMA)
	if _, there := nodes["rdma_cm"]; !there {
		t.Errorf("pod %s has no rdma_cm", pod)
	}
	delete(nodes, "rdma_cm")
	if have := slices.Sorted(maps.Values(nodes)); !slices.Equal(have, slices.Sorted(slices.Values(devices))) {
		t.Errorf("in /dev/infiniband of pod %s are %v, want the nodes of %v", pod, network.RDMA, devices)
	}
	return out
}

// testRDMATraffic has two pods exchange data, by addresses of the connection manager and by what they were told.
func (p nodePair) testRDMATraffic(t *testing.T) {
	pods := p.claimVerbs(t, "roce")
	var rails [2]rail
	for i, b := range p {
		rails[i] = b.active(t, pods[i])
		others := slices.DeleteFunc(strings.Fields(b.shell(t, "ls /sys/class/infiniband")), func(d string) bool { return d == rails[i].device })
		if len(others) != 7 {
			t.Fatalf("the node has the RDMA devices %v, want those of its other functions", others)
		}
		if said, err := b.runs(t, pods[i], "ibv_devinfo -d "+others[0]); err == nil {
			t.Errorf("pod %s opens %s:\n%s", pods[i], others[0], said)
		}
		// A device node that the pod makes by itself opens no device of another claim or of the host.
		number := strings.Replace(strings.TrimSpace(b.shell(t, "cat $(dirname $(grep -lx "+others[0]+" /sys/class/infiniband_verbs/*/ibdev))/dev")), ":", " ", 1)
		if said, err := b.runsScript(t, pods[i], "mknod /dev/forged c "+number+" && cat </dev/forged"); err == nil || !strings.Contains(said, "Operation not permitted") {
			t.Errorf("pod %s opens the device %s by its number: %v\n%s", pods[i], number, err, said)
		}
	}
	to := rails[0].address
	if said := p.exchange(t, pods, "rping -s -C 3 -a "+to, "rping -c -v -C 3 -a "+to); strings.Count(said, "ping data:") != 3 {
		t.Errorf("rping: %s", said)
	}
	p.writes(t, pods)
	p.drop(t, pods)
}

// runs runs a program of the node's machine in a pod.
func (b *agentBench) runs(t *testing.T, pod, command string) (string, error) {
	t.Helper()
	return b.Kubectl(t.Context(), nil, append([]string{"exec", pod, "--", "/usr/bin/timeout", "60"}, strings.Fields("/usr/bin/"+command)...)...)
}

// runsScript runs a script of the shell in a pod, and returns also what it printed if it failed.
func (b *agentBench) runsScript(t *testing.T, pod, script string) (string, error) {
	t.Helper()
	said, err := b.Kubectl(t.Context(), nil, "exec", pod, "--", "/usr/bin/sh", "-ec", "PATH=/usr/sbin:/usr/bin; { "+script+"; } 2>&1")
	if err != nil {
		said += err.Error()
	}
	return said, err
}

// exchange runs programs in two pods until the client has succeeded, and returns its output. That of the server is in the log.
func (p nodePair) exchange(t *testing.T, pods [2]string, server, client string) (said string) {
	t.Helper()
	var served sync.WaitGroup
	defer served.Wait()
	served.Go(func() {
		said, err := p[0].runs(t, pods[0], server)
		t.Logf("%s: %v\n%s", server, err, said)
	})
	eventually.Succeeds(t, time.Minute, client, func() (err error) { // refused until the server listens
		said, err = p[1].runs(t, pods[1], client)
		return err
	})
	return said
}

// testOtherGID has a pod require a GID of a family of which it has no address.
func (b *agentBench) testOtherGID(t *testing.T) {
	b.create(t, verbsPod("other", b.node.Name, "roce-ipv6"))
	b.saysWhy(t, "other", `no GID of "rail0" is RoCEv2, IPv6, global: it has 0 RoCEv2 fe80::`)
	if state := b.get(t, "other", ".status.containerStatuses[0].state"); !strings.Contains(state, "waiting") {
		t.Errorf("the container is %s", state)
	}
	b.drop(t, "other")
}

// managing gives a pod an RDMA device with device nodes that only topologies name.
const managing = `---
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: managing}
spec:
  claimTemplate: {namespaces: [default]}
  steps:
  - {name: ib, type: rdma, selector: {cel: 'device.attributes["dra.networking"].rdma'}, config: {deviceNodes: [umad, vhost-net, tun]}}
`

// testManaging has a container open the device nodes that a topology names.
func (b *agentBench) testManaging(t *testing.T) {
	b.create(t, verbsPod("managing", b.node.Name, "managing"))
	b.ready(t, "managing")
	said, err := b.runsScript(t, "managing", "for node in /dev/infiniband/umad* /dev/infiniband/uverbs* /dev/vhost-net /dev/net/tun; do : <>$node; echo $node; done")
	if opened := regexp.MustCompile(`^/dev/infiniband/umad\d+\n/dev/infiniband/uverbs\d+\n/dev/vhost-net\n/dev/net/tun\n$`); err != nil || !opened.MatchString(said) {
		t.Errorf("the container opens %v\n%s", err, said)
	}
	b.drop(t, "managing")
}

// testEightRails gives a pod all functions of the node, each with a soft RoCE device: sixteen devices, within the hook or with an event
// that says where the attachment is.
func (b *agentBench) testEightRails(t *testing.T) {
	b.create(t, verbsPod("rails", b.node.Name, "rails"))
	b.ready(t, "rails")
	b.startedOnceWith(t, "rails", "rail0", "rail7")
	b.toldRails(t, "rails", 8)
	logs := kubectl(t, b.Cluster, "", "-n", cluster.ProductNamespace, "logs", "--tail=-1", "-l", "app.kubernetes.io/component=agent")
	if late := regexp.MustCompile(`msg="attaching in the background" sandbox=(\S+) pod=default/rails `).FindStringSubmatch(logs); late != nil {
		for line := range strings.Lines(logs) {
			if strings.Contains(line, `msg="hook failed"`) && strings.Contains(line, late[1]) {
				b.saysWhy(t, "rails", `the network of the pod is still being attached`) // by the kubelet: the hook's error
			}
		}
	}
	b.drop(t, "rails")
}
