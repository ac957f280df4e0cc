package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Options are those of a cluster; the zero value is valid.
type Options struct {
	// Log receives what takes long and what went wrong, a line each. Nil: nobody.
	Log io.Writer
	// APIServerOnly leaves out controller manager and scheduler: ready a second
	// earlier, but without them no namespace has a "default" service account, so no
	// pod can be created; nothing is garbage-collected and nothing scheduled.
	APIServerOnly bool
	// PodCIDRs has the controller manager give each node pod CIDRs of both families.
	PodCIDRs bool
	// APIServer, ControllerManager and Scheduler are more flags for each.
	APIServer, ControllerManager, Scheduler []string
}

// Cluster is a control plane on this host and its nodes.
type Cluster struct {
	options  Options
	places   places
	dir      string
	unlock   func()
	programs string // the folder of Kubernetes' programs
	ca       *authority
	launcher *launcher
	port     int // of the API server, on the loopback
	etcd     string
	admin    *rest.Config
	egress   *egress

	building sync.Mutex // one image or program at a time; a node may boot meanwhile

	mu        sync.Mutex
	processes []*process // in order of start
	nodes     map[string]*Node
	closing   bool
}

// What the cluster's programs agree on.
const (
	// hostInNode is this host's loopback as QEMU's user-mode network shows it.
	hostInNode = "10.0.2.2"
	// serviceRange are the addresses of services, and serviceAddress the first of
	// them, that of the service "kubernetes".
	serviceRange   = "10.96.0.0/16"
	serviceAddress = "10.96.0.1"
	// podRange are the addresses of pods on nodes with pod CIDRs.
	podRange = "10.244.0.0/16,fd00:10:244::/48"
	issuer   = "https://kubernetes.default.svc.cluster.local"
)

// Start builds what is not built yet, which takes minutes the first time, and
// brings a control plane up. ctx limits that, not the cluster's life: that ends
// with [Cluster.Close] or with this process. An error includes the last output of
// the program that failed.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	if options.Log == nil {
		options.Log = io.Discard
	}
	c := &Cluster{options: options, nodes: map[string]*Node{}}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start a cluster: %w", err), c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) (err error) {
	if c.places, err = findPlaces(); err != nil {
		return err
	}
	version, err := chosen()
	if err != nil {
		return err
	}
	if c.programs, err = kubernetesBuild(version).ensure(ctx, c.places, c.options.Log); err != nil {
		return err
	}
	if err = c.makeDir(ctx); err != nil {
		return err
	}
	c.launcher = newLauncher()
	if c.ca, err = newAuthority(c.dir); err != nil {
		return err
	}
	if c.egress, err = newEgress(c.dir, c.address); err != nil {
		return err
	}
	// Whoever takes a port between our asking and its server's opening it is rare,
	// and shows as a server that ends at once: try again with others.
	for attempt := 1; ; attempt++ {
		err = c.controlPlane(ctx)
		if err == nil || attempt == 3 || ctx.Err() != nil || !c.portTaken() {
			return err
		}
		c.stopProcesses()
	}
}

// makeDir makes the cluster's folder, after removing those of clusters whose
// processes were killed. A folder is its cluster's while that holds its lock.
func (c *Cluster) makeDir(ctx context.Context) error {
	runs := filepath.Join(c.places.cache, "run")
	if err := os.MkdirAll(runs, 0o755); err != nil {
		return err
	}
	// One at a time: a folder that has just been made is not locked yet.
	unlock, err := lock(ctx, filepath.Join(c.places.cache, "run.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	olds, err := filepath.Glob(filepath.Join(runs, "*"))
	if err != nil {
		return err
	}
	for _, old := range olds {
		file, err := os.Open(filepath.Join(old, "lock"))
		if err != nil {
			continue // kept by Close
		}
		if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(old)
		}
		file.Close()
	}
	if c.dir, err = os.MkdirTemp(runs, strconv.Itoa(os.Getpid())+"-"); err != nil {
		return err
	}
	if err := os.Chmod(c.dir, 0o755); err != nil {
		return err
	}
	c.unlock, err = lock(ctx, filepath.Join(c.dir, "lock"))
	return err
}

// Close ends all that belongs to the cluster and removes its folder. With
// PLUMBLINE_KEEP set the folder is kept, so that the logs can be read.
func (c *Cluster) Close() error {
	c.mu.Lock()
	c.closing = true
	nodes := c.nodes
	c.nodes = nil
	c.mu.Unlock()
	var errs []error
	for _, node := range nodes {
		node.PowerOff()
	}
	c.stopProcesses()
	if c.egress != nil {
		errs = append(errs, c.egress.close())
	}
	if c.launcher != nil {
		c.launcher.close()
	}
	switch {
	case c.dir == "":
	case os.Getenv("PLUMBLINE_KEEP") == "":
		errs = append(errs, os.RemoveAll(c.dir))
	default:
		errs = append(errs, os.Remove(filepath.Join(c.dir, "lock")))
	}
	if c.unlock != nil {
		c.unlock()
	}
	return errors.Join(errs...)
}

// stopProcesses ends the programs, last first. Nothing of theirs is wanted any
// more, so processes are killed at once.
func (c *Cluster) stopProcesses() {
	c.mu.Lock()
	processes := c.processes
	c.processes = nil
	c.mu.Unlock()
	for _, p := range slices.Backward(processes) {
		p.stop(0)
	}
}

// Dir is the cluster's folder: NAME.log of every program, ca.crt, kubeconfigs.
func (c *Cluster) Dir() string { return c.dir }

// Address is the API server's HOST:PORT on this host.
func (c *Cluster) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)) }

// Etcd is the URL of the API server's storage, for who wants more objects than the
// API server takes in a reasonable time.
func (c *Cluster) Etcd() string { return c.etcd }

// Checkout is the folder of the repository.
func (c *Cluster) Checkout() string { return c.places.checkout }

// CA is the certificate of the cluster's authority, in PEM.
func (c *Cluster) CA() []byte { return bytes.Clone(c.ca.bundle) }

// Config is for a client that may do everything. It is the caller's to change.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.admin) }

// Admin is the path of a kubeconfig for [Cluster.Config]'s user.
func (c *Cluster) Admin() string { return filepath.Join(c.dir, "admin.kubeconfig") }

// Client makes a client that may do everything.
func (c *Cluster) Client() (kubernetes.Interface, error) { return kubernetes.NewForConfig(c.admin) }

// ServingCertificate makes a certificate and its key, both PEM, for a server of
// these names and addresses, such as a webhook on this host: its
// clientConfig then names [Cluster.CA] as caBundle.
func (c *Cluster) ServingCertificate(hosts ...string) (certificate, key []byte, err error) {
	return c.ca.server(hosts...)
}

// User makes a client configuration for a user of these groups, whom RBAC knows
// by name, and writes the same as a kubeconfig to Dir()/USER.kubeconfig.
func (c *Cluster) User(user string, groups ...string) (*rest.Config, error) {
	config, err := c.user(user, user, groups...)
	if err != nil {
		return nil, fmt.Errorf("user %q: %w", user, err)
	}
	return config, nil
}

func (c *Cluster) user(file, user string, groups ...string) (*rest.Config, error) {
	certificate, key, err := c.ca.client(user, groups...)
	if err != nil {
		return nil, err
	}
	return c.kubeconfig(file, &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key})
}

// TokenFor says what a service account's token is bound to, as the tokens that
// kubelet mounts into pods are: the API server then knows the node, too, and the
// token dies with the object. At most one of both.
type TokenFor struct {
	Pod  string // of the account's namespace
	Node string
}

// ServiceAccount makes a client configuration with a fresh token of a service
// account that exists, and writes the same to Dir()/NAMESPACE-NAME.kubeconfig.
func (c *Cluster) ServiceAccount(ctx context.Context, namespace, name string, bound TokenFor) (*rest.Config, error) {
	token, err := c.token(ctx, namespace, name, bound)
	if err != nil {
		return nil, fmt.Errorf("token of service account %q: %w", namespace+"/"+name, err)
	}
	return c.kubeconfig(namespace+"-"+name, &clientcmdapi.AuthInfo{Token: token})
}

func (c *Cluster) token(ctx context.Context, namespace, name string, bound TokenFor) (string, error) {
	client, err := c.Client()
	if err != nil {
		return "", err
	}
	request := &authenticationv1.TokenRequest{}
	switch {
	case bound.Pod != "" && bound.Node != "":
		return "", errors.New("bound to a pod and to a node, which is one too many")
	case bound.Pod != "":
		pod, err := client.CoreV1().Pods(namespace).Get(ctx, bound.Pod, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{
			APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
		}
	case bound.Node != "":
		node, err := client.CoreV1().Nodes().Get(ctx, bound.Node, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{
			APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID,
		}
	}
	request, err = client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return request.Status.Token, nil
}

// kubeconfig writes Dir()/FILE.kubeconfig and returns the same as a value.
func (c *Cluster) kubeconfig(file string, who *clientcmdapi.AuthInfo) (*rest.Config, error) {
	return c.kubeconfigAt(file, "https://"+c.Address(), who)
}

func (c *Cluster) kubeconfigAt(file, server string, who *clientcmdapi.AuthInfo) (*rest.Config, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters["bench"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: c.ca.bundle}
	config.AuthInfos["user"] = who
	config.Contexts["bench"] = &clientcmdapi.Context{Cluster: "bench", AuthInfo: "user"}
	config.CurrentContext = "bench"
	if err := clientcmd.WriteToFile(*config, filepath.Join(c.dir, file+".kubeconfig")); err != nil {
		return nil, fmt.Errorf("write a kubeconfig: %w", err)
	}
	client, err := clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read a kubeconfig: %w", err)
	}
	// No limit of its own: a test should be as fast as its cluster.
	client.QPS = -1
	return client, nil
}

// Kubectl runs kubectl as the administrator and returns its standard output; an
// error includes what it said. Manifests can be given on input; nil is none.
func (c *Cluster) Kubectl(ctx context.Context, input io.Reader, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, filepath.Join(c.programs, "kubectl"), arguments...)
	command.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.dir, "KUBECONFIG=" + c.Admin()}
	command.Stdin = input
	var output, complaint bytes.Buffer
	command.Stdout, command.Stderr = &output, &complaint
	if err := command.Run(); err != nil {
		return output.String(), fmt.Errorf("kubectl %q: %w: %s", arguments, err, bytes.TrimSpace(complaint.Bytes()))
	}
	return output.String(), nil
}

// Apply runs kubectl apply. It repeats that while the API server cannot call a webhook, since the
// node that serves it may pause. A refusal is returned at once.
func (c *Cluster) Apply(ctx context.Context, manifest string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	var refused error
	err := poll(ctx, time.Second, func(ctx context.Context) error {
		_, err := c.Kubectl(ctx, strings.NewReader(manifest), "apply", "-f", "-")
		if err != nil && !strings.Contains(err.Error(), "failed calling webhook") && // as text: kubectl prints it
			!strings.Contains(err.Error(), "Internal error occurred") { // as text: kubectl prints it
			refused, err = err, nil
		}
		return err
	})
	return errors.Join(err, refused)
}

// Programs is the folder with kubectl and all of Kubernetes' other programs.
func (c *Cluster) Programs() string { return c.programs }

// run starts a program of the control plane.
func (c *Cluster) run(name string, arguments ...string) (*process, error) {
	p, err := c.launcher.launch(c.dir, name, filepath.Join(c.programs, name), nil, arguments...)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.processes = append(c.processes, p)
	c.mu.Unlock()
	return p, nil
}

// freePorts finds ports of the loopback without a listener.
func freePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		// All stay open until the last is found, so that no two are the same.
		defer listener.Close()
		ports[i] = listener.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}

// patience is how long something that takes a moment on an idle host may take.
const patience = 2 * time.Minute
