package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// podServer is an API server with one pod, its claim and its topology. Other objects do not exist; who
// impersonates "nobody" may read nothing.
func podServer(t *testing.T) (kubeconfig string) {
	t.Helper()
	const classConfig = `{"source":"FromClass","requests":["vf0"],"opaque":{"driver":"dra.networking","parameters":{"networkTopologyRef":{"name":"ai","generation":1},"step":"vf0"}}}`
	answers := map[string]string{
		"/version":                          `{"major":"1","minor":"36","gitVersion":"v1.36.3"}`,
		"/apis/resource.k8s.io/v1":          `{"kind":"APIResourceList","groupVersion":"resource.k8s.io/v1","resources":[{"name":"resourceclaims","kind":"ResourceClaim"}]}`,
		"/api/v1/namespaces/shop/pods":      `{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"web"}},{"metadata":{"name":"bare"}}]}`,
		"/api/v1/namespaces/shop/pods/web":  `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","namespace":"shop","uid":"1"},"spec":{"nodeName":"n1","resourceClaims":[{"name":"net","resourceClaimName":"net"}]},"status":{"phase":"Running"}}`,
		"/api/v1/namespaces/shop/pods/bare": `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"bare","namespace":"shop","uid":"2"},"spec":{"nodeName":"n1"},"status":{"phase":"Running"}}`,
		"/apis/resource.k8s.io/v1/namespaces/shop/resourceclaims/net": `{"kind":"ResourceClaim","apiVersion":"resource.k8s.io/v1","metadata":{"name":"net","namespace":"shop"},"status":{
"allocation":{"devices":{"results":[{"request":"vf0","driver":"dra.networking","pool":"n1","device":"pci-0"}],"config":[` + classConfig + `]}},
"devices":[{"driver":"dra.networking","pool":"n1","device":"pci-0","networkData":{"interfaceName":"net1"},
"data":{"topology":"ai","generation":1,"step":"vf0","steps":[{"name":"data","type":"vlan","result":{"interfaces":[{"name":"data","sandbox":"/n"}],"ips":[{"address":"192.0.2.5/24","interface":0}]}}]},
"conditions":[{"type":"Ready","status":"True"},{"type":"InSync","status":"True"},{"type":"LinkUp","status":"False","reason":"NoCarrier","message":"no carrier"}]}]}}`,
		"/apis/networking.dra.io/v1alpha1/networktopologies/ai": `{"kind":"NetworkTopology","apiVersion":"networking.dra.io/v1alpha1","metadata":{"name":"ai","generation":2},
"spec":{"steps":[{"name":"data","type":"vlan","dependOn":["vf0"],"config":{"id":100}},{"name":"vf0","type":"sriov"}]}}`,
		"/api/v1/namespaces/shop/events": `{"kind":"EventList","apiVersion":"v1","items":[{"metadata":{"name":"e"},"type":"Normal","reason":"NetworkReady","message":"2 steps done","count":1,
"source":{"component":"plumbline"},"involvedObject":{"kind":"Pod","name":"web","uid":"1"},"lastTimestamp":"2026-11-01T12:00:00Z"}]}`,
	}
	// For plumbline maintain.
	const rule = `{"kind":"DeviceTaintRule","apiVersion":"resource.k8s.io/v1","metadata":{"name":"plumbline-maintain-n1-pci-0","uid":"1","annotations":{"dra.networking/maintain":"n1/eth0"}},"spec":{"deviceSelector":{"pool":"n1","device":"pci-0"}}}`
	answers["POST /apis/resource.k8s.io/v1/devicetaintrules"] = rule
	answers["DELETE /apis/resource.k8s.io/v1/devicetaintrules/plumbline-maintain-n1-pci-0"] = rule
	answers["/apis/resource.k8s.io/v1/devicetaintrules"] = `{"kind":"DeviceTaintRuleList","apiVersion":"resource.k8s.io/v1","items":[` + rule + `]}`
	answers["/apis/resource.k8s.io/v1/resourceslices"] = `{"kind":"ResourceSliceList","apiVersion":"resource.k8s.io/v1","items":[{"spec":{"pool":{"name":"n1"},"devices":[{"name":"pci-0","attributes":{"ifName":{"string":"eth0"}}}]}}]}`
	answers["/apis/resource.k8s.io/v1/resourceclaims"] = `{"kind":"ResourceClaimList","apiVersion":"resource.k8s.io/v1","items":[{"metadata":{"name":"net","namespace":"shop"},"status":{
"allocation":{"devices":{"results":[{"driver":"dra.networking","pool":"n1","device":"pci-0"}]}},"reservedFor":[{"resource":"pods","name":"web"}]}}]}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		asked := r.URL.Path
		if r.Method != http.MethodGet {
			asked = r.Method + " " + asked
		}
		answer, there := answers[asked]
		switch {
		case r.Header.Get("Impersonate-User") == "nobody":
			w.WriteHeader(http.StatusForbidden)
			answer = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"not for nobody"}`
		case !there:
			w.WriteHeader(http.StatusNotFound)
			answer = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"there is none"}`
		}
		_, _ = w.Write([]byte(answer))
	}))
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion":"v1","kind":"Config","current-context":"elsewhere","clusters":[{"name":"c","cluster":{"server":"` + server.URL + `"}}],"users":[{"name":"u","user":{}}],
"contexts":[{"name":"shop","context":{"cluster":"c","user":"u","namespace":"shop"}},{"name":"elsewhere","context":{"cluster":"c","user":"u"}}]}`
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// TestPod: the commands about a pod, as kubectl calls them, with its flags.
func TestPod(t *testing.T) {
	kubeconfig := podServer(t)
	t.Setenv("KUBECONFIG", kubeconfig)
	for _, c := range []struct {
		called, args string
		code         int
		out, err     string
	}{
		{"/usr/bin/kubectl-plumbline", "status web -n shop", 2, `pod shop/web on node n1: Running

claim net: Allocated
topology ai, generation 1
  STEP  DEVICE  INTERFACE  ADDRESSES     STATE
  vf0   pci-0   net1       -             Ready, InSync, not LinkUp (NoCarrier)
  data  (vlan)  data       192.0.2.5/24  

2026-11-01T12:00:00Z  Normal  NetworkReady  2 steps done
`, ""},
		{"kubectl-plumbline", "plan pod/web --context shop", 0, `pod shop/web on node n1: Running

topology ai, generation 2: the pod has generation 1, see explain
  STEP  TYPE   ON            INTERFACE
  vf0   sriov  device pci-0  net1
  data  vlan   vf0           data
`, ""},
		{"plumbline", "pod explain web -n shop", 2, `pod shop/web on node n1: Running
! step "vf0", device "pci-0": its port is not up (NoCarrier): no carrier
  look at cable, switch and PF of the port (docs/health.md)
~ the pod has generation 1 of topology "ai", which has generation 2 now
  it keeps that, since the topology has updatePolicy: Immutable; delete the pod, so that its next one gets the change
`, ""},
		{"kubectl-plumbline", "status bare -n shop", 0, "pod shop/bare on node n1: Running\nIt has no claim: see kubectl plumbline explain bare -n shop.\n", ""},
		{"kubectl-plumbline", "plan bare -n shop", 0, "pod shop/bare on node n1: Running\nNo topology of its claims is known: see kubectl plumbline explain bare -n shop.\n", ""},
		{"kubectl-plumbline", "explain bare -n shop -o json", 0, `"problem": false`, ""},
		{"kubectl-plumbline", "status web", 1, "", `pod "web" does not exist in namespace "default": name another namespace with -n`},
		{"kubectl-plumbline", "status web -n shop --as nobody", 1, "", `--as: either user "nobody" may not read this, or you may not impersonate that user: you may not read pod "web" in namespace "shop": ask for the ClusterRole view in that namespace: not for nobody`},
		{"kubectl-plumbline", "status", 1, "", "name one pod, as in web-0: see `kubectl plumbline status --help`"},
		{"kubectl-plumbline", "statsu web", 1, "", `unknown command "statsu", did you mean "status"?`},
		{"kubectl-plumbline", "status web --context none", 1, "", `--kubeconfig: context "none" does not exist`},
		{"kubectl-plumbline", "status web --nowhere", 1, "", "see `kubectl plumbline status --help`"},
		{"kubectl-plumbline", "version", 0, "plumbline ", ""},
		{"kubectl_complete-plumbline", "status --namespace shop w", 0, "web\n", ""},
		{"kubectl_complete-plumbline", "status --context sh", 0, "shop\n", ""},
		{"kubectl_complete-plumbline", "ex", 0, "explain\t", ""},
	} {
		t.Run(c.called+" "+c.args, func(t *testing.T) {
			var out, errs bytes.Buffer
			std := stdio{strings.NewReader(""), &out, &errs}
			cmd, args := program(c.called, strings.Fields(c.args), std)
			code := runCommand(t.Context(), cmd, args, std)
			whole := strings.HasPrefix(c.out, "pod ")
			if code != c.code || whole && out.String() != c.out || !strings.Contains(out.String(), c.out) || c.out == "" && out.Len() > 0 || c.err != "" && !strings.Contains(errs.String(), c.err) {
				t.Errorf("%d, printed\n%s%s\nwant %d\n%s%s", code, out.String(), errs.String(), c.code, c.out, c.err)
			}
		})
	}

	var out bytes.Buffer
	std := stdio{strings.NewReader(""), &out, &out}
	cmd, args := program("kubectl-plumbline", []string{"status", "web", "-n", "shop", "-o", "json"}, std)
	if code := runCommand(t.Context(), cmd, args, std); code != exitDiffers {
		t.Errorf("status -o json: %d", code)
	}
	var s struct {
		Node   string
		Claims []struct{ Uses []struct{ Topology string } }
	}
	if err := json.Unmarshal(out.Bytes(), &s); err != nil || s.Node != "n1" || len(s.Claims) != 1 || len(s.Claims[0].Uses) != 1 || s.Claims[0].Uses[0].Topology != "ai" {
		t.Errorf("%v: %s", err, out.String())
	}
}

// TestVersionOfCluster: what the server lacks is named with what that means, and that its gates could not be read.
func TestVersionOfCluster(t *testing.T) {
	t.Setenv("KUBECONFIG", podServer(t))
	for _, c := range []struct {
		args     string
		code     int
		out, err string
	}{
		{"version --cluster", 0, "\nKubernetes v1.36.3\n\nFEATURE                       STATE          USED FOR\nresourceclaims                on             claims, classes and devices\n", "note: the feature gates of the API server cannot be read, which needs get on the URL /metrics"},
		{"version --cluster", 0, "\nDRADeviceTaintRules is off: the server does not serve devicetaintrules of resource.k8s.io/v1, which Kubernetes 1.37 does by default; plumbline maintain fails, with the reason.\n", ""},
		{"version --cluster -o json", 0, `"cluster": "v1.36.3"`, ""},
		{"version --context shop", 1, "", "--kubeconfig and --context: are of use with --cluster only"},
		{"version --cluster --context none", 1, "", `context "none" does not exist`},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), strings.Fields(c.args), stdio{strings.NewReader(""), &out, &errs})
		if code != c.code || !strings.Contains(out.String(), c.out) || !strings.Contains(errs.String(), c.err) {
			t.Errorf("%s: %d, printed\n%s%s\nwant %d\n%s%s", c.args, code, out.String(), errs.String(), c.code, c.out, c.err)
		}
	}
}

// TestMaintain: what a script reads of plumbline maintain.
func TestMaintain(t *testing.T) {
	t.Setenv("KUBECONFIG", podServer(t))
	const pods = `"pods":[{"claim":"net","device":{"name":"pci-0","node":"n1"},"namespace":"shop","pod":"web"}]`
	for args, want := range map[string]string{
		"maintain n1/eth0 -o json":         `{"devices":[{"name":"pci-0","node":"n1"}],"evicted":false,"inService":false,` + pods + `}`,
		"maintain n1/eth0 --evict -o yaml": `{"devices":[{"name":"pci-0","node":"n1"}],"evicted":true,"inService":false,` + pods + `}`,
		"maintain n1/eth0 --done -o json":  `{"devices":[{"name":"pci-0","node":"n1"}],"evicted":false,"inService":true,"pods":[]}`,
		"maintain n1/eth0":                 "n1/pci-0\n  shop/web (claim net): would be evicted\nNothing is evicted, and new pods still get these devices, until plumbline maintain n1/eth0 --evict.\n",
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), strings.Fields(args), stdio{strings.NewReader(""), &out, &errs})
		have := out.String()
		if strings.Contains(args, "-o") {
			var document any
			if err := yaml.Unmarshal(out.Bytes(), &document); err != nil {
				t.Fatal(err)
			}
			sorted, err := json.Marshal(document)
			if err != nil {
				t.Fatal(err)
			}
			have = string(sorted)
		}
		if code != 0 || have != want || errs.Len() > 0 {
			t.Errorf("%s: %d, printed\n%s%s\nwant\n%s", args, code, have, errs.String(), want)
		}
	}
}
