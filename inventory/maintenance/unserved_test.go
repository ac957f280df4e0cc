package maintenance

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestUnserved: a server without DeviceTaintRules is named as the reason, and what to do instead.
func TestUnserved(t *testing.T) {
	kube := fake.NewClientset()
	kube.PrependReactor("*", "devicetaintrules", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(a.GetResource().GroupResource(), "") // as for a path that is not served
	})
	const want = "the API server does not serve DeviceTaintRules (resource.k8s.io/v1, on by default since Kubernetes 1.37)"
	if err := Begin(t.Context(), kube, "n1/d", []Device{{"n1", "d"}}, false); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("Begin: %v", err)
	}
	if _, err := End(t.Context(), kube, "n1/d"); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("End: %v", err)
	}
}
