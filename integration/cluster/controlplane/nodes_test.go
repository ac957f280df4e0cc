//go:build cluster

package controlplane_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/reconcile/pod/hostroutes"
)

func nodeWith(name, podCIDRs string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s}\nspec: {podCIDR: %s, podCIDRs: [%s]}\n", name, strings.Split(podCIDRs, ",")[0], podCIDRs)
}

// TestNodeCIDRs: an agent, with the rights that the chart gives it, hears of pod CIDRs and
// addresses of nodes, and is not woken by what else is written into their status. A kubelet
// may choose the CIDRs when it registers its node, and never again.
func TestNodeCIDRs(t *testing.T) {
	b := start(t)
	config, err := b.ServiceAccount(t.Context(), cluster.ProductNamespace, "plumbline-agent", cluster.TokenFor{})
	if err != nil {
		t.Fatal(err)
	}
	config.ContentType = runtime.ContentTypeProtobuf
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	var changed atomic.Int64
	nodes := &hostroutes.NodeClient{Kube: kube}
	if _, known := nodes.All(); known {
		t.Error("nodes are known before they are read")
	}
	b.mustKubectl(t, nodeWith("one", "10.244.1.0/24,fd00:244:0:1::/64"), "create", "-f", "-")
	nodes.Follow(t.Context(), true, func() { changed.Add(1) })
	status := func(node, patch string) {
		t.Helper()
		b.mustKubectl(t, "", "patch", "node", node, "--subresource=status", "--type=merge", "-p", `{"status": `+patch+`}`)
	}
	hears := func(what string, check func(n *hostroutes.Node) error) {
		t.Helper()
		b.eventually(t, what, func() error {
			all, known := nodes.All()
			if !known {
				return errors.New("the nodes are not known")
			}
			i := slices.IndexFunc(all, func(n hostroutes.Node) bool { return n.Name == "two" })
			if i < 0 {
				return check(nil)
			}
			return check(&all[i])
		})
	}
	with := func(ips ...string) func(n *hostroutes.Node) error {
		return func(n *hostroutes.Node) error {
			if n == nil || fmt.Sprint(n.PodCIDRs) != "[10.244.2.0/24 fd00:244:0:2::/64]" || fmt.Sprint(n.InternalIPs) != fmt.Sprint(ips) || n.Created.IsZero() {
				return fmt.Errorf("it is %+v", n)
			}
			return nil
		}
	}
	asKubelet := func(input string, arguments ...string) error {
		_, err := b.Kubectl(t.Context(), strings.NewReader(input), append(arguments, "--as=system:node:two", "--as-group=system:nodes", "--as-group=system:authenticated")...)
		return err
	}
	if err := asKubelet(nodeWith("two", "10.244.2.0/24,fd00:244:0:2::/64"), "create", "-f", "-"); err != nil {
		t.Errorf("a kubelet cannot choose the CIDRs of the node that it registers, so that docs/security.md is wrong: %v", err)
	}
	if err := asKubelet("", "patch", "node", "two", "--type=merge", "-p", `{"spec": {"podCIDR": "10.96.0.0/24", "podCIDRs": ["10.96.0.0/24"]}}`); err == nil {
		t.Error("a kubelet can change the CIDRs of its node")
	}
	if err := asKubelet("", "patch", "node", "one", "--subresource=status", "--type=merge", "-p", `{"status": {"addresses": []}}`); err == nil {
		t.Error("a kubelet can change the addresses of another node")
	}
	hears("the CIDRs of a node", with())
	status("two", `{"addresses": [{"type": "Hostname", "address": "two"}, {"type": "InternalIP", "address": "10.0.1.2"}, {"type": "InternalIP", "address": "fd00:a::2"}]}`)
	hears("its addresses", with("10.0.1.2", "fd00:a::2"))
	woken := func(want int64, by string) {
		t.Helper()
		b.eventually(t, "woken by "+by, func() error {
			if n := changed.Load(); n != want {
				return fmt.Errorf("woken %d times, want %d", n, want)
			}
			return nil
		})
	}
	woken(4, "the first list, two nodes, and addresses")
	for i := range 5 { // a heartbeat, and images
		status("two", fmt.Sprintf(`{"images": [{"names": ["image"], "sizeBytes": %d}]}`, i))
	}
	status("two", `{"addresses": [{"type": "InternalIP", "address": "10.0.1.7"}]}`)
	hears("another address", with("10.0.1.7"))
	woken(5, "one change of an address among others")
	b.mustKubectl(t, "", "delete", "node", "two")
	hears("that it is gone", func(n *hostroutes.Node) error {
		if n != nil {
			return fmt.Errorf("it is %+v", n)
		}
		return nil
	})
	nodes.Follow(t.Context(), false, nil)
	if _, known := nodes.All(); known {
		t.Error("nodes are known after nobody reads them")
	}
}
