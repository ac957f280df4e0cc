package watchstore

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Pages lists the objects of a kind, which a client returns as T in lists L, in pages, and watches them, for a reflector that is given
// what Of returns of each.
type Pages[L List, T, O runtime.Object] struct {
	API interface {
		List(ctx context.Context, o metav1.ListOptions) (L, error)
		Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
	}
	Of func(T) O
	// Limit is the number of objects of a page.
	Limit int64
	// Labels and Fields select objects.
	Labels, Fields string
	// Again is for a kind that the API server may not serve, see Watched: its list is empty.
	Again time.Duration
	// Keep, unless it is nil, says which objects are in lists and in events of new ones.
	Keep func(O) bool
}

// Meta is the part of an object's metadata by which it is known, and from which a reflector goes on.
func Meta(o metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), Generation: o.GetGeneration(),
		ResourceVersion: o.GetResourceVersion(),
	}
}

// List is a list of a client.
type List interface {
	metav1.ListInterface
	runtime.Object
}

// List returns a list for a reflector. An error is not wrapped, since a reflector checks its type.
func (p Pages[L, T, O]) List(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	out := &internalversion.List{}
	for {
		page, err := p.API.List(ctx, metav1.ListOptions{
			Limit: p.Limit, Continue: out.Continue, LabelSelector: p.Labels, FieldSelector: p.Fields,
		})
		if p.Again > 0 && apierrors.IsNotFound(err) {
			return &internalversion.List{}, nil
		}
		if err != nil {
			return nil, err
		}
		out.ResourceVersion, out.Continue = page.GetResourceVersion(), page.GetContinue()
		if err := meta.EachListItem(page, func(o runtime.Object) error {
			if of := p.Of(o.(T)); p.Keep == nil || p.Keep(of) {
				out.Items = append(out.Items, of)
			}
			return nil
		}); err != nil {
			return nil, err
		}
		if out.Continue == "" {
			return out, nil
		}
	}
}

// Watch returns a watch for a reflector.
func (p Pages[L, T, O]) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.LabelSelector, options.FieldSelector = p.Labels, p.Fields
	w, err := p.API.Watch(ctx, options)
	return Watched(w, err, p.Again, p.Of, p.Keep)
}

// Follow fills the store until ctx ends, from lists and watches: a stream of existing objects cannot be bounded. Logs of client-go have
// name and kind.
func (s *Store[K, O]) Follow(ctx context.Context, name, kind string, list cache.ListWithContextFunc, watch cache.WatchFuncWithContext) {
	all := unstreamed{&cache.ListWatch{ListWithContextFunc: list, WatchFuncWithContext: watch}}
	cache.NewReflectorWithOptions(all, nil, s, cache.ReflectorOptions{Name: name, TypeDescription: kind}).RunWithContext(ctx)
}

// unstreamed has a reflector list first.
type unstreamed struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported implements the interface that a reflector asks.
func (unstreamed) IsWatchListSemanticsUnSupported() bool { return true }
