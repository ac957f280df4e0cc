package maintenance

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/version"

	"github.com/plumbline/plumbline/inventory"
)

// The report of a pod that asks by extended resources agrees with its Kubernetes.
// gitVersion is a server of this version.
type gitVersion string

func (v gitVersion) ServerVersion() (*version.Info, error) {
	return &version.Info{GitVersion: string(v)}, nil
}

func TestUsersByVersion(t *testing.T) {
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "c", Annotations: map[string]string{extended: "true"}},
		Status: resourceapi.ResourceClaimStatus{
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
				{Driver: inventory.Driver, Pool: "n1", Device: "d"},
			}}},
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p"}},
		},
	}
	for git, stays := range map[string]bool{
		"v1.36.3": true, "v1.37.0": true, "v1.37.1": true, "v1.37.2": false, "v1.37.3+vendor.1": false, "v1.38.0-alpha.2": false,
	} {
		server, err := serverOf(gitVersion(git))
		if err != nil {
			t.Fatal(err)
		}
		if users := usersOf(server, claim, []Device{{"n1", "d"}}); len(users) != 1 || (users[0].Stays != "") != stays {
			t.Errorf("%s: %v; stays: %t", git, users, stays)
		}
	}
	if s, err := serverOf(gitVersion("unknown")); err == nil {
		t.Errorf("a server without a version: %v", s)
	}
}

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

// Each device has a rule of its own, with a name that the API server accepts, however long the names of nodes are.
func TestRuleNames(t *testing.T) {
	if got := (Device{"n1", "pci-0000-03-10-0"}).rule(); got != "plumbline-maintain-n1-pci-0000-03-10-0" {
		t.Errorf("the rule of a short name is %q", got)
	}
	device := map[string]Device{}
	for n := 150; n <= 253; n++ {
		// With dots at each place, as no label ends with a dash.
		node := strings.Repeat("a.", n/2)[:n-1] + "b"
		for _, name := range []string{"d", "pci-0000-03-10-0", strings.Repeat("d", 62) + "1", strings.Repeat("d", 62) + "2"} {
			d := Device{node, name}
			rule := d.rule()
			if wrong := validation.IsDNS1123Subdomain(rule); len(wrong) > 0 {
				t.Errorf("a node with a name of %d bytes: %q: %v", n, rule, wrong)
			}
			if other, has := device[rule]; has || rule != d.rule() {
				t.Errorf("%v and %v have rule %q", d, other, rule)
			}
			device[rule] = d
		}
	}
}
