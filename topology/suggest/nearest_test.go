package suggest_test

import (
	"testing"

	"github.com/plumbline/plumbline/topology/suggest"
)

func TestName(t *testing.T) {
	for _, tt := range []struct {
		name       string
		candidates []string
		want       string
	}{
		{"mastr", []string{"id", "master"}, "master"},
		{"amster", []string{"id", "master"}, "master"}, // a swap is one error
		{"MTU", []string{"id", "mtu"}, "mtu"},
		{"vlanId", []string{"id", "master", "name"}, "id"},
		{"hashPolicy", []string{"mode", "xmitHashPolicy"}, "xmitHashPolicy"},
		{"dependsOn", []string{"name", "dependOn"}, "dependOn"},
		{"vf2", []string{"vf0", "vf1"}, "vf0"}, // among equals the first
		{"colour", []string{"id", "master"}, ""},
		{"ip", []string{"id"}, ""}, // two letters: any word is near
		{"", []string{"id"}, ""},
		{"Mutable", []string{"Immutable", "InPlace"}, ""}, // near, and the opposite
		{"ingress", []string{"egress"}, ""},
		{"maxRxRate", []string{"name", "maxTxRate"}, ""},
		{"range_start", []string{"first", "last", "prefix"}, "first"}, // words of other projects
		{"rangeEnd", []string{"first", "last", "prefix"}, "last"},
		{"cidr", []string{"first", "last", "prefix"}, "prefix"},
		{"range", []string{"exclude", "subnets"}, "subnets"},
		{"to", []string{"destination", "gateway"}, "destination"},
		{"next-hop-address", []string{"destination", "gateway"}, "gateway"},
		{"expression", []string{"cel"}, "cel"},
	} {
		if got := suggest.Name(tt.name, tt.candidates); got != tt.want {
			t.Errorf("Name(%q, %q) = %q, want %q", tt.name, tt.candidates, got, tt.want)
		}
	}
}
