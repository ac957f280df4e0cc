package contract_test

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/ref"
)

// sample has a parameter of every kind.
func sample() contract.Contract {
	link := contract.Param{Type: contract.Object, Shorthand: "name", Properties: []contract.Param{
		{Name: "name", Type: contract.String, Format: contract.InterfaceName, Required: true, Description: "interface"},
		{Name: "weight", Type: contract.Integer, Default: 1, Description: "share"},
	}}
	return contract.Contract{
		Type:    "sample",
		Summary: "Shows a parameter of every kind.",
		Params: []contract.Param{
			{Name: "id", Aliases: []string{"vlanId", "vlanID"}, Type: contract.Integer, Minimum: contract.Int(1), Maximum: contract.Int(4094), Description: "VLAN ID"},
			{Name: "miimon", Type: contract.Integer, NumericString: true, Description: "interval in ms"},
			{Name: "mode", Type: contract.String, Enum: []string{"802.3ad", "active-backup"}, Description: "mode"},
			{Name: "proto", Type: contract.String, Enum: []string{"802.1Q", "802.1ad"}, FoldCase: true, Description: "protocol"},
			{Name: "failOver", Type: contract.String, Enum: []string{"none", "0"}, NumericString: true, Description: "policy"},
			{Name: "trust", Type: contract.String, OnOff: true, Description: "trust"},
			{Name: "words", Type: contract.String, Enum: []string{"off", "wait"}, OnOff: true, Description: "word"},
			{Name: "promisc", Type: contract.Boolean, Description: "flag"},
			{Name: "mac", Type: contract.String, Format: contract.MAC, Description: "address"},
			{Name: "links", Type: contract.List, MinItems: 1, MaxItems: 2, Items: &link, Description: "ports"},
			{Name: "names", Type: contract.List, Items: &contract.Param{Type: contract.String, Format: contract.InterfaceName}, Description: "names"},
			{Name: "nodes", Type: contract.List, Items: &contract.Param{Type: contract.String}, Description: "paths"},
			{Name: "ethtool", Type: contract.Object, Description: "settings", Properties: []contract.Param{
				{Name: "features", Type: contract.Map, Items: &contract.Param{Type: contract.Boolean}, Description: "switches"},
				{Name: "depth", Type: contract.Integer, Default: int64(3), Description: "queues"},
			}},
			{Name: "sysctl", Type: contract.Map, Format: contract.SysctlPath, Items: &contract.Param{Type: contract.String, Scalar: true}, Description: "sysctls"},
			{Name: "free", Type: contract.Any, Description: "anything"},
			{Name: "text", Type: contract.String, Description: "any text"},
		},
		Check: func(c map[string]any, unresolved map[string]bool) []contract.FieldError {
			if _, ok := c["promisc"]; ok && (c["mac"] != nil || unresolved["mac"]) {
				return []contract.FieldError{{Field: "promisc", Message: "excludes mac"}}
			}
			return nil
		},
	}
}

type object = map[string]any

func TestDecode(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config object
		want   object
	}{
		{"nothing", nil, object{}},
		{"alias", object{"vlanId": 100}, object{"id": int64(100)}},
		{"float64 from JSON", object{"id": float64(100)}, object{"id": int64(100)}},
		{"json.Number", object{"id": json.Number("100")}, object{"id": int64(100)}},
		{"json.Number with exponent", object{"id": json.Number("1e2")}, object{"id": int64(100)}},
		{"uint", object{"miimon": uint64(7)}, object{"miimon": int64(7)}},
		{"numeric string", object{"miimon": "100"}, object{"miimon": int64(100)}},
		{"string as a number", object{"failOver": 0}, object{"failOver": "0"}},
		{"largest integer", object{"miimon": json.Number("9223372036854775807")}, object{"miimon": int64(math.MaxInt64)}},
		{"enum", object{"mode": "802.3ad"}, object{"mode": "802.3ad"}},
		{"folded enum", object{"proto": "802.1q"}, object{"proto": "802.1Q"}},
		{"on", object{"trust": "on"}, object{"trust": "on"}},
		{"YAML read off as false", object{"trust": false}, object{"trust": "off"}},
		{"canonical MAC", object{"mac": "52-54-00-AA-BB-01"}, object{"mac": "52:54:00:aa:bb:01"}},
		{"shorthand and default", object{"links": []any{"net1", object{"name": "net2", "weight": 3}}}, object{"links": []any{
			object{"name": "net1", "weight": int64(1)}, object{"name": "net2", "weight": int64(3)},
		}}},
		{"default of an object that is given", object{"ethtool": object{"features": object{"gro": true}}}, object{"ethtool": object{"features": object{"gro": true}, "depth": int64(3)}}},
		{"sysctls", object{"sysctl": object{"net.core.somaxconn": 512, "net/ipv4/conf/a.1/x": true, "net.ipv4.ip_local_port_range": "1 2"}}, object{"sysctl": object{
			"net/core/somaxconn": "512", "net/ipv4/conf/a.1/x": "1", "net/ipv4/ip_local_port_range": "1 2",
		}}},
		{"any", object{"free": []any{1.5, nil}}, object{"free": []any{1.5, nil}}},
		{"list of strings", object{"names": []any{"a", "b"}}, object{"names": []any{"a", "b"}}},
		// The expansion of "{{ step.interfaces }}" may have keys that a config must not.
		{"interfaces of a result as objects", object{"links": []any{ref.Object{"name": "net1", "mac": "x"}}}, object{"links": []any{object{"name": "net1", "weight": int64(1)}}}},
		{"interfaces of a result as names", object{"names": []any{ref.Object{"name": "net1", "mac": "x"}}}, object{"names": []any{"net1"}}},
		// An expanded value is text like any other.
		{"braces", object{"text": "a {{ b"}, object{"text": "a {{ b"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := fmt.Sprintf("%#v", tt.config)
			got, errs := sample().Decode(tt.config, contract.Options{})
			if len(errs) > 0 {
				t.Fatal(contract.Errors(errs))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if after := fmt.Sprintf("%#v", tt.config); before != after {
				t.Errorf("the input changed from %s to %s", before, after)
			}
			again, errs := sample().Decode(got, contract.Options{})
			if diff := cmp.Diff(got, again); diff != "" || len(errs) > 0 {
				t.Errorf("decoding the canonical form gives another (%v):\n%s", errs, diff)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config object
		want   string
	}{
		{"unknown key, nearest is an alias", object{"vlanIdd": 1}, "CNIPluginSchema \"sample\" does not accept parameter \"vlanIdd\".\nDid you mean \"id\"?"},
		{"unknown key, none near", object{"colour": 1}, "CNIPluginSchema \"sample\" does not accept parameter \"colour\".\nIt accepts id, miimon, mode, proto, failOver, trust, words, promisc, mac, links, names, nodes, ethtool, sysctl, free, text."},
		{"unknown key inside", object{"ethtool": object{"feature": 1}}, "CNIPluginSchema \"sample\" does not accept parameter \"ethtool.feature\".\nDid you mean \"features\"?"},
		{"two spellings", object{"id": 1, "vlanId": 1, "vlanID": 1}, "vlanId: is another spelling of \"id\", which is also given: keep one of them\nvlanID: is another spelling of \"id\", which is also given: keep one of them"},
		{"null", object{"mac": nil}, "mac: has no value: give one or remove the key"},
		{"fraction", object{"id": 1.5}, "id: want an integer, got the fraction 1.5"},
		{"above", object{"id": 4095}, "id: 4095 is above the maximum 4094"},
		{"below", object{"vlanId": 0}, "vlanId: 0 is below the minimum 1"},
		{"overflow", object{"miimon": json.Number("9223372036854775808")}, "miimon: 9223372036854775808 is out of range"},
		{"overflow with exponent", object{"miimon": json.Number("1e999999999")}, "miimon: 1e999999999 is out of range"},
		{"overflow of uint64", object{"miimon": uint64(math.MaxUint64)}, "miimon: 18446744073709551615 is out of range"},
		{"float beyond what is exact", object{"miimon": math.Pow(2, 60)}, "miimon: 1.152921504606847e+18 is out of range"},
		{"infinity", object{"miimon": math.Inf(1)}, "miimon: +Inf is out of range"},
		{"quoted integer", object{"id": "100"}, `id: want an integer, got the string "100": remove the quotes`},
		{"octal-looking", object{"miimon": "0100"}, `miimon: want an integer, got the string "0100"`},
		{"negative numeric string", object{"miimon": "-1"}, `miimon: want an integer, got the string "-1"`},
		{"boolean for an integer", object{"id": true}, "id: want an integer, got the boolean true"},
		{"number for a string", object{"mac": 5}, "mac: want a string, got the number 5: put it in quotes"},
		{"boolean for a numeric string", object{"failOver": true}, "failOver: want a string, got the boolean true: put it in quotes"},
		{"boolean for words", object{"words": true}, "words: want one of off, wait, got the boolean true (YAML reads yes and on as true)"},
		{"word", object{"mode": "802.3da"}, `mode: "802.3da" is not one of 802.3ad, active-backup, did you mean "802.3ad"?`},
		{"case of a word", object{"mode": "Active-Backup"}, `mode: "Active-Backup" is not one of 802.3ad, active-backup, did you mean "active-backup"?`},
		{"on/off", object{"trust": "yes"}, `trust: "yes" is not one of on, off`},
		{"quoted boolean", object{"promisc": "on"}, `promisc: want a boolean, got the string "on": write true or false, without quotes`},
		{"list for an object", object{"ethtool": []any{}}, "ethtool: want an object, got a list: its keys are features, depth"},
		{"list for a shorthand", object{"links": []any{[]any{"a"}}}, "links[0]: want an object or its name, got a list"},
		{"object for a list of objects", object{"links": object{"name": "a"}}, "links: want a list, got an object: put it into a list, [{…}]"},
		{"text for a list", object{"names": "a"}, `names: want a list, got the string "a": write [a]`},
		{"text with spaces for a list", object{"names": "a b"}, `names: want a list, got the string "a b"`},
		{"list of one for a string", object{"text": []any{"a"}}, `text: want a string, got a list: write "a", without a list`},
		{"list of two for a string", object{"text": []any{"a", "b"}}, "text: want a string, got a list"},
		{"unit", object{"id": "9k"}, `id: want an integer, got the string "9k": write one number, without a unit`},
		{"field of the step", object{"dependOn": []any{"a"}}, "CNIPluginSchema \"sample\" does not accept parameter \"dependOn\".\n\"dependOn\" is a field of the step: write it beside config."},
		{"key of the level above", object{"ethtool": object{"mac": "x"}}, "CNIPluginSchema \"sample\" does not accept parameter \"ethtool.mac\".\n\"mac\" is a parameter beside \"ethtool\": write it there."},
		{"object for a list", object{"names": object{}}, "names: want a list, got an object"},
		{"text for a map", object{"sysctl": "a=b"}, `sysctl: want a map, got the string "a=b"`},
		{"too few", object{"links": []any{}}, "links: has 0 entries, at least 1 are needed"},
		{"too many", object{"links": []any{"a", "b", "c"}}, "links: has 3 entries, at most 2 are accepted"},
		{"required inside", object{"links": []any{object{"weight": 2}}}, `CNIPluginSchema "sample" requires parameter "links[0].name".`},
		{"required, but misspelt", object{"links": []any{object{"nmae": "a"}}}, "CNIPluginSchema \"sample\" does not accept parameter \"links[0].nmae\".\nDid you mean \"name\"?"},
		{"one sysctl twice", object{"sysctl": object{"net.core.x": 1, "net/core/x": 2}}, `sysctl.net/core/x: is another spelling of "net.core.x", which is also given: keep one of them`},
		{"sysctl value", object{"sysctl": object{"net.core.x": 1.5}}, "sysctl.net.core.x: want a string, got the number 1.5: put it in quotes"},
		{"reference in a key", object{"sysctl": object{"net.{{ a.mac }}": 1}}, `sysctl: key "net.{{ a.mac }}" holds a reference: only values can`},
		{"unresolved", object{"mac": "{{ a.mac }}"}, "mac: reference {{ a.mac }} is not resolved"},
		{"check", object{"promisc": true, "mac": "52:54:00:00:00:01"}, "promisc: excludes mac"},
		{"long text is cut", object{"mode": strings.Repeat("x", 500)}, `mode: "` + strings.Repeat("x", 77) + `…" is not one of 802.3ad, active-backup`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, errs := sample().Decode(tt.config, contract.Options{})
			if diff := cmp.Diff(tt.want, contract.Errors(errs).Error()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if got != nil {
				t.Errorf("a refused config was decoded: %v", got)
			}
		})
	}
}

func TestDecodeUnresolved(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config object
		want   string // "" when it fits
	}{
		{"string", object{"text": "{{ a.interfaceName }}"}, ""},
		{"text around", object{"text": "x-{{ a.interfaceName }}-{{ a.interfaces[0].mtu }}"}, ""},
		{"integer", object{"id": "{{ a.interfaces[0].mtu }}"}, ""},
		{"digits", object{"miimon": "{{ a.iommuGroup }}"}, ""},
		{"digits into a plain integer", object{"id": "{{ a.iommuGroup }}"}, `id: "iommuGroup" is of type string, type integer is wanted here`},
		{"list", object{"nodes": "{{ a.deviceNodes }}"}, ""},
		{"interfaces as objects", object{"links": "{{ a.interfaces }}"}, ""},
		{"interfaces as names", object{"names": "{{ a.interfaces }}"}, ""},
		{"interfaces as paths", object{"nodes": "{{ a.interfaces }}"}, `nodes: "interfaces" is a list of interfaces, whose entries do not fit here`},
		{"shorthand", object{"links": []any{"{{ a.interfaceName }}"}}, ""},
		{"shorthand of another kind", object{"links": []any{"{{ a.mac }}"}}, `links[0]: "mac" is of type string (mac), type object is wanted here`},
		{"boolean", object{"promisc": "{{ a.interfaceName }}"}, `promisc: "interfaceName" is of type string (interface-name), type boolean is wanted here`},
		{"format", object{"mac": "{{ a.interfaceName }}"}, `mac: "interfaceName" is of type string (interface-name), type string (mac) is wanted here`},
		{"list inside text", object{"text": "x{{ a.deviceNodes }}"}, `text: "deviceNodes" is of type []string and cannot stand inside a string: write it as the whole value`},
		{"boolean for words", object{"words": true}, "words: want one of off, wait, got the boolean true (YAML reads yes and on as true)"},
		{"word", object{"mode": "{{ a.interfaceName }}"}, "mode: a reference cannot be used here: the value is a word of a fixed list"},
		{"unknown field", object{"text": "{{ a.maac }}"}, `text: unknown field "maac" in {{ a.maac }}, did you mean "mac"?`},
		{"syntax", object{"text": "{{ a.mac"}, `text: column 1 of "{{ a.mac": "{{" has no matching "}}"`},
		{"any", object{"free": "{{ a.interfaces }}"}, ""},
		{"literal braces", object{"text": `{{ "{{" }} x`}, ""},
		{"literal braces where text is checked", object{"mac": `{{ "{{" }}`}, `mac: "{{" is not a MAC address: want six pairs of hex digits, as in 52:54:00:12:34:56`},
		{"check knows what is unresolved", object{"promisc": true, "mac": "{{ a.mac }}"}, "promisc: excludes mac"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, errs := sample().Decode(tt.config, contract.Options{Unresolved: true})
			if diff := cmp.Diff(tt.want, contract.Errors(errs).Error()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if tt.want == "" && !reflect.DeepEqual(got, tt.config) && tt.name != "shorthand" {
				t.Errorf("got %v, want the references kept: %v", got, tt.config)
			}
		})
	}
}

func TestNewSet(t *testing.T) {
	if _, err := contract.NewSet(sample(), sample()); err == nil {
		t.Error("two contracts of one type were accepted")
	}
	set, err := contract.NewSet(sample())
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := set.Contract("sample"); !ok || len(set.Types()) != 1 {
		t.Error("the set does not hold what was put in")
	}
}

// FuzzDecode feeds JSON objects: no panic, and the canonical form is stable.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"vlanId": 100, "links": ["net1", {"name": "net2"}]}`, `{"mac": "{{ a.mac }}", "trust": true}`,
		`{"sysctl": {"net.ipv4.conf.all.x": 1}, "ethtool": {"features": {"gro": true}}}`, `{"id": 1e400}`, `{"text": "{{ \"{{\" }}"}`,
	} {
		f.Add(s, true)
		f.Add(s, false)
	}
	c := sample()
	f.Fuzz(func(t *testing.T, data string, unresolved bool) {
		dec := json.NewDecoder(strings.NewReader(data))
		dec.UseNumber()
		var config object
		if dec.Decode(&config) != nil {
			return
		}
		opt := contract.Options{Unresolved: unresolved}
		got, errs := c.Decode(config, opt)
		if len(errs) > 0 {
			return
		}
		again, errs := c.Decode(got, opt)
		if len(errs) > 0 || !reflect.DeepEqual(got, again) {
			t.Errorf("%v decodes to %v, and that to %v (%v)", config, got, again, errs)
		}
	})
}
