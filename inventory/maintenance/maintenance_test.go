package maintenance

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
)

func TestTolerated(t *testing.T) {
	for name, tt := range map[string]struct {
		toleration resourceapi.DeviceToleration
		want       string
	}{
		"another taint":  {resourceapi.DeviceToleration{Key: "dra.networking/lost", Operator: "Exists", Effect: "NoExecute"}, ""},
		"another value":  {resourceapi.DeviceToleration{Key: Taint, Operator: "Equal", Value: "x", Effect: "NoExecute"}, ""},
		"another effect": {resourceapi.DeviceToleration{Key: Taint, Operator: "Exists", Effect: "NoSchedule"}, ""},
		"tolerated":      {resourceapi.DeviceToleration{Key: Taint, Operator: "Exists", Effect: "NoExecute"}, "its claim tolerates the taint"},
		"as all are":     {resourceapi.DeviceToleration{Operator: "Exists", Effect: "NoExecute"}, "its claim tolerates the taint"},
		"the empty value": {
			resourceapi.DeviceToleration{Key: Taint, Operator: "Equal", Effect: "NoExecute"}, "its claim tolerates the taint",
		},
		"for a while": {
			resourceapi.DeviceToleration{Key: Taint, Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(90))},
			"its claim tolerates the taint for 90 s, and then it is evicted",
		},
		"without an effect": {
			resourceapi.DeviceToleration{Key: Taint, Operator: "Exists"},
			"its claim tolerates the taint without naming an effect: it is evicted, and may be scheduled to the device again",
		},
	} {
		if got := tolerated([]resourceapi.DeviceToleration{tt.toleration}); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
