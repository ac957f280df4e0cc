package all_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/optest"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/contract"
)

// without are keys whose values change no plan, with the reason.
var without = map[string]string{
	"bridge: enabledad":         "what it asks for is the kernel's default",
	"ovn-k8s-cni-overlay: role": "the other roles are refused",
	"dummy: ipam.vlanMode":      "for steps of type ipvlan",
	"tuning: ethtool.rings":     "the links of the cases have no such settings", "tuning: ethtool.channels": "likewise",
	"tuning: ethtool.coalesce": "likewise", "tuning: ethtool.privateFlags": "likewise",
}

// namesDevice are keys by which a step names its device, where none is allocated: reconcile/node finds it. In a cluster
// they are noted: validity.
var namesDevice = []string{"deviceID", "runtimeConfig", "device", "hwaddr", "kernelpath"}

// more are steps of topologies beside the cases, on a host that forwards.
var more = []string{
	`{name: it, type: bridge, config: {addresses: [192.0.2.5/24, "2001:db8::5/64"], ipMasq: true, isGateway: true, portMappings: [{hostPort: 80, containerPort: 8080}]}}`,
	`{name: it, type: bridge, config: {addresses: [192.0.2.5/24]}}`,
	`{name: it, type: bridge, config: {vlanTrunk: [{minID: 5, maxID: 9}]}}`,
	`{name: a, type: dummy, config: {name: a, mac: "02:00:00:00:00:0a"}}, {name: b, type: dummy, config: {name: b, mac: "02:00:00:00:00:0b"}}, {name: it, type: bond, dependOn: [a, b], config: {mode: balance-tlb, links: [{name: b}, {name: a}]}}`,
	`{name: a, type: dummy, config: {name: a}}, {name: b, type: dummy, config: {name: b}}, {name: it, type: tuning, dependOn: [a, b], config: {dev: a, addresses: ["2001:db8::5/64"]}}`,
	`{name: it, type: dummy, config: {ipam: {type: multi-nic-ipam, pool: p, hostBlock: 4, interfaceBlock: 1}}}`,
	`{name: it, type: dummy, config: {ipam: {type: host-local, ranges: [[{subnet: 192.0.2.0/24, rangeStart: 192.0.2.10, rangeEnd: 192.0.2.90, gateway: 192.0.2.1}]]}}}`,
	`{name: it, type: macvlan, config: {masterNets: [10.0.1.0/24, 10.0.2.0/24], ipam: {type: pool, pool: p}}}`,
}

// TestEveryValueCounts holds that each value that a contract accepts has an effect: in some topology the plan, the
// results, the notes, the addresses to allocate or the requested device differ from those without the key. Of a key
// one value may be what is assumed without it. A value that is always refused, or asks for nothing such as false, needs
// no effect. Nor does a key that is noted wherever it is used (contract.Param.Ignored).
//
// The topologies are the cases of all step types; a key that none of them has is added to them.
func TestEveryValueCounts(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	e := readEffects(t, reg)
	failed := map[string]bool{}
	tried := effort.Sample(t, 4, reg.Types())
	for _, typ := range tried {
		c, _ := reg.Contract(typ)
		for _, path := range paths(c.Params) {
			if slices.Contains(namesDevice, path[0].Name) || len(path) > 1 && typ != "dummy" && shared(reg, path[0]) || path.key().Ignored != "" || path[0].Name == "require" {
				continue // noted; tried in steps of type dummy; noted; compared and not made: TestRDMARequirements
			}
			key := typ + ": " + path.String()
			why := e.idle(t.Context(), typ, path)
			if failed[key] = len(why) > 0; failed[key] && without[key] == "" {
				t.Errorf("%s: %s", key, strings.Join(why, ", "))
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(without)) {
		if typ, _, _ := strings.Cut(key, ":"); slices.Contains(tried, typ) && !failed[key] {
			t.Errorf("%s: has an effect: remove it from the list", key)
		}
	}
}

// shared reports whether a key is one that each step with addresses has, described alike.
func shared(reg *ops.Registry, p contract.Param) bool {
	c, _ := reg.Contract("dummy")
	return slices.ContainsFunc(c.Params, func(q contract.Param) bool { return reflect.DeepEqual(p, q) })
}

// place is one key of a contract: the parameters that lead to it.
type place []contract.Param

// paths are all keys, also those within objects, lists and maps.
func paths(params []contract.Param, above ...contract.Param) (out []place) {
	for _, p := range params {
		at := append(slices.Clone(above), p)
		out = append(out, at)
		for p.Items != nil {
			p = *p.Items
		}
		out = append(out, paths(p.Properties, at...)...)
	}
	return out
}

func (p place) String() string {
	var names []string
	for _, param := range p {
		name := param.Name
		for ; param.Items != nil; param = *param.Items {
			name += "[]"
		}
		names = append(names, name)
	}
	return strings.TrimSuffix(strings.Join(names, "."), "[]")
}

func (p place) key() contract.Param { return p[len(p)-1] }

// start is a topology in a world, and one of its steps.
type start struct {
	file string
	text string // topology.yaml
	step int
	typ  string
}

// effects has the topologies in which values are tried.
type effects struct {
	reg    *ops.Registry
	cases  map[string]*optest.Case
	starts []start
	seen   map[string][]any // values of keys of configs, by where
	done   map[string]string
}

// readEffects reads the cases of all types.
func readEffects(t testing.TB, reg *ops.Registry) *effects {
	t.Helper()
	e := &effects{reg: reg, cases: map[string]*optest.Case{}, seen: map[string][]any{}, done: map[string]string{}}
	for _, steps := range more {
		e.cases[steps] = &optest.Case{Have: []netstate.Object{
			netstate.Sysctl{Path: "host:net/ipv4/ip_forward", Value: new("1")}, netstate.Sysctl{Path: "host:net/ipv6/conf/all/forwarding", Value: new("1")},
		}}
		e.add(t, steps, "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec: {steps: ["+steps+"]}\n")
	}
	files, err := filepath.Glob("../*/testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		c, _ := optest.Read(file) // some cases are of topologies that cannot be read
		archive, err := txtar.ParseFile(file)
		if err != nil || c == nil {
			t.Fatalf("%s: %v", file, err)
		}
		e.cases[file] = c
		for _, f := range archive.Files {
			if f.Name == "topology.yaml" {
				e.add(t, file, string(f.Data))
			}
		}
	}
	return e
}

func (e *effects) add(t testing.TB, file, text string) {
	t.Helper()
	for i, step := range stepsOf(t, text) {
		typ, _ := step["type"].(string)
		e.starts = append(e.starts, start{file, text, i, typ})
		config, _ := step["config"].(map[string]any)
		if c, ok := e.reg.Contract(typ); ok {
			for _, p := range paths(c.Params) {
				e.see(e.where(typ, p), valuesAt(config, p))
			}
		}
	}
}

// where is a key of a type, or of all types with addresses.
func (e *effects) where(typ string, p place) string {
	if shared(e.reg, p[0]) {
		return p.String()
	}
	return typ + ": " + p.String()
}

func (e *effects) see(path string, values []any) {
	for _, v := range values {
		if !slices.ContainsFunc(e.seen[path], func(old any) bool { return reflect.DeepEqual(old, v) }) {
			e.seen[path] = append(e.seen[path], v)
		}
	}
}

func stepsOf(t testing.TB, text string) (out []map[string]any) {
	t.Helper()
	var doc struct {
		Spec struct {
			Steps []map[string]any `json:"steps"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	return doc.Spec.Steps
}

// valuesAt are the values of a key in a config, of all entries of the lists that lead to it.
func valuesAt(v any, p place) (out []any) {
	object, ok := v.(map[string]any)
	if list, isList := v.([]any); isList {
		for _, entry := range list {
			out = append(out, valuesAt(entry, p)...)
		}
		return out
	}
	if !ok || len(p) == 0 {
		return nil
	}
	for _, name := range append([]string{p[0].Name}, p[0].Aliases...) {
		if got, has := object[name]; has && len(p) == 1 {
			out = append(out, got)
		} else if has {
			out = append(out, valuesAt(got, p[1:])...)
		}
	}
	return out
}

// set sets a key in a config, of the first entry of each list that leads to it, and makes what is missing on
// the way. A value nil removes it.
func set(v any, p place, value any) any {
	object, ok := v.(map[string]any)
	if list, isList := v.([]any); isList && len(list) > 0 {
		list[0] = set(list[0], p, value)
		return list
	}
	if !ok {
		object = map[string]any{}
	}
	for _, alias := range p[0].Aliases {
		if old, has := object[alias]; has {
			object[p[0].Name] = old
			delete(object, alias)
		}
	}
	switch {
	case len(p) == 1 && value == nil:
		delete(object, p[0].Name)
	case len(p) == 1:
		object[p[0].Name] = value
	default:
		inner := object[p[0].Name]
		for item := p[0]; inner == nil && item.Items != nil; item = *item.Items {
			inner = []any{}
		}
		if list, isList := inner.([]any); isList && len(list) == 0 {
			inner = []any{map[string]any{}}
		} else if text, bare := first(inner).(string); bare && p[0].Items != nil && p[0].Items.Shorthand != "" {
			inner.([]any)[0] = map[string]any{p[0].Items.Shorthand: text}
		}
		object[p[0].Name] = set(inner, p[1:], value)
	}
	return object
}

func first(v any) any {
	if list, ok := v.([]any); ok && len(list) > 0 {
		return list[0]
	}
	return nil
}

// values are the values tried for a key.
func (e *effects) values(typ string, p place) []any {
	var out []any
	for _, v := range append(slices.Clone(e.seen[e.where(typ, p)]), example(p.key())...) {
		text := fmt.Sprint(v)
		if p.key().OnOff {
			text = strings.NewReplacer("true", "on", "false", "off").Replace(text)
		}
		twice := slices.ContainsFunc(out, func(old any) bool { return fmt.Sprint(old) == text })
		if len(out) < 10 && !twice && !strings.Contains(text, "{{") {
			out = append(out, v)
		}
	}
	return out
}

// example returns values that a parameter accepts.
func example(p contract.Param) (out []any) {
	for _, word := range p.Enum {
		out = append(out, word)
	}
	switch {
	case p.OnOff:
		out = append(out, true, false)
	case len(p.Enum) > 0:
	case p.Type == contract.Boolean:
		out = append(out, true, false)
	case p.Type == contract.Integer:
		low, high := int64(1), int64(1<<31-1)
		if p.Minimum != nil {
			low = *p.Minimum
		}
		if p.Maximum != nil {
			high = *p.Maximum
		}
		for _, n := range []int64{low, low + 1, 100, 1400, high} {
			if n >= low && n <= high {
				out = append(out, n)
			}
		}
	case p.Type == contract.Object:
		object := map[string]any{}
		for i, q := range p.Properties {
			if values := example(q); len(values) > 0 && (i == 0 || q.Required) {
				object[q.Name] = values[len(values)-1]
			}
		}
		out = append(out, object)
	case p.Type == contract.Any:
		out = append(out, "text", map[string]any{"key": "value"})
	case p.Type == contract.List:
		out = append(out, []any{})
		for _, entry := range example(*p.Items) {
			out = append(out, []any{entry})
		}
	case p.Type == contract.Map:
		for _, entry := range example(*p.Items) {
			out = append(out, map[string]any{"key": entry})
		}
	case p.Type == contract.String:
		out = append(out, map[contract.Format][]any{
			"": {"text", "other", "1"}, contract.MAC: {"02:00:00:00:00:77", "02:00:00:00:00:78"}, contract.GUID: {"02:00:00:00:00:00:00:77"}, contract.CIDR: {"192.0.2.77/24", "2001:db8::77/64"},
			contract.Prefix: {"198.51.100.0/24", "2001:db8:7::/64"}, contract.IP: {"192.0.2.77", "192.0.2.1", "2001:db8::77"},
			contract.InterfaceName: {"other0", "eth7"}, contract.LinkName: {"other0", "eth7"}, contract.PCIAddress: {"0000:01:10.0"}, contract.SysctlPath: {"net.core.somaxconn"},
		}[p.Format]...)
	}
	return out
}

// refused is the outcome of a topology that is not accepted.
const refused = "refused: "

// withConfig is the topology of a start whose step has another config.
func (s start) withConfig(config any) ([]byte, error) {
	var doc map[string]any
	if err := yaml.Unmarshal([]byte(s.text), &doc); err != nil {
		return nil, err
	}
	step := doc["spec"].(map[string]any)["steps"].([]any)[s.step].(map[string]any)
	step["config"] = config
	return json.Marshal(doc)
}

// outcome is the result of a topology.
func (e *effects) outcome(ctx context.Context, s start, config any) string {
	text, err := s.withConfig(config)
	if err != nil {
		return refused + err.Error()
	}
	if got, ok := e.done[s.file+string(text)]; ok {
		return got
	}
	got, err := e.plan(ctx, s.file, text)
	if err != nil {
		got = refused + err.Error()
	}
	e.done[s.file+string(text)] = got
	return got
}

// caseOf is the case of a start whose step has another config.
func (e *effects) caseOf(s start, config any) (*optest.Case, error) {
	text, err := s.withConfig(config)
	if err != nil {
		return nil, err
	}
	return e.given(s.file, text)
}

// given is a case with the addresses that an allocator would give.
func (e *effects) given(file string, text []byte) (*optest.Case, error) {
	c := *e.cases[file]
	var err error
	if c.Topology, err = topology.Decode(text); err != nil {
		return nil, err
	}
	c.Given = maps.Clone(c.Given)
	for i := range c.Topology.Steps {
		name := c.Topology.Steps[i].Name
		if g := c.Given[name]; len(g.Addresses) == 0 {
			if _, _, ok := topology.FromPool(&c.Topology.Steps[i]); ok {
				g.Addresses = []netip.Prefix{netip.MustParsePrefix("198.18.0.9/24"), netip.MustParsePrefix("2001:2:12::9/64")}
				if c.Given == nil {
					c.Given = ops.Givens{}
				}
				c.Given[name] = g
			}
		}
	}
	return &c, nil
}

func (e *effects) plan(ctx context.Context, file string, text []byte) (string, error) {
	c, err := e.given(file, text)
	if err != nil {
		return "", err
	}
	out, err := optest.Outcome(ctx, e.reg, c)
	if err != nil {
		return "", err
	}
	for i := range c.Topology.Steps {
		s := &c.Topology.Steps[i]
		typ, _ := e.reg.Contract(s.Type)
		named, inside := claim.Below(s, typ)
		pool, iface, _ := topology.FromPool(s)
		out += fmt.Sprintln(s.Name, named, inside, claim.MasterNet(s, typ), pool, iface)
		if local, ok := topology.LocalIPAM(s); ok {
			layout, err := addresspool.Local(local)
			if err != nil {
				return "", err
			}
			out += fmt.Sprintf("%+v\n", *layout)
		}
		if division, ok := topology.Division(s); ok {
			out += fmt.Sprintf("%+v %v %v\n", division, division.HostBlock != nil && *division.HostBlock > 0, division.InterfaceBits())
		}
	}
	return out, nil
}

// bases are the configs in which a key is tried: those of the steps of a type, also with what other steps have
// around a key that is within another one.
func (e *effects) bases(ctx context.Context, typ string, p place) (out []func() (start, map[string]any)) {
	for _, s := range e.starts {
		if s.typ == typ && !strings.HasPrefix(e.outcome(ctx, s, s.config()), refused) {
			out = append(out, func() (start, map[string]any) { return s, s.config() })
		}
	}
	// The steps that have the key come first, so that a case of another key leaves none of them out.
	var having, lacking []func() (start, map[string]any)
	for _, base := range out {
		if _, config := base(); len(valuesAt(config, p[:1])) > 0 {
			having = append(having, base)
		} else {
			lacking = append(lacking, base)
		}
	}
	out = append(having, lacking...)
	if len(p) == 1 {
		out = out[:min(12, len(out))]
		for _, base := range out[:min(2, len(out))] {
			out = append(out, func() (start, map[string]any) {
				s, config := base()
				config["addresses"] = []any{"192.0.2.5/24", "2001:db8::5/64"}
				return s, config
			})
		}
		return out
	}
	if len(out) == 0 {
		return nil
	}
	own := out[0]
	var around []func() (start, map[string]any)
	for _, value := range e.seen[e.where(typ, p[:1])] {
		if len(p) > 2 && len(valuesAt(map[string]any{p[0].Name: value}, p[:len(p)-1])) == 0 {
			continue
		}
		around = append(around, func() (start, map[string]any) {
			s, config := own()
			config[p[0].Name] = clone(value)
			return s, config
		})
	}
	return append(around, out[:min(8, len(out))]...)
}

// config returns a copy of the step's config.
func (s start) config() map[string]any {
	var doc struct {
		Spec struct {
			Steps []struct {
				Config map[string]any `json:"config"`
			} `json:"steps"`
		} `json:"spec"`
	}
	_ = yaml.Unmarshal([]byte(s.text), &doc) // it was read before
	if config := doc.Spec.Steps[s.step].Config; config != nil {
		return config
	}
	return map[string]any{}
}

func clone(v any) (out any) {
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		panic(err) // it was YAML
	}
	return out
}

// idle says which values of a key change nothing: those with which no outcome differs from that without the key,
// or from that with another value if it is required. One value may be what is assumed without the key.
func (e *effects) idle(ctx context.Context, typ string, p place) (why []string) {
	values := e.values(typ, p)
	accepted, effective := make([]bool, len(values)), make([]bool, len(values))
	last := "nothing was tried" // refusal
	for tried, base := range e.bases(ctx, typ, p) {
		s, config := base()
		reference, by, others := e.outcome(ctx, s, set(config, p, nil)), -1, false
		for i, v := range values {
			if effective[i] {
				continue
			}
			s, config := base()
			got := e.outcome(ctx, s, set(config, p, clone(v)))
			if strings.HasPrefix(got, refused) {
				others, last = true, got
				continue
			}
			accepted[i] = true
			if strings.HasPrefix(reference, refused) {
				reference, by = got, i
			} else if got != reference {
				effective[i] = true
				if by >= 0 {
					effective[by] = true
				}
			}
		}
		if by >= 0 && others { // required, and what goes with it depends on it
			effective[by] = true
		}
		open := false // a value is refused so far, or has no effect
		for i := range values {
			open = open || !effective[i] && (accepted[i] || tried < 10)
		}
		if slices.Contains(effective, true) && !open {
			break
		}
	}
	if !slices.Contains(accepted, true) {
		if strings.HasPrefix(p.key().Description, "refused") {
			return nil
		}
		return []string{"no topology accepts a value: " + last}
	}
	for i, v := range values {
		if zero := reflect.ValueOf(v).IsZero() || fmt.Sprint(v) == "[]" || fmt.Sprint(v) == "map[]"; accepted[i] && !effective[i] && !zero && !reflect.DeepEqual(v, p.key().Default) {
			why = append(why, fmt.Sprintf("the value %v is accepted and changes nothing", v))
		}
	}
	if len(why) == 1 && slices.Contains(effective, true) {
		return nil // what is assumed without the key
	}
	return why
}
