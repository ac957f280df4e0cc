package netstate

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
)

func TestSettingsDiffering(t *testing.T) {
	want := Settings{"feature.rx-gro=on", "link.txqlen=1000", "xdp.native=12"}
	ipv6 := Settings{"ipv6.accept_ra=0"}
	if got := ipv6.Differing(Settings{"ipv6.accept_ra=1"}); !slices.Equal(got, []string{"ipv6.accept_ra"}) {
		t.Errorf("a sysctl: %q", got)
	}
	if got := ipv6.Differing(Settings{}); len(got) > 0 {
		t.Errorf("a sysctl of a device without IPv6: %q", got)
	}
	for name, tc := range map[string]struct {
		have Settings
		want []string
	}{
		"the same":             {Settings{"xdp.native=12", "link.txqlen=1000", "feature.rx-gro=on"}, nil},
		"changed":              {Settings{"feature.rx-gro=off", "link.txqlen=1000", "xdp.native=12"}, []string{"feature.rx-gro"}},
		"not told any more":    {Settings{"link.txqlen=1000", "xdp.native=12"}, []string{"feature.rx-gro"}},
		"told only now":        {append(Settings{"ring.rx=256"}, want...), nil},
		"attached only now":    {append(Settings{"tcx.ingress=7", "rule.3=present"}, want...), []string{"rule.3", "tcx.ingress"}},
		"another program":      {Settings{"feature.rx-gro=on", "link.txqlen=1000", "xdp.native=13"}, []string{"xdp.native"}},
		"attached another way": {Settings{"feature.rx-gro=on", "link.txqlen=1000", "xdp.generic=12"}, []string{"xdp.generic", "xdp.native"}},
	} {
		if got := want.Differing(tc.have); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
		if differs := len(Diff(Device{Settings: want}, Device{Settings: tc.have})) > 0; differs != (len(tc.want) > 0) {
			t.Errorf("%s: as a field it differs: %v", name, differs)
		}
	}
}

// A device without other names or settings is not one of which they are unknown,
// also after it was written down.
func TestNoneIsNotUnknown(t *testing.T) {
	for _, d := range []Device{{ID: "x", AltNames: []string{}, Settings: Settings{}}, {ID: "x"}} {
		raw, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		var got Device
		if err := json.Unmarshal(raw, &got); err != nil || !reflect.DeepEqual(got, d) {
			t.Errorf("%s: got %#v, %v", raw, got, err)
		}
	}
}

// A device's identity stays that of when it left, however often it is
// changed since.
func TestRecorded(t *testing.T) {
	left := Device{ID: "if:eth1", At: new("host:eth1"), LinkKind: "device", Parent: "vmbus/1", PermMAC: "02:00:00:00:00:01", Index: 5, Settings: Settings{"link.txqlen=1000"}}
	history := Coalesce(nil,
		Change{Before: left, After: Device{ID: "if:eth1", At: new("net1"), Index: 7}},
		Change{Before: Device{ID: "if:eth1", At: new("mine"), LinkKind: "dummy", Index: 9}, After: Device{ID: "if:eth1", At: new("net1")}},
	)
	want := Device{ID: "if:eth1", At: new("net1"), LinkKind: "device", Parent: "vmbus/1", PermMAC: "02:00:00:00:00:01", Index: 7, HostIndex: 5, Settings: left.Settings}
	if got := Recorded(history, Device{ID: "if:eth1"}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	if got := Recorded(history, Device{ID: "if:eth2"}); !reflect.DeepEqual(got, Device{ID: "if:eth2"}) {
		t.Errorf("got %+v", got)
	}
}
