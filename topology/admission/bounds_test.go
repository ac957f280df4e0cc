package admission

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/topology/controller"
	"github.com/plumbline/plumbline/topology/exposure"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// unready is a webhook whose cache was never started, so that no lookup succeeds.
func unready(t *testing.T) *Webhook {
	t.Helper()
	scheme, err := controller.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(resourceapi.SchemeGroupVersion.WithKind("DeviceClass"), meta.RESTScopeRoot)
	mapper.Add(v1alpha1.GroupVersion.WithKind(v1alpha1.Kind), meta.RESTScopeRoot)
	reader, err := cache.New(&rest.Config{}, cache.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	return New(reader, &controller.Contracts{Reader: reader, BuiltIn: registry}, &exposure.Compiled{}, nil)
}

func request(group, kind, object string) admission.Request {
	r := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Operation: admissionv1.Create, Name: "x"}}
	r.Kind.Group, r.Kind.Kind, r.Object.Raw = group, kind, []byte(object)
	return r
}

const someTopology = `{"metadata":{"name":"t"},"spec":{"steps":[{"name":"d","type":"dummy"}]}}`

// TestUndecided holds that what cannot be decided is allowed where the failure policy is
// Ignore, and refused where it is Fail.
func TestUndecided(t *testing.T) {
	gpu := `{"spec":{"devices":{"requests":[{"name":"gpu","exactly":{"deviceClassName":"gpu"}}]}}}`
	many := `{"spec":{"devices":{"requests":[` + strings.Repeat(`{"name":"a"},`, 32) + `{"name":"a"}]}}}`
	class := `{"spec":{"config":[{"opaque":{"driver":"dra.networking","parameters":{"networkTopologyRef":{"name":"t"},"step":"s"}}}]}}`
	group := resourceapi.GroupName
	for _, c := range []struct {
		name    string
		webhook *Webhook
		request admission.Request
		why     string // in the warning, or in the refusal
		refused bool
	}{
		{name: "a claim without a cache", webhook: unready(t), request: request(group, "ResourceClaim", gpu), why: "cache"},
		{name: "a template", webhook: unready(t), request: request(group, "ResourceClaimTemplate", `{"spec":`+gpu+`}`), why: "cache"},
		{name: "a class", webhook: unready(t), request: request(group, "DeviceClass", class), why: "cache"},
		{name: "a claim that is none", webhook: unready(t), request: request(group, "ResourceClaim", `{"spec":7}`), why: "decode the object"},
		{name: "a claim of any size", webhook: unready(t), request: request(group, "ResourceClaim", strings.Repeat(" ", maxObject+1)), why: "bytes"},
		{name: "a claim of any number of requests", webhook: unready(t), request: request(group, "ResourceClaim", many), why: "more requests"},
		{name: "a fault of ours", webhook: New(nil, nil, nil, nil), request: request(group, "ResourceClaim", gpu), why: "a fault of the webhook"},
		{name: "a topology", webhook: unready(t), request: request(v1alpha1.GroupVersion.Group, v1alpha1.Kind, someTopology), why: "schemas", refused: true},
		{name: "a fault in a topology", webhook: New(nil, nil, nil, nil), request: request(v1alpha1.GroupVersion.Group, v1alpha1.Kind, someTopology), why: "a fault of the webhook", refused: true},
	} {
		a := c.webhook.Handle(t.Context(), c.request)
		switch text := strings.Join(a.Warnings, "\n"); {
		case c.refused && (a.Allowed || !strings.Contains(a.Result.Message, c.why)):
			t.Errorf("%s: allowed %v, %+v", c.name, a.Allowed, a.Result)
		case !c.refused && (!a.Allowed || !strings.Contains(text, c.why) || !strings.Contains(text, "unchecked") || len(text) > maxWarning):
			t.Errorf("%s: allowed %v, warnings %q", c.name, a.Allowed, text)
		}
	}
}

// TestBusy holds that topologies wait for each other, no longer than the API server
// waits, and that claims do not wait for them.
func TestBusy(t *testing.T) {
	w := unready(t)
	if err := w.judging.Acquire(t.Context(), maxJudging); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if a := w.Handle(gone, request(v1alpha1.GroupVersion.Group, v1alpha1.Kind, someTopology)); a.Allowed || !strings.Contains(a.Result.Message, "busy") {
		t.Errorf("a topology: %+v", a.Result)
	}
	if !w.waiting.TryAcquire(maxJudging + maxWaiting) {
		t.Error("one that has been answered still waits")
	}
	if a := w.Handle(t.Context(), request(v1alpha1.GroupVersion.Group, v1alpha1.Kind, someTopology)); a.Allowed || !strings.Contains(a.Result.Message, "64 wait") {
		t.Errorf("a topology beside many: %+v", a.Result)
	}
	asking := `{"spec":{"devices":{"requests":[{"name":"gpu","exactly":{"deviceClassName":"gpu"}}]}}}`
	if a := w.Handle(gone, request(resourceapi.GroupName, "ResourceClaim", asking)); !a.Allowed || len(a.Warnings) != 1 || !strings.Contains(a.Warnings[0], "context canceled") {
		t.Errorf("a claim whose time is over: %+v %q", a.Result, a.Warnings)
	}
	if a := w.Handle(t.Context(), request(resourceapi.GroupName, "ResourceClaim", `{}`)); !a.Allowed || len(a.Warnings) > 0 {
		t.Errorf("a claim: %+v %q", a.Result, a.Warnings)
	}
}

func TestAnswersAreShort(t *testing.T) {
	var a answer
	for range 100 {
		a.warn("%s", strings.Repeat("é", maxWarning))
		a.problems = append(a.problems, strings.Repeat("é\n", 1000))
	}
	if n := len(strings.Join(a.warnings, "")); n > maxWarnings*maxWarning {
		t.Errorf("warnings of %d bytes", n)
	}
	// Indenting adds two bytes a line.
	if n := len(message(a.problems)); n > 2*maxMessage {
		t.Errorf("a refusal of %d bytes", n)
	}
}

// TestWithin: an answer may take as long as the API server waits, and no longer than it can.
func TestWithin(t *testing.T) {
	for parameters, want := range map[string]time.Duration{
		"":                      5 * time.Second,
		"?timeout=30s":          30 * time.Second,
		"?timeout=1s":           time.Second,
		"?timeout=1h":           30 * time.Second,
		"?timeout=-1s":          5 * time.Second,
		"?timeout=0s":           5 * time.Second,
		"?timeout=soon":         5 * time.Second,
		"?timeout=%zz":          5 * time.Second,
		"?timeout=2s&timeout=9": 2 * time.Second,
	} {
		var have time.Duration
		h := bounded(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			end, _ := r.Context().Deadline()
			have = time.Until(end)
		}))
		before := time.Now()
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, Path+parameters, strings.NewReader("x")))
		if have > want || have < want-time.Since(before) {
			t.Errorf("%q: %s, want %s", parameters, have, want)
		}
	}
}

// TestBounded holds how much a client of the webhook's port can make it read and hold in
// memory.
func TestBounded(t *testing.T) {
	enter, leave := make(chan struct{}), make(chan struct{})
	h := bounded(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if _, limited := r.Context().Deadline(); !limited {
			t.Error("the work has no deadline")
		}
		if r.Header.Get("Hold") != "" {
			enter <- struct{}{}
			<-leave
			return
		}
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "%d %v", len(body), err)
	}))
	post := func(ctx context.Context, body io.Reader, size int64, header ...string) (int, string) {
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, Path, body)
		r.ContentLength = size
		for _, name := range header {
			r.Header.Set(name, "yes")
		}
		rw := httptest.NewRecorder()
		h.ServeHTTP(rw, r)
		return rw.Code, rw.Body.String()
	}
	if code, _ := post(t.Context(), strings.NewReader("x"), -1); code != http.StatusLengthRequired {
		t.Errorf("a body of unknown length: %d", code)
	}
	if code, _ := post(t.Context(), strings.NewReader("x"), maxBody+1); code != http.StatusRequestEntityTooLarge {
		t.Errorf("a body that is too large: %d", code)
	}
	if code, body := post(t.Context(), bytes.NewReader(make([]byte, 10)), 4); code != http.StatusOK || body != "4 <nil>" {
		t.Errorf("more than was said: %d %s", code, body)
	}
	if code, body := post(t.Context(), strings.NewReader("x"), 2); code != http.StatusBadRequest || !strings.Contains(body, "unexpected EOF") {
		t.Errorf("less than was said: %d %s", code, body)
	}
	most := func() io.Reader { return bytes.NewReader(make([]byte, maxBody)) }
	held := 0
	for ; (held+1)*maxBody <= maxBodies; held++ {
		go post(t.Context(), most(), maxBody, "Hold")
		<-enter
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if code, _ := post(gone, most(), maxBody); code != http.StatusServiceUnavailable {
		t.Errorf("more than %d bytes at a time: %d", maxBodies, code)
	}
	if code, body := post(t.Context(), bytes.NewReader(make([]byte, smallBody)), smallBody); code != http.StatusOK || body != fmt.Sprint(smallBody, " <nil>") {
		t.Errorf("a small one meanwhile: %d %s", code, body)
	}
	for range held {
		leave <- struct{}{}
	}
	if code, body := post(t.Context(), strings.NewReader("x"), 1); code != http.StatusOK || body != "1 <nil>" {
		t.Errorf("afterwards: %d %s", code, body)
	}
}
