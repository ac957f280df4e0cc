package admission

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestSelectSecret: the library that rotates the certificate lists and watches one Secret, whatever
// it asks for, and other requests pass unchanged.
func TestSelectSecret(t *testing.T) {
	const host, one = "https://api:6443/prefix", "fieldSelector=metadata.name%3Dplumbline-webhook"
	for request, want := range map[string]string{
		"GET /api/v1/namespaces/ours/secrets":                             "/api/v1/namespaces/ours/secrets?" + one,
		"GET /api/v1/namespaces/ours/secrets?limit=500":                   "/api/v1/namespaces/ours/secrets?" + one + "&limit=500",
		"GET /api/v1/namespaces/ours/secrets?fieldSelector=&watch=true":   "/api/v1/namespaces/ours/secrets?" + one + "&watch=true",
		"GET /api/v1/namespaces/ours/secrets/plumbline-webhook":           "/api/v1/namespaces/ours/secrets/plumbline-webhook",
		"PUT /api/v1/namespaces/ours/secrets/plumbline-webhook":           "/api/v1/namespaces/ours/secrets/plumbline-webhook",
		"GET /api/v1/namespaces/theirs/secrets":                           "/api/v1/namespaces/theirs/secrets",
		"GET /apis/resource.k8s.io/v1/namespaces/ours/resourceclaims?a=b": "/apis/resource.k8s.io/v1/namespaces/ours/resourceclaims?a=b",
	} {
		method, path, _ := strings.Cut(request, " ")
		r := httptest.NewRequest(method, host+path, nil)
		before := r.URL.String()
		var sent string
		s := selectSecret{roundTrip(func(r *http.Request) { sent = r.URL.String() }), types.NamespacedName{Namespace: "ours", Name: "plumbline-webhook"}}
		if _, err := s.RoundTrip(r); err != nil {
			t.Fatal(err)
		}
		if sent != host+want {
			t.Errorf("%s: sent %s, want %s", request, sent, host+want)
		}
		if r.URL.String() != before {
			t.Errorf("%s: the request of the caller was changed to %s", request, r.URL)
		}
	}
}

type roundTrip func(*http.Request)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) {
	f(r)
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}
