package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// NodeOptions are those of a node; the zero value is valid.
type NodeOptions struct {
	// Name is node-1, node-2 and so on, unless it is said.
	Name string
	// Containerd is "2.4", built from its module, or "1.7", Debian's. Default 2.4. The environment variable
	// PLUMBLINE_CRIO, a folder with the programs crio and pinns, replaces it by CRI-O on every node.
	Containerd string
	// Kernel is "stable", "backports" or "oldstable". Default stable.
	Kernel string
	// NICs is "none", "hub" or "quad": see integration/README.md. Default hub.
	NICs string
	// VFs of each card. Zero is the bench's default, 4; negative is none.
	VFs int
	// RDMA gives every virtual function a soft RDMA device.
	RDMA bool
	// CPUs of the machine, default 2. Memory as QEMU reads it, default 3G.
	CPUs   int
	Memory string
	// NRITimeout is how long a plugin may take to answer containerd. Default:
	// containerd's own, 2 s.
	NRITimeout time.Duration
	// Wired joins the first wire to that of the node of this name, which must be
	// up; a wire has two ends.
	Wired string
	// Images are archives to load while the node registers. They lie on a disk, which takes a tenth of what Import takes: that reads
	// them from the folder that the machine shares with this host.
	Images []string
	// NoCNI leaves out the pods' network: no CNI plugin and no configuration of one, so that
	// the node is not Ready until something else installs both. It needs Options.PodCIDRs.
	NoCNI bool
	// Packages are further ones of the machine: the files in integration/machine/packages.
	Packages []string
	// Start is a script that the machine runs at each boot, before the kubelet starts.
	Start string
	// Kubelet is more of its configuration, in YAML, such as "featureGates: {X: true}".
	Kubelet string
}

// Node is a machine of a cluster. Its methods may be called by several goroutines.
type Node struct {
	Name string
	// Address is that of the node inside the cluster; this host has no route to it.
	Address string
	options NodeOptions
	cluster *Cluster
	index   int
	dir     string
	port    int    // of the host's loopback, leads to the node's forwarder
	crio    string // a folder with CRI-O's programs; empty: containerd
	keeper  *process
	ranges  []string // of its pods; with NoCNI known once the node is registered
	loading sync.Mutex
	loaded  map[string]bool // archives that it has
}

// The same on every node.
const (
	// forwarderPort is where a node's forwarder listens.
	forwarderPort = 7000
	// PodImage is the image of integration/cluster/pod, loaded into every node.
	PodImage = "plumbline.test/pod:1"
	// pauseImage keeps the namespaces of pods.
	pauseImage = "plumbline.test/pause:1"
	diskBytes  = 8 << 30 // sparse
)

// AddNode boots a machine into the cluster and returns when its node is Ready; with
// NoCNI, when it is registered and has pod CIDRs. The machine ends with the cluster. The first node of all builds the machine's
// file system, which takes a minute and needs root.
func (c *Cluster) AddNode(ctx context.Context, options NodeOptions) (*Node, error) {
	c.mu.Lock()
	index := len(c.nodes) + 1
	options.Name = cmp.Or(options.Name, "node-"+strconv.Itoa(index))
	options.Containerd = cmp.Or(options.Containerd, "2.4")
	options.Kernel = cmp.Or(options.Kernel, "stable")
	options.NICs = cmp.Or(options.NICs, "hub")
	options.Memory = cmp.Or(options.Memory, "3G")
	options.CPUs = cmp.Or(options.CPUs, 2)
	options.VFs = max(0, cmp.Or(options.VFs, 4))
	n := &Node{
		Name:    options.Name,
		Address: fmt.Sprintf("10.0.%d.15", 10+index),
		options: options,
		cluster: c,
		crio:    os.Getenv("PLUMBLINE_CRIO"),
		index:   index,
		dir:     filepath.Join(c.dir, options.Name),
		loaded:  map[string]bool{},
	}
	if !options.NoCNI {
		n.ranges = []string{n.pods()}
	}
	_, taken := c.nodes[n.Name]
	if !taken && !c.closing {
		c.nodes[n.Name] = n
	}
	c.mu.Unlock()
	if taken {
		return nil, fmt.Errorf("add node %q: there is one of that name", n.Name)
	}
	if err := n.add(ctx); err != nil {
		return nil, fmt.Errorf("add node %q: %w", n.Name, err)
	}
	return n, nil
}

func (n *Node) add(ctx context.Context) error {
	if path := n.cluster.wire(n.options.Wired); n.options.Wired != "" && len(path) > longestSocket {
		return fmt.Errorf("wire to %q: the path of its socket is too long: %q", n.options.Wired, path)
	}
	if n.options.NoCNI && !n.cluster.options.PodCIDRs {
		return errors.New("NoCNI: pods have addresses of the node's pod CIDRs: set Options.PodCIDRs, too")
	}
	ports, err := freePorts(1)
	if err != nil {
		return err
	}
	n.port = ports[0]
	if n.crio != "" && !n.options.NoCNI {
		return errors.New("a node with CRI-O has no CNI plugins of the bench: set NoCNI")
	}
	if err := n.furnish(ctx); err != nil {
		return err
	}
	// Before the limit on a boot begins.
	if _, err := n.cluster.root(ctx, n.packages()...); err != nil {
		return err
	}
	return n.boot(ctx)
}

// pods is the range of the pods of a node with CNI plugins.
func (n *Node) pods() string { return fmt.Sprintf("10.244.%d.0/24", n.index) }

// hasPod reports whether an address is that of a pod of the node.
func (n *Node) hasPod(ip net.IP) bool {
	return slices.ContainsFunc(n.ranges, func(r string) bool {
		_, pods, err := net.ParseCIDR(r)
		return err == nil && ip != nil && pods.Contains(ip)
	})
}

// furnish fills the node's folder.
func (n *Node) furnish(ctx context.Context) error {
	programs, err := n.programs(ctx)
	if err != nil {
		return err
	}
	if err := os.Mkdir(n.dir, 0o755); err != nil {
		return err
	}
	if err := n.credentials(); err != nil {
		return err
	}
	if err := n.configure(); err != nil {
		return err
	}
	if err := pack(filepath.Join(n.dir, "programs.tar"), programs); err != nil {
		return err
	}
	disk, err := os.Create(filepath.Join(n.dir, "disk"))
	if err != nil {
		return err
	}
	defer disk.Close()
	return disk.Truncate(diskBytes)
}

// programs returns the files of what runs on the node.
func (n *Node) programs(ctx context.Context) ([]string, error) {
	c := n.cluster
	tools, err := c.tools(ctx)
	if err != nil {
		return nil, err
	}
	programs := []string{
		filepath.Join(c.programs, "kubelet"),
		filepath.Join(tools, "forward"),
		filepath.Join(c.dir, "images.tar"),
	}
	switch {
	case n.crio != "":
		programs = append(programs, filepath.Join(n.crio, "crio"), filepath.Join(n.crio, "pinns"))
	case n.options.Containerd == "1.7":
	case n.options.Containerd == "2.4":
		containerd, err := containerdBuild.ensure(ctx, c.places, c.options.Log)
		if err != nil {
			return nil, err
		}
		for _, program := range containerdBuild.programs {
			programs = append(programs, filepath.Join(containerd, program))
		}
	default:
		return nil, fmt.Errorf("containerd is \"1.7\" or \"2.4\", not %q", n.options.Containerd)
	}
	return append(programs, n.options.Images...), nil
}

// credentials writes the kubeconfigs of the kubelet and of kube-proxy.
func (n *Node) credentials() error {
	c := n.cluster
	// As the node sees this host.
	server := "https://" + net.JoinHostPort(hostInNode, strconv.Itoa(c.port))
	for name, subject := range map[string][]string{
		"kubelet":    {"system:node:" + n.Name, "system:nodes"},
		"kube-proxy": {"system:kube-proxy"},
	} {
		certificate, key, err := c.ca.client(subject[0], subject[1:]...)
		if err != nil {
			return err
		}
		who := &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}
		if _, err := c.kubeconfigAt(n.Name+"/"+name, server, who); err != nil {
			return err
		}
	}
	return nil
}

// configure writes the node's settings, the configs of its programs, and the script that starts them.
func (n *Node) configure() error {
	c := n.cluster
	network := "bench"
	if n.options.NoCNI {
		network = "none"
	}
	runtime := "containerd"
	if n.crio != "" {
		runtime = "crio"
	}
	images := []string{"images.tar"}
	for _, archive := range n.options.Images {
		images = append(images, filepath.Base(archive))
	}
	var settings strings.Builder
	for _, setting := range [][2]string{
		{"name", n.Name},
		{"address", n.Address},
		{"pods", n.pods()},
		{"service", serviceAddress},
		{"runtime", runtime},
		{"api_port", strconv.Itoa(c.port)},
		{"pause", pauseImage},
		{"network", network},
		{"images", strings.Join(images, " ")},
	} {
		fmt.Fprintf(&settings, "%s='%s'\n", setting[0], strings.ReplaceAll(setting[1], "'", `'\''`))
	}
	for name, content := range map[string]string{
		"settings":          settings.String(),
		"10-bench.conflist": n.podNetwork(),
		"containerd.toml":   n.containerdConfig(),
		"crio.toml":         n.crioConfig(),
		"kubelet.yaml":      n.kubeletConfig(runtime),
		"kube-proxy.yaml":   n.proxyConfig(),
	} {
		if err := os.WriteFile(filepath.Join(n.dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	// Of its own, so that a change of the checkout does not meet a node that is up.
	script, err := os.ReadFile(filepath.Join(c.places.source, "node", "node"))
	if err != nil {
		return err
	}
	return os.WriteFile(n.script(), script, 0o755)
}

func (n *Node) podNetwork() string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "bench", "plugins": [{
  "type": "ptp",
  "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "/var/lib/cni/networks"}
}]}
`, n.pods())
}

func (n *Node) containerdConfig() string {
	timeout := ""
	plugins := "/usr/lib/cni" // Debian's
	if n.options.NoCNI {
		plugins = "/opt/cni/bin" // containerd's default
	}
	if n.options.NRITimeout > 0 {
		timeout = fmt.Sprintf("  plugin_request_timeout = %q\n", n.options.NRITimeout)
	}
	if n.options.Containerd == "1.7" {
		// NRI and CDI are off unless enabled.
		return fmt.Sprintf(`version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = %q
[plugins."io.containerd.nri.v1.nri"]
  disable = false
%s`, pauseImage, plugins, timeout)
	}
	return fmt.Sprintf(`version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = %q
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = [%q]
[plugins.'io.containerd.nri.v1.nri']
  disable = false
%s`, pauseImage, plugins, timeout)
}

func (n *Node) crioConfig() string {
	timeout := ""
	if n.options.NRITimeout > 0 {
		timeout = fmt.Sprintf("nri_plugin_request_timeout = %q\n", n.options.NRITimeout)
	}
	return fmt.Sprintf(`[crio]
storage_driver = "overlay"
[crio.image]
pause_image = %q
pause_command = ""
[crio.network]
plugin_dirs = ["/opt/cni/bin"]
[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
[crio.runtime.runtimes.runc]
monitor_cgroup = "pod"
[crio.nri]
enable_nri = true
%s`, pauseImage, timeout)
}

func (n *Node) kubeletConfig(runtime string) string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %[1]s
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: %[2]s}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix:///run/%[3]s/%[3]s.sock
evictionHard: {memory.available: 1Mi}
failSwapOn: false
imageGCHighThresholdPercent: 100
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
nodeStatusReportFrequency: 10s
resolvConf: ""
%[4]s
`, n.Address, n.cluster.ca.path("ca.crt"), runtime, n.options.Kubelet)
}

func (n *Node) proxyConfig() string {
	return fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: %s}
hostnameOverride: %s
detectLocalMode: ClusterCIDR
clusterCIDR: %s
conntrack: {maxPerCore: 0, min: 0}
`, filepath.Join(n.dir, "kube-proxy.kubeconfig"), n.Name, podRange)
}

// bootPatience is long for what takes half a minute: emulation on a busy host may
// be twenty times slower than on an idle one.
const bootPatience = 10 * time.Minute

// boot powers the machine on and waits until the node is Ready.
func (n *Node) boot(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bootPatience, fmt.Errorf("not Ready after %s", bootPatience))
	defer cancel()
	began := time.Now()
	if err := n.powerOn(ctx); err != nil {
		return err
	}
	up := time.Since(began)
	if n.options.Start != "" {
		if _, err := n.Shell(ctx, n.options.Start); err != nil {
			return err
		}
	}
	if _, err := n.Exec(ctx, n.script(), n.dir, "up"); err != nil {
		return err
	}
	n.loading.Lock()
	for _, archive := range n.options.Images {
		n.loaded[archive] = true
	}
	n.loading.Unlock()
	state := "Ready"
	if n.options.NoCNI {
		state = "registered"
		if err := n.waitRegistered(ctx, began); err != nil {
			return err
		}
	} else if err := n.WaitReady(ctx, began); err != nil {
		return err
	}
	fmt.Fprintf(n.cluster.options.Log, "cluster: %s: machine up after %.1f s, node %s after %.1f s\n",
		n.Name, up.Seconds(), state, time.Since(began).Seconds())
	return nil
}

func (n *Node) script() string { return filepath.Join(n.dir, "node") }

func (n *Node) vm() string { return filepath.Join(n.cluster.places.checkout, "integration", "vm") }

// root builds a machine's file system with the named lists of packages, unless it is there, and returns its folder. With this
// process's own environment: it may need a proxy for that.
func (c *Cluster) root(ctx context.Context, packages ...string) (string, error) {
	build := exec.CommandContext(ctx, filepath.Join(c.places.checkout, "integration", "machine", "root"), packages...)
	build.Stderr = c.options.Log
	// It ends what it has started, if it is signalled to end.
	build.Cancel = func() error { return build.Process.Signal(syscall.SIGTERM) }
	build.WaitDelay = 10 * time.Second
	folder, err := build.Output()
	if err != nil {
		return "", fmt.Errorf("build the machine's file system: %w", errors.Join(err, context.Cause(ctx)))
	}
	return filepath.Join(strings.TrimSpace(string(folder)), "root"), nil
}

// packages are the lists of packages that the machine has.
func (n *Node) packages() []string {
	packages := append([]string{"cluster"}, n.options.Packages...)
	if n.crio != "" {
		packages = append(packages, "crio")
	}
	return packages
}

func (n *Node) powerOn(ctx context.Context) error {
	arguments := []string{
		"serve", "--timeout", "0", "--with", strings.Join(n.packages(), ","), "--address", n.Address,
		"--forward", fmt.Sprintf("%d:%d", n.port, forwarderPort),
		"--disk", filepath.Join(n.dir, "disk"), "--disk-ro", filepath.Join(n.dir, "programs.tar"),
		"--kernel", n.options.Kernel, "--nics", n.options.NICs, "--vfs", strconv.Itoa(n.options.VFs),
		"--cpus", strconv.Itoa(n.options.CPUs), "--memory", n.options.Memory,
	}
	if n.options.RDMA {
		arguments = append(arguments, "--rdma")
	}
	switch {
	case n.options.Wired != "":
		arguments = append(arguments, "--wire", "connect:"+n.cluster.wire(n.options.Wired))
	case n.options.NICs != "none" && len(n.cluster.wire(n.Name)) <= longestSocket:
		arguments = append(arguments, "--wire", "listen:"+n.cluster.wire(n.Name))
	}
	var environment []string
	for _, variable := range os.Environ() {
		if strings.HasPrefix(variable, "PLUMBLINE_") {
			environment = append(environment, variable)
		}
	}
	// The machine runs a command that says that it is up, and waits.
	ready := filepath.Join(n.dir, "up")
	if err := os.RemoveAll(ready); err != nil {
		return err
	}
	arguments = append(arguments, "--", "sh", "-c", `echo "$PLUMBLINE_VM" >"$0".new && mv "$0".new "$0" && exec sleep infinity`, ready)
	keeper, err := n.cluster.launcher.launch(n.dir, "vm", n.vm(), environment, arguments...)
	if err != nil {
		return err
	}
	n.keeper = keeper
	return poll(ctx, 50*time.Millisecond, func(context.Context) error {
		_, err := os.Stat(ready)
		return err
	}, keeper)
}

// wire is the socket by which machines are joined to that of the named node.
// In a checkout at the end of a long path, nodes cannot be wired.
func (c *Cluster) wire(node string) string { return filepath.Join(c.dir, node+".wire") }

// Exec runs a program in the node's machine, as root and in the node's folder,
// and returns its standard output; an error includes what else it said. What it
// starts in the background continues.
func (n *Node) Exec(ctx context.Context, program string, arguments ...string) (string, error) {
	running, err := os.ReadFile(filepath.Join(n.dir, "up"))
	if err != nil {
		return "", fmt.Errorf("%s is not up: %w", n.Name, err)
	}
	command := exec.CommandContext(ctx, n.vm(), append([]string{"exec", "--timeout", "0", "--", program}, arguments...)...)
	command.Dir = n.dir
	command.Env = []string{
		"PATH=" + os.Getenv("PATH"),
		"PLUMBLINE_VM=" + string(bytes.TrimSpace(running)),
	}
	// It passes an interruption on to what runs in the machine.
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = 10 * time.Second
	var output, complaint bytes.Buffer
	command.Stdout, command.Stderr = &output, &complaint
	if err := command.Run(); err != nil {
		return output.String(), fmt.Errorf("on %s: %s: %w: %s", n.Name, program, errors.Join(err, context.Cause(ctx)),
			bytes.TrimSpace(complaint.Bytes()))
	}
	return output.String(), nil
}

// Shell runs a script of bash in the node's machine.
func (n *Node) Shell(ctx context.Context, script string) (string, error) {
	return n.Exec(ctx, "bash", "-euo", "pipefail", "-c", script)
}

// Dial connects to an address in the node's machine, such as "127.0.0.1:9808" or
// "unix:/run/containerd/containerd.sock".
func (n *Node) Dial(ctx context.Context, address string) (net.Conn, error) {
	far, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(n.port)))
	if err != nil {
		return nil, fmt.Errorf("on %s: %w", n.Name, err)
	}
	if err := ask(far, address); err != nil {
		return nil, fmt.Errorf("on %s: %w", n.Name, errors.Join(err, far.Close()))
	}
	return far, nil
}

// Dir is a folder that has the same path, and the same content, on this host and
// in the machine. In it are containerd.log and kubelet.log.
func (n *Node) Dir() string { return n.dir }

// Import loads the images of an archive, which may lie anywhere on this host, unless the machine has loaded it since it was powered on.
func (n *Node) Import(ctx context.Context, archive string) error {
	n.loading.Lock()
	defer n.loading.Unlock()
	if n.loaded[archive] {
		return nil
	}
	// The machine sees the checkout, and of that what is no link to elsewhere.
	content, err := os.ReadFile(archive)
	if err != nil {
		return fmt.Errorf("import images: %w", err)
	}
	file, err := os.CreateTemp(n.dir, "images-*.tar")
	if err != nil {
		return fmt.Errorf("import images: %w", err)
	}
	defer os.Remove(file.Name())
	_, err = file.Write(content)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("import images: %w", err)
	}
	if _, err = n.Exec(ctx, n.script(), n.dir, "import", file.Name()); err == nil {
		n.loaded[archive] = true
	}
	return err
}

// Daemon is a program of a node that tests may end and start.
type Daemon string

// The daemons of a node. KubeProxy does not run until it is started, and not after a reboot.
const (
	Containerd Daemon = "containerd"
	Kubelet    Daemon = "kubelet"
	KubeProxy  Daemon = "kube-proxy"
)

// Stop ends a daemon by SIGTERM, and waits for its end.
func (n *Node) Stop(ctx context.Context, daemon Daemon) error {
	return n.verb(ctx, "stop", daemon)
}

// Kill ends a daemon by SIGKILL.
func (n *Node) Kill(ctx context.Context, daemon Daemon) error {
	return n.verb(ctx, "kill", daemon)
}

// Start starts a daemon that does not run. It waits until containerd answers, but
// not for the kubelet: see [Node.WaitReady].
func (n *Node) Start(ctx context.Context, daemon Daemon) error {
	return n.verb(ctx, "start", daemon)
}

// Restart is Stop and Start.
func (n *Node) Restart(ctx context.Context, daemon Daemon) error {
	if err := n.Stop(ctx, daemon); err != nil {
		return err
	}
	return n.Start(ctx, daemon)
}

func (n *Node) verb(ctx context.Context, verb string, daemon Daemon) error {
	_, err := n.Exec(ctx, n.script(), n.dir, verb, string(daemon))
	return err
}

// Reboot cuts the machine's power and boots it again; it returns when AddNode would.
// It keeps the data of /var/lib/{kubelet,containerd,cni,plumbline}, with NoCNI also /opt/cni/bin
// and /etc/cni/net.d, that had been written out, as any machine.
func (n *Node) Reboot(ctx context.Context) error {
	n.PowerOff()
	if err := n.boot(ctx); err != nil {
		return fmt.Errorf("reboot %s: %w", n.Name, err)
	}
	return nil
}

// PowerOff cuts the machine's power. Reboot brings it back.
func (n *Node) PowerOff() {
	if n.keeper != nil {
		_ = os.Remove(filepath.Join(n.dir, "up"))
		n.keeper.stop(10 * time.Second)
	}
	n.loading.Lock()
	defer n.loading.Unlock()
	clear(n.loaded) // not all of it may have been written out
}

// WaitReady waits until the kubelet has said, after the given time, that the node
// is Ready.
func (n *Node) WaitReady(ctx context.Context, after time.Time) error {
	return n.await(ctx, after, func(_ *corev1.Node, ready corev1.NodeCondition) error {
		if ready.Status != corev1.ConditionTrue {
			return fmt.Errorf("%s: %s", ready.Reason, ready.Message)
		}
		return nil
	})
}

// waitRegistered waits until the kubelet has said, after the given time, whether the node
// is Ready, and the node has pod CIDRs.
func (n *Node) waitRegistered(ctx context.Context, after time.Time) error {
	return n.await(ctx, after, func(node *corev1.Node, _ corev1.NodeCondition) error {
		if len(node.Spec.PodCIDRs) == 0 {
			return errors.New("it has no spec.podCIDRs")
		}
		n.cluster.mu.Lock()
		defer n.cluster.mu.Unlock()
		n.ranges = node.Spec.PodCIDRs
		return nil
	})
}

// await waits until a node, of which the kubelet has said something after the given time, is
// accepted.
func (n *Node) await(ctx context.Context, after time.Time, accept func(*corev1.Node, corev1.NodeCondition) error) error {
	client, err := n.cluster.Client()
	if err != nil {
		return err
	}
	err = poll(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		node, err := client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		said := reported(node)
		for _, condition := range node.Status.Conditions {
			if condition.Type != corev1.NodeReady {
				continue
			}
			// The API's times have whole seconds.
			if !said.After(after.Truncate(time.Second)) {
				return fmt.Errorf("nothing said from %s to %s: %s: %s", after.Format(time.TimeOnly), time.Now().Format(time.TimeOnly),
					condition.Reason, condition.Message)
			}
			return accept(node, condition)
		}
		return errors.New("it has no condition Ready")
	}, n.keeper)
	if err != nil {
		return fmt.Errorf("wait for %s: %w; the end of its kubelet's log:\n%s", n.Name, err, tail(filepath.Join(n.dir, "kubelet.log"), 15))
	}
	return nil
}

// reported is when the kubelet has last written the node's status, by the API server's clock,
// which is this host's. Heartbeats have the machine's: a pause of the host puts it seconds behind.
func reported(node *corev1.Node) time.Time {
	var last time.Time
	for _, fields := range node.ManagedFields {
		if fields.Manager == "kubelet" && fields.Subresource == "status" && fields.Time != nil && fields.Time.After(last) {
			last = fields.Time.Time
		}
	}
	return last
}

// address is the way from the API server to an address inside the cluster:
// through the forwarder of the node that has it. An address of no node is this
// host's own.
func (c *Cluster) address(address string) (via string, connect bool, err error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "", false, err
	}
	ip := net.ParseIP(host)
	if ip != nil && ip.IsLoopback() {
		return address, false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		if host == n.Address || n.hasPod(ip) {
			return net.JoinHostPort("127.0.0.1", strconv.Itoa(n.port)), true, nil
		}
	}
	return "", false, fmt.Errorf("no node has %s", address)
}
