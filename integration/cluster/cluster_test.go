//go:build cluster

package cluster_test

import (
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/plumbline/plumbline/integration/cluster"
)

// start brings a cluster up that ends with the test.
func start(t *testing.T, options cluster.Options) *cluster.Cluster {
	t.Helper()
	options.Log = t.Output()
	began := time.Now()
	c, err := cluster.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("control plane ready after %s", time.Since(began).Round(10*time.Millisecond))
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(c.Dir()); !os.IsNotExist(err) && os.Getenv("PLUMBLINE_KEEP") == "" {
			t.Errorf("after Close %q is still there (%v)", c.Dir(), err)
		}
	})
	return c
}

func TestAPIServerOnly(t *testing.T) {
	c := start(t, cluster.Options{APIServerOnly: true})
	if _, err := c.Kubectl(t.Context(), nil, "create", "namespace", "blue"); err != nil {
		t.Error(err)
	}
	version, err := c.Kubectl(t.Context(), nil, "version")
	if err != nil {
		t.Error(err)
	}
	if !strings.Contains(version, "Server Version: "+cluster.Version()) {
		t.Errorf("want a server of version %s, have:\n%s", cluster.Version(), version)
	}
}

// TestAPIServerAway: an API server that was stopped does not answer, and has its objects when it is started again.
func TestAPIServerAway(t *testing.T) {
	c := start(t, cluster.Options{})
	kubectl(t, c, "", "create", "namespace", "blue")
	c.StopAPIServer()
	if said, err := c.Kubectl(t.Context(), nil, "get", "namespace", "blue"); err == nil {
		t.Errorf("it answers %q", said)
	}
	if err := c.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	kubectl(t, c, "", "get", "namespace", "blue")
	kubectl(t, c, "", "create", "namespace", "green") // with a controller manager that has waited
	kubectl(t, c, "", "-n", "green", "wait", "--for=create", "--timeout=120s", "serviceaccount/default")
}

func TestControlPlane(t *testing.T) {
	c := start(t, cluster.Options{PodCIDRs: true})
	manifest := strings.NewReader(`
apiVersion: v1
kind: Pod
metadata: {name: waits, namespace: default}
spec:
  containers: [{name: pod, image: ` + cluster.PodImage + `}]
`)
	// Admission gives it the service account that the controller manager has made.
	if _, err := c.Kubectl(t.Context(), manifest, "create", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	config, err := c.ServiceAccount(t.Context(), "default", "default", cluster.TokenFor{Pod: "waits"})
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if want := `User "system:serviceaccount:default:default" cannot list`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a service account without a role: want %q, have %v", want, err)
	}
	kubectl(t, c, "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n", "create", "-f", "-")
	kubectl(t, c, "", "wait", "--for=jsonpath={.spec.podCIDRs[1]}", "--timeout=60s", "node/n1")
	if have, want := kubectl(t, c, "", "get", "node", "n1", "-o", "jsonpath={.spec.podCIDRs[*]}"), "10.244.0.0/24 fd00:10:244::/64"; have != want {
		t.Errorf("the node has the pod CIDRs %q, want %q", have, want)
	}
}
