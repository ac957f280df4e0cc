package filters

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/plumbline/plumbline/reconcile/pod/claims"
)

// TestReportOnceRead: a node reports when the objects of the last namespace are known, also of one in which it has no claim yet: what
// changed in others before was not reported.
func TestReportOnceRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		client, writes := fake.NewSimpleDynamicClient(runtime.NewScheme()), 0
		client.PrependReactor("patch", "*", func(kubetesting.Action) (bool, runtime.Object, error) {
			writes++
			return true, &unstructured.Unstructured{}, nil
		})
		f := New(Options{
			Client: client, NodeName: "n1", NodeUID: func() types.UID { return "u" }, Claims: func() []claims.Entry { return nil },
			Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Now: time.Now,
		})
		defer f.queue.ShutDown()
		f.podsRead = true
		n := newNamespace(f, "ns") // for a claim that is being prepared
		f.namespaces["ns"] = n
		go f.reports.Run(ctx)
		f.reports.Changed() // something in another namespace
		time.Sleep(time.Minute)
		if writes > 0 {
			t.Error("it is reported before all is known")
		}
		n.store().Around(true, func() {})
		time.Sleep(time.Minute)
		if writes != 1 {
			t.Errorf("reported %d times", writes)
		}
	})
}
