package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"          //nolint:depguard // the objects of a cluster that the test plays
	resourceapi "k8s.io/api/resource/v1" //nolint:depguard // as above
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/publish"
	"github.com/plumbline/plumbline/reconcile/pod/draplugin"
	"github.com/plumbline/plumbline/topology/exposure/follower"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestNodeCreatedAgain: an agent ends, to be started again, when its Node object is another one. What publishes ResourceSlices for it gives
// each the UID of the first one as its owner, and Kubernetes deletes slices whose owner is gone, however often they are created.
func TestNodeCreatedAgain(t *testing.T) {
	node := func(uid types.UID, label string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: uid, Labels: map[string]string{"l": label}}}
	}
	kube := fake.NewClientset(node("first", ""))
	var made atomic.Int64
	kube.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		s := a.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		s.Name = fmt.Sprint(s.GenerateName, made.Add(1))
		return false, nil, nil
	})
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	policies := follower.New(follower.Options{
		Kube: kube, NodeName: "n1", Log: log, Changed: func() {}, Spread: time.Millisecond,
		Dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
			v1alpha1.PolicyResource(): "DeviceExposurePolicyList", v1alpha1.ReportResource(): "DeviceExposureReportList",
		}),
	})
	dir, err := os.MkdirTemp("", "agent") //nolint:usetesting // a path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Mkdir(filepath.Join(dir, "registrar"), 0o700); err != nil {
		t.Fatal(err)
	}
	k := &kubelet{
		draplugin.New(draplugin.Options{Log: log, Now: time.Now, HandleError: func(err error, msg string) { log.Error(msg, "error", err) }}),
		draplugin.Serving{Kube: kube, NodeName: "n1", PluginDir: filepath.Join(dir, "plugin"), RegistrarDir: filepath.Join(dir, "registrar"), CDIDir: filepath.Join(dir, "cdi")},
		policies,
		publish.New(publish.Options{
			NodeName: "n1", Sysfs: os.DirFS(dir), Policies: policies, Log: log, StateFile: filepath.Join(dir, "published.json"),
			InUse:   func() []string { return nil },
			Uplinks: func(context.Context, []inventory.Device) (inventory.Uplinks, error) { return inventory.Uplinks{}, nil },
		}),
	}
	ctx, cancel := context.WithCancel(t.Context())
	followed, ended := make(chan struct{}), make(chan error, 1)
	go func() { policies.Run(ctx); close(followed) }()
	go func() { ended <- k.Run(ctx) }()
	owner := func() types.UID {
		all, err := kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		if err != nil || len(all.Items) != 1 {
			return ""
		}
		return all.Items[0].OwnerReferences[0].UID
	}
	eventually.True(t, 20*time.Second, "slice of the first node", func() bool { return owner() == "first" })
	nodes := kube.CoreV1().Nodes()
	if _, err := nodes.Update(ctx, node("first", "changed"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, 20*time.Second, "the label", func() bool { labels, _, _ := policies.Node(); return labels["l"] == "changed" })
	select {
	case err := <-ended:
		t.Fatalf("a label ends the agent: %v", err)
	default:
	}
	if err := errors.Join(nodes.Delete(ctx, "n1", metav1.DeleteOptions{}), second(nodes.Create(ctx, node("second", "changed"), metav1.CreateOptions{}))); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, 20*time.Second, "another UID", func() bool { return policies.NodeUID() == "second" })
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), `Node "n1"`) {
			t.Errorf("error %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Errorf("the agent goes on, with slices owned by %q", owner())
	}
	cancel()
	<-followed
}

func second[T any](_ T, err error) error { return err }
