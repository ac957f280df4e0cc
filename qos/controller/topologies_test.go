package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	qosv1alpha1 "github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// informed is the cache of a manager with topologies.
type informed struct {
	ctrlcache.Cache
	cache.SharedIndexInformer
}

func (i informed) GetInformer(context.Context, client.Object, ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	return i.SharedIndexInformer, nil
}

func (informed) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

func named(n int, definition string) *v1alpha1.NetworkTopology {
	return &v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("t", n), Annotations: map[string]string{v1alpha1.AnnotationDefinition: definition}}}
}

// TestManyTopologies: all objects are listed again once for any number of topologies that are known or edited together, and also if the
// API server does not answer at first.
func TestManyTopologies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 300
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		list, events := &v1alpha1.NetworkTopologyList{}, watch.NewFakeWithChanSize(many, false)
		for i := range many {
			list.Items = append(list.Items, *named(i, "ns/a"))
		}
		topologies := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc:  func(context.Context, metav1.ListOptions) (runtime.Object, error) { return list, nil },
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return events, nil },
		}, unstreamed{}), &v1alpha1.NetworkTopology{}, 0, nil)
		var listed, failing atomic.Int64
		metadatas := metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme())
		metadatas.PrependReactor("list", "networkqoses", func(clienttesting.Action) (bool, runtime.Object, error) {
			if failing.Add(-1) >= 0 {
				return true, nil, errors.New("no answer")
			}
			listed.Add(1)
			return false, nil, nil
		})
		c := &NetworkQoS{
			Objects: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
				qosv1alpha1.Resource(): "NetworkQoSList", v1alpha1.QoSReportResource(): "NetworkQoSReportList", v1alpha1.QoSDestinationsResource(): "NetworkQoSDestinationsList",
			}),
			Metadata: metadatas, Topologies: informed{nil, topologies}, Log: slog.New(slog.DiscardHandler), Now: time.Now, Interval: time.Second, Reported: 10 * time.Second,
		}
		go topologies.RunWithContext(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if err := c.Start(ctx); err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(time.Minute)
		if n := listed.Swap(0); n < 1 || n > 3 {
			t.Errorf("at the start all objects are listed %d times", n)
		}
		for _, tt := range []struct {
			edits int
			fails int64
		}{{many, 0}, {1, 2}} {
			failing.Store(tt.fails)
			for i := range tt.edits {
				events.Modify(named(i, fmt.Sprint("ns/b", tt.fails)))
			}
			time.Sleep(time.Minute)
			if n := listed.Swap(0); n < 1 || n > 3 {
				t.Errorf("after %d failures, edits of %d topologies have all objects listed %d times", tt.fails, tt.edits, n)
			}
		}
		cancel()
		<-ended
	})
}

// unstreamed is a client whose watches do not begin with what there is.
type unstreamed struct{}

func (unstreamed) IsWatchListSemanticsUnSupported() bool { return true }
