package follower

import (
	"context"
	"math/rand/v2"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// rewrite is after how long a report is written though nothing has changed: somebody
// may have deleted it.
const rewrite = time.Hour

// writeReports writes the node's report when it has changed.
func (f *Follower) writeReports(ctx context.Context) {
	var written v1alpha1.DeviceExposureReport
	logged := ""
	due := time.NewTimer(rewrite)
	defer due.Stop()
	for {
		again := false
		select {
		case <-ctx.Done():
			return
		case <-due.C:
			again = true
		case <-f.wake:
		}
		f.mu.Lock()
		r := f.report
		f.mu.Unlock()
		if r.Name == "" || !again && reflect.DeepEqual(r, written) {
			continue
		}
		if !pause(ctx, time.Duration(rand.Float64()*float64(f.Spread))) {
			return
		}
		f.mu.Lock()
		r = f.report
		f.mu.Unlock()
		next := rewrite
		if err := f.write(ctx, r); err == nil {
			written, logged = r, ""
		} else {
			next = 6 * f.Spread
			if err.Error() != logged && !apierrors.IsNotFound(err) { // a cluster without the CRD has no reports
				f.Log.Warn("not reported", "error", f.describe(err))
			}
			logged = err.Error()
		}
		due.Reset(next)
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// write creates the report or changes it. It goes with the node.
func (f *Follower) write(ctx context.Context, r v1alpha1.DeviceExposureReport) error {
	if n := f.self(); n != nil {
		r.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}}
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&r)
	if err != nil {
		return err
	}
	unstructured.RemoveNestedField(object, "metadata", "creationTimestamp")
	_, err = f.Dynamic.Resource(v1alpha1.ReportResource()).Apply(ctx, f.NodeName, &unstructured.Unstructured{Object: object},
		metav1.ApplyOptions{FieldManager: "plumbline-agent", Force: true})
	return err
}
