package hostroutes

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// NodeClient reads the nodes of the cluster. It needs: list and watch on nodes. A selector
// cannot restrict a watch to the fields of a node that matter, so that events arrive for all
// that kubelets write; of a node only what Node has is kept.
type NodeClient struct {
	Kube kubernetes.Interface

	mu       sync.Mutex
	followed *following[cachedNode]
}

var _ Nodes = (*NodeClient)(nil)

// cachedNode is a node in the cache of an informer.
type cachedNode struct {
	metav1.ObjectMeta
	Node
}

// Follow implements Nodes.
func (c *NodeClient) Follow(ctx context.Context, on bool, changed func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !on && c.followed != nil {
		c.followed.stop()
		c.followed = nil
	}
	if !on || c.followed != nil {
		return
	}
	i := coreinformers.NewFilteredNodeInformer(c.Kube, 0, cache.Indexers{}, nil)
	c.followed = follow(ctx, i, trimNode, func(a, b *cachedNode) bool { return sameNode(&a.Node, &b.Node) }, changed)
}

// All implements Nodes.
func (c *NodeClient) All() ([]Node, bool) {
	c.mu.Lock()
	f := c.followed
	c.mu.Unlock()
	nodes, known := f.all()
	var out []Node
	for _, n := range nodes {
		out = append(out, n.Node)
	}
	return out, known
}

func sameNode(a, b *Node) bool {
	return a.Created.Equal(b.Created) && slices.Equal(a.PodCIDRs, b.PodCIDRs) && slices.Equal(a.InternalIPs, b.InternalIPs)
}

// Bounds of what is kept of a node: the API server accepts a CIDR of each family, and any number
// of addresses.
const (
	maxCIDRs       = 2
	maxInternalIPs = 16
)

// trimNode keeps of a node what routes follow from: there may be thousands.
func trimNode(v any) (any, error) {
	n, ok := v.(*corev1.Node)
	if !ok {
		return v, nil
	}
	out := &cachedNode{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion},
		Node:       Node{Name: n.Name, Created: n.CreationTimestamp.Time},
	}
	for _, text := range n.Spec.PodCIDRs[:min(len(n.Spec.PodCIDRs), maxCIDRs)] {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			p = netip.Prefix{}
		}
		out.PodCIDRs = append(out.PodCIDRs, p)
	}
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		// A zone is text of any length, and no address of another host has one.
		if a.Type == corev1.NodeInternalIP && err == nil && ip.Zone() == "" && len(out.InternalIPs) < maxInternalIPs {
			out.InternalIPs = append(out.InternalIPs, ip)
		}
	}
	return out, nil
}
