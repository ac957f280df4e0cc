package nodereport

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// rewrite is after how long a report is written though nothing has changed: somebody
// may have deleted it.
const rewrite = time.Hour

// Options are the settings of a Writer.
type Options struct {
	// Client needs: create and patch on Resource, which belongs to the group of v1alpha1.
	Client   dynamic.Interface
	Resource schema.GroupVersionResource
	Kind     string
	NodeName string
	// NodeUID returns the UID of the Node object, "" while it is not known: nothing is written
	// before. An API server with OwnerReferencesPermissionEnforcement refuses an owner that is
	// given later.
	NodeUID func() types.UID
	// Report returns a pointer to the report without its metadata, nil while there is none.
	Report func() any
	Log    *slog.Logger
	// Spread is the time over which the nodes of a cluster write after a change that all of
	// them receive at once; default 10 s.
	Spread time.Duration
	// Pause is the least time between two writes of a node.
	Pause time.Duration
}

// Writer keeps the report of a node written.
type Writer struct {
	Options
	wake chan struct{}
}

// New returns a Writer that does nothing until Run.
func New(o Options) *Writer {
	o.Spread = cmp.Or(o.Spread, 10*time.Second)
	return &Writer{Options: o, wake: make(chan struct{}, 1)}
}

// Changed is called when the report may be another one. It does not block.
func (w *Writer) Changed() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run writes the report whenever it has changed, until ctx ends.
func (w *Writer) Run(ctx context.Context) {
	var written map[string]any
	var logged error
	due := time.NewTimer(rewrite)
	defer due.Stop()
	for {
		again := false
		select {
		case <-ctx.Done():
			return
		case <-due.C:
			again = true
		case <-w.wake:
		}
		if now, err := w.object(); !again && err == nil && (now == nil || reflect.DeepEqual(now, written)) {
			continue
		}
		if !pause(ctx, time.Duration(rand.Float64()*float64(w.Spread))) {
			return
		}
		owner := w.NodeUID()
		if owner == "" {
			due.Reset(w.Spread)
			continue
		}
		next := rewrite
		now, err := w.object()
		if now == nil && err == nil {
			if again { // one that was due stays so
				due.Reset(6 * w.Spread)
			}
			continue
		}
		if err == nil {
			err = w.write(ctx, now, owner)
		}
		if err == nil {
			written, logged = now, nil
		} else {
			next = 6 * w.Spread
			if !fault.SameText(err, logged) && !apierrors.IsNotFound(err) { // a cluster without the CRD has no reports
				w.Log.Warn("cannot write the report of the node", "error", fmt.Errorf("%s %q: %w", w.Kind, w.NodeName, err))
			}
			logged = err
		}
		due.Reset(next)
		if !pause(ctx, w.Pause) {
			return
		}
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

// object returns the report as it is compared, nil while there is none.
func (w *Writer) object() (map[string]any, error) {
	report := w.Report()
	if report == nil {
		return nil, nil
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(report)
	if err != nil {
		return nil, err
	}
	delete(object, "metadata")
	return object, nil
}

// write creates the report or changes it.
func (w *Writer) write(ctx context.Context, report map[string]any, owner types.UID) error {
	u := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(report)}
	u.SetAPIVersion(v1alpha1.GroupVersion.String())
	u.SetKind(w.Kind)
	u.SetName(w.NodeName)
	u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: w.NodeName, UID: owner}})
	_, err := w.Client.Resource(w.Resource).Apply(ctx, w.NodeName, u, metav1.ApplyOptions{FieldManager: "plumbline-agent", Force: true})
	return err
}
