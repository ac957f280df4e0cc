package controller

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestTemplateWithFinalizer: a template that a tenant keeps from being deleted, or replaces by one of another spec, costs few requests, and
// the other namespaces have theirs. It is made again when it is gone.
func TestTemplateWithFinalizer(t *testing.T) {
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	o := &v1alpha1.NetworkTopology{}
	if err := json.Unmarshal([]byte(`{"metadata":{"name":"ai","uid":"u1"},"spec":{"steps":[{"name":"vf0","type":"sriov"}],"claimTemplate":{"namespaces":["blue","red"]}}}`), o); err != nil {
		t.Fatal(err)
	}
	decoded, err := topology.FromObject(o)
	if err != nil {
		t.Fatal(err)
	}
	scheme, err := Scheme()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name      string
		labelled  bool // the cache has it
		finalizer bool
		specs     func(s *resourceapi.ResourceClaimTemplateSpec)
		kept      int
	}{
		{"of an earlier generation", true, true, func(s *resourceapi.ResourceClaimTemplateSpec) { s.Spec.Devices.Requests[0].Name = "before" }, 1},
		{"that the cache does not know", false, true, func(s *resourceapi.ResourceClaimTemplateSpec) { s.Spec.Devices.Requests[0].Name = "other" }, 1},
		{"as it is to be", true, true, func(*resourceapi.ResourceClaimTemplateSpec) {}, 2},
		{"without a finalizer", true, false, func(s *resourceapi.ResourceClaimTemplateSpec) { s.Spec.Devices.Requests[0].Name = "before" }, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			theirs := wantTemplate(o, decoded, registry, "blue")
			theirs.UID = "theirs"
			tt.specs(&theirs.Spec)
			if tt.finalizer {
				theirs.Finalizers = []string{"example.com/keep"}
			}
			if !tt.labelled {
				theirs.Labels = nil
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			writes := 0
			note := func() error {
				if writes++; writes > 100 {
					cancel()
				}
				return ctx.Err()
			}
			kube := fake.NewClientBuilder().WithScheme(scheme).WithIndex(&resourceapi.ResourceClaimTemplate{}, indexUID, func(o client.Object) []string {
				if len(o.GetLabels()) == 0 {
					return nil
				}
				return uidOfTemplate(o)
			}).WithObjects(
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "blue"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "red"}}, theirs,
			).WithInterceptorFuncs(interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
					if err := note(); err != nil {
						return err
					}
					return c.Create(ctx, o, opts...)
				},
				Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
					if err := note(); err != nil {
						return err
					}
					return c.Delete(ctx, o, opts...)
				},
			}).Build()
			c := &Controller{Client: kube, Live: kube, Log: slog.New(slog.DiscardHandler)}
			found := c.templates(ctx, o, decoded, registry)
			if found.Err != nil || found.Kept != tt.kept || found.Clashes != 2-tt.kept || writes > 4 {
				t.Errorf("kept %d, clashes %d, error %v, after %d writes", found.Kept, found.Clashes, found.Err, writes)
			}

			there := &resourceapi.ResourceClaimTemplate{}
			if err := kube.Get(ctx, client.ObjectKeyFromObject(theirs), there); err != nil {
				t.Fatal(err)
			}
			if tt.finalizer && !there.DeletionTimestamp.IsZero() { // it lets go
				there.Finalizers = nil
				if err := kube.Update(ctx, there); err != nil {
					t.Fatal(err)
				}
			}
			if found = c.templates(ctx, o, decoded, registry); found.Err != nil || found.Kept != 2 || found.Clashes > 0 {
				t.Errorf("at last: kept %d, clashes %d, error %v", found.Kept, found.Clashes, found.Err)
			}
		})
	}
}
