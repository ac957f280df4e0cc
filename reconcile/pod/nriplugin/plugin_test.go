package nriplugin_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/reconcile/pod/attachment"
	"github.com/plumbline/plumbline/reconcile/pod/nriplugin"
	"github.com/plumbline/plumbline/topology/fault"
)

// patient is the runtime's timeout in tests of something else: the machine may pause.
const patient = time.Minute

func TestMain(m *testing.M) {
	adaptation.SetPluginRequestTimeout(patient)
	os.Exit(m.Run())
}

// keeper records its calls, and returns what the test has set.
type keeper struct {
	mu     sync.Mutex
	asked  []string
	attach func(ctx context.Context, pod attachment.Pod) error
	synced chan []attachment.Pod
}

func (k *keeper) note(what string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = append(k.asked, what)
}

func (k *keeper) notes() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.asked)
}

func (k *keeper) Attach(ctx context.Context, pod attachment.Pod) error {
	k.note("attach " + pod.Namespace + "/" + pod.Name + " " + pod.Sandbox + " " + string(pod.UID) + " " + pod.Netns)
	if k.attach == nil {
		return nil
	}
	return k.attach(ctx, pod)
}

func (k *keeper) Admit(_ context.Context, pod attachment.Pod, env []string) error {
	k.note("admit " + pod.Sandbox + " " + strings.Join(env, ","))
	if slices.Contains(env, "bad=1") {
		return fault.New(fault.Conflict, errors.New("not for this pod"))
	}
	return nil
}

func (k *keeper) Admitted(pod attachment.Pod, container string, env []string) {
	k.note("admitted " + pod.Sandbox + " " + container + " " + strings.Join(env, ","))
}

func (k *keeper) Detach(_ context.Context, pod attachment.Pod) error {
	k.note("detach " + pod.Sandbox)
	return nil
}

func (k *keeper) Forget(_ context.Context, pod attachment.Pod) error {
	k.note("forget " + pod.Sandbox)
	return nil
}

func (k *keeper) Synchronize(pods []attachment.Pod) error {
	k.synced <- pods
	return nil
}

func (k *keeper) Waiting() []types.UID { return nil }

// runtimeSide is the runtime's half of the interface: the code that containerd
// has in it.
type runtimeSide struct {
	*adaptation.Adaptation
	dir string
}

func newRuntime(t *testing.T, dir string, pods ...*api.PodSandbox) *runtimeSide {
	t.Helper()
	r, err := adaptation.New("test", "1.0",
		func(ctx context.Context, sync adaptation.SyncCB) error {
			_, err := sync(ctx, pods, nil)
			return err
		},
		func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil },
		adaptation.WithSocketPath(filepath.Join(dir, "nri.sock")),
		adaptation.WithPluginPath(filepath.Join(dir, "none")), adaptation.WithPluginConfigPath(filepath.Join(dir, "none")),
	)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return &runtimeSide{r, dir}
}

func sandboxOf(id string) *api.PodSandbox {
	return &api.PodSandbox{Id: id, Uid: "uid-" + id, Namespace: "ns", Name: "p", RuntimeHandler: "kata", Linux: &api.LinuxPodSandbox{
		Namespaces: []*api.LinuxNamespace{{Type: "ipc", Path: "/ipc"}, {Type: "network", Path: "/netns/" + id}},
	}}
}

// plug runs a plugin until the test ends.
func plug(t *testing.T, k *keeper, dir string) *nriplugin.Plugin {
	t.Helper()
	p := nriplugin.New(nriplugin.Options{
		Keeper: k, Recorder: nriplugin.NewMetrics(), Socket: filepath.Join(dir, "nri.sock"), Index: "30",
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Now: time.Now, Backoff: 10 * time.Millisecond,
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return p
}

// settled waits until the runtime calls the plugin, which it does only when the answer
// to its list of sandboxes has arrived.
func settled(t *testing.T, r *runtimeSide, p *nriplugin.Plugin) {
	t.Helper()
	eventually.True(t, time.Minute, "the plugin is connected", func() bool { return p.Ready() == nil })
	r.BlockPluginSync().Unblock()
}

func newKeeper() *keeper { return &keeper{synced: make(chan []attachment.Pod, 8)} }

// shortDir is a directory with a path short enough for sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nri") //nolint:usetesting // a socket's path is short, a test's directory's is not
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestHooks(t *testing.T) {
	dir := shortDir(t)
	r := newRuntime(t, dir, sandboxOf("s0"))
	k := newKeeper()
	p := plug(t, k, dir)
	settled(t, r, p)
	if pods := <-k.synced; len(pods) != 1 || pods[0].Netns != "/netns/s0" || pods[0].UID != "uid-s0" || pods[0].Handler != "kata" {
		t.Errorf("synchronised with %+v", pods)
	}
	if err := p.Ready(); err != nil {
		t.Error(err)
	}
	pod := sandboxOf("s1")
	ctx := t.Context()
	if err := r.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: pod}); err != nil {
		t.Error(err)
	}
	bare := sandboxOf("s2")
	bare.Linux.Namespaces = bare.Linux.Namespaces[:1]
	if err := r.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: bare}); err != nil {
		t.Error(err)
	}
	for env, refused := range map[string]bool{"ok=1": false, "bad=1": true} {
		_, err := r.CreateContainer(ctx, &api.CreateContainerRequest{Pod: pod, Container: &api.Container{Id: "c", Name: "main", Env: []string{env}}})
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), "not for this pod") {
			t.Errorf("container with %s: %v", env, err)
		}
	}
	if err := r.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: pod}); err != nil {
		t.Error(err)
	}
	if err := r.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: pod}); err != nil {
		t.Error(err)
	}
	have := k.notes()
	slices.Sort(have[2:5])
	want := []string{"attach ns/p s1 uid-s1 /netns/s1", "attach ns/p s2 uid-s2 ", "admit s1 bad=1", "admit s1 ok=1", "admitted s1 main ok=1", "detach s1", "forget s1"}
	if !slices.Equal(have, want) {
		t.Errorf("asked %q\nwant %q", have, want)
	}
}

// TestFailure holds that an error of a hook reaches the runtime as one.
func TestFailure(t *testing.T) {
	dir := shortDir(t)
	r := newRuntime(t, dir)
	k := newKeeper()
	k.attach = func(context.Context, attachment.Pod) error {
		return fault.New(fault.Unsupported, errors.New(`topology "t": step "vf": no such thing`))
	}
	p := plug(t, k, dir)
	settled(t, r, p)
	err := r.RunPodSandbox(t.Context(), &api.RunPodSandboxRequest{Pod: sandboxOf("s1")})
	if err == nil || !strings.Contains(err.Error(), `step "vf": no such thing`) {
		t.Errorf("the runtime receives %v", err)
	}
	if err := p.Ready(); err != nil {
		t.Errorf("after a failure: %v", err)
	}
}

// TestDeadline holds that a hook that takes too long is answered with an error before the
// runtime's timeout, after which the runtime would continue without it; and that the
// connection is kept. A quarter of the timeout is left, so it is a long one.
func TestDeadline(t *testing.T) {
	adaptation.SetPluginRequestTimeout(8 * time.Second)
	t.Cleanup(func() { adaptation.SetPluginRequestTimeout(patient) })
	dir := shortDir(t)
	r := newRuntime(t, dir)
	k := newKeeper()
	ends := make(chan time.Time, 1)
	k.attach = func(ctx context.Context, _ attachment.Pod) error {
		end, _ := ctx.Deadline()
		ends <- end
		<-ctx.Done()
		return errors.New("attach: not done")
	}
	p := plug(t, k, dir)
	for tries := 1; ; tries++ {
		settled(t, r, p)
		err := r.RunPodSandbox(t.Context(), &api.RunPodSandboxRequest{Pod: sandboxOf(fmt.Sprint("s", tries))})
		if late := time.Since(<-ends); late > time.Second && tries < 5 {
			t.Logf("answered %s after the end of the hook, which this machine may have paused", late)
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "attach: not done") {
			t.Fatalf("the runtime receives %v", err)
		}
		break
	}
	if err := p.Ready(); err != nil {
		t.Errorf("the connection is lost: %v", err)
	}
}

// wire leads from a socket of its own to the runtime's, and can be cut, as when
// the runtime ends: in-process its half does not close connections.
type wire struct {
	mu    sync.Mutex
	conns []net.Conn
}

func newWire(t *testing.T, dir string) *wire {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, "wire", "nri.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	w := &wire{}
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := (&net.Dialer{}).DialContext(context.WithoutCancel(t.Context()), "unix", filepath.Join(dir, "nri.sock"))
			if err != nil {
				near.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, near, far)
			w.mu.Unlock()
			go io.Copy(near, far) //nolint:errcheck // it ends when it is cut
			go io.Copy(far, near) //nolint:errcheck // it ends when it is cut
		}
	}()
	return w
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		c.Close()
	}
	w.conns = nil
}

// TestReconnect holds that the plugin reconnects to a runtime that was restarted, and
// to one that starts after the plugin.
func TestReconnect(t *testing.T) {
	dir := shortDir(t)
	if err := os.Mkdir(filepath.Join(dir, "wire"), 0o700); err != nil {
		t.Fatal(err)
	}
	k := newKeeper()
	p := plug(t, k, filepath.Join(dir, "wire"))
	if err := p.Ready(); err == nil {
		t.Error("ready without a runtime")
	}
	w := newWire(t, dir)
	r := newRuntime(t, dir, sandboxOf("s1"))
	for i := range 3 {
		if i > 0 {
			w.cut()
		}
		if pods := <-k.synced; len(pods) != 1 {
			t.Errorf("synchronised with %+v", pods)
		}
		settled(t, r, p)
	}
	if err := p.Ready(); err != nil {
		t.Error(err)
	}
	if err := r.RunPodSandbox(t.Context(), &api.RunPodSandboxRequest{Pod: sandboxOf("s1")}); err != nil {
		t.Error(err)
	}
	if have := k.notes(); len(have) != 1 {
		t.Errorf("asked %q, want one attachment", have)
	}
}

// TestOverlap holds that the runtime calls two agents that overlap.
func TestOverlap(t *testing.T) {
	dir := shortDir(t)
	r := newRuntime(t, dir)
	one, two := newKeeper(), newKeeper()
	settled(t, r, plug(t, one, dir))
	settled(t, r, plug(t, two, dir))
	if err := r.RunPodSandbox(t.Context(), &api.RunPodSandboxRequest{Pod: sandboxOf("s1")}); err != nil {
		t.Error(err)
	}
	if a, b := one.notes(), two.notes(); len(a) != 1 || len(b) != 1 {
		t.Errorf("asked %q and %q", a, b)
	}
}
