package topology

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go4.org/netipx"

	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/suggest"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Parameters are a claim's values in the config of one step. The fields are in the order of their keys, as those of a
// claim's opaque config have to be.
type Parameters struct {
	// Addresses, at most one in each subnet that the topology allows, with or without the prefix length of that.
	Addresses []string `json:"addresses,omitempty"`
	IfName    string   `json:"ifName,omitempty"`
	MAC       string   `json:"mac,omitempty"`
	Name      string   `json:"name,omitempty"`
	Step      string   `json:"step"`
}

// Bounds of parameters, as in the CRD.
const (
	MaxParameters       = 32
	maxParameterSubnets = 16
	maxNamePattern      = 128
)

// value is one key that is set.
type value struct {
	key   v1alpha1.ParameterKey
	texts []string
}

func (p *Parameters) values() (out []value) {
	for _, v := range []value{
		{v1alpha1.ParameterAddresses, p.Addresses},
		{v1alpha1.ParameterIfName, one(p.IfName)},
		{v1alpha1.ParameterMAC, one(p.MAC)},
		{v1alpha1.ParameterName, one(p.Name)},
	} {
		if len(v.texts) > 0 {
			out = append(out, v)
		}
	}
	return out
}

func one(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

// BadParameter is the error of a parameter that the topology does not allow.
type BadParameter struct {
	Step, Key string
	Err       error
}

func (e *BadParameter) Error() string {
	return fmt.Sprintf("parameters of step %q: %s: %v", e.Step, e.Key, e.Err)
}
func (e *BadParameter) Unwrap() error { return e.Err }

// Permitted returns parameters in the form that is recorded, addresses with their prefix length, or an error with each
// *BadParameter: what the topology does not list, or what is out of its bound.
func (t *Topology) Permitted(all []Parameters) ([]Parameters, error) {
	if len(all) > MaxParameters {
		return nil, fmt.Errorf("parameters of %d steps are set, at most %d are accepted", len(all), MaxParameters)
	}
	var out []Parameters
	var problems []error
	seen := map[string]bool{}
	for _, p := range all {
		wrong := func(key, format string, args ...any) {
			problems = append(problems, &BadParameter{excerpt.Of(p.Step, maxKey), key, fmt.Errorf(format, args...)})
		}
		if seen[p.Step] {
			wrong("step", "is named twice: write its keys into one entry")
		}
		seen[p.Step] = true
		set := p.values()
		if len(set) == 0 {
			wrong("step", "sets no key: set addresses, ifName, mac or name, or leave it out")
		}
		for _, v := range set {
			i := slices.IndexFunc(t.ClaimParameters, func(c v1alpha1.ClaimParameter) bool { return c.Step == p.Step && c.Key == v.key })
			if i < 0 {
				wrong(string(v.key), "NetworkTopology %q does not let a claim set it: %s", t.Name, t.allowed())
				continue
			}
			texts, err := allowedBy(&t.ClaimParameters[i], v.texts)
			if err != nil {
				wrong(string(v.key), "%w", err)
			} else if v.key == v1alpha1.ParameterAddresses {
				p.Addresses = texts
			} else if v.key == v1alpha1.ParameterMAC {
				p.MAC = texts[0]
			}
		}
		out = append(out, p)
	}
	return out, errors.Join(problems...)
}

// allowed says what claims may set.
func (t *Topology) allowed() string {
	var list []string
	for i := range t.ClaimParameters {
		list = append(list, fmt.Sprintf("%s of step %q", t.ClaimParameters[i].Key, t.ClaimParameters[i].Step))
	}
	if len(list) == 0 {
		return "it has no claimParameters"
	}
	return "its claimParameters are " + few(list)
}

// With returns the topology with permitted parameters in the configs of its steps. Those of a step that it does not have are left
// out: a later generation may have removed it.
func (t *Topology) With(permitted []Parameters) *Topology {
	if len(permitted) == 0 {
		return t
	}
	out := *t
	out.Steps = slices.Clone(t.Steps)
	for _, p := range permitted {
		s, ok := out.Step(p.Step)
		if !ok {
			continue
		}
		config := maps.Clone(s.Config)
		if config == nil {
			config = map[string]any{}
		}
		for _, v := range p.values() {
			switch v.key {
			case v1alpha1.ParameterAddresses:
				delete(config, "ipam")
				var list []any
				for _, a := range v.texts {
					list = append(list, a)
				}
				config[string(v.key)] = list
				continue
			case v1alpha1.ParameterName:
				delete(config, string(v1alpha1.ParameterIfName)) // the other spelling of the same key
			case v1alpha1.ParameterMAC, v1alpha1.ParameterIfName:
			}
			config[string(v.key)] = v.texts[0]
		}
		s.Config = config
	}
	return &out
}

// allowedBy returns values in their recorded form if they are within the bound.
func allowedBy(c *v1alpha1.ClaimParameter, texts []string) ([]string, error) {
	switch c.Key {
	case v1alpha1.ParameterAddresses:
		return withinSubnets(c.Subnets, texts)
	case v1alpha1.ParameterMAC:
		mac, err := net.ParseMAC(texts[0])
		if err != nil || len(mac) != 6 || len(texts[0]) != 17 {
			return nil, fmt.Errorf("%q is not a MAC address such as 02:00:5e:00:00:01", excerpt.Of(texts[0], maxKey))
		}
		if text := mac.String(); strings.HasPrefix(text, c.MACPrefix) {
			return []string{text}, nil
		}
		return nil, fmt.Errorf("%s does not begin with %s", mac, c.MACPrefix)
	case v1alpha1.ParameterName, v1alpha1.ParameterIfName:
	}
	pattern, err := anchored(c.NamePattern)
	if err != nil {
		return nil, err
	}
	if len(texts[0]) > maxKey || !pattern.MatchString(texts[0]) {
		return nil, fmt.Errorf("%q does not match the pattern %q", excerpt.Of(texts[0], maxKey), c.NamePattern)
	}
	return texts, nil
}

func anchored(pattern string) (*regexp.Regexp, error) {
	if _, err := regexp.Compile(pattern); err != nil { // before it is in parentheses, which it could close
		return nil, fmt.Errorf("namePattern %q: %w", excerpt.Of(pattern, maxKey), err)
	}
	return regexp.Compile(`\A(?:` + pattern + `)\z`)
}

// withinSubnets returns addresses with the prefix lengths of their subnets.
func withinSubnets(subnets []v1alpha1.ParameterSubnet, texts []string) (out []string, err error) {
	if len(texts) > maxParameterSubnets {
		return nil, fmt.Errorf("%d addresses are more than the %d that are accepted", len(texts), maxParameterSubnets)
	}
	used := map[int]bool{}
	for _, text := range texts {
		bare, length, hasLength := strings.Cut(text, "/")
		a, err := netip.ParseAddr(bare)
		if err != nil || a.Zone() != "" || a.Is4In6() {
			return nil, fmt.Errorf("%q is not an address such as 192.0.2.7", excerpt.Of(text, maxKey))
		}
		var bounds []string
		at := -1
		for i := range subnets {
			s, err := subnetOf(&subnets[i])
			if err != nil {
				return nil, err
			}
			bounds = append(bounds, s.String())
			if at < 0 && s.first.Compare(a) <= 0 && a.Compare(s.last) <= 0 && s.prefix.Contains(a) {
				at = i
				text = netip.PrefixFrom(a, s.prefix.Bits()).String()
				if hasLength && length != fmt.Sprint(s.prefix.Bits()) {
					return nil, fmt.Errorf("%s/%s: the prefix length of its subnet is %d", a, excerpt.Of(length, maxKey), s.prefix.Bits())
				}
			}
		}
		switch {
		case at < 0:
			return nil, fmt.Errorf("%s is not in %s", a, few(bounds))
		case used[at]:
			return nil, fmt.Errorf("%s is a second address in %s: a claim sets at most one in each subnet", a, bounds[at])
		}
		used[at] = true
		out = append(out, text)
	}
	return out, nil
}

// chosen is the part of a subnet that claims choose from.
type chosen struct {
	prefix      netip.Prefix
	first, last netip.Addr
}

func (c chosen) String() string { return fmt.Sprintf("%s-%s", c.first, c.last) }

// subnetOf reads the bound of addresses. The address of the network and the broadcast address of IPv4 are not in it.
func subnetOf(s *v1alpha1.ParameterSubnet) (out chosen, err error) {
	if out.prefix, err = netip.ParsePrefix(s.Prefix); err != nil || out.prefix.Addr().Is4In6() {
		return out, fmt.Errorf("prefix: %q is not a subnet such as 192.0.2.0/24", excerpt.Of(s.Prefix, maxKey))
	}
	if masked := out.prefix.Masked(); masked != out.prefix {
		return out, fmt.Errorf("prefix: %q has bits set behind its prefix length: write %q", s.Prefix, masked)
	}
	out.first, out.last = out.prefix.Addr(), netipx.PrefixLastIP(out.prefix)
	if out.prefix.Bits() < out.first.BitLen()-1 {
		out.first = out.first.Next()
		if out.first.Is4() {
			out.last = out.last.Prev()
		}
	}
	for _, end := range []struct {
		field, text string
		into        *netip.Addr
	}{{"first", s.First, &out.first}, {"last", s.Last, &out.last}} {
		if end.text == "" {
			continue
		}
		a, err := netip.ParseAddr(end.text)
		switch {
		case err == nil && end.field == "last" && out.prefix.Contains(a) && a.Less(out.first):
			return out, fmt.Errorf("last: %s is before the first address, %s", a, out.first)
		case err != nil || !out.prefix.Contains(a) || a.Less(out.first):
			return out,
				fmt.Errorf("%s: %q is not an address that a pod can have in %s", end.field, excerpt.Of(end.text, maxKey), out.prefix)
		}
		*end.into = a
	}
	if whole := netipx.PrefixLastIP(out.prefix); out.last.Is4() && out.last == whole && out.prefix.Bits() < 31 {
		return out, fmt.Errorf("last: %q is the broadcast address of %s", out.last, out.prefix)
	}
	return out, nil
}

var macPrefix = regexp.MustCompile(`^[0-9a-f]{2}(:[0-9a-f]{2}){0,4}$`)

// ClaimSetsAddresses reports whether a claim may set the addresses of a step.
func (t *Topology) ClaimSetsAddresses(step string) bool {
	return slices.ContainsFunc(t.ClaimParameters, func(c v1alpha1.ClaimParameter) bool {
		return c.Step == step && c.Key == v1alpha1.ParameterAddresses
	})
}

// checkClaimParameters checks the bounds of spec.claimParameters, and reports whether there are few enough.
func checkClaimParameters(inv *Invalid, list []v1alpha1.ClaimParameter) bool {
	if len(list) > MaxParameters {
		inv.Addf("", "spec.claimParameters", "has %d entries, at most %d are accepted", len(list), MaxParameters)
		return false
	}
	for i := range list {
		c := &list[i]
		wrong := func(field, format string, args ...any) {
			inv.Addf("", fmt.Sprintf("spec.claimParameters[%d]%s", i, field), format, args...)
		}
		keys := []string{"addresses", "ifName", "mac", "name"}
		if !slices.Contains(keys, string(c.Key)) {
			wrong(".key", "%q is not one of %s%s", excerpt.Of(string(c.Key), maxKey), strings.Join(keys, ", "),
				suggest.Hint(string(c.Key), keys))
			continue
		}
		for _, bound := range []struct {
			field string
			has   bool
		}{{"subnets", len(c.Subnets) > 0}, {"macPrefix", c.MACPrefix != ""}, {"namePattern", c.NamePattern != ""}} {
			switch wanted := bounds[c.Key]; {
			case bound.has && bound.field != wanted:
				wrong("."+bound.field, "is not the bound of the key %s, which is %s: remove it", c.Key, wanted)
			case !bound.has && bound.field == wanted:
				wrong("."+bound.field, "is missing: it is the bound of the key %s", c.Key)
			}
		}
		if len(c.Subnets) > maxParameterSubnets || len(c.NamePattern) > maxNamePattern {
			wrong("", "has more than %d subnets, or a namePattern of more than %d bytes", maxParameterSubnets, maxNamePattern)
			return false
		}
		if c.MACPrefix != "" && !macPrefix.MatchString(c.MACPrefix) {
			wrong(".macPrefix", "%q is not one to five octets such as 02:00:5e, in lower case", excerpt.Of(c.MACPrefix, maxKey))
		}
		if first, err := strconv.ParseUint(c.MACPrefix[:min(2, len(c.MACPrefix))], 16, 8); err == nil && first&1 == 1 {
			wrong(".macPrefix", "%q begins a multicast address, which no interface can have", excerpt.Of(c.MACPrefix, maxKey))
		}
		if _, err := anchored(c.NamePattern); err != nil {
			wrong("", "%v", err)
		}
		for j := range c.Subnets {
			if _, err := subnetOf(&c.Subnets[j]); err != nil {
				wrong(fmt.Sprintf(".subnets[%d]", j), "%v", err)
			}
		}
		if slices.ContainsFunc(list[:i], func(o v1alpha1.ClaimParameter) bool { return o.Step == c.Step && o.Key == c.Key }) {
			wrong("", "step %q has the key %s twice: write the bounds into one entry", excerpt.Of(c.Step, maxKey), c.Key)
		}
	}
	return true
}

// bounds are the fields that bound what a claim sets a key to.
var bounds = map[v1alpha1.ParameterKey]string{
	v1alpha1.ParameterAddresses: "subnets", v1alpha1.ParameterMAC: "macPrefix",
	v1alpha1.ParameterName: "namePattern", v1alpha1.ParameterIfName: "namePattern",
}

// parameters checks that the steps of the parameters exist and have the keys.
func (v *validator) parameters() {
	for i := range v.t.ClaimParameters {
		c := &v.t.ClaimParameters[i]
		at := fmt.Sprintf("spec.claimParameters[%d].", i)
		if v.t.Role != "" {
			v.inv.Addf("", at+"step", "no claim can request a topology with the role %q: remove it", v.t.Role)
			continue
		}
		j := slices.IndexFunc(v.t.Steps, func(s Step) bool { return s.Name == c.Step })
		if j < 0 {
			v.inv.Addf("", at+"step", "%q is not a step%s", excerpt.Of(c.Step, maxKey), suggest.Hint(c.Step, v.t.Names()))
			continue
		}
		if v.contracts[j] == nil {
			continue
		}
		if !slices.ContainsFunc(v.contracts[j].Params, func(p contract.Param) bool { return p.Name == string(c.Key) }) {
			v.inv.Addf("", at+"key", "step %q has no key %s, as its type is %q", c.Step, c.Key, v.t.Steps[j].Type)
		} else if v.contracts[j].Output.LogicalPorts && c.Key != v1alpha1.ParameterIfName {
			v.inv.Addf("", at+"key", "step %q is a port of OVN, whose %s ovn-kubernetes may decide: remove it", c.Step, c.Key)
		}
	}
}

// Examples are parameters within the bounds, the first value of each. Names have none, since a pattern has no first match.
func (t *Topology) Examples() (out []Parameters) {
	for i := range t.ClaimParameters {
		c := &t.ClaimParameters[i]
		j := slices.IndexFunc(out, func(p Parameters) bool { return p.Step == c.Step })
		if j < 0 {
			out, j = append(out, Parameters{Step: c.Step}), len(out)
		}
		switch c.Key {
		case v1alpha1.ParameterAddresses:
			for k := range c.Subnets {
				if s, err := subnetOf(&c.Subnets[k]); err == nil {
					out[j].Addresses = append(out[j].Addresses, netip.PrefixFrom(s.first, s.prefix.Bits()).String())
				}
			}
		case v1alpha1.ParameterMAC:
			out[j].MAC = c.MACPrefix + "00:00:00:00:00:01"[min(len(c.MACPrefix), 14):]
		case v1alpha1.ParameterName, v1alpha1.ParameterIfName:
		}
	}
	return slices.DeleteFunc(out, func(p Parameters) bool { return len(p.values()) == 0 })
}

// Bound says of what a claim may set a key to.
func Bound(c *v1alpha1.ClaimParameter) string {
	switch c.Key {
	case v1alpha1.ParameterAddresses:
		var list []string
		for i := range c.Subnets {
			if s, err := subnetOf(&c.Subnets[i]); err == nil {
				list = append(list, s.String())
			}
		}
		return "one address in each of " + strings.Join(list, ", ")
	case v1alpha1.ParameterMAC:
		return "beginning with " + c.MACPrefix
	case v1alpha1.ParameterName, v1alpha1.ParameterIfName:
	}
	return fmt.Sprintf("matching %q", c.NamePattern)
}
