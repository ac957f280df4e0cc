package nriplugin_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/ttrpc"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/reconcile/pod/attachment"
	"github.com/plumbline/plumbline/reconcile/pod/nriplugin"
)

// peer is a runtime's end of one connection, controlled by the test.
type peer struct {
	t        *testing.T
	conn     net.Conn
	plugin   api.PluginService
	asked    chan struct{}   // closed when the plugin has called RegisterPlugin
	lost     chan struct{}   // closed when the connection has ended
	register func() error    // answers it
	ctx      context.Context // ends with the test
}

// newPeer serves a connection; register answers RegisterPlugin.
func newPeer(ctx context.Context, t *testing.T, c net.Conn, register func() error) *peer {
	mux := multiplex.Multiplex(c, multiplex.WithBlockedRead()) // else what comes before Serve may be dropped
	l, err := mux.Listen(multiplex.RuntimeServiceConn)
	if err != nil {
		t.Error(err)
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Error(err)
	}
	p := &peer{t: t, conn: c, asked: make(chan struct{}), lost: make(chan struct{}), register: register, ctx: ctx}
	api.RegisterRuntimeService(server, p)
	to, err := mux.Open(multiplex.PluginServiceConn)
	if err != nil {
		t.Error(err)
	}
	client := ttrpc.NewClient(to, ttrpc.WithOnClose(func() { close(p.lost) }))
	p.plugin = api.NewPluginClient(client)
	go server.Serve(ctx, l) //nolint:errcheck // it ends with the connection
	mux.Unblock()
	context.AfterFunc(ctx, func() {
		mux.Close()
		client.Close()
		server.Close()
	})
	return p
}

// RegisterPlugin implements api.RuntimeService.
func (p *peer) RegisterPlugin(context.Context, *api.RegisterPluginRequest) (*api.Empty, error) {
	close(p.asked)
	return &api.Empty{}, p.register()
}

// UpdateContainers implements api.RuntimeService.
func (p *peer) UpdateContainers(context.Context, *api.UpdateContainersRequest) (*api.UpdateContainersResponse, error) {
	return nil, errors.New("not expected")
}

// die closes the connection, as the end of the runtime's process does.
func (p *peer) die() { p.conn.Close() }

// awaitRegistration returns when the plugin has called RegisterPlugin. On a slow machine
// the plugin may give up before: the conversation then ends at this point.
func (p *peer) awaitRegistration() {
	select {
	case <-p.asked:
	case <-p.lost:
	}
}

func (p *peer) configure() {
	_, _ = p.plugin.Configure(p.ctx, &api.ConfigureRequest{RuntimeName: "test", RuntimeVersion: "1.0"})
}

func (p *peer) synchronize(more bool) {
	_, _ = p.plugin.Synchronize(p.ctx, &api.SynchronizeRequest{Pods: []*api.PodSandbox{sandboxOf("s0")}, More: more})
}

func (p *peer) runPod() {
	_, _ = p.plugin.RunPodSandbox(p.ctx, &api.RunPodSandboxRequest{Pod: sandboxOf("s1")})
}

// conversations are failures of a runtime, each at another point of the conversation.
var conversations = []struct {
	name string
	// register answers RegisterPlugin; nil answers it at once, without an error.
	register func(p *peer) error
	// run is the rest of the conversation; p.conn is closed by it or by the plugin.
	run func(p *peer)
}{
	{"closes at once", nil, (*peer).die},
	{"says nothing at all", nil, func(*peer) {}},
	{"sends what is no frame", nil, func(p *peer) {
		_, _ = p.conn.Write(binary.BigEndian.AppendUint64(nil, 1<<32|1<<31))
	}},
	{"dies in RegisterPlugin", func(p *peer) error { p.die(); return nil }, func(*peer) {}},
	{"refuses RegisterPlugin", func(*peer) error { return errors.New("no") }, func(*peer) {}},
	{"never answers RegisterPlugin", func(p *peer) error { <-p.ctx.Done(); return nil }, func(*peer) {}},
	{"dies before Configure", nil, func(p *peer) { p.awaitRegistration(); p.settle(); p.die() }},
	{"never calls Configure", nil, func(*peer) {}},
	{"calls Configure before it answers RegisterPlugin, and dies", func(p *peer) error { p.configure(); p.die(); return nil }, func(*peer) {}},
	{"dies in Configure", nil, func(p *peer) {
		p.awaitRegistration()
		go p.configure()
		p.die()
	}},
	{"calls Configure three times", nil, func(p *peer) {
		p.awaitRegistration()
		p.configure()
		p.configure()
		go p.configure() // the stub does not answer this one
		p.settle()
		p.die()
	}},
	{"dies after Configure", nil, func(p *peer) { p.awaitRegistration(); p.configure(); p.die() }},
	{"never calls Synchronize", nil, func(p *peer) { p.awaitRegistration(); p.configure() }},
	{"dies between two parts of Synchronize", nil, func(p *peer) { p.awaitRegistration(); p.configure(); p.synchronize(true); p.die() }},
	{"never sends the last part of Synchronize", nil, func(p *peer) { p.awaitRegistration(); p.configure(); p.synchronize(true) }},
	{"calls Synchronize before Configure, and dies", nil, func(p *peer) { p.awaitRegistration(); p.synchronize(false); p.die() }},
	{"calls Synchronize twice, and dies", nil, func(p *peer) {
		p.awaitRegistration()
		p.configure()
		p.synchronize(false)
		p.synchronize(false)
		p.die()
	}},
	{"dies in a hook", nil, func(p *peer) {
		p.awaitRegistration()
		p.configure()
		p.synchronize(false)
		go p.runPod()
		p.settle()
		p.die()
	}},
	{"dies after a hook", nil, func(p *peer) {
		p.awaitRegistration()
		p.configure()
		p.synchronize(false)
		p.runPod()
		p.die()
	}},
	{"shuts down", nil, func(p *peer) {
		p.awaitRegistration()
		p.configure()
		p.synchronize(false)
		_, _ = p.plugin.Shutdown(p.ctx, &api.ShutdownRequest{})
		p.die()
	}},
}

// settle waits for sent messages to arrive. No result depends on it: if they have not
// arrived, the conversation ends at an earlier point.
func (p *peer) settle() {
	select {
	case <-time.After(20 * time.Millisecond):
	case <-p.ctx.Done():
	}
}

// TestConversations holds that after any failure of a conversation with the runtime the
// plugin connects to the next runtime, and that it can be stopped.
func TestConversations(t *testing.T) {
	for _, c := range conversations {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFailing(t, c.register, c.run)
			k := newKeeper()
			k.synced = make(chan []attachment.Pod, 100)
			p, end := start(t, k, f.dir)
			f.next.Wait() // the plugin has dialed again
			r := f.healthy()
			for pods := range k.synced {
				if pods[0].Sandbox == "healthy" {
					break
				}
			}
			r.BlockPluginSync().Unblock()
			eventually.True(t, time.Minute, "the plugin is ready", func() bool { return p.Ready() == nil })
			if err := r.RunPodSandbox(t.Context(), &api.RunPodSandboxRequest{Pod: sandboxOf("after")}); err != nil {
				t.Error(err)
			}
			if have := k.notes(); !slices.Contains(have, "attach ns/p after uid-after /netns/after") {
				t.Errorf("the next runtime's hook did not arrive: %q", have)
			}
			end()
		})
	}
}

// TestEnd holds that a plugin can be stopped at any point at which the conversation with
// the runtime hangs.
func TestEnd(t *testing.T) {
	for _, c := range conversations {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			reached := make(chan struct{})
			f := newFailing(t, c.register, func(p *peer) {
				c.run(p)
				close(reached)
			})
			k := newKeeper()
			k.synced = make(chan []attachment.Pod, 100)
			_, end := start(t, k, f.dir)
			<-reached
			end()
		})
	}
}

// failing is a socket whose first connection leads to a failing runtime.
type failing struct {
	t    *testing.T
	dir  string         // of the socket
	next sync.WaitGroup // ends when the plugin has dialed again
}

func newFailing(t *testing.T, register func(*peer) error, run func(*peer)) *failing {
	t.Helper()
	f := &failing{t: t, dir: shortDir(t)}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(f.dir, "nri.sock"))
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // another runtime's may be there by then
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(cancel)
	f.next.Add(1)
	go func() {
		defer l.Close()
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		var p *peer
		answer := func() error {
			if register == nil {
				return nil
			}
			return register(p)
		}
		ready := make(chan struct{})
		p = newPeer(ctx, t, c, func() error { <-ready; return answer() })
		close(ready)
		run(p)
		again, err := l.Accept()
		if err != nil {
			return // the test has ended
		}
		again.Close()
		f.next.Done()
	}()
	context.AfterFunc(ctx, func() { l.Close() })
	return f
}

// healthy replaces the failed runtime by a healthy one.
func (f *failing) healthy() *runtimeSide {
	f.t.Helper()
	path := filepath.Join(f.dir, "nri.sock")
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		f.t.Fatal(err)
	}
	return newRuntime(f.t, f.dir, sandboxOf("healthy"))
}

// start runs a plugin with short timeouts. end stops it, and waits.
func start(t *testing.T, k *keeper, dir string) (p *nriplugin.Plugin, end func()) {
	t.Helper()
	p = nriplugin.New(nriplugin.Options{
		Keeper: k, Recorder: nriplugin.NewMetrics(), Socket: filepath.Join(dir, "nri.sock"), Index: "30",
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Now: time.Now, Backoff: 5 * time.Millisecond,
		RegistrationTimeout: time.Second, SynchronizationTimeout: time.Second,
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(cancel)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	return p, func() {
		t.Helper()
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("the plugin does not end")
		}
	}
}
