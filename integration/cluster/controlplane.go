package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// controlPlane starts etcd, the API server and what works for it, and returns
// when pods could be created.
func (c *Cluster) controlPlane(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the control plane is not ready after %s", patience))
	defer cancel()
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	c.port = ports[2]
	if err := c.credentials(); err != nil {
		return err
	}

	etcd, err := c.startEtcd(ports[0], ports[1])
	if err != nil {
		return err
	}
	apiserver, err := c.startAPIServer()
	if err != nil {
		return err
	}
	api, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return err
	}
	if err := c.readyz(ctx, etcd, apiserver); err != nil || c.options.APIServerOnly {
		return err
	}

	kubeconfig := func(name string) string { return "--kubeconfig=" + c.ca.path(name+".kubeconfig") }
	nodes := []string{"--allocate-node-cidrs=false"}
	if c.options.PodCIDRs {
		// A /24 and a /64 for each node.
		nodes = []string{"--allocate-node-cidrs=true", "--cluster-cidr=" + podRange}
	}
	controllers, err := c.run("kube-controller-manager", append(append([]string{
		kubeconfig("kube-controller-manager"), "--leader-elect=false", "--secure-port=0",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file=" + c.ca.path("tokens.key"),
		"--root-ca-file=" + c.ca.path("ca.crt"),
		"--kube-api-qps=200", "--kube-api-burst=400",
	}, nodes...), c.options.ControllerManager...)...)
	if err != nil {
		return err
	}
	scheduler, err := c.run("kube-scheduler", append([]string{
		kubeconfig("kube-scheduler"), "--leader-elect=false", "--secure-port=0",
	}, c.options.Scheduler...)...)
	if err != nil {
		return err
	}
	return poll(ctx, 50*time.Millisecond, func(ctx context.Context) error {
		// The controller manager works when this is there.
		_, err := api.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	}, etcd, apiserver, controllers, scheduler)
}

// startEtcd starts an etcd that has no data.
func (c *Cluster) startEtcd(clientPort, peerPort int) (*process, error) {
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", clientPort), fmt.Sprintf("http://127.0.0.1:%d", peerPort)
	c.etcd = client
	if err := os.RemoveAll(c.ca.path("etcd")); err != nil {
		return nil, err
	}
	return c.run("etcd",
		"--name=bench", "--data-dir="+c.ca.path("etcd"),
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=bench="+peer,
		// Nobody will want this data after a crash of the host.
		"--unsafe-no-fsync", "--log-level=warn",
		// A request fails after twice the timeout of an election, and five seconds: a host may
		// pause for longer than that by default.
		"--heartbeat-interval=500", "--election-timeout=5000")
}

// apiServer is the name of its program.
const apiServer = "kube-apiserver"

func (c *Cluster) startAPIServer() (*process, error) {
	return c.run(apiServer, append([]string{
		"--etcd-servers=" + c.etcd,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.port),
		"--advertise-address=" + hostInNode, "--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=" + serviceRange,
		"--tls-cert-file=" + c.ca.path("apiserver.crt"), "--tls-private-key-file=" + c.ca.path("apiserver.key"),
		"--client-ca-file=" + c.ca.path("ca.crt"),
		"--kubelet-client-certificate=" + c.ca.path("apiserver-kubelet.crt"),
		"--kubelet-client-key=" + c.ca.path("apiserver-kubelet.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=" + issuer,
		"--service-account-key-file=" + c.ca.path("tokens.pub"),
		"--service-account-signing-key-file=" + c.ca.path("tokens.key"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
		"--allow-privileged=true",
		// Webhook services are reached at their endpoints, through the door to the nodes.
		"--enable-aggregator-routing=true",
		"--egress-selector-config-file=" + c.ca.path("egress.yaml"),
		"--shutdown-delay-duration=0s", "--profiling=false",
	}, c.options.APIServer...)...)
}

// StopAPIServer ends the API server, and waits for its end. What runs on the nodes runs on.
func (c *Cluster) StopAPIServer() {
	c.mu.Lock()
	i := slices.IndexFunc(c.processes, func(p *process) bool { return p.name == apiServer })
	var p *process
	if i >= 0 {
		p = c.processes[i]
		c.processes = slices.Delete(c.processes, i, i+1)
	}
	c.mu.Unlock()
	if p != nil {
		p.stop(10 * time.Second)
	}
}

// StartAPIServer starts the API server that StopAPIServer has ended, with the same port and data, and waits until it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	p, err := c.startAPIServer()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the API server is not ready after %s", patience))
	defer cancel()
	return c.readyz(ctx, p)
}

// readyz waits until the API server is ready, or until a process that this needs has ended.
func (c *Cluster) readyz(ctx context.Context, needed ...*process) error {
	api, err := c.Client()
	if err != nil {
		return err
	}
	return poll(ctx, 50*time.Millisecond, func(ctx context.Context) error {
		_, err := api.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	}, needed...)
}

// credentials writes everybody's certificates, keys and kubeconfigs.
func (c *Cluster) credentials() error {
	certificate, key, err := c.ca.server("127.0.0.1", "localhost", hostInNode, serviceAddress,
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
	if err := c.ca.pair("apiserver", certificate, key, err); err != nil {
		return err
	}
	certificate, key, err = c.ca.client("kube-apiserver-kubelet-client", "system:masters")
	if err := c.ca.pair("apiserver-kubelet", certificate, key, err); err != nil {
		return err
	}
	if err := c.ca.signingKey("tokens"); err != nil {
		return err
	}
	if c.admin, err = c.user("admin", "admin", "system:masters"); err != nil {
		return err
	}
	for _, name := range []string{"kube-controller-manager", "kube-scheduler"} {
		if _, err := c.user(name, "system:"+name); err != nil {
			return err
		}
	}
	return c.ca.write("egress.yaml", fmt.Appendf(nil, `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport:
      uds:
        udsName: %s
`, c.egress.socket), 0o644)
}

// portTaken reports whether a program ended because another one had its port.
func (c *Cluster) portTaken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.processes {
		if p.ended() == nil {
			continue
		}
		if content, err := os.ReadFile(p.log); err == nil && bytes.Contains(content, []byte("address already in use")) {
			return true
		}
	}
	return false
}

// Logs is the end of the log of a program of the control plane, such as
// "kube-scheduler".
func (c *Cluster) Logs(program string, lines int) string {
	return strings.TrimSpace(tail(c.ca.path(program+".log"), lines))
}
