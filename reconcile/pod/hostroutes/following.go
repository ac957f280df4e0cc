package hostroutes

import (
	"context"

	"k8s.io/client-go/tools/cache"
)

// following has the objects of an informer, each as a *T.
type following[T any] struct {
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
}

// follow begins to follow the objects that trim makes of those of the API server. changed is called when one appears, ends, or differs
// from what it was by same, and once all are known. It returns nil for an informer that was started or stopped before.
func follow[T any](
	ctx context.Context, i cache.SharedIndexInformer, trim cache.TransformFunc, same func(a, b *T) bool, changed func(),
) *following[T] {
	if i.SetTransform(trim) != nil {
		return nil
	}
	heard, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() }, DeleteFunc: func(any) { changed() },
		UpdateFunc: func(before, after any) {
			a, _ := before.(*T)
			b, _ := after.(*T)
			if a == nil || b == nil || !same(a, b) {
				changed()
			}
		},
	})
	if err != nil {
		return nil
	}
	within, stop := context.WithCancel(ctx)
	go i.RunWithContext(within)
	go func() {
		if cache.WaitForCacheSync(within.Done(), heard.HasSynced) {
			changed()
		}
	}()
	return &following[T]{i, stop}
}

// all returns the objects; false while they are not known.
func (f *following[T]) all() ([]*T, bool) {
	if f == nil || !f.informer.HasSynced() {
		return nil, false
	}
	var out []*T
	for _, v := range f.informer.GetStore().List() {
		if o, ok := v.(*T); ok {
			out = append(out, o)
		}
	}
	return out, true
}
