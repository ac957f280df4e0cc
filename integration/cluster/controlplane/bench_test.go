//go:build cluster

package controlplane_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	runtimelog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/topology/admission"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/controller"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

const topologies = "../../../topology/testdata/topology/"

// bench is an API server with plumbline's chart in it, as far as it concerns
// the controller.
type bench struct {
	*cluster.Cluster
	client.Client
	webhooks string // the manifest that registers them
	program  string
	port     int
	process  *exec.Cmd
	logs     *bytes.Buffer
	health   string
	elects   bool // the controller elects a leader, and ends if it cannot renew its lease in time
}

// builtIn is where the program is built for all tests, once: linking it takes longer than
// starting an API server.
var builtIn string

var built = sync.OnceValues(func() (program string, err error) {
	program = filepath.Join(builtIn, "plumbline")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, "github.com/plumbline/plumbline/cmd/plumbline")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return program, nil
})

func TestMain(m *testing.M) { os.Exit(inFolder(m)) }

func inFolder(m *testing.M) int {
	var err error
	if builtIn, err = os.MkdirTemp("", "plumbline-controlplane-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(builtIn)
	return m.Run()
}

func start(t *testing.T) *bench {
	t.Helper()
	return startOf(t, cluster.Options{APIServerOnly: true})
}

// startOf is start with more of a control plane.
func startOf(t *testing.T, options cluster.Options) *bench {
	t.Helper()
	runtimelog.SetLogger(logr.Discard()) // or the client complains that nobody has
	program, err := built()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	options.Log = t.Output()
	c, err := cluster.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{Cluster: c, program: program}
	t.Cleanup(func() {
		b.stop(t)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("API server ready after %s", time.Since(began).Round(time.Millisecond))
	scheme, err := controller.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	if b.Client, err = client.New(c.Config(), client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	b.port = freePort(t)
	b.install(t)
	return b
}

// The chart's default, and what the bench registers, as webhook.timeoutSeconds would.
const defaultTimeoutSeconds, timeoutSeconds = 5, 30

// served is the registration of a webhook that the bench serves.
func (b *bench) served(doc string) string {
	url := fmt.Sprintf(`url: "https://localhost:%d%s"`, b.port, admission.Path)
	// A pause of the host must not decide what is allowed.
	doc = strings.Replace(doc, fmt.Sprintf("timeoutSeconds: %d\n", defaultTimeoutSeconds), fmt.Sprintf("timeoutSeconds: %d\n", timeoutSeconds), 1)
	lines := strings.Split(doc, "\n")
	for i, l := range lines {
		if strings.Contains(l, "service: {") {
			lines[i] = strings.Repeat(" ", len(l)-len(strings.TrimLeft(l, " "))) + url
		}
	}
	return strings.Join(lines, "\n")
}

// install applies what of the chart concerns the controller, without its
// Deployment, and keeps the webhooks for later.
func (b *bench) install(t *testing.T) {
	t.Helper()
	manifest, err := b.Chart(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var now, webhooks []string
	for doc := range strings.SplitSeq(manifest, "\n---\n") {
		switch kind := field(doc, "kind: "); kind {
		case "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding":
			now = append(now, doc)
		case "Secret":
			now = append(now, doc)
		case "ValidatingWebhookConfiguration":
			webhooks = append(webhooks, b.served(doc))
		}
	}
	b.webhooks = strings.Join(webhooks, "\n---\n")
	b.mustKubectl(t, "", "create", "namespace", cluster.ProductNamespace)
	b.mustKubectl(t, strings.Join(now, "\n---\n"), "apply", "-f", "-")
	// Renders or not, the Secret is there.
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.ProductNamespace, Name: "plumbline-webhook"}}
	if err := b.Create(t.Context(), secret); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	b.mustKubectl(t, "", "wait", "--for=condition=Established", "--timeout=30s", "crd/networktopologies.networking.dra.io", "crd/deviceexposurepolicies.networking.dra.io", "crd/deviceexposurereports.networking.dra.io", "crd/networkqosreports.networking.dra.io", "crd/networkqosdestinations.networking.dra.io", "crd/cnipluginschemas.cni.networking.k8s.io")
}

func field(doc, key string) string {
	for line := range strings.Lines(doc) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// run starts the controller and waits until it is ready.
func (b *bench) run(t *testing.T, flags ...string) {
	t.Helper()
	began := time.Now()
	if _, err := b.ServiceAccount(t.Context(), cluster.ProductNamespace, "plumbline-controller", cluster.TokenFor{}); err != nil {
		t.Fatal(err)
	}
	b.health = net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort(t)))
	b.logs = &bytes.Buffer{}
	b.process = exec.Command(b.program, append([]string{
		"controller",
		"--kubeconfig", filepath.Join(b.Dir(), cluster.ProductNamespace+"-plumbline-controller.kubeconfig"),
		"--namespace", cluster.ProductNamespace, "--webhook-host", "localhost",
		"--webhook-port", strconv.Itoa(b.port), "--metrics-address", "0", "--health-address", b.health, "--status-interval", "500ms",
		fmt.Sprintf("--leader-elect=%t", b.elects),
	}, flags...)...)
	b.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.Create(filepath.Join(b.Dir(), fmt.Sprintf("controller-%d.log", b.port)))
	if err != nil {
		t.Fatal(err)
	}
	b.process.Stderr = io.MultiWriter(log, b.logs)
	if err := b.process.Start(); err != nil {
		t.Fatal(err)
	}
	b.eventually(t, "the controller is ready", func() error {
		answer, err := http.Get("http://" + b.health + "/readyz")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			body, _ := io.ReadAll(answer.Body)
			return errors.New(string(body))
		}
		return nil
	})
	t.Logf("controller ready after %s", time.Since(began).Round(time.Millisecond))
}

// stop signals the controller to end, as kubelet does.
func (b *bench) stop(t *testing.T) {
	t.Helper()
	if b.process == nil {
		return
	}
	_ = b.process.Process.Signal(syscall.SIGTERM)
	err := b.process.Wait()
	if err != nil || t.Failed() {
		t.Logf("controller: %v\n%s", err, b.logs)
	}
	b.process = nil
}

// eventually waits until what is checked is no error any more. It asks less often the longer it
// takes, since a check may be a program or a pass of an agent.
func (b *bench) eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	eventually.Holds(t, 2*time.Minute, what, func() string {
		if err := check(); err != nil {
			return fmt.Sprintf("%v\n%s", err, tail(b.logs))
		}
		return ""
	})
}

func tail(logs *bytes.Buffer) string {
	if logs == nil {
		return ""
	}
	text := logs.String()
	if len(text) > 4000 {
		text = text[len(text)-4000:]
	}
	return text
}

func (b *bench) mustKubectl(t *testing.T, input string, arguments ...string) string {
	t.Helper()
	out, err := b.Kubectl(t.Context(), strings.NewReader(input), arguments...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// refused applies a manifest and returns what kubectl says when that fails.
func (b *bench) refused(t *testing.T, manifest string) string {
	t.Helper()
	_, err := b.Kubectl(t.Context(), strings.NewReader(manifest), "create", "-f", "-")
	if err == nil {
		t.Fatalf("accepted:\n%s", manifest)
	}
	_, said, found := strings.Cut(err.Error(), "exit status 1: ")
	if !found {
		t.Fatal(err)
	}
	return said
}

func (b *bench) topology(t *testing.T, name string) *v1alpha1.NetworkTopology {
	t.Helper()
	o := &v1alpha1.NetworkTopology{}
	if err := b.Get(t.Context(), client.ObjectKey{Name: name}, o); err != nil {
		t.Fatal(err)
	}
	return o
}

func (b *bench) class(t *testing.T, name string) *resourceapi.DeviceClass {
	t.Helper()
	o := &resourceapi.DeviceClass{}
	if err := b.Get(t.Context(), client.ObjectKey{Name: name}, o); err != nil {
		t.Fatal(err)
	}
	return o
}

// publishedTopology is a topology of topology/testdata, in the form in which users
// write it.
func publishedTopology(t *testing.T, name string) string {
	t.Helper()
	for _, f := range archive(t, topologies+name+".txtar") {
		if f.Name == "topology.yaml" {
			return string(f.Data)
		}
	}
	t.Fatalf("%s has no topology.yaml", name)
	return ""
}

func archive(t *testing.T, file string) []txtar.File {
	t.Helper()
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return archive.Files
}

// simple is a topology of root steps alone, each of type sriov.
func simple(name string, steps ...string) string {
	out := "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: " + name + "}\nspec:\n  steps:\n"
	for _, s := range steps {
		out += "    - {name: " + s + ", type: sriov}\n"
	}
	return out
}

// allocate writes a claim and its allocation, as the scheduler would.
func (b *bench) allocate(t *testing.T, name string, classes ...string) *resourceapi.ResourceClaim {
	t.Helper()
	return b.allocateOn(t, "node-1", name, classes...)
}

// allocateOn is allocate on one of several nodes.
func (b *bench) allocateOn(t *testing.T, node, name string, classes ...string) *resourceapi.ResourceClaim {
	t.Helper()
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	allocation := &resourceapi.AllocationResult{}
	for i, class := range classes {
		request := "r" + strconv.Itoa(i)
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourceapi.DeviceRequest{
			Name: request, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1},
		})
		allocation.Devices.Results = append(allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: request, Driver: claim.Driver, Pool: node, Device: fmt.Sprintf("%s-%d", name, i),
		})
		for _, e := range b.class(t, class).Spec.Config {
			allocation.Devices.Config = append(allocation.Devices.Config, resourceapi.DeviceAllocationConfiguration{
				Source: resourceapi.AllocationConfigSourceClass, Requests: []string{request}, DeviceConfiguration: e.DeviceConfiguration,
			})
		}
	}
	if err := b.Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	c.Status.Allocation = allocation
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: types.UID("uid-" + name)}}
	if err := b.Client.Status().Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return c
}

// serving returns the certificate the webhook is served with.
func (b *bench) serving(t *testing.T) *x509.Certificate {
	t.Helper()
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} // only its authority is checked
	conn, err := dialer.DialContext(t.Context(), "tcp", net.JoinHostPort("localhost", strconv.Itoa(b.port)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0]
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
