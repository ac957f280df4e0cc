package draplugin_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/draplugin"
)

// apiServer answers reads of claims and of the topology as an API server does, after it has
// failed.
type apiServer struct {
	g  *given
	mu sync.Mutex
	// fails is how the next answers fail.
	fails   []func(w http.ResponseWriter, r *http.Request)
	queried []string
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.queried = append(a.queried, r.URL.Path)
	var fail func(http.ResponseWriter, *http.Request)
	if len(a.fails) > 0 {
		fail, a.fails = a.fails[0], a.fails[1:]
	}
	a.mu.Unlock()
	if fail != nil {
		fail(w, r)
		return
	}
	var answer any
	switch dir, name := filepath.Split(r.URL.Path); {
	case strings.HasSuffix(dir, "/networktopologies/") && name == a.g.topology.Name:
		o := a.g.topology.DeepCopy()
		o.APIVersion, o.Kind = "networking.dra.io/v1alpha1", "NetworkTopology"
		answer = o
	case strings.HasSuffix(dir, "/resourceclaims/") && a.g.claims[name] != nil:
		rc := a.g.claims[name].DeepCopy()
		rc.APIVersion, rc.Kind = "resource.k8s.io/v1", "ResourceClaim"
		answer = rc
	default:
		w.WriteHeader(http.StatusNotFound)
		answer = &metav1.Status{Status: "Failure", Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: "not found"}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// How an API server can fail.
func refusing(code int) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

func dying(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		conn.Close()
	}
}

func dyingInAnswer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Length", "4096")
	_, _ = io.WriteString(w, `{"kind":`)
	panic(http.ErrAbortHandler)
}

func noAnswer(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func noEndOfAnswer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Length", "4096")
	_, _ = io.WriteString(w, `{"kind":`)
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

// kubelet is the peer of a plugin that is served.
type kubelet struct {
	*given
	api      *apiServer
	socket   string
	conn     *grpc.ClientConn
	dra      drapb.DRAPluginClient
	register registerapi.RegistrationClient
	stop     func() // ends the plugin, and returns when it has ended
	serving  draplugin.Serving
	ready    chan struct{} // closed when the plugin publishes devices
}

// served runs a plugin on sockets, against an API server on a port.
func served(t *testing.T) *kubelet { return servedWithin(t, time.Minute) }

// servedWithin is served with a limit for the API server to begin an answer.
func servedWithin(t *testing.T, most time.Duration) *kubelet {
	t.Helper()
	return servedIn(t, t.TempDir(), most)
}

// servedIn is servedWithin with the directory of the sockets.
func servedIn(t *testing.T, dir string, most time.Duration) *kubelet {
	t.Helper()
	k := unserved(t, dir, most)
	k.run()
	<-k.ready
	return k
}

// unserved is servedIn before the plugin runs.
func unserved(t *testing.T, dir string, most time.Duration) *kubelet {
	t.Helper()
	k := &kubelet{given: newGiven(t)}
	for _, uid := range []types.UID{"c1", "c2", "c3", "c4"} {
		k.claims["claim-"+string(uid)] = allocated(uid, "pod-of-"+uid, "0", "1")
	}
	k.api = &apiServer{g: k.given}
	server := httptest.NewServer(k.api)
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL}
	draplugin.BoundReads(config, most)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	k.Cluster = draplugin.NewCluster(kube, dyn, "n1")
	k.serving = draplugin.Serving{Kube: kube, NodeName: "n", PluginDir: dir, RegistrarDir: dir, CDIDir: dir, Instance: "u"}
	k.ready = make(chan struct{})
	return k
}

// run runs the plugin.
func (k *kubelet) run() {
	k.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(k.t.Context()))
	ended := make(chan error, 1)
	go func() {
		ended <- k.Run(ctx, k.serving, func(context.Context, draplugin.Publisher) error { close(k.ready); return nil })
	}()
	k.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			k.t.Error(err)
		}
	})
	k.t.Cleanup(k.stop)
	k.socket = filepath.Join(k.serving.PluginDir, "dra-"+string(k.serving.Instance)+".sock")
	k.connect()
	k.register = registerapi.NewRegistrationClient(dial(k.t, k.registration()))
}

func (k *kubelet) registration() string {
	return filepath.Join(k.serving.RegistrarDir, "dra.networking-"+string(k.serving.Instance)+"-reg.sock")
}

func (k *kubelet) connect() {
	k.t.Helper()
	k.conn = dial(k.t, k.socket)
	k.dra = drapb.NewDRAPluginClient(k.conn)
}

func dial(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// prepareClaim requests to prepare a claim, and returns the devices or the error of the claim.
func (k *kubelet) prepareClaim(ctx context.Context, uid string) (devices []string, refused string, err error) {
	resp, err := k.dra.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: "ns", Name: "claim-" + uid, Uid: uid}}})
	if err != nil {
		return nil, "", err
	}
	for _, d := range resp.Claims[uid].Devices {
		devices = append(devices, d.DeviceName)
	}
	return devices, resp.Claims[uid].Error, nil
}

func (k *kubelet) prepared(uid string) {
	k.t.Helper()
	if devices, refused, err := k.prepareClaim(k.t.Context(), uid); err != nil || refused != "" || len(devices) != 2 {
		k.t.Errorf("claim %s: devices %v, refused %q, error %v", uid, devices, refused, err)
	}
}

// TestFailingAPIServer holds that a claim is prepared in the first request of the kubelet,
// for temporary failures of the API server at any point.
func TestFailingAPIServer(t *testing.T) {
	for name, fail := range map[string]func(http.ResponseWriter, *http.Request){
		"too busy": refusing(http.StatusTooManyRequests), "unavailable": refusing(http.StatusServiceUnavailable),
		"broken": refusing(http.StatusInternalServerError), "gateway": refusing(http.StatusBadGateway),
		"dies": dying, "dies in the answer": dyingInAnswer, "silent": noAnswer, "silent in the answer": noEndOfAnswer,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for at := range 2 { // the claim, the topology
				most := time.Minute
				if strings.HasPrefix(name, "silent") {
					most = 50 * time.Millisecond
				}
				k := servedWithin(t, most)
				for range at {
					k.api.fails = append(k.api.fails, k.api.answer)
				}
				k.api.fails = append(k.api.fails, fail, fail)
				k.prepared("c1")
				k.stop()
				if n := len(k.api.fails); n > 0 {
					t.Errorf("%d failures were not met: asked %v", n, k.api.queried)
				}
			}
		})
	}
}

// TestEndsWithoutAPIServer holds that a claim ends whatever the API server does, and does not wait for it: it is not asked.
func TestEndsWithoutAPIServer(t *testing.T) {
	k := served(t)
	k.prepared("c1")
	k.api.mu.Lock()
	before := len(k.api.queried)
	for range 100 {
		k.api.fails = append(k.api.fails, noAnswer)
	}
	k.api.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	resp, err := k.dra.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: "ns", Name: "claim-c1", Uid: "c1"}}})
	if err != nil || resp.Claims["c1"].GetError() != "" {
		t.Errorf("%v, %v", resp, err)
	}
	k.api.mu.Lock()
	defer k.api.mu.Unlock()
	if asked := k.api.queried[before:]; len(asked) > 0 {
		t.Errorf("to end a claim, the API server is queried for %v", asked)
	}
}

// answer answers without a failure.
func (a *apiServer) answer(w http.ResponseWriter, r *http.Request) {
	(&apiServer{g: a.g}).ServeHTTP(w, r)
}

// TestCertainAnswers holds that a read with a definite answer is not repeated.
func TestCertainAnswers(t *testing.T) {
	k := served(t)
	k.api.fails = []func(http.ResponseWriter, *http.Request){refusing(http.StatusForbidden)}
	if _, _, err := k.prepareClaim(t.Context(), "c1"); err == nil || !strings.Contains(err.Error(), "claim-c1") {
		t.Errorf("error %v", err)
	}
	if _, _, err := k.prepareClaim(t.Context(), "none"); err == nil || !strings.Contains(err.Error(), "could not find") {
		t.Errorf("error %v", err)
	}
	if queried := slices.Sorted(slices.Values(k.api.queried)); len(slices.Compact(queried)) != len(k.api.queried) {
		t.Errorf("asked %v", k.api.queried)
	}
}

// TestStuckCalls holds that requests that hang delay no other.
func TestStuckCalls(t *testing.T) {
	k := served(t)
	k.claims["claim-c4"] = allocated("c4", "pod-of-c4", "2")
	k.topology.Spec.Steps = k.topology.Spec.Steps[:1]
	entered, release := make(chan struct{}), make(chan struct{})
	k.withdraw = func(types.UID) { entered <- struct{}{}; <-release }
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var stuck sync.WaitGroup
	for _, uid := range []string{"c1", "c2", "c3"} {
		stuck.Go(func() {
			_, _ = k.dra.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: "ns", Name: "claim-" + uid, Uid: uid}}})
		})
		<-entered
	}
	if devices, refused, err := k.prepareClaim(ctx, "c4"); err != nil || refused != "" || len(devices) != 1 {
		t.Errorf("devices %v, refused %q, error %v", devices, refused, err)
	}
	close(release)
	stuck.Wait()
}

// TestPreparedTwice holds that a claim that is prepared again, before and after the
// first answer, has one record and one answer.
func TestPreparedTwice(t *testing.T) {
	k := served(t)
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() { k.prepared("c1") })
	}
	both.Wait()
	k.prepared("c1")
	if entries, errs := k.store.List(); len(entries) != 1 || len(errs) > 0 {
		t.Errorf("recorded: %v, %v", entries, errs)
	}
}

// TestGivenUp holds that no record is left when the kubelet cancels a request, or dies,
// while it waits for a device, and that the next request gets the device.
func TestGivenUp(t *testing.T) {
	for name, end := range map[string]func(k *kubelet, cancel func()){
		"gives up": func(_ *kubelet, cancel func()) { cancel() },
		"dies":     func(k *kubelet, _ func()) { k.conn.Close() },
	} {
		t.Run(name, func(t *testing.T) { testGivenUp(t, end) })
	}
}

func testGivenUp(t *testing.T, end func(k *kubelet, cancel func())) {
	t.Helper()
	k := served(t)
	k.prepared("c1")
	k.in("c1", "pod-of-c1", claims.Attached)
	k.claims["claim-c1"] = nil // deleted by force: the scheduler gives the devices to c2
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		k.logged("waiting to prepare", "c2")
		end(k, cancel)
	}()
	if _, _, err := k.prepareClaim(ctx, "c2"); err == nil {
		t.Error("it was prepared")
	}
	k.logged("not prepared", "c2")
	k.in("c1", "pod-of-c1", claims.Released)
	if _, known, err := k.store.Get("c2"); known || err != nil {
		t.Errorf("recorded: %t, %v", known, err)
	}
	k.connect() // the next kubelet
	k.prepared("c2")
}

// TestStopped holds that a request in progress is ended before the plugin stops, as when
// another agent takes over.
func TestStopped(t *testing.T) {
	k := served(t)
	k.prepared("c1")
	k.in("c1", "pod-of-c1", claims.Attached)
	go func() { _, _, _ = k.prepareClaim(context.WithoutCancel(t.Context()), "c2") }()
	k.logged("waiting to prepare", "c2")
	stopped := make(chan struct{})
	go func() {
		k.stop()
		close(stopped)
	}()
	k.in("c1", "pod-of-c1", claims.Released)
	<-stopped
	if _, known, err := k.store.Get("c2"); !known || err != nil {
		t.Errorf("recorded: %t, %v", known, err)
	}
}

// TestRegistration holds what is reported about a kubelet that registers late, or refuses.
func TestRegistration(t *testing.T) {
	k := served(t)
	if err := k.Registration.Ready(); err == nil || !strings.Contains(err.Error(), "has not registered it yet") {
		t.Errorf("before: %v", err)
	}
	k.prepared("c1") // a kubelet that knows the socket need not wait for the other one
	if info, err := k.register.GetInfo(t.Context(), &registerapi.InfoRequest{}); err != nil || info.Name != "dra.networking" {
		t.Errorf("%+v, %v", info, err)
	}
	if _, err := k.register.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{Error: "no"}); err == nil {
		t.Error("a refusal is treated as permanent")
	}
	if err := k.Registration.Ready(); err == nil || !strings.Contains(err.Error(), "refuses it: no") {
		t.Errorf("refused: %v", err)
	}
	for range 2 {
		if _, err := k.register.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
			t.Error(err)
		}
	}
	if err := k.Registration.Ready(); err != nil {
		t.Error(err)
	}
}

// TestDeadSockets holds that the sockets of an agent that was killed are removed by
// the next one, and those of others are not.
func TestDeadSockets(t *testing.T) {
	const uuid = "-00000000-0000-4000-8000-00000000000"
	dir := t.TempDir()
	old := time.Now().Add(-time.Minute)
	left := func(name string, at time.Time) *net.UnixListener {
		t.Helper()
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		t.Cleanup(func() { l.Close() })
		if err := os.Chtimes(filepath.Join(dir, name), at, at); err != nil {
			t.Fatal(err)
		}
		return l
	}
	for _, name := range []string{"dra.networking" + uuid + "1-reg.sock", "dra" + uuid + "1.sock", "dra.other-reg.sock"} {
		left(name, old).Close()
	}
	left("dra.networking"+uuid+"2-reg.sock", time.Now()).Close() // perhaps about to listen
	left("dra.networking"+uuid+"3-reg.sock", old)                // another agent, in a rolling update
	k := servedIn(t, dir, time.Minute)
	k.prepared("c1")
	var have []string
	files, err := os.ReadDir(dir)
	for _, f := range files {
		if strings.HasSuffix(f.Name(), ".sock") {
			have = append(have, f.Name())
		}
	}
	want := []string{"dra-u.sock", "dra.networking" + uuid + "2-reg.sock", "dra.networking" + uuid + "3-reg.sock", "dra.networking-u-reg.sock", "dra.other-reg.sock"}
	if !slices.Equal(have, want) {
		t.Errorf("sockets %q (%v), want %q", have, err, want)
	}
}

// registered registers the plugin as the kubelet does, once its socket is there.
func (k *kubelet) registered() {
	k.t.Helper()
	if _, err := k.register.GetInfo(k.t.Context(), &registerapi.InfoRequest{}, grpc.WaitForReady(true)); err != nil {
		k.t.Fatal(err)
	}
	if _, err := k.register.NotifyRegistrationStatus(k.t.Context(), &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		k.t.Fatal(err)
	}
}

// TestRegisteredBeforeRuntime: an agent without another beside it is registered before the runtime
// has listed its sandboxes. Nothing is prepared, released or published until then.
func TestRegisteredBeforeRuntime(t *testing.T) {
	k := unserved(t, t.TempDir(), time.Minute)
	runtime := make(chan struct{})
	k.Runtime = runtime
	var begun sync.WaitGroup
	released := make(chan types.UID, 1)
	k.withdraw = func(uid types.UID) { released <- uid }
	k.run()
	k.registered()
	begun.Go(func() { k.prepared("c1") })
	begun.Go(func() {
		if _, err := k.dra.NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: "ns", Name: "claim-c2", Uid: "c2"}}}); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, _, err := k.prepareClaim(ctx, "c3") // both sides have the deadline, and either may answer first
	if status.Code(err) != codes.DeadlineExceeded && (err == nil || !strings.Contains(err.Error(), "has not listed its sandboxes")) {
		t.Errorf("prepared before the runtime is connected: %v", err)
	}
	select {
	case <-released:
		t.Error("released before the runtime is connected")
	case <-k.ready:
		t.Error("published before the runtime is connected")
	default:
	}
	if k.api.mu.Lock(); len(k.api.queried) > 0 {
		t.Errorf("queried before the runtime is connected: %v", k.api.queried)
	}
	k.api.mu.Unlock()
	close(runtime)
	begun.Wait()
	<-released
	<-k.ready
}

// TestNoRuntime: a pod does not wait forever for a runtime, and its Event names the reason.
func TestNoRuntime(t *testing.T) {
	k := unserved(t, t.TempDir(), time.Minute)
	k.Runtime = make(chan struct{})
	k.Patience = 50 * time.Millisecond
	k.run()
	k.registered()
	if _, _, err := k.prepareClaim(t.Context(), "c1"); err == nil || !strings.Contains(err.Error(), "the container runtime has not listed its sandboxes") {
		t.Errorf("error %v", err)
	}
}

// TestSecondAgent: beside an agent that serves the node, the next one is registered only once the
// runtime is connected, or when the first one has ended: one that never can connect must not
// take the requests of one that works.
func TestSecondAgent(t *testing.T) {
	for _, ends := range []bool{false, true} {
		dir := t.TempDir()
		first, second := unserved(t, dir, time.Minute), unserved(t, dir, time.Minute)
		first.serving.Instance, second.serving.Instance = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
		first.run()
		first.registered()
		runtime := make(chan struct{})
		second.Runtime = runtime
		second.run()
		first.prepared("c1") // it looks for others meanwhile
		if _, err := os.Stat(second.registration()); !os.IsNotExist(err) {
			t.Errorf("the second agent is registered before its runtime is connected: %v", err)
		}
		if ends {
			first.stop()
		} else {
			close(runtime)
		}
		second.registered()
		if ends {
			close(runtime)
		}
		second.prepared("c2")
	}
}
