package kernel

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/topology/fault"
)

// driftFixture is a topology and its environment, in which drift is made.
type driftFixture struct {
	name  string
	host  string // commands on the host
	pod   string // what the pod has of its own, commands in its namespace
	steps string
	// devices maps root steps to "PF/n"; such a fixture needs hardware.
	devices map[string]string
	// made selects the objects on the host, beyond devices, that are compared.
	made []netstate.Object
	rows []drifted
}

// drifted is a row of the table: a command, and what the engine reports and does after
// it.
type drifted struct {
	name    string
	disturb string // run by sh; $NS is the namespace, $ip and $bridge work in it, $VF0 is the first device
	// drift is the expected drift, a line each: the step, the change that repairs it, the
	// object, the field. None: it is up to the pod.
	drift string
	// refused is the kind of the error of a repair that is impossible.
	refused fault.Kind
	// remaining are differences that remain, since no step wants the field.
	remaining string
	// cleanUp is run after a repair that is impossible, and undoes what the engine
	// leaves alone and would outlive the sandbox.
	cleanUp string
}

// firstNetwork creates what a pod has before us: the cluster's network.
const firstNetwork = `
ip link add eth0 type dummy
ip address add 10.244.0.7/24 dev eth0
ip link set eth0 up
ip route add default via 10.244.0.1
ip rule add from 10.244.0.7 lookup 500 priority 5000
`

var driftFixtures = []driftFixture{
	{
		name: "sysctls of all links",
		steps: `
    - {name: d, type: dummy, config: {name: d0, addresses: ["2001:db8::5/64"], routes: [{dst: "2001:db8:1::/64", gw: "2001:db8::1"}]}}
    - {name: t, type: tuning, dependOn: [d], config: {sysctl: {net.ipv6.conf.all.disable_ipv6: 1, net.ipv4.ip_forward: 1, net.ipv4.conf.IFNAME.forwarding: 0}}}
`,
		rows: []drifted{
			{name: "IPv6 of all", disturb: `ip netns exec $NS sysctl -qw net.ipv6.conf.all.disable_ipv6=0`, drift: "t ~sysctl.value, d ~sysctl.value, d +address, d +route"},
			{name: "forwarding of all", disturb: `ip netns exec $NS sysctl -qw net.ipv4.ip_forward=0`, drift: "t ~sysctl.value"},
			{name: "forwarding of one", disturb: `ip netns exec $NS sysctl -qw net.ipv4.conf.d0.forwarding=1`, drift: "t ~sysctl.value"},
		},
	},
	{
		name: "links",
		pod: firstNetwork + `
ip route add 203.0.113.0/24 dev eth0 table 500
tc qdisc add dev eth0 root netem delay 1ms
`,
		steps: `
    - {name: a, type: dummy, config: {name: a0, mac: "02:00:00:00:00:01"}}
    - {name: b, type: dummy, config: {name: b0, mac: "02:00:00:00:00:02"}}
    - {name: bond, type: bond, dependOn: [a, b], config: {name: bond0, mode: active-backup, miimon: 100, updelay: 200, downdelay: 200, primary: a0, failOverMac: none}}
    - {name: data, type: vlan, dependOn: [bond], config: {id: 100, name: data0, addresses: [192.0.2.5/24, "2001:db8::5/64"], routes: [{dst: 198.51.100.0/24, gw: 192.0.2.1}, {dst: "2001:db8:1::/48", gw: "2001:db8::1"}]}}
    - {name: tune, type: tuning, dependOn: [data], config: {mtu: 4000, txQLen: 500, promisc: true, allmulti: true, mac: "02:00:00:00:00:03", sysctl: {net.ipv4.conf.IFNAME.rp_filter: 2}, ethtool: {features: {generic-receive-offload: true}}}}
    - {name: mgmt, type: vlan, dependOn: [bond], config: {id: 200, name: mgmt0}}
    - {name: blue, type: vrf, dependOn: [mgmt], config: {vrfname: blue, table: 1001}}
    - {name: mgmtip, type: tuning, dependOn: [blue], config: {dev: mgmt0, addresses: [192.0.3.5/24]}}
`,
		rows: []drifted{
			{name: "link gone", disturb: `$ip link delete data0`, drift: "data +link data0, data +sysctl, tune +sysctl, tune waits"},
			{name: "link gone with all upon it", disturb: `$ip link delete bond0`, drift: "bond +link bond0, bond +sysctl, bond ~link a0.master, bond ~link b0.master, data +link data0, data +sysctl, tune +sysctl, mgmt +link mgmt0, mgmt +sysctl, mgmtip +address, tune waits", remaining: "mgmt0"},
			{name: "root link gone", disturb: `$ip link delete b0`, drift: "b +link b0"},
			{name: "link of another kind", disturb: `$ip link delete data0 && $ip link add data0 type dummy`, drift: "data ∓link data0.kind, data +sysctl, tune +sysctl, tune +ethtool, data +address, data +route"},
			{name: "device instead of a VRF", disturb: `$ip link delete blue && $ip link add blue type dummy`, drift: "blue ∓link blue.kind, blue ~link mgmt0.master", remaining: "blue"},
			{name: "renamed", disturb: `$ip link set data0 down && $ip link set data0 name spare0`, drift: "data ~link data0.name, data +sysctl, tune +sysctl, tune waits"},
			{name: "bond renamed", disturb: `$ip link set bond0 down && $ip link set bond0 name spare0`, drift: "bond ~link bond0.name, bond +sysctl, bond ~link bond0.up, data ~link data0.up, mgmt ~link mgmt0.up, data +route", remaining: "mgmt0"},
			{name: "VRF renamed", disturb: `$ip link set blue down && $ip link set blue name spare0`, drift: "blue ~link blue.name, blue ~link blue.up", remaining: "blue"},
			{name: "renamed, its name taken", disturb: `$ip link set mgmt0 down && $ip link set mgmt0 name spare0 && $ip link add mgmt0 type dummy`, refused: fault.Conflict, cleanUp: `$ip link delete mgmt0`},
			{name: "moved to another namespace", disturb: `$ip link set a0 netns $OTHER`, drift: "a +link a0, bond ~link bond0.bond.primary"},
			{name: "VLAN in another namespace", disturb: `$ip link set data0 netns $OTHER`, drift: "data +link data0, data +sysctl, tune +sysctl, tune waits", refused: fault.Conflict, cleanUp: `ip -n $OTHER link delete data0`},
			{name: "other parent", disturb: `$ip link delete data0 && $ip link add data0 link eth0 type vlan id 100`, drift: "data ∓link data0.parent, data +sysctl, tune +sysctl, tune +ethtool, data +address, data +route"},
			{name: "other VLAN", disturb: `$ip link delete data0 && $ip link add data0 link bond0 mtu 1500 type vlan id 101`, drift: "data ∓link data0.vlan.id, data +sysctl, tune +sysctl, tune +ethtool, data +address, data +route"},
			{name: "other VLAN protocol", disturb: `$ip link delete data0 && $ip link add data0 link bond0 mtu 1500 type vlan id 100 protocol 802.1ad`, drift: "data ∓link data0.vlan.protocol, data +sysctl, tune +sysctl, tune +ethtool, data +address, data +route"},
			{name: "down", disturb: `$ip link set data0 down`, drift: "data ~link data0.up, data +route"},
			{name: "bond down", disturb: `$ip link set bond0 down`, drift: "bond ~link bond0.up, data ~link data0.up, mgmt ~link mgmt0.up, data +route"},
			{name: "MTU", disturb: `$ip link set data0 mtu 1400`, drift: "tune ~link data0.mtu"},
			{name: "MTU of the bond", disturb: `$ip link set bond0 mtu 1400`, drift: "tune ~link bond0.mtu, tune ~link data0.mtu", remaining: "mgmt0 mtu"},
			{name: "MTU of a port", disturb: `$ip link set b0 mtu 1300`, drift: "tune ~link b0.mtu"},
			{name: "MAC", disturb: `$ip link set data0 address 02:00:00:00:00:77`, drift: "tune ~link data0.mac"},
			{name: "queue length", disturb: `$ip link set data0 txqueuelen 9`, drift: "tune ~link data0.txQueueLen"},
			{name: "promiscuous", disturb: `$ip link set data0 promisc off`, drift: "tune ~link data0.promisc"},
			{name: "all multicast", disturb: `$ip link set data0 allmulticast off`, drift: "tune ~link data0.allMulti"},
			{name: "port out", disturb: `$ip link set b0 nomaster`, drift: "bond ~link b0.master"},
			{name: "port down", disturb: `$ip link set b0 down`, drift: "b ~link b0.up"},
			{name: "primary port down", disturb: `$ip link set a0 down`, drift: "a ~link a0.up"},
			{name: "primary port out", disturb: `$ip link set a0 nomaster`, drift: "bond ~link a0.master, bond ~link bond0.bond.primary"},
			{name: "port in another bond", disturb: `$ip link add bond9 type bond && $ip link set b0 nomaster && $ip link set b0 down && $ip link set b0 master bond9`, drift: "bond ~link b0.master", remaining: "bond9"},
			{name: "out of the VRF", disturb: `$ip link set mgmt0 nomaster`, drift: "blue ~link mgmt0.master"},
			{name: "VRF leaks", disturb: `$ip route delete unreachable default table 1001 metric 4278198272`, drift: "blue +unreachable"},
			{name: "VRF leaks IPv6", disturb: `$ip -6 route delete unreachable default table 1001 metric 4278198272`, drift: "blue +unreachable"},
			{name: "in another VRF", disturb: `$ip link add red type vrf table 7 && $ip link set mgmt0 master red`, drift: "blue ~link mgmt0.master", remaining: "red"},
			{name: "VRF gone", disturb: `$ip link delete blue`, drift: "blue +link blue, blue ~link mgmt0.master", remaining: "blue"},
			{name: "VRF with another table", disturb: `$ip link delete blue && $ip link add blue type vrf table 8 && $ip link set blue up`, drift: "blue ∓link blue.vrf.table, blue ~link mgmt0.master", remaining: "blue"},
			{name: "bond mode", disturb: `$ip link set a0 nomaster && $ip link set b0 nomaster && $ip link set bond0 down && $ip link set bond0 type bond mode balance-xor && $ip link set a0 down && $ip link set a0 master bond0 && $ip link set b0 down && $ip link set b0 master bond0`, drift: "bond ~link a0.master, bond ~link b0.master, bond ~link bond0.bond.mode, bond ~link bond0.bond.primary, bond ~link bond0.up, data ~link data0.up, mgmt ~link mgmt0.up, data +route"},
			{name: "bond fail_over_mac", disturb: `$ip link set a0 nomaster && $ip link set b0 nomaster && $ip link set bond0 down && $ip link set bond0 type bond fail_over_mac active && $ip link set a0 down && $ip link set a0 master bond0 && $ip link set b0 down && $ip link set b0 master bond0`, drift: "bond ~link a0.master, bond ~link b0.master, bond ~link bond0.bond.failOverMac, bond ~link bond0.up, data ~link data0.up, mgmt ~link mgmt0.up, data +route"},
			{name: "bond miimon", disturb: `$ip link set bond0 type bond miimon 50`, drift: "bond ~link bond0.bond.miimon, bond ~link bond0.bond.updelay, bond ~link bond0.bond.downdelay"},
			{name: "bond updelay", disturb: `$ip link set bond0 type bond updelay 300`, drift: "bond ~link bond0.bond.updelay"},
			{name: "bond downdelay", disturb: `$ip link set bond0 type bond downdelay 300`, drift: "bond ~link bond0.bond.downdelay"},
			{name: "bond primary", disturb: `$ip link set bond0 type bond primary b0`, drift: "bond ~link bond0.bond.primary"},
			{name: "address missing", disturb: `$ip address delete 192.0.2.5/24 dev data0`, drift: "data +address, data +route"},
			{name: "IPv6 address missing", disturb: `$ip address delete 2001:db8::5/64 dev data0`, drift: "data +address"},
			{name: "addresses flushed", disturb: `$ip address flush dev mgmt0`, drift: "mgmtip +address"},
			{name: "route missing", disturb: `$ip route delete 198.51.100.0/24`, drift: "data +route"},
			{name: "IPv6 route missing", disturb: `$ip -6 route delete 2001:db8:1::/48`, drift: "data +route"},
			{name: "route elsewhere", disturb: `$ip route replace 198.51.100.0/24 via 10.244.0.1 dev eth0`, drift: "data +route", remaining: "via 10.244.0.1 dev eth0"},
			{name: "sysctl", disturb: `ip netns exec $NS sysctl -qw net.ipv4.conf.data0.rp_filter=1`, drift: "tune ~sysctl.value"},
			{name: "IPv6 off", disturb: `ip netns exec $NS sysctl -qw net.ipv6.conf.data0.disable_ipv6=1`, drift: "data ~sysctl.value, data +address, data +route"},
			{name: "ethtool feature", disturb: `ip netns exec $NS ethtool -K data0 gro off`, drift: "tune ~ethtool.value"},

			{name: "own address", disturb: `$ip address add 192.0.2.77/24 dev data0`},
			{name: "own route over our link", disturb: `$ip route add 203.0.113.0/24 via 192.0.2.9`},
			{name: "own route beside ours", disturb: `$ip route add 198.51.100.0/24 via 192.0.2.9 metric 5`},
			{name: "own rule and table", disturb: `$ip rule add from 192.0.2.5 lookup 600 priority 6000 && $ip route add default via 192.0.2.1 table 600`},
			{name: "rule of the pod gone", disturb: `$ip rule delete priority 5000`},
			{name: "own link on ours", disturb: `$ip link add link data0 name own0 type macvlan && $ip link set own0 up && $ip address add 192.0.4.1/24 dev own0`},
			{name: "own VLAN on our bond", disturb: `$ip link add link bond0 name own1 type vlan id 300 && $ip link set own1 up`},
			{name: "own member of our VRF", disturb: `$ip link add own2 type dummy && $ip link set own2 master blue`},
			{name: "own qdisc", disturb: `ip netns exec $NS tc qdisc replace dev data0 root tbf rate 1mbit burst 10k latency 50ms`},
			{name: "own sysctl", disturb: `ip netns exec $NS sysctl -qw net.ipv4.conf.data0.arp_notify=1`},
			{name: "own alias and other name", disturb: `$ip link set data0 alias mine && $ip link property add dev data0 altname data-too`},
			{name: "own bond option", disturb: `$ip link set bond0 type bond resend_igmp 3`},
			{name: "MAC that no step wants", disturb: `$ip link set mgmt0 address 02:00:00:00:00:78`},
		},
	},
	{
		name: "bonds",
		steps: `
    - {name: a, type: dummy, config: {name: a0, mac: "02:00:00:00:00:01"}}
    - {name: b, type: dummy, config: {name: b0, mac: "02:00:00:00:00:02"}}
    - {name: c, type: dummy, config: {name: c0, mac: "02:00:00:00:00:03"}}
    - {name: d, type: dummy, config: {name: d0, mac: "02:00:00:00:00:04"}}
    - {name: e, type: dummy, config: {name: e0, mac: "02:00:00:00:00:05"}}
    - {name: f, type: dummy, config: {name: f0, mac: "02:00:00:00:00:06"}}
    - {name: lacp, type: bond, dependOn: [a, b], config: {name: lacp0, mode: 802.3ad, miimon: 100, lacpRate: fast, adSelect: bandwidth, xmitHashPolicy: layer3+4, minLinks: 1, allSlavesActive: 1}}
    - {name: tlb, type: bond, dependOn: [c, d], config: {name: tlb0, mode: balance-tlb, miimon: 100, tlbDynamicLb: 0}}
    - {name: arp, type: bond, dependOn: [e, f], config: {name: arp0, mode: active-backup, arpInterval: 500, arpIpTargets: [192.0.2.1]}}
`,
		rows: []drifted{
			{name: "xmit_hash_policy", disturb: `$ip link set lacp0 type bond xmit_hash_policy layer2`, drift: "lacp ~link lacp0.bond.xmitHashPolicy"},
			{name: "lacp_rate", disturb: `$ip link set lacp0 down && $ip link set lacp0 type bond lacp_rate slow && $ip link set lacp0 up`, drift: "lacp ~link lacp0.up, lacp ~link lacp0.bond.lacpRate"},
			{name: "ad_select", disturb: `$ip link set lacp0 down && $ip link set lacp0 type bond ad_select count && $ip link set lacp0 up`, drift: "lacp ~link lacp0.up, lacp ~link lacp0.bond.adSelect"},
			{name: "min_links", disturb: `$ip link set lacp0 type bond min_links 2`, drift: "lacp ~link lacp0.bond.minLinks"},
			{name: "all_slaves_active", disturb: `$ip link set lacp0 type bond all_slaves_active 0`, drift: "lacp ~link lacp0.bond.allSlavesActive"},
			{name: "tlb_dynamic_lb", disturb: `$ip link set tlb0 down && $ip link set tlb0 type bond tlb_dynamic_lb 1 && $ip link set tlb0 up`, drift: "tlb ~link tlb0.up, tlb ~link tlb0.bond.tlbDynamicLb"},
			{name: "arp_interval", disturb: `$ip link set arp0 type bond arp_interval 900`, drift: "arp ~link arp0.bond.arpInterval"},
			{name: "arp_ip_target", disturb: `$ip link set arp0 type bond arp_ip_target 192.0.2.2`, drift: "arp ~link arp0.bond.arpIpTargets"},
		},
	},
	{
		name: "stacked",
		steps: `
    - {name: d, type: dummy, config: {name: d0, mac: "02:00:00:00:00:01"}}
    - {name: e, type: dummy, config: {name: e0, mac: "02:00:00:00:00:02"}}
    - {name: p, type: dummy, config: {name: p0, mac: "02:00:00:00:00:03"}}
    - {name: q, type: dummy, config: {name: q0, mac: "02:00:00:00:00:04"}}
    - {name: iv, type: ipvlan, dependOn: [d], config: {mode: l3, name: i0, addresses: [192.0.2.1/24]}}
    - {name: mv, type: macvlan, dependOn: [e], config: {mode: vepa, name: m0, mac: "02:00:00:00:00:0c", bcqueuelen: 2000}}
    - {name: br, type: bridge, dependOn: [p, q], config: {name: br0, vlan: 5, vlanTrunk: [{id: 7}], preserveDefaultVlan: false, hairpinMode: true, portIsolation: true}}
`,
		rows: []drifted{
			{name: "ipvlan mode", disturb: `$ip link set i0 type ipvlan mode l2`, drift: "iv ~link i0.ipvlan.mode"},
			{name: "ipvlan on another link", disturb: `$ip link add x0 type dummy && $ip link delete i0 && $ip link add i0 link x0 type ipvlan mode l3`, drift: "iv ∓link i0.parent, iv +sysctl, iv +address", remaining: "x0"},
			{name: "macvlan mode", disturb: `$ip link set m0 type macvlan mode private`, drift: "mv ~link m0.macvlan.mode"},
			{name: "macvlan queue", disturb: `$ip link set m0 type macvlan bcqueuelen 1500`, drift: "mv ~link m0.macvlan.bcQueueLen"},
			{name: "macvlan MAC", disturb: `$ip link set m0 address 02:00:00:00:00:0d`, drift: "mv ~link m0.mac"},
			{name: "macvlan renamed", disturb: `$ip link set m0 down && $ip link set m0 name spare0`, drift: "mv ~link m0.name, mv +sysctl, mv ~link m0.up"},
			{name: "VLAN of a port missing", disturb: `$bridge vlan delete dev p0 vid 7`, drift: "br +bridge-vlan"},
			{name: "VLAN of a port tagged", disturb: `$bridge vlan add dev p0 vid 5`, drift: "br ~bridge-vlan.pvid, br ~bridge-vlan.untagged"},
			{name: "port in the default VLAN", disturb: `$bridge vlan add dev p0 vid 1 untagged`, drift: "br -bridge-vlan"},
			{name: "port in the default VLAN by its PVID", disturb: `$bridge vlan add dev p0 vid 1 pvid untagged`, drift: "br ~bridge-vlan.pvid, br -bridge-vlan"},
			{name: "bridge does not filter", disturb: `$ip link set br0 type bridge vlan_filtering 0`, drift: "br ~link br0.bridge.vlanFiltering"},
			{name: "port out of the bridge", disturb: `$ip link set p0 nomaster`, drift: "br ~link p0.port.hairpin, br ~link p0.port.isolated, br ~link p0.master, br +bridge-vlan, br -bridge-vlan"},
			{name: "port not isolated", disturb: `$bridge link set dev p0 isolated off`, drift: "br ~link p0.port.isolated"},
			{name: "port without hairpin", disturb: `$bridge link set dev p0 hairpin off`, drift: "br ~link p0.port.hairpin"},
			{name: "bridge gone", disturb: `$ip link delete br0`, drift: "br +link br0, br +sysctl, br ~link p0.port.hairpin, br ~link p0.port.isolated, br ~link p0.master, br +bridge-vlan, br -bridge-vlan, br ~link q0.port.hairpin, br ~link q0.port.isolated, br ~link q0.master", remaining: "br0"},

			{name: "own VLAN of a port", disturb: `$bridge vlan add dev p0 vid 99`},
			{name: "own forwarding", disturb: `$bridge fdb add 02:00:00:00:00:99 dev p0 master static vlan 7`},
		},
	},
	{
		name: "routed",
		host: "echo 1 >/proc/sys/net/ipv4/ip_forward",
		steps: `
    - {name: p, type: ptp, config: {name: net1, hostIfName: plp0, mtu: 1400, mac: "02:00:00:00:00:01", ipMasq: true, addresses: [192.0.2.5/24], isDefaultGateway: true, portMappings: [{hostPort: 8080, containerPort: 80}]}}
`,
		rows: []drifted{
			{name: "route of the host deleted", disturb: `ip route delete 192.0.2.5/32 dev plp0`, drift: "p +route"},
			{name: "gateway of the host deleted", disturb: `ip address delete 192.0.2.1/32 dev plp0`, drift: "p +address, p +route"},
			{name: "end on the host down", disturb: `ip link set plp0 down`, drift: "p ~link host:plp0.up, p +route"},
			{name: "MTU of the end on the host", disturb: `ip link set plp0 mtu 1300`, drift: "p ~link host:plp0.mtu"},
			{name: "end in the sandbox down", disturb: `$ip link set net1 down`, drift: "p ~link net1.up, p +route"},
			{name: "route to the gateway replaced", disturb: `$ip route delete default && $ip route delete 192.0.2.0/24 && $ip route delete 192.0.2.1/32`, drift: "p +route"},
			{name: "address with a route to its network", disturb: `$ip address delete 192.0.2.5/24 dev net1 && $ip address add 192.0.2.5/24 dev net1`, drift: "p ∓address.noPrefixRoute, p +route"},
			{name: "pair deleted", disturb: `ip link delete plp0`, drift: "p +link net1, p +sysctl, p ~link host:plp0.up, p +address, p +route"},

			{name: "masquerading of the address deleted", disturb: `nft delete element inet plumbline sources4 '{ 192.0.2.5 }'`, drift: "p +masquerade"},
			{name: "an exception deleted", disturb: `nft delete element inet plumbline excepts4 '{ 192.0.2.5 . 192.0.2.0/24 }'`, drift: "p ~masquerade.except"},
			{name: "table of masquerading asleep", disturb: `nft add table inet plumbline '{ flags dormant; }'`, drift: "p +masquerade"},
			{name: "rules of masquerading deleted", disturb: `nft flush chain inet plumbline postrouting`, drift: "p +masquerade"},

			{name: "port of the host deleted", disturb: `nft delete element inet plumbline-ports any4 '{ tcp . 8080 }'`, drift: "p +port-mapping"},
			{name: "port of the host leads elsewhere", disturb: `nft delete element inet plumbline-ports any4 '{ tcp . 8080 }' && nft add element inet plumbline-ports any4 '{ tcp . 8080 : 192.0.2.9 . 80 }'`, drift: "p ~port-mapping.to, p ~port-mapping.network"},
			{name: "rules of ports deleted", disturb: `nft flush chain inet plumbline-ports prerouting`, drift: "p +port-mapping"},

			{name: "own address of the host", disturb: `ip address add 192.0.2.99/32 dev plp0`},
		},
	},
	{
		name: "guarded",
		steps: `
    - {name: b, type: bridge, config: {bridge: plbr7, hostIfName: plb7, mac: "02:00:00:00:00:01", isGateway: true, dad: "off", addresses: [{address: 192.0.2.5/24, gateway: 192.0.2.1}, "2001:db8::5/64"]}}
    - {name: t, type: tuning, dependOn: [b], config: {sysctl: {net.ipv4.conf.IFNAME.rp_filter: 2}}}
    - {name: m, type: macvlan, dependOn: [b], config: {name: mv0, mac: "02:00:00:00:00:07", addresses: [192.0.2.8/24]}}
`,
		made: []netstate.Object{netstate.PortGuard{Port: "plb7"}},
		rows: []drifted{
			{name: "MAC of a guarded port deleted", disturb: `nft delete element bridge plumbline-guard macs '{ "plb7" . 02:00:00:00:00:01 }'`, drift: "b ~port-guard.macs, b ~port-guard.addresses"},
			{name: "another MAC of the port", disturb: `nft add element bridge plumbline-guard macs '{ "plb7" . 02:00:00:00:00:66 }' && nft add element bridge plumbline-guard owners6 '{ "plb7" . fe80::ff:fe00:66 }' && nft add element bridge plumbline-guard claimed6 '{ "plbr7" . fe80::ff:fe00:66 }'`, drift: "b ~port-guard.macs"},
			{name: "port not checked", disturb: `nft delete element bridge plumbline-guard checked '{ "plb7" }'`, drift: "b ~port-guard.macs"},
			{name: "port may be a router", disturb: `nft delete element bridge plumbline-guard no-routers '{ "plb7" }'`, drift: "b ~port-guard.raGuard"},
			{name: "address of the port not claimed", disturb: `nft delete element bridge plumbline-guard claimed4 '{ "plbr7" . 192.0.2.5 }'`, drift: "b ~port-guard.addresses"},
			{name: "address of the port not its own", disturb: `nft delete element bridge plumbline-guard owners6 '{ "plb7" . 2001:db8::5 }'`, drift: "b ~port-guard.addresses"},
			{name: "gateway not claimed", disturb: `nft delete element bridge plumbline-guard claimed4 '{ "plbr7" . 192.0.2.1 }'`, drift: "b ~port-guard.gateways"},
			{name: "rules of guards deleted", disturb: `nft flush chain bridge plumbline-guard prerouting`, drift: "b +port-guard"},
			{name: "rules of neighbor discovery deleted", disturb: `nft flush chain bridge plumbline-guard neighbors`, drift: "b +port-guard"},
			{name: "table of guards deleted", disturb: `nft delete table bridge plumbline-guard`, drift: "b +port-guard"},
			{name: "bridge learns from link-local groups", disturb: `ip link set plbr7 type bridge no_linklocal_learn 0`, drift: "b ~link host:plbr7.bridge.noLinkLocalLearn"},
			{name: "own MAC of the pod", disturb: `$ip link set net1 address 02:00:00:00:00:66`, drift: "b ~link net1.mac"},

			{name: "guard of another port", disturb: `nft add element bridge plumbline-guard checked '{ "plx" }'`},
		},
	},
	{
		name: "tunnels",
		pod:  firstNetwork,
		steps: `
    - {name: d, type: dummy, config: {name: u0, mac: "02:00:00:00:00:01", addresses: [192.0.2.5/24]}}
    - {name: x, type: vxlan, dependOn: [d], config: {id: 4100, name: t0, mac: "02:00:00:00:00:02", local: "{{ d.ips[0].address }}", remote: 192.0.2.6, ttl: 9, mtu: 1500, addresses: [198.51.100.5/24]}}
    - {name: g, type: vxlan, dependOn: [d], config: {id: 4101, name: g0, mac: "02:00:00:00:00:03", group: 239.1.1.1}}
    - {name: r, type: vxlan, dependOn: [d], config: {id: 4102, name: r0, mac: "02:00:00:00:00:04", routed: true, learning: false}}
    - {name: m, type: vxlan, dependOn: [d], config: {id: 4103, name: m0, mac: "02:00:00:00:00:06", remotes: [192.0.2.6, 192.0.2.7]}}
`,
		rows: []drifted{
			{name: "tunnel gone", disturb: `$ip link delete t0`, drift: "x +link t0, x +sysctl, x +address"},
			{name: "gone with the link below", disturb: `$ip link delete u0`, drift: "d +link u0, d +sysctl, x +link t0, x +sysctl, g +link g0, g +sysctl, m +link m0, m +sysctl, d +address, x +address, m +fdb"},
			{name: "tunnel down", disturb: `$ip link set t0 down`, drift: "x ~link t0.up"},
			{name: "the link below down", disturb: `$ip link set u0 down`, drift: "d ~link u0.up"},
			{name: "another id", disturb: `$ip link delete t0 && $ip link add t0 mtu 1500 address 02:00:00:00:00:02 type vxlan id 9 dev u0 local 192.0.2.5 remote 192.0.2.6 ttl 9 dstport 4789`, drift: "x ∓link t0.vxlan.id, x +sysctl, x +address"},
			{name: "another port", disturb: `$ip link delete t0 && $ip link add t0 mtu 1500 address 02:00:00:00:00:02 type vxlan id 4100 dev u0 local 192.0.2.5 remote 192.0.2.6 ttl 9 dstport 8472`, drift: "x ∓link t0.vxlan.port, x +sysctl, x +address"},
			{name: "another parent", disturb: `$ip link set t0 type vxlan dev eth0`, drift: "x ∓link t0.parent, x +sysctl, x +address"},
			{name: "a parent instead of routes", disturb: `$ip link set r0 type vxlan dev u0`, drift: "r ∓link r0.parent, r +sysctl"},
			{name: "another local", disturb: `$ip link set t0 type vxlan local 192.0.2.99`, drift: "x ~link t0.vxlan.local"},
			{name: "another remote", disturb: `$ip link set t0 type vxlan remote 192.0.2.99`, drift: "x ~link t0.vxlan.remote"},
			{name: "a group instead of the remote", disturb: `$ip link set t0 type vxlan group 239.9.9.9 dev u0`, drift: "x ~link t0.up, x ~link t0.vxlan.remote, x ~link t0.vxlan.group"},
			{name: "another group", disturb: `$ip link set g0 type vxlan group 239.9.9.9 dev u0`, drift: "g ~link g0.up, g ~link g0.vxlan.group"},
			{name: "a remote where none is", disturb: `$ip link set r0 type vxlan remote 192.0.2.99`, drift: "r ~link r0.vxlan.remote"},
			{name: "another TTL", disturb: `$ip link set t0 type vxlan ttl 3`, drift: "x ~link t0.vxlan.ttl"},
			{name: "learning", disturb: `$ip link set r0 type vxlan learning`, drift: "r ~link r0.vxlan.learning"},
			{name: "MTU of a tunnel", disturb: `$ip link set t0 mtu 1400`, drift: "x ~link t0.mtu"},
			{name: "MTU below a tunnel", disturb: `$ip link set u0 mtu 1400`, drift: "x ~link u0.mtu"},

			{name: "one of several ends", disturb: `$bridge fdb del 00:00:00:00:00:00 dev m0 dst 192.0.2.7 via u0`, drift: "m +fdb"},
			{name: "an end through no link", disturb: `$bridge fdb del 00:00:00:00:00:00 dev m0 dst 192.0.2.7 via u0 && $bridge fdb append 00:00:00:00:00:00 dev m0 dst 192.0.2.7`, drift: "m +fdb"},
			{name: "an end as remote", disturb: `$ip link set m0 type vxlan remote 192.0.2.7`, drift: "m ~link m0.vxlan.remote, m +fdb"},
			{name: "several ends down", disturb: `$ip link set m0 down`, drift: "m ~link m0.up"},

			{name: "own end beside ours", disturb: `$bridge fdb append 00:00:00:00:00:00 dev m0 dst 192.0.2.77`},
			{name: "own forwarding entries", disturb: `$bridge fdb append 00:00:00:00:00:00 dev t0 dst 192.0.2.77 && $bridge fdb add 02:00:00:00:00:88 dev r0 dst 192.0.2.88`},
			{name: "own tunnel on our link", disturb: `$ip link add own0 address 02:00:00:00:00:05 type vxlan id 9 dev u0 dstport 4789 && $ip link set own0 up`},
			{name: "own tunnel options", disturb: `$ip link set t0 type vxlan ageing 77`},
		},
	},
	{
		name: "policy",
		pod:  firstNetwork,
		steps: `
    - {name: d, type: dummy, config: {name: p0, mac: "02:00:00:00:00:01", addresses: [{address: 192.0.2.5/24, gateway: 192.0.2.1}, "2001:db8::5/64"], sourceRouting: true}}
    - {name: p, type: tuning, dependOn: [d], config: {rules: [{priority: 100, from: 192.0.2.0/24, table: 9}, {priority: 101, to: "2001:db8:1::/48", table: 9}], neighbors: [{address: 192.0.2.9, mac: "02:00:00:00:00:09"}, {address: "2001:db8::9", mac: "02:00:00:00:00:09"}]}}
    - {name: e, type: dummy, config: {name: e0, addresses: [198.51.100.5/24], sourceRouting: true}}
`,
		rows: []drifted{
			{name: "rule missing", disturb: `$ip rule delete priority 100`, drift: "p +rule"},
			{name: "IPv6 rule missing", disturb: `$ip -6 rule delete priority 101`, drift: "p +rule"},
			{name: "rule to another table", disturb: `$ip rule delete priority 100 && $ip rule add from 192.0.2.0/24 lookup 600 priority 100`, drift: "p +rule"},
			{name: "all rules flushed", disturb: `$ip rule flush && $ip rule add lookup main priority 32766 && $ip rule add lookup default priority 32767`, drift: "d +rule, p +rule, e +rule"},
			{name: "routes of the source flushed", disturb: `$ip route flush table 1884215309`, drift: "d +route"},
			{name: "neighbor missing", disturb: `$ip neighbor delete 192.0.2.9 dev p0`, drift: "p +neighbor"},
			{name: "neighbor with another MAC", disturb: `$ip neighbor replace 192.0.2.9 lladdr 02:00:00:00:00:99 dev p0 nud permanent`, drift: "p ~neighbor.mac"},
			{name: "neighbor no longer static", disturb: `$ip neighbor replace 2001:db8::9 lladdr 02:00:00:00:00:99 dev p0 nud stale`, drift: "p +neighbor"},
			{name: "link down", disturb: `$ip link set p0 down`, drift: "d ~link p0.up, p +neighbor, d +route"},
			{name: "link with another MAC", disturb: `$ip link set p0 address 02:00:00:00:00:77`, drift: "d ~link p0.mac, p +neighbor"},

			{name: "own rule beside ours", disturb: `$ip rule add from 192.0.2.0/24 lookup 700 priority 100`},
			{name: "own rule of the other family", disturb: `$ip -6 rule add to 2001:db8:1::/48 lookup 700 priority 90`},
			{name: "own neighbor", disturb: `$ip neighbor add 192.0.2.44 lladdr 02:00:00:00:00:44 dev p0 nud permanent`},
		},
	},
	{
		name:    "functions",
		devices: map[string]string{"vf0": "enp3s0f0/1", "vf1": "enp3s0f1/1"},
		steps: `
    - {name: vf0, type: sriov, config: {vlan: 1234, vlanQoS: 3, mac: "02:00:00:00:00:0a", maxTxRate: 100, spoofchk: off, trust: on, mtu: 2000, addresses: [192.0.2.10/24]}}
    - {name: vf1, type: sriov, config: {trust: off}}
    - {name: tune, type: tuning, dependOn: [vf1], config: {dev: net2, ethtool: {features: {tso: false}}}}
    - {name: up, type: vlan, dependOn: [vf1], config: {id: 9, name: up0}}
`,
		rows: []drifted{
			{name: "VLAN of a function", disturb: `ip link set enp3s0f0 vf 1 vlan 99 qos 3`, drift: "vf0 ~vf.vlan"},
			{name: "QoS of a function", disturb: `ip link set enp3s0f0 vf 1 vlan 1234 qos 5`, drift: "vf0 ~vf.qos"},
			{name: "MAC of a function", disturb: `ip link set enp3s0f0 vf 1 mac 02:00:00:00:00:0b`, drift: "vf0 ~vf.mac"},
			{name: "rate of a function", disturb: `ip link set enp3s0f0 vf 1 max_tx_rate 50`, drift: "vf0 ~vf.maxTxRate"},
			{name: "spoof check", disturb: `ip link set enp3s0f0 vf 1 spoofchk on`, drift: "vf0 ~vf.spoofchk"},
			{name: "trust", disturb: `ip link set enp3s0f0 vf 1 trust off`, drift: "vf0 ~vf.trust"},
			{name: "trust it had not before either", disturb: `ip link set enp3s0f1 vf 1 trust on`, drift: "vf1 ~vf.trust"},
			{name: "function down", disturb: `$ip link set net1 down`, drift: "vf0 ~link net1.up"},
			{name: "MTU of a function", disturb: `$ip link set net1 mtu 1500`, drift: "vf0 ~link net1.mtu"},
			{name: "function renamed", disturb: `$ip link set net2 down && $ip link set net2 name eth9`, drift: "vf1 ~device.at, vf1 +sysctl, vf1 ~link net2.up, up ~link up0.up"},
			{name: "function in another namespace", disturb: `$ip link set net2 netns $OTHER`, refused: fault.NotReady, cleanUp: `ip -n $OTHER link set net2 netns $NS`},
			{name: "function renamed, its name taken", disturb: `$ip link set net2 down && $ip link set net2 name eth9 && $ip link add net2 type dummy`, refused: fault.Conflict, cleanUp: `$ip link delete net2`},
			{name: "function on the host", disturb: `$ip link set net2 netns 1`, drift: "vf1 ~device.at, vf1 +sysctl, vf1 ~link net2.up, up ∓link up0.parent, up +sysctl"},
			{name: "ethtool feature", disturb: `ip netns exec $NS ethtool -K net2 tso on`, drift: "tune ~ethtool.value"},

			{name: "own other name", disturb: `$ip link property add dev net2 altname mine0`, cleanUp: `$ip link property del dev net2 altname mine0`},
			{name: "spoof check that no step wants", disturb: `ip link set enp3s0f1 vf 1 spoofchk off`, cleanUp: `ip link set enp3s0f1 vf 1 spoofchk on`},
		},
	},
	{
		name:    "soft RoCE",
		pod:     "modprobe -a rdma_rxe ib_uverbs rdma_ucm",
		devices: map[string]string{"vf": "enp3s0f0/2"},
		steps: `
    - {name: vf, type: sriov, config: {name: rail0, addresses: [192.0.2.5/24]}}
    - {name: d, type: dummy, config: {name: d0, mac: "02:00:00:00:00:01"}}
    - {name: roce, type: rxe, dependOn: [vf]}
    - {name: other, type: rxe, dependOn: [d]}
`,
		rows: []drifted{
			{name: "RDMA device deleted", disturb: rdmaOn("rail0") + `rdma link delete $R`, drift: "roce +rdma-link, roce waits"},
			{name: "RDMA device renamed", disturb: rdmaOn("rail0") + `rdma dev set $R name mine0`, drift: "roce ~rdma-link.name, roce waits"},
			{name: "another RDMA device on the interface", disturb: rdmaOn("rail0") + `rdma link delete $R; ip netns exec $NS rdma link add mine0 type rxe netdev rail0`, drift: "roce ~rdma-link.name, roce waits"},
			{name: "gone with its link", disturb: `$ip link delete d0`, drift: "d +link d0, d +sysctl, other +rdma-link, other waits"},
		},
	},
	{
		name:    "user space",
		pod:     "modprobe vfio-pci",
		devices: map[string]string{"dpdk": "enp3s0f0/3"},
		steps: `
    - {name: dpdk, type: vfio-pci, config: {vlan: 78, mac: "02:00:00:00:00:0c"}}
    - {name: d, type: dummy, config: {name: d0, mac: "02:00:00:00:00:01"}}
    - {name: up, type: vlan, dependOn: [d], config: {id: 9, name: up0}}
`,
		rows: []drifted{
			{name: "function bound to its own driver", disturb: "true" + reboundFunction, drift: "dpdk ~binding.driver, dpdk ~binding.override"},
			{name: "function without driver", disturb: atFunction + `echo ${PWD##*/} >driver/unbind`, drift: "dpdk ~binding.driver"},
			{name: "any driver may take the function", disturb: atFunction + `echo >driver_override`, drift: "dpdk ~binding.override"},
			{name: "another driver would take the function", disturb: atFunction + `echo igbvf >driver_override`, drift: "dpdk ~binding.override"},
			{name: "VLAN of a function for user space", disturb: `ip link set enp3s0f0 vf 3 vlan 99`, drift: "dpdk ~vf.vlan"},
			{name: "function probed again", disturb: atFunction + `echo ${PWD##*/} >driver/unbind; echo ${PWD##*/} >/sys/bus/pci/drivers_probe`},
		},
	},
}

// rdmaOn sets $R to the RDMA device on a link of the namespace. The kernel says the link only there.
func rdmaOn(link string) string {
	return `R=$(ip netns exec $NS rdma link show | sed -n 's|^link \([^/]*\)/1 .* netdev ` + link + ` *$|\1|p'); `
}

// TestDrift: each disturbance of a sandbox is found and reported for the right step and
// field. It is only reported where the policy is Observe, of the topology or of its
// steps, and repaired if the steps' policy is Repair, against the topology's. Nothing
// else is written, and what belongs to the pod is left alone.
func TestDrift(t *testing.T) {
	for _, g := range driftFixtures {
		if g.devices != nil && !hasCards() {
			continue // no PCI there; the other lane runs it
		}
		t.Run(g.name, g.run)
	}
}

func (g driftFixture) run(t *testing.T) {
	l, path, other := newLane(t), newNetns(t), newNetns(t)
	devices := functions(t, g.devices)
	l.devices = append([]string{}, slices.Sorted(maps.Values(devices))...) // none is not all
	home := l.state("")
	s := &foreignWriter{t, filepath.Base(path), filepath.Base(other)}
	s.run("ip -n $NS link set lo up")
	s.run(g.host)
	s.inside(g.pod)
	start := l.state(path)
	made := g.sandbox(t, path, devices)
	r := l.engine(nil)
	fine := false
	first, stride := effort.Stride(t, 40) // the short form takes every fortieth row
	for n := 0; first-1+n*stride < len(g.rows); n++ {
		row := g.rows[first-1+n*stride]
		if !fine { // else it is as the row before has left it
			if _, err := r.Ensure(ctxFor(t), made.repair); err != nil {
				t.Fatal(err)
			}
		}
		observed := made.observe
		if n%2 == 1 {
			observed = made.observers
		}
		fine = t.Run(row.name, func(t *testing.T) {
			(&lane{t: t, host: l.host, dir: l.dir, devices: l.devices}).row(r, &foreignWriter{t, s.ns, s.other}, made.repair, observed, row)
		})
	}
	if _, err := r.AwaitRelease(ctxFor(t), made.repair.ID); err != nil {
		t.Fatal(err)
	}
	l.mustEqual(home, "", "after release")
	for _, d := range netstatetest.Differences(start, l.state(path)) {
		if !strings.HasPrefix(d, "+ ") { // earlier rows have left it there
			t.Errorf("after release: %s", d)
		}
	}
}

// policies are one sandbox under the policies that rows are shown with: repaired
// by its steps' policy against its topology's; observed by its topology's, or by
// its steps' against it, in turn.
type policies struct {
	repair    reconcile.Sandbox // the topology has Observe, all its steps Repair
	observe   reconcile.Sandbox // the topology says Observe
	observers reconcile.Sandbox // the topology has Repair, all its steps Observe
}

func (g driftFixture) sandbox(t *testing.T, path string, devices map[string]string) policies {
	t.Helper()
	with := func(all, each string) reconcile.Sandbox {
		steps := strings.TrimLeft(g.steps, "\n")
		if each != "" {
			steps = strings.ReplaceAll(steps, "- {name:", "- {driftPolicy: "+each+", name:")
		}
		sb := box(path, parse(t, "t", steps+"  driftPolicy: "+all+"\n"))
		sb.Given = ops.Givens{}.WithDevices(devices)
		return sb
	}
	return policies{with("Observe", "Repair"), with("Observe", ""), with("Repair", "Observe")}
}

// row tests one row: on a sandbox in sync, under a topology that has all drift
// repaired, and one that has all of it observed.
func (l *lane) row(r *reconcile.Reconciler, s *foreignWriter, repaired, observed reconcile.Sandbox, row drifted) {
	t := l.t
	t.Helper()
	id, path := repaired.ID, repaired.Netns
	before := l.state(path)
	s.run(row.disturb)
	damaged := l.state(path)
	odds := ""
	if row.drift == "" {
		odds = s.details()
	}

	st, err := r.Check(ctxFor(t), id)
	if err != nil {
		t.Fatal(err)
	}
	if found := summary(st.Drift); found != row.drift {
		t.Errorf("found\n\t%q, want\n\t%q (%s %s)", found, row.drift, st.State, st.Failure)
	}
	want := reconcile.InSync
	switch {
	case row.drift != "":
		want = reconcile.Drifted
	case row.refused != "":
		want = reconcile.StateFailed
	}
	if st.State != want || st.State == reconcile.StateFailed && st.Kind != row.refused {
		t.Errorf("it is %s (%s: %s), want %s", st.State, st.Kind, st.Failure, want)
	}

	l.replace(id, observed)
	rep, err := r.Repair(ctxFor(t), id)
	if len(rep.Changes) > 0 || err != nil && fault.Of(err) != row.refused {
		t.Errorf("observed: %v, %v", err, rep.Changes)
	}
	if diff := netstatetest.Differences(damaged, l.state(path)); len(diff) > 0 {
		t.Errorf("observed, and changed: %v", diff)
	}

	l.replace(id, repaired)
	_, err = r.Repair(ctxFor(t), id)
	if row.refused != "" {
		if fault.Of(err) != row.refused {
			t.Errorf("repair: %v, want it refused (%s)", err, row.refused)
		}
		s.run(row.cleanUp)
		_, err = r.Repair(ctxFor(t), id)
	}
	if err != nil {
		t.Fatalf("repair: %v", err)
	}
	if row.drift == "" && row.refused == "" {
		before = damaged
		if now := s.details(); now != odds {
			t.Errorf("rules and queues were\n%sand are\n%s", odds, now)
		}
	}
	var left []string
	for range 20 { // a VF reports its carrier and MTU with delay
		left = slices.DeleteFunc(netstatetest.Differences(before, l.state(path)), func(d string) bool {
			return row.remaining != "" && strings.Contains(d, row.remaining)
		})
		if len(left) == 0 {
			break
		}
	}
	if len(left) > 0 {
		t.Errorf("after repair: %v", left)
	}
	if row.refused == "" {
		s.run(row.cleanUp)
	}
}

// summary names what drifted: the step, what would be done to which object, and
// the field. Links, devices and functions are named.
func summary(all []reconcile.Drift) string {
	var out []string
	for _, d := range all {
		text := d.Step + " waits"
		if d.Object.Kind != "" {
			sign := map[netstate.Action]string{netstate.Create: "+", netstate.Update: "~", netstate.Delete: "-", netstate.Replace: "∓"}[d.Action]
			text = d.Step + " " + sign + string(d.Object.Kind)
		}
		if d.Object.Kind == netstate.KindLink {
			text += " " + d.Object.ID
		}
		if d.Object.Kind != "" && d.Field != "" {
			text += "." + d.Field
		}
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return strings.Join(out, ", ")
}

// replace writes another topology to the record, as if it had been applied.
func (l *lane) replace(id reconcile.SandboxID, sb reconcile.Sandbox) {
	l.t.Helper()
	store, err := journal.Open(l.dir)
	if err != nil {
		l.t.Fatal(err)
	}
	rec, ok, err := store.Get(id)
	if err != nil || !ok {
		l.t.Fatalf("record: %v, %v", ok, err)
	}
	rec.Sandbox = sb
	if err := store.Settle(rec); err != nil {
		l.t.Fatal(err)
	}
}

// functions finds the devices of root steps, given as "PF/n".
func functions(t *testing.T, at map[string]string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for step, d := range at {
		pf, n, _ := strings.Cut(d, "/")
		link, err := os.Readlink(fmt.Sprintf("/sys/class/net/%s/device/virtfn%s", pf, n))
		if err != nil {
			t.Fatal(err)
		}
		out[step] = filepath.Base(link)
	}
	return out
}

// foreignWriter changes things with common programs.
type foreignWriter struct {
	t         *testing.T
	ns, other string // names of namespaces
}

func (s *foreignWriter) run(script string) string {
	s.t.Helper()
	out, err := s.try(script)
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}

func (s *foreignWriter) try(script string) (string, error) {
	if script == "" {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-ec", script)
	cmd.Env = append(os.Environ(), "NS="+s.ns, "OTHER="+s.other, "ip=ip -n "+s.ns, "bridge=bridge -n "+s.ns)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// inside runs a script with all its commands in the namespace.
func (s *foreignWriter) inside(script string) {
	s.t.Helper()
	if script != "" {
		s.run("ip netns exec $NS sh -ec '" + script + "'")
	}
}

// details returns the state that the engine does not observe: rules and queueing disciplines. The
// kernel creates the rule for VRFs with the first one, and keeps it; links that never
// had a queue are left out.
func (s *foreignWriter) details() string {
	s.t.Helper()
	return s.run(`{ $ip rule; $ip -6 rule; ip netns exec $NS tc qdisc; } | grep -vE 'l3mdev-table|qdisc noqueue' || true`)
}
