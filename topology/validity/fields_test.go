package validity_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/sysfstest"
	"github.com/plumbline/plumbline/qos"
	qosv1alpha1 "github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/exposure"
	pluginv1alpha1 "github.com/plumbline/plumbline/topology/pluginschema/v1alpha1"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// field is a field of a CRD with two specs that differ in it alone. Their results have to differ.
type field struct{ without, with string }

// inert are fields that nothing reads, with the reason why they are accepted.
var inert = map[string]string{
	"NetworkTopology.onFailure.degraded":                   "Report is the default and the only value",
	"CNIPluginSchema.version":                              "says to readers which release of a plugin is described; a node has no plugin that it could be compared with",
	"CNIPluginSchema.configParameters.required[].required": "each parameter of this list is required; the field is that of properties of objects",
}

// foreign are selectors of networks of ovn-kubernetes, whose meaning the tests of package qos hold, and of which no
// NetworkTopology is one.
var foreign = regexp.MustCompile(`^NetworkQoS\.networkSelectors\[\]\.(cluster|primary|secondary|networkAttachment)|networkTopologySelector\.namespaceSelector$`)

const (
	vfs         = `{name: a, type: sriov}, {name: b, type: sriov}`
	pool        = `subnets: [{prefix: 10.0.0.0/24}]`
	shares      = `allowMultipleAllocations: true`
	counted     = shares + `, capacity: {bandwidth: {value: "8", requestPolicy: {default: "2"}}}`
	onRail      = `priority: 1, networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {networkSelector: {matchLabels: {rail: storage}}}}]`
	dummy       = `steps: [{name: d, type: dummy, config: {name: d0, mtu: 1400}}]`
	uplink      = `steps: [{name: d, type: dummy, config: {name: d0}}, {name: t, type: tuning, dependOn: [d], config: {dev: ext0, mtu: 1400}}]`
	primaryRole = `role: primary, steps: [{name: eth, type: bridge, config: {bridge: cni0, isDefaultGateway: true}}]`
	rule        = onRail + `, egress: [{dscp: 1}]`
)

// to is a NetworkQoS with a destination and ports.
func to(classifier string) string {
	return onRail + `, egress: [{dscp: 1, classifier: {` + classifier + `}}]`
}

// failing is a topology that reacts to failures of ports.
func failing(with string) string { return dummy + `, onFailure: {` + with + `}` }

// exporting is a topology that tells containers of its results.
func exporting(what string) string {
	return `steps: [{name: d, type: dummy, config: {name: d0, addresses: [192.0.2.1/24]}}], export: {` + what + `}`
}

// setting is a topology that lets a claim set a key.
func setting(parameter string) string {
	return `steps: [` + vfs + `], claimParameters: [{` + parameter + `}]`
}

// attached is a NetworkQoS that names its network.
func attached(to string) string {
	return `priority: 1, netAttachRefs: [{kind: NetworkTopology, name: ` + to + `}], egress: [{dscp: 1}]`
}

// fields are all others.
var fields = map[string]field{
	"NetworkTopology.steps[].name":                                  {`steps: [{name: a, type: sriov}]`, `steps: [{name: b, type: sriov}]`},
	"NetworkTopology.steps[].type":                                  {`steps: [{name: a, type: sriov}]`, `steps: [{name: a, type: host-device}]`},
	"NetworkTopology.steps[].dependOn[]":                            {`steps: [{name: a, type: sriov}, {name: v, type: vlan, config: {id: 5}}]`, `steps: [{name: a, type: sriov}, {name: v, type: vlan, dependOn: [a], config: {id: 5}}]`},
	"NetworkTopology.steps[].selector.cel":                          {`steps: [{name: a, type: sriov}]`, `steps: [{name: a, type: sriov, selector: {cel: 'true'}}]`},
	"NetworkTopology.steps[].extendedResourceName":                  {`steps: [{name: a, type: sriov}]`, `steps: [{name: a, type: sriov, extendedResourceName: example.com/a}]`},
	"NetworkTopology.steps[].allowDuplicate":                        {`claimTemplate: {}, steps: [{name: a, type: sriov, config: {addresses: [192.0.2.5/24]}}]`, `claimTemplate: {}, steps: [{name: a, type: sriov, allowDuplicate: true, config: {addresses: [192.0.2.5/24]}}]`},
	"NetworkTopology.role":                                          {`steps: [{name: a, type: sriov}]`, `role: primary, steps: [{name: a, type: sriov}]`},
	"NetworkTopology.claimTemplate.name":                            {`claimTemplate: {}, steps: [` + vfs + `]`, `claimTemplate: {name: other}, steps: [` + vfs + `]`},
	"NetworkTopology.claimTemplate.bondPorts":                       {`claimTemplate: {}, steps: [` + vfs + `, {name: bond, type: bond, dependOn: [a, b], config: {mode: 802.3ad}}]`, `claimTemplate: {bondPorts: Any}, steps: [` + vfs + `, {name: bond, type: bond, dependOn: [a, b], config: {mode: 802.3ad}}]`},
	"NetworkTopology.claimTemplate.constraints[].steps[]":           {`claimTemplate: {constraints: [{matchAttribute: resource.kubernetes.io/pcieRoot}]}, steps: [` + vfs + `]`, `claimTemplate: {constraints: [{steps: [a, b], matchAttribute: resource.kubernetes.io/pcieRoot}]}, steps: [` + vfs + `]`},
	"NetworkTopology.claimTemplate.constraints[].matchAttribute":    {`claimTemplate: {}, steps: [` + vfs + `]`, `claimTemplate: {constraints: [{matchAttribute: resource.kubernetes.io/pcieRoot}]}, steps: [` + vfs + `]`},
	"NetworkTopology.claimTemplate.constraints[].distinctAttribute": {`claimTemplate: {}, steps: [` + vfs + `]`, `claimTemplate: {constraints: [{distinctAttribute: dra.networking/numaNode}]}, steps: [` + vfs + `]`},

	"NetworkTopology.steps[].forEach[]": {`steps: [{name: a, type: sriov, forEach: ["0"]}]`, `steps: [{name: a, type: sriov, forEach: ["0", "1"]}]`},

	"NetworkTopology.export.env[]":     {exporting(`env: {A: "{{ d.interfaceName }}"}`), exporting(`env: {A: "{{ d.mac }}"}`)},
	"NetworkTopology.export.files[]":   {exporting(`files: {a: "{{ d.interfaceName }}\n"}`), exporting(`files: {../a: "{{ d.interfaceName }}\n"}`)},
	"NetworkTopology.export.presets[]": {exporting(`presets: [mpi]`), exporting(`presets: [ucx]`)},

	"NetworkTopology.driftPolicy":                     {dummy, dummy + `, driftPolicy: Observe`},
	"NetworkTopology.steps[].driftPolicy":             {dummy, `steps: [{name: d, type: dummy, driftPolicy: Observe, config: {name: d0, mtu: 1400}}]`},
	"NetworkTopology.steps[].config":                  {dummy, strings.Replace(dummy, "1400", "1300", 1)},
	"NetworkTopology.allowPodUplink":                  {uplink, uplink + `, allowPodUplink: true`},
	"NetworkTopology.updatePolicy":                    {dummy, dummy + `, updatePolicy: InPlace`},
	"NetworkTopology.rollout.maxUnavailable":          {dummy + `, updatePolicy: InPlace`, dummy + `, updatePolicy: InPlace, rollout: {maxUnavailable: 2}`},
	"NetworkTopology.onFailure.lost":                  {failing(`lost: Report`), failing(`lost: Evict`)},
	"NetworkTopology.onFailure.after":                 {failing(`after: 60s`), failing(`after: 90s`)},
	"NetworkTopology.claimTemplate.namespaces[]":      {`claimTemplate: {namespaces: [ns]}, steps: [` + vfs + `]`, `claimTemplate: {namespaces: [other]}, steps: [` + vfs + `]`},
	"NetworkTopology.claimTemplate.namespaceSelector": {`claimTemplate: {namespaceSelector: {matchLabels: {team: a}}}, steps: [` + vfs + `]`, `claimTemplate: {namespaceSelector: {matchLabels: {team: b}}}, steps: [` + vfs + `]`},
	"NetworkTopology.nodeSelector":                    {primaryRole, primaryRole + `, nodeSelector: {matchLabels: {pool: none}}`},

	"NetworkTopology.claimParameters[].step":             {setting(`step: a, key: mac, macPrefix: "02"`), setting(`step: b, key: mac, macPrefix: "02"`)},
	"NetworkTopology.claimParameters[].key":              {setting(`step: a, key: mac, macPrefix: "02"`), setting(`step: a, key: name, namePattern: "02"`)},
	"NetworkTopology.claimParameters[].macPrefix":        {setting(`step: a, key: mac, macPrefix: "02"`), setting(`step: a, key: mac, macPrefix: "04"`)},
	"NetworkTopology.claimParameters[].namePattern":      {setting(`step: a, key: name, namePattern: a`), setting(`step: a, key: name, namePattern: b`)},
	"NetworkTopology.claimParameters[].subnets[].prefix": {setting(`step: a, key: addresses, subnets: [{prefix: 10.0.0.0/24}]`), setting(`step: a, key: addresses, subnets: [{prefix: 10.0.1.0/24}]`)},
	"NetworkTopology.claimParameters[].subnets[].first":  {setting(`step: a, key: addresses, subnets: [{prefix: 10.0.0.0/24}]`), setting(`step: a, key: addresses, subnets: [{prefix: 10.0.0.0/24, first: 10.0.0.9}]`)},
	"NetworkTopology.claimParameters[].subnets[].last":   {setting(`step: a, key: addresses, subnets: [{prefix: 10.0.0.0/24}]`), setting(`step: a, key: addresses, subnets: [{prefix: 10.0.0.0/24, last: 10.0.0.9}]`)},

	"AddressPool.subnets[].prefix":     {pool, `subnets: [{prefix: 10.1.0.0/24}]`},
	"AddressPool.subnets[].first":      {pool, `subnets: [{prefix: 10.0.0.0/24, first: 10.0.0.9}]`},
	"AddressPool.subnets[].last":       {pool, `subnets: [{prefix: 10.0.0.0/24, last: 10.0.0.9}]`},
	"AddressPool.subnets[].gateway":    {pool, `subnets: [{prefix: 10.0.0.0/24, gateway: 10.0.0.1}]`},
	"AddressPool.exclude[]":            {pool, pool + `, exclude: [10.0.0.9]`},
	"AddressPool.blockSize":            {pool, pool + `, blockSize: 16`},
	"AddressPool.hostBlock":            {pool, pool + `, hostBlock: 2`},
	"AddressPool.interfaceBlock":       {pool + `, hostBlock: 2`, pool + `, hostBlock: 2, interfaceBlock: 1`},
	"AddressPool.routes[].destination": {pool + `, routes: [{destination: 10.8.0.0/16, gateway: 10.0.0.1}]`, pool + `, routes: [{destination: 10.9.0.0/16, gateway: 10.0.0.1}]`},
	"AddressPool.routes[].gateway":     {pool + `, routes: [{destination: 10.8.0.0/16, gateway: 10.0.0.1}]`, pool + `, routes: [{destination: 10.8.0.0/16, gateway: 10.0.0.2}]`},
	"AddressPool.quarantineSeconds":    {pool, pool + `, quarantineSeconds: 5`},
	"AddressPool.reclaimAfter":         {pool, pool + `, reclaimAfter: 5m`},

	"DeviceExposurePolicy.priority":                                              {`priority: 2, action: withhold`, `priority: 4, action: withhold`},
	"DeviceExposurePolicy.nodeSelector[]":                                        {`priority: 4, action: withhold`, `priority: 4, nodeSelector: {pool: none}, action: withhold`},
	"DeviceExposurePolicy.selector.cel":                                          {`priority: 4, action: withhold`, `priority: 4, selector: {cel: 'false'}, action: withhold`},
	"DeviceExposurePolicy.action":                                                {`priority: 4`, `priority: 4, action: withhold`},
	"DeviceExposurePolicy.exposure.allowMultipleAllocations":                     {`priority: 4, exposure: {}`, `priority: 4, exposure: {` + shares + `}`},
	"DeviceExposurePolicy.exposure.deviceNameSuffix":                             {`priority: 4, exposure: {` + shares + `}`, `priority: 4, exposure: {` + shares + `, deviceNameSuffix: -x}`},
	"DeviceExposurePolicy.exposure.capacity[].value":                             {`priority: 4, exposure: {` + counted + `}`, `priority: 4, exposure: {` + strings.Replace(counted, `"8"`, `"9"`, 1) + `}`},
	"DeviceExposurePolicy.exposure.capacity[].requestPolicy.default":             {`priority: 4, exposure: {` + counted + `}`, `priority: 4, exposure: {` + strings.Replace(counted, `"2"`, `"3"`, 1) + `}`},
	"DeviceExposurePolicy.exposure.capacity[].requestPolicy.validRange.min":      {ranged(`min: "1"`), ranged(`min: "2"`)},
	"DeviceExposurePolicy.exposure.capacity[].requestPolicy.validRange.max":      {ranged(`min: "2"`), ranged(`min: "2", max: "4"`)},
	"DeviceExposurePolicy.exposure.capacity[].requestPolicy.validRange.step":     {ranged(`min: "2"`), ranged(`min: "2", step: "2"`)},
	"DeviceExposurePolicy.exposure.capacity[].requestPolicy.validValues[]":       {`priority: 4, exposure: {` + counted + `}`, `priority: 4, exposure: {` + strings.Replace(counted, `default: "2"`, `default: "2", validValues: ["2", "4"]`, 1) + `}`},
	"DeviceExposurePolicy.exposure.supportedCNIPlugins[].name":                   {`priority: 4, exposure: {` + shares + `}`, `priority: 4, exposure: {` + shares + `, supportedCNIPlugins: [{name: macvlan}]}`},
	"DeviceExposurePolicy.exposure.supportedCNIPlugins[].exclusive":              {`priority: 4, exposure: {` + shares + `, supportedCNIPlugins: [{name: macvlan}]}`, `priority: 4, exposure: {` + shares + `, supportedCNIPlugins: [{name: macvlan, exclusive: true}]}`},
	"DeviceExposurePolicy.exposure.supportedCNIPlugins[].consumePerAllocation[]": {`priority: 4, exposure: {` + counted + `, supportedCNIPlugins: [{name: macvlan}]}`, `priority: 4, exposure: {` + counted + `, supportedCNIPlugins: [{name: macvlan, consumePerAllocation: {bandwidth: "3"}}]}`},
	"DeviceExposurePolicy.exposure.additionalAttributes[]":                       {`priority: 4, exposure: {}`, `priority: 4, exposure: {additionalAttributes: {example.com/a: b}}`},
	"DeviceExposurePolicy.exposure.besideDrivers[]":                              {`priority: 4, exposure: {}`, `priority: 4, exposure: {besideDrivers: [example.com]}`},
	"DeviceExposurePolicy.exposure.besideFunctions":                              {`priority: 4, exposure: {}`, `priority: 4, exposure: {besideFunctions: true}`},
	"DeviceExposurePolicy.physicalNetworks[].name":                               {`priority: 4, physicalNetworks: [{name: a}]`, `priority: 4, physicalNetworks: [{name: b}]`},
	"DeviceExposurePolicy.physicalNetworks[].vlan":                               {`priority: 4, physicalNetworks: [{name: a}]`, `priority: 4, physicalNetworks: [{name: a, vlan: 7}]`},
	"DeviceExposurePolicy.physicalNetworks[].addressPool":                        {`priority: 4, physicalNetworks: [{name: a}]`, `priority: 4, physicalNetworks: [{name: a, addressPool: p}]`},
	"DeviceExposurePolicy.neighbour.expect.switch":                               {`priority: 4, neighbour: {expect: {switch: leaf-1}}`, `priority: 4, neighbour: {expect: {switch: leaf-2}}`},
	"DeviceExposurePolicy.neighbour.expect.switchPort":                           {`priority: 4, neighbour: {expect: {switch: leaf-1}}`, `priority: 4, neighbour: {expect: {switch: leaf-1, switchPort: swp9}}`},
	"DeviceExposurePolicy.neighbour.rail.from":                                   {`priority: 4, neighbour: {rail: {from: switch, match: '[a-z-]+([0-9]+)'}}`, `priority: 4, neighbour: {rail: {from: switchPort, match: '[a-z-]+([0-9]+)'}}`},
	"DeviceExposurePolicy.neighbour.rail.match":                                  {`priority: 4, neighbour: {rail: {from: switch, match: '[a-z-]+([0-9]+)'}}`, `priority: 4, neighbour: {rail: {from: switch, match: '([a-z]+)-[0-9]'}}`},

	"NetworkQoS.networkSelectors[].networkSelectionType":                    {rule, `priority: 1, networkSelectors: [{networkSelectionType: DefaultNetwork}], egress: [{dscp: 1}]`},
	"NetworkQoS.networkSelectors[].networkTopologySelector.networkSelector": {rule, strings.Replace(rule, "rail: storage", "rail: other", 1)},

	"NetworkQoS.netAttachRefs[]":                            {attached("rail"), attached("other")},
	"NetworkQoS.podSelector":                                {rule, rule + `, podSelector: {matchLabels: {app: none}}`},
	"NetworkQoS.priority":                                   {rule, strings.Replace(rule, "priority: 1", "priority: 2", 1)},
	"NetworkQoS.egress[].dscp":                              {rule, strings.Replace(rule, "dscp: 1", "dscp: 2", 1)},
	"NetworkQoS.egress[].classifier.to[].podSelector":       {to(`to: [{podSelector: {}}]`), to(`to: [{podSelector: {matchLabels: {app: db}}}]`)},
	"NetworkQoS.egress[].classifier.to[].namespaceSelector": {to(`to: [{podSelector: {}}]`), to(`to: [{podSelector: {}, namespaceSelector: {}}]`)},
	"NetworkQoS.egress[].classifier.to[].ipBlock.cidr":      {to(`to: [{ipBlock: {cidr: 10.0.0.0/8}}]`), to(`to: [{ipBlock: {cidr: 10.0.0.0/9}}]`)},
	"NetworkQoS.egress[].classifier.to[].ipBlock.except[]":  {to(`to: [{ipBlock: {cidr: 10.0.0.0/8}}]`), to(`to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]`)},
	"NetworkQoS.egress[].classifier.ports[].protocol":       {to(`ports: [{protocol: TCP, port: 5}]`), to(`ports: [{protocol: UDP, port: 5}]`)},
	"NetworkQoS.egress[].classifier.ports[].port":           {to(`ports: [{protocol: TCP, port: 5}]`), to(`ports: [{protocol: TCP, port: 6}]`)},
	"NetworkQoS.egress[].classifier.port.protocol":          {to(`port: {protocol: TCP, port: 5}`), to(`port: {protocol: UDP, port: 5}`)},
	"NetworkQoS.egress[].classifier.port.port":              {to(`port: {protocol: TCP, port: 5}`), to(`port: {protocol: TCP, port: 6}`)},
	"NetworkQoS.egress[].bandwidth.rate":                    {rule, onRail + `, egress: [{dscp: 1, bandwidth: {rate: 5}}]`},
	"NetworkQoS.egress[].bandwidth.burst":                   {onRail + `, egress: [{dscp: 1, bandwidth: {rate: 5}}]`, onRail + `, egress: [{dscp: 1, bandwidth: {rate: 5, burst: 7}}]`},
}

// ranged is a policy with a range of amounts.
func ranged(of string) string {
	return `priority: 4, exposure: {` + strings.Replace(counted, `default: "2"`, `default: "2", validRange: {`+of+`}`, 1) + `}`
}

// effect is a kind of object with what is made of a spec, as text.
type effect struct {
	spec any
	of   func(t *testing.T, spec string) string
}

func effects(t *testing.T) map[string]effect {
	t.Helper()
	devices, err := inventory.Discover(sysfstest.Open(t, "../../inventory/testdata/tree/igb.txtar"), inventory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return map[string]effect{
		"NetworkTopology":      {v1alpha1.NetworkTopologySpec{}, madeOfTopology},
		"AddressPool":          {v1alpha1.AddressPoolSpec{}, madeOfPool},
		"DeviceExposurePolicy": {v1alpha1.DeviceExposurePolicySpec{}, func(t *testing.T, spec string) string { return madeOfPolicy(t, spec, slices.Clone(devices)) }},
		"NetworkQoS":           {qosv1alpha1.Spec{}, madeOfQoS},
		"CNIPluginSchema":      {pluginv1alpha1.CNIPluginSchemaSpec{}, madeOfSchema},
	}
}

// TestEveryFieldCounts holds that each field of the CRDs that users write has an effect: what is made of the object, or what is
// said of it, differs by the field alone. A field without a row fails. AddressLeases and
// reports are written by nobody but plumbline.
func TestEveryFieldCounts(t *testing.T) {
	seen := map[string]bool{}
	for path, f := range schemaFields() {
		fields["CNIPluginSchema."+path] = f
	}
	for kind, e := range effects(t) {
		for _, path := range leaves(reflect.TypeOf(e.spec), kind, nil) {
			seen[path] = true
			if foreign.MatchString(path) {
				continue
			}
			if inert[path] != "" {
				continue
			}
			f, is := fields[path]
			if !is {
				t.Errorf("%s: has no row, so nothing shows that it has an effect", path)
				continue
			}
			without := e.of(t, f.without)
			if without != e.of(t, f.without) {
				t.Fatalf("%s: what is made of one spec differs each time", path)
			}
			if without == e.of(t, f.with) {
				t.Errorf("%s: accepted, and changes nothing: %s", path, f.with)
			}
		}
	}
	for path := range fields {
		if !seen[path] {
			t.Errorf("%s: there is no such field", path)
		}
	}
	for path := range inert {
		if !seen[path] {
			t.Errorf("%s: there is no such field", path)
		}
	}
}

// leaves are the fields of a type, without those that hold others of ours. A type within itself is one field.
func leaves(t reflect.Type, at string, within []reflect.Type) (out []string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 || t.Kind() == reflect.Map {
		if t.Kind() != reflect.Pointer {
			at += "[]"
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || !strings.Contains(t.PkgPath(), "plumbline") || slices.Contains(within, t) {
		return []string{at}
	}
	for f := range t.Fields() {
		switch name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name {
		case "-":
		case "": // inline
			out = append(out, leaves(f.Type, at, append(within, t))...)
		default:
			out = append(out, leaves(f.Type, at+"."+name, append(within, t))...)
		}
	}
	return out
}

func read(t *testing.T, spec string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte("{metadata: {namespace: ns, name: it, uid: u}, spec: {"+spec+"}}"), into); err != nil {
		t.Fatalf("%s: %v", spec, err)
	}
}

func asText(t *testing.T, all ...any) string {
	t.Helper()
	raw, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func madeOfPool(t *testing.T, spec string) string {
	t.Helper()
	o := &v1alpha1.AddressPool{}
	read(t, spec, o)
	l, err := addresspool.Of(o)
	if err != nil {
		return err.Error()
	}
	given := []netip.Prefix{netip.MustParsePrefix("10.0.0.77/24")}
	var blocks []string
	for _, block := range []string{"10.0.0.16/28", "10.0.0.5/32", "10.0.0.0/26", "10.1.0.5/32"} {
		blocks = append(blocks, fmt.Sprint(l.Holds(netip.MustParsePrefix(block))))
	}
	return asText(t, l.Size(true), l.Flat(), l.Interfaces(), l.Prefixes(true), blocks, fmt.Sprint(l.Routes(given)), l.Gateways(given), addresspool.Quarantine(o), addresspool.Reclaim(o))
}

func madeOfPolicy(t *testing.T, spec string, devices []inventory.Device) string {
	t.Helper()
	o, other := &v1alpha1.DeviceExposurePolicy{}, &v1alpha1.DeviceExposurePolicy{}
	read(t, spec, o)
	read(t, `priority: 3, exposure: {additionalAttributes: {example.com/c: d}}`, other)
	other.Name, other.UID = "other", "v"
	p := exposure.New(o)
	if p.Err != nil {
		return p.Err.Error()
	}
	for i := range devices {
		devices[i].Neighbour = &inventory.Neighbour{Switch: "leaf-1", Port: "swp2"}
	}
	decided, err := exposure.NewSet([]*exposure.Policy{p, exposure.New(other)}, exposure.Node{Labels: map[string]string{"pool": "a"}}).Decide(t.Context(), devices)
	if err != nil {
		t.Fatal(err)
	}
	var out []any
	for _, d := range inventory.Forms(decided) {
		out = append(out, d.Name, d.Exposure, d.PhysicalNetworks, inventory.Attributes(d), inventory.Capacity(d))
	}
	return asText(t, out...)
}

func madeOfQoS(t *testing.T, spec string) string {
	t.Helper()
	o := &qosv1alpha1.NetworkQoS{}
	read(t, spec, o)
	p := qos.New(o)
	if p.Err != nil {
		return p.Err.Error()
	}
	c := qos.NewCompiler()
	c.SetPolicy(p)
	on := qos.Attachment{Network: qos.Network{NetworkID: qos.NetworkID{Kind: qos.NetworkTopology, Name: "rail"}, Labels: map[string]string{"rail": "storage"}}}
	for i, pod := range []struct{ namespace, app string }{{"ns", "web"}, {"ns", "db"}, {"other", "db"}} {
		c.SetNamespace(pod.namespace, nil)
		on.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})}
		c.SetPod(&qos.Pod{Key: types.NamespacedName{Namespace: pod.namespace, Name: pod.app}, Labels: map[string]string{"app": pod.app}, Attachments: []qos.Attachment{on}})
	}
	sets, over := c.Sets(p.Key)
	var rules []string
	for _, of := range c.Rules(types.NamespacedName{Namespace: "ns", Name: "web"}) {
		for _, rule := range of {
			if rule.Addresses != nil {
				rules = append(rules, fmt.Sprint(rule.Addresses.Ranges()))
			}
			rule.Addresses = nil // a pointer
			rules = append(rules, fmt.Sprintf("%+v", rule))
		}
	}
	return asText(t, rules, sets, over)
}
