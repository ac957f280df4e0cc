package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/reconcile/liveness"
)

// config is that of an agent with all parts, whose API server, kubelet and container runtime do not answer.
func config(t *testing.T) Config {
	t.Helper()
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "agent") //nolint:usetesting // a path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := os.Mkdir(in("registrar"), 0o700); err != nil { // the kubelet's
		t.Fatal(err)
	}
	c := Config{
		NodeName: "n1", StateDir: in("state"), Registry: registry, NRISocket: in("nri.sock"), NRIIndex: "30", PluginDir: in("plugin"), RegistrarDir: in("registrar"), CDIDir: in("cdi"),
		Proc: "/proc", Sys: "/sys", MetricsAddress: "127.0.0.1:0", Timeout: time.Minute, AttachTimeout: time.Minute, Resync: time.Minute, LLDP: true, NetworkQoS: true,
		PodNetwork: PodNetwork{Enabled: true, Plugin: "/bin/true", BinDir: in("bin"), ConfDir: in("net.d"), ConfName: "10.conflist", Socket: in("cni/agent.sock"), NetnsDir: in("netns")},
		Log:        slog.New(slog.NewTextHandler(io.Discard, nil)), Now: time.Now,
	}
	nowhere := &rest.Config{Host: "http://127.0.0.1:1"}
	if c.Clients.Kube, err = kubernetes.NewForConfig(nowhere); err == nil {
		c.Clients.Nodes = c.Clients.Kube
		c.Clients.Dynamic, err = dynamic.NewForConfig(nowhere)
	}
	if err == nil {
		c.Clients.Metadata, err = metadata.NewForConfig(nowhere)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newAgent(t *testing.T, c Config) *Agent {
	t.Helper()
	a, err := New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// inLane skips a test that changes the machine's network outside of a virtual machine.
func inLane(t *testing.T) {
	t.Helper()
	if os.Getenv("PLUMBLINE_LANE") == "" {
		t.Skip("changes the network: runs in the virtual machine of make test-kernel")
	}
}

// TestLeftOut holds that an agent is built and run without the parts that its configuration leaves out.
func TestLeftOut(t *testing.T) {
	inLane(t)
	c := config(t)
	full := newAgent(t, c).works()
	c.LLDP, c.NetworkQoS, c.PodNetwork = false, false, PodNetwork{}
	c.StateDir = filepath.Join(t.TempDir(), "other")
	var names, left []string
	for _, w := range newAgent(t, c).works() {
		names = append(names, w.name)
	}
	for _, w := range full {
		if !slices.Contains(names, w.name) {
			left = append(left, w.name)
		}
	}
	if want := []string{"primary topology", partCNI, "CNI plugin"}; !slices.Equal(left, want) {
		t.Errorf("left out: %q, want %q", left, want)
	}
}

// disturbed has one part do nothing, fail or be slow to begin and to end.
func disturbed(w *work, how string, release <-chan struct{}) {
	w.run = func(context.Context) error {
		switch how {
		case "failing":
			return errBroken
		case "slow":
			<-release
		}
		return nil
	}
}

var errBroken = errors.New("cannot go on")

var disturbances = []string{"absent", "failing", "slow"}

// TestPartsApart holds for each part of the agent: while it does nothing, or is slow to begin and to end, all others
// run, and when it fails, all others are stopped, and the agent says why. The others only wait here.
func TestPartsApart(t *testing.T) {
	parts, err := graph(declared())
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range parts {
		if !part.Runs {
			continue
		}
		for _, how := range disturbances {
			t.Run(strings.ReplaceAll(part.Name, " ", "-")+"/"+how, func(t *testing.T) {
				a := &Agent{alive: liveness.New(time.Now)}
				var works []work
				var begun, ended sync.WaitGroup
				release, stopped := make(chan struct{}), make(chan struct{})
				for _, p := range parts {
					w := work{name: p.Name}
					switch {
					case p.Name == part.Name:
						disturbed(&w, how, release)
					case p.Runs:
						begun.Add(1)
						ended.Add(1)
						w.run = func(ctx context.Context) error {
							begun.Done()
							<-ctx.Done()
							ended.Done()
							return nil
						}
					default:
						continue
					}
					works = append(works, w)
				}
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				result := make(chan error, 1)
				go func() { result <- a.run(ctx, works) }()
				begun.Wait()
				if how == "failing" {
					if err := <-result; !errors.Is(err, errBroken) {
						t.Errorf("error %v", err)
					}
					ended.Wait()
					return
				}
				want := ""
				if how == "absent" {
					want = part.Name + " has ended: it has returned"
				}
				eventually.Holds(t, time.Minute, "liveness", func() string { return differs(a.alive.Check(), want) })
				stop()
				go func() { ended.Wait(); close(stopped) }()
				<-stopped // although one is slow
				close(release)
				if err := <-result; err != nil {
					t.Errorf("error %v", err)
				}
			})
		}
	}
}

// differs says what an error says, if it is not what it is to say; "" is no error.
func differs(err error, want string) string {
	said := ""
	if err != nil {
		said = err.Error()
	}
	if said == want {
		return ""
	}
	return fmt.Sprintf("%q instead of %q", said, want)
}

// TestDisturbed runs the agent of a machine with one part disturbed: sandboxes have their first check, unless
// this part makes it, and the agent stops.
func TestDisturbed(t *testing.T) {
	inLane(t)
	for i, part := range newAgent(t, config(t)).works() {
		for _, how := range effort.Sample(t, 3, disturbances) {
			t.Run(strings.ReplaceAll(part.name, " ", "-")+"/"+how, func(t *testing.T) {
				a := newAgent(t, config(t))
				if err := the[*server](a.parts).listen(t.Context(), a.Config); err != nil {
					t.Fatal(err)
				}
				works, release := a.works(), make(chan struct{})
				disturbed(&works[i], how, release)
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				result := make(chan error, 1)
				go func() {
					result <- a.run(ctx, works)
					stop()
				}()
				if how == "failing" {
					if err := <-result; !errors.Is(err, errBroken) {
						t.Errorf("error %v", err)
					}
					return
				}
				if part.name != "drift loop" {
					eventually.Succeeds(t, time.Minute, "the first check of sandboxes", func() error {
						if ctx.Err() != nil {
							return nil // the agent has ended, and says why
						}
						return a.Checked()
					})
				}
				stop()
				close(release)
				if err := <-result; err != nil {
					t.Errorf("error %v", err)
				}
			})
		}
	}
}
