package apiserver_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/plumbline/plumbline/topology/apiserver"
)

// server plays an API server: its version, the resources of resource.k8s.io/v1 ("" for none), and its metrics ("" for
// what may not be read).
func server(t *testing.T, version, resources, metrics string) *discovery.DiscoveryClient {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/version":
			fmt.Fprintf(w, `{"major":"1","minor":"x","gitVersion":%q}`, version)
		case r.URL.Path == "/apis/resource.k8s.io/v1" && resources != "":
			var all []string
			for name := range strings.FieldsSeq(resources) {
				all = append(all, fmt.Sprintf(`{"name":%q,"kind":"X","verbs":["get"]}`, name))
			}
			fmt.Fprintf(w, `{"kind":"APIResourceList","groupVersion":"resource.k8s.io/v1","resources":[%s]}`, strings.Join(all, ","))
		case r.URL.Path == "/metrics" && metrics != "":
			w.Header().Set("Content-Type", "text/plain")
			_, _ = w.Write([]byte(metrics))
		case r.URL.Path == "/metrics":
			w.WriteHeader(http.StatusForbidden)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(s.Close)
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestDiscover: what a server lacks is named with the reason, by its gates where they can be read, else by its version.
func TestDiscover(t *testing.T) {
	const claims, withRules = "resourceclaims deviceclasses resourceslices", "resourceclaims devicetaintrules"
	gates := func(off string) string {
		out := "# HELP kubernetes_feature_enabled x\n# TYPE kubernetes_feature_enabled gauge\napiserver_request_total{code=\"200\"} 12\n"
		for _, f := range apiserver.Features() {
			if f.Gate == "" {
				continue
			}
			value := 1
			if strings.Contains(off, f.Gate) {
				value = 0
			}
			out += fmt.Sprintf("kubernetes_feature_enabled{name=%q,stage=\"BETA\"} %d\n", f.Gate, value)
		}
		return out
	}
	const late = "DRAConsumableCapacity DRAPartitionableDevices DRADeviceTaints DRAExtendedResource"
	for name, c := range map[string]struct {
		version, resources, metrics string
		off, presumed               string // features
		reason                      string // of the first that is off
		unread                      bool
	}{
		"1.33":                          {"v1.33.4", "", "", "resourceclaims DRADeviceTaintRules " + late, "DRAResourceClaimDeviceStatus", "the server does not serve resourceclaims of resource.k8s.io/v1, which Kubernetes 1.34 does by default; nothing works", true},
		"1.35":                          {"v1.35.4", claims, "", "DRADeviceTaintRules " + late, "DRAResourceClaimDeviceStatus", "it is on by default since Kubernetes 1.36; no device is shared", true},
		"1.35 with gates":               {"v1.35.4", claims, gates("DRADeviceTaints"), "DRADeviceTaintRules DRADeviceTaints", "", "the server has it turned off; such devices are not published", false},
		"1.36":                          {"v1.36.3+vendor.1", claims, "", "DRADeviceTaintRules", late + " DRAResourceClaimDeviceStatus", "the server does not serve devicetaintrules of resource.k8s.io/v1, which Kubernetes 1.37 does by default; plumbline maintain fails", true},
		"1.37":                          {"v1.37.2", withRules, "", "", late + " DRAResourceClaimDeviceStatus DRADeviceTaintRules", "", true},
		"1.37, and all gates are read":  {"v1.37.2", withRules, gates(""), "", "", "", false},
		"1.37, and one is turned off":   {"v1.37.2", withRules, gates("DRAExtendedResource"), "DRAExtendedResource", "", "the server has it turned off; pods get devices by claims only", false},
		"a later one has gates no more": {"v1.41.0", withRules, "kubernetes_feature_enabled{name=\"Other\",stage=\"\"} 1\n", "", "", "", false},
		"an earlier one has not yet":    {"v1.32.0", "", "kubernetes_feature_enabled{name=\"Other\",stage=\"\"} 1\n", "resourceclaims DRAResourceClaimDeviceStatus DRADeviceTaintRules " + late, "", "the server does not serve", false},
		"metrics of something else":     {"v1.37.2", withRules, "up 1\n", "", late + " DRAResourceClaimDeviceStatus DRADeviceTaintRules", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := apiserver.Discover(t.Context(), server(t, c.version, c.resources, c.metrics))
			if err != nil {
				t.Fatal(err)
			}
			if s.Version != c.version || (s.Unread != "") != c.unread {
				t.Errorf("version %s, unread %q", s.Version, s.Unread)
			}
			first := ""
			for _, f := range s.Findings() {
				want := apiserver.On
				switch {
				case strings.Contains(" "+c.off+" ", " "+f.Feature+" "):
					want = apiserver.Off
				case strings.Contains(" "+c.presumed+" ", " "+f.Feature+" "):
					want = apiserver.Presumed
				}
				if f.State != want || (f.Reason != "") != (want == apiserver.Off) {
					t.Errorf("%s is %s (%s), want %s", f.Feature, f.State, f.Reason, want)
				}
				if first == "" {
					first = f.Reason
				}
			}
			if !strings.HasPrefix(first, c.reason) || c.reason == "" && first != "" {
				t.Errorf("reason %q, want %q", first, c.reason)
			}
		})
	}
	if _, err := apiserver.Discover(t.Context(), server(t, "no version", "", "")); err == nil || !strings.Contains(err.Error(), "version of the API server") {
		t.Errorf("a server without a version: %v", err)
	}
}

// TestDiscoverEnds: a server that does not answer is asked for no longer than the caller wants.
func TestDiscoverEnds(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		stop()
		<-r.Context().Done()
	}))
	defer s.Close()
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := apiserver.Discover(ctx, client); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
