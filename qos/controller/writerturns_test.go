package controller

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	qosv1alpha1 "github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestTurnsOfEdits: an object that is edited is read before all but one of those that users of another namespace have edited before.
// Pods that it covers wait for its destinations.
func TestTurnsOfEdits(t *testing.T) {
	const edits = 100
	ctx, cancel := context.WithCancel(t.Context())
	objects := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		qosv1alpha1.Resource(): "NetworkQoSList", v1alpha1.QoSDestinationsResource(): "NetworkQoSDestinationsList",
	})
	queued, begun, read := make(chan struct{}), make(chan struct{}, edits+1), make(chan string, edits+1)
	objects.PrependReactor("list", "networkqoses", func(a clienttesting.Action) (bool, runtime.Object, error) {
		begun <- struct{}{}
		<-queued
		read <- a.GetNamespace()
		return false, nil, nil
	})
	w := &destinationWriter{
		Destinations: NewDestinations(), objects: objects, metadata: metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme()),
		log: slog.New(slog.DiscardHandler), now: time.Now,
	}
	wait := w.run(ctx)
	for n := range edits {
		w.Edited(types.NamespacedName{Namespace: "evil", Name: fmt.Sprint(n)})
		if n == 0 {
			<-begun
		}
	}
	w.Edited(types.NamespacedName{Namespace: "good", Name: "q"})
	close(queued)
	var order []string
	for range edits + 1 {
		order = append(order, <-read)
	}
	cancel()
	wait()
	if place := slices.Index(order, "good"); place > 2 {
		t.Errorf("it is read after %d objects of another namespace", place)
	}
}
