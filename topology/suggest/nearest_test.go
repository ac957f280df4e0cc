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
	} {
		if got := suggest.Name(tt.name, tt.candidates); got != tt.want {
			t.Errorf("Name(%q, %q) = %q, want %q", tt.name, tt.candidates, got, tt.want)
		}
	}
}
