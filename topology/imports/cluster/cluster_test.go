package cluster_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	godiff "github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"k8s.io/client-go/rest"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/imports"
	"github.com/plumbline/plumbline/topology/imports/cluster"
	"github.com/plumbline/plumbline/topology/networkstatus"
)

// server answers discovery and lists as an API server does, in pages.
type server struct {
	objects   map[string][]map[string]any // by path, as /apis/apps/v1/deployments
	forbidden map[string]bool             // by resource
	expire    int                         // pages after which continue tokens have expired, once
	silent    string                      // the resource whose list never ends
	calls     []string
	unserved  map[string]bool // kinds
}

func resourceOf(kind string) string {
	if stem, ok := strings.CutSuffix(strings.ToLower(kind), "y"); ok {
		return stem + "ies"
	}
	if strings.HasSuffix(kind, "ss") {
		return strings.ToLower(kind) + "es"
	}
	return strings.ToLower(kind) + "s"
}

// versions are those of the groups; the first one is preferred.
var versions = map[string][]string{"resource.k8s.io": {"v1", "v1beta1"}, "k8s.cni.cncf.io": {"v1"}}

func versionsOf(group string) []string {
	if v := versions[group]; v != nil {
		return v
	}
	return []string{"v1"}
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.calls = append(s.calls, r.Method+" "+r.URL.String())
	part := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	answer := func(code int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(v)
	}
	status := func(code int, reason, message string) {
		answer(code, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message, "code": code})
	}
	switch {
	case r.URL.Path == "/api":
		answer(200, map[string]any{"kind": "APIVersions", "versions": []string{"v1"}})
	case r.URL.Path == "/apis":
		answer(200, map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": s.groups()})
	case part[0] == "api" && len(part) == 2:
		answer(200, s.resources("", part[1]))
	case part[0] == "apis" && len(part) == 3:
		answer(200, s.resources(part[1], part[2]))
	default:
		resource := part[len(part)-1]
		switch {
		case s.forbidden[resource]:
			status(403, "Forbidden", resource+` is forbidden: User "reader" cannot list it`)
		case s.silent == resource:
			<-r.Context().Done()
		default:
			s.list(r, part, answer, status)
		}
	}
}

func (s *server) groups() (out []any) {
	seen := map[string]bool{"": true}
	for _, from := range imports.Sources(true) {
		if seen[from.Group] || s.unserved[from.Group] {
			continue
		}
		seen[from.Group] = true
		var list []any
		for _, v := range versionsOf(from.Group) {
			list = append(list, map[string]any{"groupVersion": from.Group + "/" + v, "version": v})
		}
		out = append(out, map[string]any{"name": from.Group, "versions": list, "preferredVersion": list[0]})
	}
	return out
}

func (s *server) resources(group, version string) any {
	list := []any{}
	for _, from := range imports.Sources(true) {
		if from.Group != group || s.unserved[from.Kind] {
			continue
		}
		global := slices.Contains([]string{"DeviceClass", "CIDR", "HostInterface", "MultiNicNetwork", "MacvlanNetwork", "HostDeviceNetwork", "IPoIBNetwork", "ClusterUserDefinedNetwork"}, from.Kind)
		list = append(list,
			map[string]any{"name": resourceOf(from.Kind), "kind": from.Kind, "namespaced": !global, "verbs": []string{"get", "list"}},
			map[string]any{"name": resourceOf(from.Kind) + "/status", "kind": from.Kind, "namespaced": !global, "verbs": []string{"get"}})
	}
	return map[string]any{"kind": "APIResourceList", "groupVersion": strings.TrimPrefix(group+"/"+version, "/"), "resources": list}
}

func (s *server) list(r *http.Request, part []string, answer func(int, any), status func(int, string, string)) {
	group, resource, namespace := "", part[len(part)-1], ""
	if part[0] == "apis" {
		group = part[1]
	}
	if i := slices.Index(part, "namespaces"); i > 0 {
		namespace = part[i+1]
	}
	var all []map[string]any
	for _, o := range s.objects[group+"/"+resource] {
		if meta, _ := o["metadata"].(map[string]any); namespace == "" || meta["namespace"] == namespace {
			all = append(all, o)
		}
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	if from > 0 && s.expire == 1 {
		s.expire = 0
		status(410, "Expired", "The provided continue parameter is too old")
		return
	}
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	to := min(from+limit, len(all))
	meta := map[string]any{"resourceVersion": "7"}
	if to < len(all) {
		meta["continue"] = strconv.Itoa(to)
	}
	items := all[from:to]
	if items == nil {
		items = []map[string]any{}
	}
	answer(200, map[string]any{"kind": "List", "apiVersion": "v1", "metadata": meta, "items": items})
}

// add serves an object, of a kind that is read.
func (s *server) add(o map[string]any) bool {
	kind, _ := o["kind"].(string)
	version, _ := o["apiVersion"].(string)
	group, _, grouped := strings.Cut(version, "/")
	if !grouped {
		group = ""
	}
	for _, from := range imports.Sources(true) {
		if from.Kind == kind && from.Group == group {
			if s.objects == nil {
				s.objects = map[string][]map[string]any{}
			}
			s.objects[group+"/"+resourceOf(kind)] = append(s.objects[group+"/"+resourceOf(kind)], o)
			return true
		}
	}
	return false
}

func read(t *testing.T, s *server, limits cluster.Limits, scope cluster.Scope) (cluster.Inventory, error) {
	t.Helper()
	web := httptest.NewServer(s)
	defer web.Close()
	reader, err := cluster.New(&rest.Config{Host: web.URL, QPS: -1}, limits)
	if err != nil {
		t.Fatal(err)
	}
	return reader.Read(t.Context(), scope)
}

// TestAsFromFiles is the law of the command: the same objects become the same, wherever they are read.
func TestAsFromFiles(t *testing.T) {
	set, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases", err)
	}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		f, err := topology.Parse("", archive.Files[0].Data)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			s := &server{}
			var served []map[string]any
			names := map[string]bool{}
			for _, o := range f.Values() {
				meta, _ := o["metadata"].(map[string]any)
				name := fmt.Sprint(o["kind"], meta["namespace"], meta["name"])
				if meta["name"] != nil && !names[name] && s.add(o) {
					served = append(served, o)
					names[name] = true
				}
			}
			limits := cluster.Defaults
			limits.Page = 2
			found, err := read(t, s, limits, cluster.Scope{Pods: true})
			if err != nil {
				t.Fatal(err)
			}
			if diff := godiff.Diff(converted(t, set, served), converted(t, set, found.Objects)); diff != "" {
				t.Errorf("(-of files +of the cluster):\n%s", diff)
			}
			for _, call := range s.calls {
				if !strings.HasPrefix(call, "GET ") {
					t.Errorf("%s: only reads", call)
				}
			}
		})
	}
}

func converted(t *testing.T, set contract.Set, objects []map[string]any) string {
	t.Helper()
	r, err := imports.Convert(t.Context(), objects, imports.Options{Set: set, Namespace: "default", ResourcePrefix: "openshift.io", Pods: true})
	if err != nil {
		t.Fatal(err)
	}
	var problems []string
	for _, p := range r.Problems {
		problems = append(problems, p.String())
	}
	text, err := json.MarshalIndent([]any{r.Objects, r.Patches, problems}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func definition(namespace, name string) map[string]any {
	return map[string]any{"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": map[string]any{"namespace": namespace, "name": name}, "spec": map[string]any{"config": "{}"}}
}

func podOf(namespace, name, owner string, annotations map[string]any) map[string]any {
	meta := map[string]any{"namespace": namespace, "name": name, "annotations": annotations}
	if owner != "" {
		kind, of, _ := strings.Cut(owner, "/")
		meta["ownerReferences"] = []any{map[string]any{"kind": kind, "name": of}}
	}
	return map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": meta}
}

func ids(objects []map[string]any) (out []string) {
	for _, o := range objects {
		meta, _ := o["metadata"].(map[string]any)
		out = append(out, strings.TrimPrefix(fmt.Sprint(o["kind"], " ", cmp.Or(meta["namespace"], any("")), "/", meta["name"]), " "))
	}
	return out
}

// TestWhatIsRead is which objects of a cluster count.
func TestWhatIsRead(t *testing.T) {
	claim := func(kind, name, class, owner string) map[string]any {
		o := podOf("shop", name, owner, nil)
		o["apiVersion"], o["kind"] = "resource.k8s.io/v1", kind
		o["spec"] = map[string]any{"devices": map[string]any{"requests": []any{map[string]any{"name": "r", "exactly": map[string]any{"deviceClassName": class}}}}}
		return o
	}
	class := func(name, expression string) map[string]any {
		return map[string]any{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": map[string]any{"name": name}, "spec": map[string]any{"selectors": []any{map[string]any{"cel": map[string]any{"expression": expression}}}}}
	}
	sriov := func(name, target string) map[string]any {
		return map[string]any{"apiVersion": "sriovnetwork.openshift.io/v1", "kind": "SriovNetwork", "metadata": map[string]any{"namespace": "operator", "name": name}, "spec": map[string]any{"networkNamespace": target}}
	}
	pool := map[string]any{"apiVersion": "whereabouts.cni.cncf.io/v1", "kind": "IPPool", "metadata": map[string]any{"namespace": "kube-system", "name": "p"}, "spec": map[string]any{}}
	ours := map[string]any{networkstatus.Annotation: "[]", networkstatus.Mark: networkstatus.Digest("[]")}
	oursToo := map[string]any{networkstatus.Annotation: "[]", networkstatus.Mark: networkstatus.Digest("[]"), "k8s.v1.cni.cncf.io/networks": "a"}
	networks, status := map[string]any{"k8s.v1.cni.cncf.io/networks": "a"}, map[string]any{"k8s.v1.cni.cncf.io/network-status": "[]"}
	replicas := podOf("shop", "web-1", "Deployment/web", nil)
	replicas["apiVersion"], replicas["kind"] = "apps/v1", "ReplicaSet"
	replicas["spec"] = map[string]any{"template": map[string]any{"metadata": map[string]any{"annotations": networks}}}
	deployment := podOf("shop", "web", "", nil)
	deployment["apiVersion"], deployment["kind"], deployment["spec"] = "apps/v1", "Deployment", replicas["spec"]
	s := &server{unserved: map[string]bool{"CIDRPool": true, "multinic.fms.io": true}}
	for _, o := range []map[string]any{
		definition("shop", "a"), definition("other", "b"), pool,
		sriov("for-shop", "shop"), sriov("for-other", "other"),
		class("nic", `device.driver == "dra.net"`), class("gpu", `device.driver == "gpu.example.com"`),
		claim("ResourceClaim", "nic", "nic", ""), claim("ResourceClaim", "gpu", "gpu", ""), claim("ResourceClaim", "made", "nic", "Pod/web-1-a"),
		claim("ResourceClaimTemplate", "dranet", "dra.net", ""), claim("ResourceClaimTemplate", "vf", "plumbline-vf", ""),
		podOf("shop", "plain", "", nil), podOf("shop", "alone", "", networks), podOf("other", "far", "", networks),
		podOf("shop", "web-1-a", "ReplicaSet/web-1", networks), podOf("shop", "web-1-b", "ReplicaSet/web-1", status), podOf("shop", "leased", "", ours),
		podOf("shop", "web-1-c", "ReplicaSet/web-1", oursToo), podOf("shop", "lost", "ReplicaSet/gone", networks),
		replicas, deployment,
	} {
		if !s.add(o) {
			t.Fatalf("%s is not read", ids([]map[string]any{o}))
		}
	}
	all, err := read(t, s, cluster.Defaults, cluster.Scope{Pods: true})
	if err != nil {
		t.Fatal(err)
	}
	of, err := read(t, s, cluster.Defaults, cluster.Scope{Pods: true, Namespace: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	withoutPods, err := read(t, s, cluster.Defaults, cluster.Scope{})
	if err != nil {
		t.Fatal(err)
	}
	networksOnly := []string{
		"DeviceClass /nic", "IPPool kube-system/p", "NetworkAttachmentDefinition shop/a", "NetworkAttachmentDefinition other/b",
		"ResourceClaim shop/nic", "ResourceClaimTemplate shop/dranet", "SriovNetwork operator/for-shop", "SriovNetwork operator/for-other",
	}
	workloads := []string{"Deployment shop/web", "Pod shop/alone", "Pod other/far", "Pod shop/web-1-b", "Pod shop/lost"}
	sorted := func(lists ...[]string) []string { return slices.Sorted(slices.Values(slices.Concat(lists...))) }
	for what, c := range map[string]struct{ want, got []string }{
		"all namespaces": {sorted(networksOnly, workloads), sorted(ids(all.Objects))},
		"one namespace":  {slices.DeleteFunc(sorted(networksOnly, workloads), func(id string) bool { return strings.Contains(id, "other") }), sorted(ids(of.Objects))},
		"without pods":   {sorted(networksOnly), sorted(ids(withoutPods.Objects))},
		"not served":     {[]string{"CIDR.multinic.fms.io", "CIDRPool.nv-ipam.nvidia.com", "HostInterface.multinic.fms.io", "MultiNicNetwork.multinic.fms.io"}, all.NotServed},
	} {
		if diff := godiff.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
}

// TestWhatIsMissing: a reading that ends early returns nothing.
func TestWhatIsMissing(t *testing.T) {
	many := func() *server {
		s := &server{}
		for i := range 9 {
			s.add(definition("shop", fmt.Sprint("n", i)))
		}
		return s
	}
	small := cluster.Limits{Objects: 100, Bytes: 1 << 20, Page: 2, Time: time.Minute}
	with := func(change func(*cluster.Limits)) cluster.Limits {
		l := small
		change(&l)
		return l
	}
	for _, c := range []struct {
		name    string
		server  *server
		limits  cluster.Limits
		want    []string
		tooMuch bool
	}{
		{"two kinds are forbidden", &server{forbidden: map[string]bool{"ippools": true, "deviceclasses": true}}, small, []string{
			`IPPool cannot be read: the right "list" on ippools.whereabouts.cni.cncf.io in all namespaces is missing: ippools is forbidden`,
			`IPPool cannot be read: the right "list" on ippools.nv-ipam.nvidia.com in all namespaces is missing`,
			`DeviceClass cannot be read: the right "list" on deviceclasses.resource.k8s.io of the cluster is missing`,
		}, false},
		{"more objects", many(), with(func(l *cluster.Limits) { l.Objects = 8 }), []string{"more than 8 objects: read a namespace with -n"}, true},
		{"more bytes", many(), with(func(l *cluster.Limits) { l.Bytes = 64 << 10; l.Page = 1 }), nil, false}, // enough
		{"too many bytes", many(), with(func(l *cluster.Limits) { l.Bytes = 5 << 10 }), []string{"more than 0 MiB: read a namespace with -n"}, true},
		{"no answer", &server{silent: "ippools"}, with(func(l *cluster.Limits) { l.Time = 300 * time.Millisecond }), []string{"list of ippools.", "the cluster was not read within 300ms"}, true},
		{"an expired page", func() *server { s := many(); s.expire = 1; return s }(), small, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			found, err := read(t, c.server, c.limits, cluster.Scope{})
			if len(c.want) == 0 {
				if err != nil || len(found.Objects) != 9 {
					t.Errorf("%v, %v: want 9 objects", ids(found.Objects), err)
				}
				return
			}
			if err == nil || errors.Is(err, cluster.ErrTooMuch) != c.tooMuch || found.Objects != nil {
				t.Fatalf("%v, %v: want an error alone", ids(found.Objects), err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v\nlacks %q", err, want)
				}
			}
		})
	}
}
