package nodereport_test

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	kubetesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/topology/nodereport"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestOwner checks that a report has its owner from its first write on.
func TestOwner(t *testing.T) {
	client := fake.NewSimpleDynamicClient(runtime.NewScheme())
	owners := make(chan types.UID, 10)
	client.PrependReactor("patch", "*", func(action kubetesting.Action) (bool, runtime.Object, error) {
		var u unstructured.Unstructured
		if err := yaml.Unmarshal(action.(kubetesting.PatchAction).GetPatch(), &u.Object); err != nil {
			return true, nil, err
		}
		var owner types.UID
		for _, o := range u.GetOwnerReferences() {
			owner = o.UID
		}
		owners <- owner
		return true, &u, nil
	})
	var asked atomic.Int32
	w := nodereport.New(nodereport.Options{
		Client: client, Resource: v1alpha1.ReportResource(), Kind: v1alpha1.ReportKind, NodeName: "n1",
		NodeUID: func() types.UID { // known at the third look
			if asked.Add(1) < 3 {
				return ""
			}
			return "uid-n1"
		},
		Report: func() any { return &v1alpha1.DeviceExposureReport{} },
		Log:    slog.New(slog.DiscardHandler), Spread: time.Millisecond,
	})
	w.Changed()
	go w.Run(t.Context())
	if owner := <-owners; owner != "uid-n1" {
		t.Errorf("the first write has the owner %q", owner)
	}
}
