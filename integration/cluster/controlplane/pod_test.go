//go:build cluster

package controlplane_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology"
)

// user runs kubectl plumbline as the user of a kubeconfig.
type user struct {
	bench      *bench
	plugin     string
	kubeconfig string
}

// asks returns what the plugin prints, what it says beside that, and its exit status.
func (u *user) asks(t *testing.T, arguments string) (out, said string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), u.plugin, strings.Fields(arguments)...)
	cmd.Env = []string{"HOME=" + t.TempDir(), "KUBECONFIG=" + u.kubeconfig}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run()
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

// gets fails the test unless the plugin ends with the status, and prints, or says, each of these words.
func (u *user) gets(t *testing.T, arguments string, want int, words ...string) {
	t.Helper()
	out, said, code := u.asks(t, arguments)
	if code != want {
		t.Errorf("%s: exit status %d, want %d", arguments, code, want)
	}
	for _, w := range words {
		if !strings.Contains(out+said, w) {
			t.Errorf("%s: printed\n%s\nsaid\n%s\nlacks %q", arguments, out, said, w)
		}
	}
	if want == 1 && out != "" {
		t.Errorf("%s: printed %q beside an error", arguments, out)
	}
}

// TestPodOfUser asks about pods as a user who may read the objects of a namespace, and has no right on nodes and none to
// execute anything in a pod.
func TestPodOfUser(t *testing.T) {
	b := startOf(t, cluster.Options{})
	b.run(t)
	b.furnish(t)
	b.mustKubectl(t, choosing("mine", "vf0=pf0")+`    - {name: data, type: vlan, dependOn: [vf0], config: {id: 7, name: data0}}
`, "create", "--validate=strict", "-f", "-")
	b.mustKubectl(t, choosing("nowhere", "vf0=pf9"), "create", "--validate=strict", "-f", "-")
	for _, name := range []string{"mine", "nowhere"} {
		b.eventually(t, "the class of "+name, func() error {
			return b.Get(t.Context(), client.ObjectKey{Name: name + "-vf0"}, &resourceapi.DeviceClass{})
		})
		b.mustKubectl(t, template(name, "{name: vf0, exactly: {deviceClassName: "+name+"-vf0}}"), "create", "-f", "-")
	}
	b.speakFor(t)
	for pod, of := range map[string]string{"web": "mine", "waits": "nowhere", "mistaken": "absent"} {
		b.pod(t, claiming(pod, of))
	}
	b.pod(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: bare, namespace: default}\nspec: {containers: [{name: c, image: "+cluster.PodImage+"}]}\n")

	b.mustKubectl(t, "", "create", "serviceaccount", "alice", "-n", "default")
	if _, err := b.ServiceAccount(t.Context(), "default", "alice", cluster.TokenFor{}); err != nil {
		t.Fatal(err)
	}
	plugin := filepath.Join(t.TempDir(), "kubectl-plumbline")
	if err := os.Symlink(b.program, plugin); err != nil {
		t.Fatal(err)
	}
	alice := &user{b, plugin, filepath.Join(b.Dir(), "default-alice.kubeconfig")}

	for _, command := range []string{"status", "plan", "explain"} {
		alice.gets(t, command+" web", 1, `you may not read pod "web" in namespace "default": ask for the ClusterRole view in that namespace`)
	}
	b.placed(t, "web")
	b.mustKubectl(t, "", "create", "rolebinding", "alice", "-n", "default", "--clusterrole=view", "--serviceaccount=default:alice")
	t.Run("of a namespace alone", func(t *testing.T) {
		b.eventually(t, "her right", func() error {
			if _, said, code := alice.asks(t, "status web"); code == 1 {
				return fmt.Errorf("she is told %s", said)
			}
			return nil
		})
		for _, right := range [][]string{{"get", "nodes"}, {"create", "pods", "--subresource=exec"}, {"get", "pods", "--subresource=exec"}, {"get", "pods", "--subresource=proxy"}, {"list", "pods", "-n", cluster.ProductNamespace}, {"list", "resourceslices.resource.k8s.io"}} {
			if said, _ := b.Kubectl(t.Context(), nil, append([]string{"auth", "can-i", "--as=system:serviceaccount:default:alice"}, right...)...); strings.TrimSpace(said) != "no" {
				t.Fatalf("she may %q, so this shows nothing: %s", right, said)
			}
		}
		alice.gets(t, "status web", 2, "pod default/web on node n1", "topology mine", "not reported",
			`NetworkTopology "mine": you may not read it: topologies and DeviceClasses belong to no namespace, so that a RoleBinding does not suffice: ask for a ClusterRoleBinding to the ClusterRole plumbline-view`)
		alice.gets(t, "plan web", 0, "it cannot be read")
		alice.gets(t, "status web -n "+cluster.ProductNamespace, 1, `you may not read pod "web" in namespace "plumbline-system"`)
	})

	b.mustKubectl(t, "", "create", "clusterrolebinding", "alice", "--clusterrole=plumbline-view", "--serviceaccount=default:alice")
	b.eventually(t, "her right on topologies", func() error {
		if out, said, _ := alice.asks(t, "plan web"); !strings.Contains(out, "vlan") {
			return fmt.Errorf("she is told %s%s", out, said)
		}
		return nil
	})
	t.Run("with topologies", func(t *testing.T) { alice.seesAll(t) })
	t.Run("wrong input", func(t *testing.T) { alice.isCorrected(t) })
}

// seesAll: a pod that waits for its node's agent, that runs, whose topology is edited, and pods that cannot start.
func (u *user) seesAll(t *testing.T) {
	b := u.bench
	u.gets(t, "plan web", 0, "topology mine, generation 1: the pod gets it when it starts", "vf0   sriov  device pf0-vf", "data  vlan   vf0")
	u.gets(t, "explain web", 2, "! ")
	agents := b.agents(t)
	placed := b.placed(t, "web")
	if len(placed) != 1 {
		t.Fatalf("%d claims", len(placed))
	}
	var pod corev1.Pod
	if err := b.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "web"}, &pod); err != nil {
		t.Fatal(err)
	}
	of := claimOf(&placed[0])
	of.Pod = claims.Pod{Name: "web", UID: pod.UID}
	agents.Attached(of, "mine", []topology.StepResult{
		{Name: "vf0", Type: "sriov", Result: topology.Result{Interfaces: []topology.Interface{{Name: "net1", MAC: "02:00:00:00:00:07", Sandbox: "/n"}}}},
		{Name: "data", Type: "vlan", Result: topology.Result{Interfaces: []topology.Interface{{Name: "data0", Sandbox: "/n"}}, IPs: []topology.IP{{Address: "192.0.2.5/24", Interface: new(int)}}}},
	})
	agents.Runs(of, "mine", 1, nil)
	b.eventually(t, "the report", func() error {
		if out, said, code := u.asks(t, "status web"); code != 0 || !strings.Contains(out, "NetworkReady") {
			return fmt.Errorf("exit status %d, %s%s", code, out, said)
		}
		return nil
	})
	u.gets(t, "status web", 0, "topology mine, generation 1", "net1", "Ready, InSync", "data0      192.0.2.5/24", "Normal  NetworkReady")
	u.gets(t, "status pod/web -o json", 0, `"node": "n1"`)
	u.gets(t, "plan web", 0, "generation 1: the pod has it", "data0")
	u.gets(t, "explain web", 0, "Nothing is wrong as far as is reported.")
	b.mustKubectl(t, "", "patch", "nettopo", "mine", "--type=json", "-p", `[{"op":"replace","path":"/spec/steps/1/config/id","value":8}]`)
	u.gets(t, "explain web", 0, `~ the pod has generation 1 of topology "mine", which has generation 2 now`, "delete the pod, so that its next one gets the change")

	b.event(t, "waits", "FailedScheduling", "")
	u.gets(t, "explain waits", 2, "is not allocated: no node has free devices for all of its requests (DeviceClasses nowhere-vf0)", "! Event FailedScheduling")
	u.gets(t, "status waits", 2, "not scheduled")
	u.gets(t, "explain mistaken", 2, `was not created from ResourceClaimTemplate "absent" yet`, "kubectl get resourceclaimtemplate -n default absent")
	u.gets(t, "explain bare", 0, "the pod has no claim")
	u.gets(t, "version --cluster", 0, "Kubernetes "+cluster.Version(), "note: the feature gates of the API server cannot be read, which needs get on the URL /metrics")
}

// isCorrected: what is wrong is named, with what to do, and nothing is printed.
func (u *user) isCorrected(t *testing.T) {
	content, err := os.ReadFile(u.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	other := func(old, changed string) string {
		t.Helper()
		text := strings.ReplaceAll(string(content), old, changed)
		file := filepath.Join(t.TempDir(), "kubeconfig")
		if text == string(content) {
			t.Fatalf("the kubeconfig has no %q", old)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	for arguments, want := range map[string]string{
		"status webb":                          `pod "webb" does not exist in namespace "default"`,
		"status web -n nope":                   `you may not read pod "web" in namespace "nope"`,
		"status Web":                           `"Web" is not the name of a pod`,
		"status deployment/web":                `"deployment/web" is not the name of a pod`,
		"status pod/":                          "name one pod",
		"status ../nodes":                      `"../nodes" is not the name of a pod`,
		"status web bare":                      "name one pod",
		"status":                               "name one pod",
		"explain web -n a/b":                   `"a/b" is not the name of a namespace`,
		"explain web -o xml":                   "want one of text, json, yaml",
		"stat web":                             `unknown command "stat"`,
		"status web --context none":            `context "none" does not exist`,
		"status web --kubeconfig /nonexistent": "/nonexistent",
		"status web --as system:admin":         `--as: either user "system:admin" may not read this, or you may not impersonate that user`,
		"status web --kubeconfig " + other("token: ", "token: x"):                      "the API server does not know the user of the kubeconfig",
		"status web --kubeconfig " + other(u.bench.Address(), "127.0.0.1:1"):           "connection refused",
		"version --cluster --kubeconfig " + other(u.bench.Address(), "127.0.0.1:1"):    "connection refused",
		"status web --kubeconfig " + other("certificate-authority-data: ", "unused: "): "certificate",
	} {
		t.Run(arguments, func(t *testing.T) { u.gets(t, arguments, 1, want) })
	}
}
