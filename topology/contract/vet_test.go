package contract_test

import (
	"strings"
	"testing"

	"github.com/plumbline/plumbline/topology/contract"
)

func TestVet(t *testing.T) {
	str := contract.Param{Name: "s", Type: contract.String, Description: "text"}
	with := func(change func(*contract.Param)) contract.Param {
		p := str
		change(&p)
		return p
	}
	for _, tt := range []struct {
		params []contract.Param
		want   string
	}{
		{[]contract.Param{str, str}, `the spelling "s" is taken`},
		{[]contract.Param{with(func(p *contract.Param) { p.Aliases = []string{"s"} })}, `the spelling "s" is taken`},
		{[]contract.Param{with(func(p *contract.Param) { p.Description = "" })}, "the description is missing"},
		{[]contract.Param{with(func(p *contract.Param) { p.Type = "text" })}, `the type "text" is unknown`},
		{[]contract.Param{with(func(p *contract.Param) { p.Format = "colour" })}, `the format "colour" is unknown`},
		{[]contract.Param{with(func(p *contract.Param) { p.Required, p.Default = true, "x" })}, "a required parameter needs no default"},
		{[]contract.Param{with(func(p *contract.Param) { p.Enum, p.Default = []string{"a"}, "b" })}, `the default is refused: "b" is not one of a`},
		{[]contract.Param{with(func(p *contract.Param) { p.Minimum = contract.Int(1) })}, "only integers have bounds"},
		{[]contract.Param{with(func(p *contract.Param) { p.FoldCase = true })}, "there are no words to fold"},
		{[]contract.Param{with(func(p *contract.Param) { p.Type = contract.List })}, "what the entries are is missing"},
		{[]contract.Param{with(func(p *contract.Param) { p.Type, p.Shorthand = contract.Object, "x" })}, `the shorthand "x" is not a property`},
		{[]contract.Param{with(func(p *contract.Param) {
			p.Type, p.Items = contract.List, &contract.Param{Type: contract.Integer, Minimum: contract.Int(2), Maximum: contract.Int(1)}
		})}, `parameter "s[]": the minimum is above the maximum`},
	} {
		err := contract.Contract{Type: "t", Summary: "x", Params: tt.params}.Vet()
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want %q", err, tt.want)
		}
	}
	one := contract.Flow{Appends: 1}
	for _, tt := range []struct {
		contract contract.Contract
		want     string
	}{
		{contract.Contract{Output: contract.Output{Interfaces: one, LogicalPorts: true, Relays: true}}, "an interface has a port of OVN or sends through another one, not both"},
		{contract.Contract{Output: contract.Output{LogicalPorts: true}}, "a type that makes no interface says nothing about what is sent over it"},
		{contract.Contract{Output: contract.Output{Relays: true}}, "a type that makes no interface says nothing about what is sent over it"},
		{contract.Contract{Stacks: func(map[string]any) string { return "links" }}, "a type that shares no device puts no links on one"},
	} {
		tt.contract.Type, tt.contract.Summary = "t", "x"
		if err := tt.contract.Vet(); err == nil || !strings.HasSuffix(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v, want %q", err, tt.want)
		}
	}
	if err := (contract.Contract{Type: "t", Summary: "x", Params: []contract.Param{str}}).Vet(); err != nil {
		t.Error(err)
	}
}
