package nodereport_test

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/plumbline/plumbline/topology/nodereport"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestAgain: a report that was not written is written again, also if there is none at the moment when that is due.
func TestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewSimpleDynamicClient(runtime.NewScheme())
		writes := 0
		client.PrependReactor("patch", "*", func(kubetesting.Action) (bool, runtime.Object, error) {
			if writes++; writes == 1 {
				return true, nil, errors.New("no answer")
			}
			return true, &unstructured.Unstructured{}, nil
		})
		var report any = &v1alpha1.DeviceExposureReport{}
		w := nodereport.New(nodereport.Options{
			Client: client, Resource: v1alpha1.ReportResource(), Kind: v1alpha1.ReportKind, NodeName: "n1",
			NodeUID: func() types.UID { return "uid-n1" }, Report: func() any { return report },
			Log: slog.New(slog.DiscardHandler),
		})
		w.Changed()
		go w.Run(t.Context())
		time.Sleep(30 * time.Second)
		report = nil
		time.Sleep(2 * time.Minute)
		report = &v1alpha1.DeviceExposureReport{}
		time.Sleep(2 * time.Hour)
		if writes < 2 {
			t.Errorf("it was tried %d times in two hours", writes)
		}
	})
}
