package kernel

import (
	"maps"
	"slices"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
)

// TestCodecs holds that every kind of object and of link can be read and written.
func TestCodecs(t *testing.T) {
	// Of packages binding, dhcp, openvswitch and representor.
	got := []netstate.Kind{netstate.KindBinding, netstate.KindDHCPLease, netstate.KindChassis, netstate.KindLogicalPort, netstate.KindLogicalRule, netstate.KindOVSPort, netstate.KindRepresentor}
	for _, c := range codecs {
		got = append(got, c.kind)
	}
	if slices.Sort(got); !slices.Equal(got, netstate.Kinds()) {
		t.Errorf("codecs of %v, want %v", got, netstate.Kinds())
	}
	if got := slices.Sorted(maps.Keys(linkKinds)); !slices.Equal(got, netstate.LinkKinds()) {
		t.Errorf("link codecs of %v, want %v", got, netstate.LinkKinds())
	}
}
