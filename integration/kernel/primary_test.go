package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/cnisocket"
	"github.com/plumbline/plumbline/reconcile/pod/primary"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/validity"
)

// podNode is a node whose pods are given their network by plumbline: the agent's server, and
// what a container runtime has of CNI.
type podNode struct {
	*lane
	network func() (primary.Network, error)
	known   func(namespace string, pod claims.Pod) error // nil: always
	knownBy table.Changes
	rules   func(sb *reconcile.Sandbox) (ops.Rules, error)
	socket  string
	began   time.Time    // of the clock by which addresses rest: it stands still
	ahead   atomic.Int64 // what a test has added to it, in nanoseconds
	cni     *libcni.CNIConfig
	list    *libcni.NetworkConfigList
}

func newPodNode(t *testing.T) *podNode {
	t.Helper()
	return newPodNodeOf(t, `{name: eth, type: bridge, config: {bridge: plpod0, isDefaultGateway: true, dad: "off"}}`)
}

// primaryTopology is the pod network, with one step.
func primaryTopology(t *testing.T, step string) *topology.Topology {
	t.Helper()
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	f, err := topology.Parse("", []byte(`
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: pods}
spec:
  role: primary
  steps:
    - `+step+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	top, _, err := validity.Topology(t.Context(), f, reg)
	if err != nil {
		t.Fatal(err)
	}
	return top
}

// newPodNodeOf is a node whose pods have a network of this step.
func newPodNodeOf(t *testing.T, step string) *podNode {
	t.Helper()
	n := &podNode{lane: newLane(t), began: time.Now()}
	top := primaryTopology(t, step)
	n.network = func() (primary.Network, error) {
		return primary.Network{Topology: top, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.98.7.0/24"), netip.MustParsePrefix("fd00:98:7::/64")}}, nil
	}
	dir := t.TempDir()
	n.socket = filepath.Join(dir, "s", "agent.sock")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(program, filepath.Join(dir, "plumbline")); err != nil { // see TestMain
		t.Fatal(err)
	}
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{dir}, filepath.Join(dir, "cache"), nil)
	n.list, err = libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "plumbline", "plugins": [{"type": "plumbline", "socket": %q}]}`, n.socket))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// mortal are addresses of a process that can be killed.
type mortal struct {
	*addresses.Allocator
	life *process
}

func (m mortal) TakeSoon(ctx context.Context, c addresses.Claim, w []addresses.Want) (map[addresses.Want]ops.Given, error) {
	if m.life.dead {
		return nil, errDead
	}
	return m.Allocator.TakeSoon(ctx, c, w)
}

func (m mortal) GiveBack(owner types.UID) error {
	if m.life.dead {
		return errDead
	}
	return m.Allocator.GiveBack(owner)
}

func (m mortal) Cancel(owner types.UID) error {
	if m.life.dead {
		return errDead
	}
	return m.Allocator.Cancel(owner)
}

// ledger is the file of the addresses that pods have.
func (n *podNode) ledger() string { return filepath.Join(filepath.Dir(n.dir), "addresses") }

func (n *podNode) allocator() *addresses.Allocator {
	n.t.Helper()
	a, err := addresses.Open(addresses.Options{
		NodeName: "n", File: n.ledger(), Recorded: func() []addresspool.Grant { return nil }, Log: slog.New(slog.NewTextHandler(n.t.Output(), nil)),
		Now: func() time.Time { return n.began.Add(time.Duration(n.ahead.Load())) },
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return a
}

// server is that of one process of the agent, which ends when its life does.
func (n *podNode) server(life *process, changed func(), boot string) *primary.Server {
	n.t.Helper()
	return n.serverOf(n.killableEngine(life, changed, nil), life, boot)
}

// serverOf is that of an engine.
func (n *podNode) serverOf(engine *reconcile.Reconciler, life *process, boot string) *primary.Server {
	n.t.Helper()
	reg, err := all.Registry()
	if err != nil {
		n.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(n.t.Output(), nil))
	if boot == "" {
		boot = n.host.BootID()
	}
	return primary.New(primary.Options{
		Engine: engine, Addresses: mortal{n.allocator(), life}, Contracts: reg, Vet: reg.Vet, Network: func() (primary.Network, error) { return n.network() },
		Socket: n.socket, NetnsDir: "/var/run/netns", HostNetns: n.host.NetnsID(), BootID: boot, Log: log, Now: time.Now,
		Sweep: 100 * time.Millisecond, Known: n.known, KnownBy: &n.knownBy, Rules: n.rules,
	})
}

// run serves calls until stop is called.
func (n *podNode) run(s *primary.Server) (stop func()) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			n.t.Error(err)
		}
	})
	eventually.Succeeds(n.t, patience, "the network is as wanted", func() error {
		if !s.Leads() { // else the agent before would answer
			return errors.New("the server does not have the socket")
		}
		_, err := cnisocket.Call(ctx, n.socket, cnisocket.Request{Command: cnisocket.Status, Config: json.RawMessage(`{"name": "plumbline"}`)})
		return err
	})
	return sync.OnceFunc(func() { cancel(); wg.Wait() })
}

func at(container, path string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: container, NetNS: path, IfName: "eth0", Args: [][2]string{{"K8S_POD_NAMESPACE", "ns"}, {"K8S_POD_NAME", container}}}
}

// add is the runtime's ADD, and returns the addresses of the pod.
func (n *podNode) add(rt *libcni.RuntimeConf) (v4, v6 string) {
	n.t.Helper()
	out, err := n.cni.AddNetworkList(ctxFor(n.t), n.list, rt)
	if err != nil {
		n.t.Fatalf("ADD %s: %v", rt.ContainerID, err)
	}
	r, err := types100.NewResultFromResult(out)
	if err != nil {
		n.t.Fatal(err)
	}
	var ips []string
	for _, ip := range r.IPs {
		if in := r.Interfaces[*ip.Interface]; in.Name != "eth0" || in.Sandbox == "" {
			n.t.Errorf("address %s is of %+v, not of eth0 in the pod", ip.Address.IP, in)
		}
		ips = append(ips, ip.Address.IP.String())
	}
	if len(ips) != 2 {
		n.t.Fatalf("addresses %v, want one of each family", ips)
	}
	return ips[0], ips[1]
}

// in begins a command in a pod's namespace.
func in(path string) string { return "ip netns exec " + filepath.Base(path) + " " }

// reach waits for answers from addresses; from is in(a pod), or "" for the host.
func (n *podNode) reach(from string, to ...string) {
	n.t.Helper()
	s := &foreignWriter{t: n.t}
	for _, address := range to {
		eventually.Succeeds(n.t, patience, "the network is as wanted", func() error {
			if out, err := s.try(from + "ping -c 1 -W 2 " + address); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	}
}

// left says what is recorded of pods.
func (n *podNode) left() string {
	n.t.Helper()
	ids, errs := n.engine(nil).IDs()
	if len(errs) > 0 {
		n.t.Fatal(errs)
	}
	held := ""
	if data, err := os.ReadFile(n.ledger()); err == nil && strings.Contains(string(data), `"grants":[{`) {
		held = string(data)
	}
	if len(ids) == 0 {
		return held
	}
	return fmt.Sprint(ids, held)
}

func (n *podNode) nothingLeft(what string) {
	n.t.Helper()
	eventually.Succeeds(n.t, patience, "the network is as wanted", func() error {
		if left := n.left(); left != "" {
			return fmt.Errorf("left %s: %s", what, left)
		}
		if out, err := (&foreignWriter{t: n.t}).try("ip link show plpod0"); err == nil {
			return fmt.Errorf("left %s: %s", what, out)
		}
		return nil
	})
}

func codeOf(err error) uint {
	if e, ok := errors.AsType[*cnitypes.Error](err); ok {
		return e.Code
	}
	return 0
}

// TestPodNetwork: a container runtime gives pods their own network with one plugin, which asks
// the agent: as CNI says, and with packets.
func TestPodNetwork(t *testing.T) {
	n := newPodNode(t)
	s := &foreignWriter{t: t}
	home := n.state("")
	a, b := newNetns(t), newNetns(t)
	ctx := t.Context()

	if code := codeOf(n.cni.GetStatusNetworkList(ctx, n.list)); code != cnisocket.ErrPluginNotAvailable {
		t.Errorf("STATUS without an agent: code %d", code)
	}
	if _, err := n.cni.AddNetworkList(ctx, n.list, at("early", a)); codeOf(err) != cnitypes.ErrTryAgainLater {
		t.Errorf("ADD without an agent: %v", err)
	}
	server := n.server(&process{}, nil, "")
	stop := n.run(server)
	defer func() { stop() }()
	if err := n.cni.GetStatusNetworkList(ctx, n.list); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	if info, err := os.Stat(n.socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is for others, too: %v, %v", info.Mode(), err)
	}

	a4, a6 := n.add(at("a", a))
	b4, b6 := n.add(at("b", b))
	n.reach(in(a), b4, b6, "10.98.7.1", "fd00:98:7::1")
	n.reach("", a4, a6, b4, b6)

	// Called again, it answers the same, without a change.
	before := n.state(a)
	if again4, again6 := n.add(at("a", a)); again4 != a4 || again6 != a6 {
		t.Errorf("ADD again: %s and %s, before %s and %s", again4, again6, a4, a6)
	}
	n.mustEqual(before, a, "ADD again")

	check := func() error { return n.cni.CheckNetworkList(ctx, n.list, at("a", a)) }
	if err := check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	s.run("ip -n " + filepath.Base(a) + " route delete default")
	if err := check(); err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("CHECK without a default route: %v", err)
	}
	if _, err := n.engine(nil).Repair(ctx, reconcile.IDOfPrimary("a", "eth0", "pods")); err != nil {
		t.Error(err)
	}
	if err := check(); err != nil {
		t.Errorf("CHECK of what was repaired: %v", err)
	}

	// A new agent takes the socket over; the one before does not take it away.
	second := n.run(n.server(&process{}, nil, ""))
	stop()
	stop = second
	if err := check(); err != nil {
		t.Errorf("CHECK by the next agent: %v", err)
	}

	// The gateway stays for the other pod.
	for range 2 {
		if err := n.cni.DelNetworkList(ctx, n.list, at("a", a)); err != nil {
			t.Errorf("DEL: %v", err)
		}
	}
	n.reach(in(b), "10.98.7.1", "fd00:98:7::1")
	if err := n.cni.DelNetworkList(ctx, n.list, at("never", "/var/run/netns/never")); err != nil {
		t.Errorf("DEL of what is unknown: %v", err)
	}
	// Its addresses rest.
	if c4, c6 := n.add(at("c", a)); c4 == a4 || c6 == a6 || c4 == b4 || c6 == b6 {
		t.Errorf("addresses %s and %s, which others have or had just now", c4, c6)
	}

	// The runtime knows one of both only.
	if err := n.cni.GCNetworkList(ctx, n.list, &libcni.GCArgs{ValidAttachments: []cnitypes.GCAttachment{{ContainerID: "b", IfName: "eth0"}}}); err != nil {
		t.Errorf("GC: %v", err)
	}
	n.reach(in(b), "10.98.7.1")
	if left := n.left(); strings.Contains(left, "cni/c/") || !strings.Contains(left, "cni/b/") {
		t.Errorf("GC left %s", left)
	}

	// A pod with more routes than are read ends all the same: the runtime deletes its namespace after a DEL that succeeds.
	full := newNetns(t)
	n.add(at("full", full))
	s.run("ip -n " + filepath.Base(full) + " link set lo up")
	s.run("seq 17000 | awk '{print \"route add 10.0.\" int($1 / 256) \".\" $1 % 256 \" dev lo\"}' | ip -n " + filepath.Base(full) + " -batch -")
	for range 2 {
		if err := n.cni.DelNetworkList(ctx, n.list, at("full", full)); err != nil {
			t.Errorf("DEL of a pod that has filled its namespace: %v", err)
		}
	}
	if out, err := s.try("ip -n " + filepath.Base(full) + " link show eth0"); err == nil {
		t.Errorf("DEL has left %s", out)
	}
	if left := n.left(); !strings.Contains(left, "cni/full/") {
		t.Errorf("the record has ended before the namespace: %s", left)
	}
	deleteNetns(full)
	eventually.Succeeds(t, patience, "the record ends with the namespace", func() error {
		if left := n.left(); strings.Contains(left, "cni/full/") {
			return errors.New(left)
		}
		return nil
	})

	// A namespace vanishes, and no DEL comes.
	deleteNetns(b)
	n.nothingLeft("of a pod without a namespace")
	n.mustEqual(home, "", "without pods")
}

// TestLoopback: under its other name the plugin sets lo up, as containerd wants it for each pod.
func TestLoopback(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(program, filepath.Join(dir, "loopback")); err != nil { // see TestMain
		t.Fatal(err)
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{dir}, filepath.Join(dir, "cache"), nil)
	// That of containerd.
	list, err := libcni.ConfListFromBytes([]byte(`{"cniVersion": "0.3.1", "name": "cni-loopback", "plugins": [{"type": "loopback"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	s := &foreignWriter{t: t}
	path := newNetns(t)
	rt := &libcni.RuntimeConf{ContainerID: "x", NetNS: path, IfName: "lo"}
	up := func() bool {
		_, err := s.try("ip -n " + filepath.Base(path) + " -o link show dev lo up | grep -q lo")
		return err == nil
	}
	ctx := t.Context()
	if up() {
		t.Fatal("lo of a new namespace is up")
	}
	for range 2 {
		out, err := cni.AddNetworkList(ctx, list, rt)
		if err != nil {
			t.Fatal(err)
		}
		r, err := types100.NewResultFromResult(out)
		if err != nil || len(r.IPs) != 2 || len(r.Interfaces) != 1 || r.Interfaces[0].Name != "lo" || !up() {
			t.Errorf("ADD: up: %v: %+v, %v", up(), r, err)
		}
	}
	s.run("ip netns exec " + filepath.Base(path) + " ping -c 1 -W 5 127.0.0.1")
	for range 2 {
		if err := cni.DelNetworkList(ctx, list, rt); err != nil || up() {
			t.Errorf("DEL: up: %v: %v", up(), err)
		}
	}
	deleteNetns(path)
	if err := cni.DelNetworkList(ctx, list, rt); err != nil {
		t.Errorf("DEL of what does not exist any more: %v", err)
	}
	if _, err := cni.AddNetworkList(ctx, list, rt); err == nil || !strings.Contains(err.Error(), "network namespace") {
		t.Errorf("ADD without a namespace: %v", err)
	}
}

// TestPodNetworkRouted: the network of pods is one of type ptp, which the host routes and
// masquerades. Objects deleted on the host are repaired.
func TestPodNetworkRouted(t *testing.T) {
	n := newPodNodeOf(t, `{name: eth, type: ptp, config: {isDefaultGateway: true, ipMasq: true, dad: "off"}}`)
	s := &foreignWriter{t: t}
	s.run("echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
	home := n.state("")
	defer n.run(n.server(&process{}, nil, ""))()
	a, b := newNetns(t), newNetns(t)
	a4, a6 := n.add(at("a", a))
	b4, b6 := n.add(at("b", b))
	n.reach(in(a), b4, b6, "10.98.7.1", "fd00:98:7::1")
	n.reach("", a4, a6, b4, b6)
	check := func() error { return n.cni.CheckNetworkList(t.Context(), n.list, at("a", a)) }
	if err := check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	s.run("ip route delete " + a4 + "; nft delete table inet plumbline")
	if err := check(); err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("CHECK without a route to the pod: %v", err)
	}
	if _, err := n.engine(nil).Repair(t.Context(), reconcile.IDOfPrimary("a", "eth0", "pods")); err != nil {
		t.Error(err)
	}
	if err := check(); err != nil {
		t.Errorf("CHECK of what was repaired: %v", err)
	}
	n.reach(in(b), a4, a6)
	for container, path := range map[string]string{"a": a, "b": b} {
		if err := n.cni.DelNetworkList(t.Context(), n.list, at(container, path)); err != nil {
			t.Errorf("DEL: %v", err)
		}
	}
	n.nothingLeft("by routed pods")
	n.mustEqual(home, "", "without pods")
}

// TestPodNetworkRefuses: nothing but a namespace of the runtime is given a network, and calls
// that are damaged, too large or of other users are refused.
func TestPodNetworkRefuses(t *testing.T) {
	n := newPodNode(t)
	defer n.run(n.server(&process{}, nil, ""))()
	home := n.state("")
	ctx := t.Context()
	s := &foreignWriter{t: t}
	path := newNetns(t)
	elsewhere := filepath.Join(t.TempDir(), "ns")
	s.run("touch /run/netns/host " + elsewhere + "; mount --bind /proc/1/ns/net /run/netns/host; mount --bind " + path + " " + elsewhere)
	t.Cleanup(func() { s.run("umount /run/netns/host " + elsewhere + "; rm /run/netns/host") })
	for what, c := range map[string]struct {
		r    cnisocket.Request
		want string
	}{
		"the host's namespace":         {cnisocket.Request{Container: "x", IfName: "eth0", Netns: "/run/netns/host"}, "the host's own"},
		"a namespace elsewhere":        {cnisocket.Request{Container: "x", IfName: "eth0", Netns: elsewhere}, "not in"},
		"a way out of the folder":      {cnisocket.Request{Container: "x", IfName: "eth0", Netns: "/run/netns/../../proc/1/ns/net"}, "not in"},
		"the folder itself":            {cnisocket.Request{Container: "x", IfName: "eth0", Netns: "/run/netns/."}, "nothing is mounted"},
		"no namespace":                 {cnisocket.Request{Container: "x", IfName: "eth0", Netns: "/run/netns/none"}, "no such file"},
		"a container with a slash":     {cnisocket.Request{Container: "x/y", IfName: "eth0", Netns: path}, "invalid characters"},
		"a container with a long name": {cnisocket.Request{Container: strings.Repeat("x", 129), IfName: "eth0", Netns: path}, "128"},
		"an interface with a slash":    {cnisocket.Request{Container: "x", IfName: "a/b", Netns: path}, "interface name"},
		"another network":              {cnisocket.Request{Container: "x", IfName: "eth0", Netns: path, Config: json.RawMessage(`{"name": "other"}`)}, "one network"},
		"another command":              {cnisocket.Request{Command: "UPGRADE", Container: "x", IfName: "eth0", Netns: path}, "unknown command"},
	} {
		if c.r.Command == "" {
			c.r.Command = cnisocket.Add
		}
		if c.r.Config == nil {
			c.r.Config = json.RawMessage(`{"name": "plumbline"}`)
		}
		reply, err := cnisocket.Call(ctx, n.socket, c.r)
		if err != nil || reply.Error == nil || !strings.Contains(reply.Error.Error(), c.want) {
			t.Errorf("%s: %v, %+v, want an error with %q", what, err, reply, c.want)
		}
	}
	for what, message := range map[string]string{
		"no JSON":     "hello",
		"a long call": `{"netns": "` + strings.Repeat("a", 2*cnisocket.MaxBytes),
	} {
		conn, err := net.Dial("unix", n.socket)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		_, _ = io.WriteString(conn, message) // the other side closes while a long one is sent
		if out, err := io.ReadAll(conn); len(out) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s is answered: %s, %v", what, out, err)
		}
		conn.Close()
	}
	// Another user, who reaches the socket nevertheless.
	s.run("chmod 666 " + n.socket)
	for dir := filepath.Dir(n.socket); dir != "/"; dir = filepath.Dir(dir) {
		s.run("chmod a+rx " + dir)
	}
	answer := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its user
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 65534, ^uintptr(0)); errno != 0 {
			answer <- nil
			return
		}
		_, err := cnisocket.Call(ctx, n.socket, cnisocket.Request{Command: cnisocket.Status, Config: json.RawMessage(`{"name": "plumbline"}`)})
		answer <- err
	}()
	if err := <-answer; err == nil || errors.Is(err, os.ErrPermission) {
		t.Errorf("another user: %v", err)
	}
	if err := n.cni.GetStatusNetworkList(ctx, n.list); err != nil {
		t.Errorf("STATUS after that: %v", err)
	}
	n.nothingLeft("by what was refused")
	n.mustEqual(home, "", "refused")
}

// TestPodNetworkKilled: the agent is killed after each change of an ADD. The next one answers
// the runtime's ADD, or its DEL, and nothing is left afterwards, no address either; so, too,
// when it is killed in a DEL, or when the machine is booted and no DEL comes.
func TestPodNetworkKilled(t *testing.T) {
	n := newPodNode(t)
	home := n.state("")
	ctx := t.Context()
	reached := true
	first, step := effort.Stride(t, 3)
	for k := first; reached; k += step {
		path := newNetns(t)
		container := fmt.Sprintf("k%d", k)
		life, made := &process{}, 0
		stop := n.run(n.server(life, func() { made++; life.dead = life.dead || made == k }, ""))
		_, err := n.cni.AddNetworkList(ctx, n.list, at(container, path))
		if err == nil { // killed in its DEL then
			made = 0
			_ = n.cni.DelNetworkList(ctx, n.list, at(container, path))
		}
		reached = life.dead
		stop()
		boot := ""
		if k/step%3 == 2 {
			boot = "another"
		}
		stop = n.run(n.server(&process{}, nil, boot))
		if boot == "" && err != nil && k/step%3 == 0 {
			n.add(at(container, path))
		}
		if boot == "" {
			if err := n.cni.DelNetworkList(ctx, n.list, at(container, path)); err != nil {
				t.Errorf("killed after change %d: DEL: %v", k, err)
			}
		}
		n.nothingLeft(fmt.Sprintf("by an agent that was killed after change %d", k))
		stop()
		n.mustEqual(home, "", fmt.Sprintf("killed after change %d", k))
	}
}

// TestPodNetworksAtOnce: many pods start and end at once, each with calls that overlap.
func TestPodNetworksAtOnce(t *testing.T) {
	n := newPodNode(t)
	home := n.state("")
	defer n.run(n.server(&process{}, nil, ""))()
	pods := 5
	if effort.Long() {
		pods = 8
	}
	paths := make([]string, pods)
	for i := range paths {
		paths[i] = newNetns(t)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	given := map[string][]string{} // by address
	for i, path := range paths {
		for range 2 {
			wg.Go(func() {
				container := fmt.Sprintf("p%d", i)
				out, err := n.cni.AddNetworkList(ctxFor(t), n.list, at(container, path))
				if err != nil {
					t.Errorf("ADD %s: %v", container, err)
					return
				}
				r, err := types100.NewResultFromResult(out)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for _, ip := range r.IPs {
					given[ip.Address.String()] = append(given[ip.Address.String()], container)
				}
			})
		}
	}
	wg.Wait()
	for address, containers := range given {
		slices.Sort(containers)
		if c := slices.Compact(slices.Clone(containers)); len(containers) != 2 || len(c) != 1 {
			t.Errorf("address %s was given to %v", address, containers)
		}
	}
	if len(given) != 2*pods {
		t.Errorf("%d addresses, want %d", len(given), 2*pods)
	}
	for i, path := range paths {
		for range 2 {
			wg.Go(func() {
				if err := n.cni.DelNetworkList(ctxFor(t), n.list, at(fmt.Sprintf("p%d", i), path)); err != nil {
					t.Errorf("DEL p%d: %v", i, err)
				}
			})
		}
	}
	wg.Wait()
	n.nothingLeft("by pods that have ended")
	n.mustEqual(home, "", "ended")
}
