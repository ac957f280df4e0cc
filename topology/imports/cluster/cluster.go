// Package cluster reads from an API server the objects that the package imports converts. It only lists: it needs the right
// "list" on each served kind, and changes nothing.
//
// A kind that cannot be read is an error, never an absence: an AddressPool made without the allocations of whereabouts would give
// the addresses of running pods again.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/plumbline/plumbline/topology/imports"
)

// Limits of one reading.
type Limits struct {
	Objects int           // that are kept
	Bytes   int64         // of all answers of the API server, decompressed
	Page    int64         // objects of one answer
	Time    time.Duration // of the whole reading
}

// Defaults are the limits of the command line: a cluster with 20,000 pods is within them.
var Defaults = Limits{Objects: 50_000, Bytes: 256 << 20, Page: 250, Time: 2 * time.Minute}

// Reader reads the objects of a cluster.
type Reader struct {
	limits    Limits
	left      *atomic.Int64 // bytes
	discovery discovery.DiscoveryInterfaceWithContext
	dynamic   dynamic.Interface
}

// New makes a Reader with a configuration of client-go.
func New(config *rest.Config, limits Limits) (*Reader, error) {
	config = rest.CopyConfig(config)
	r := &Reader{limits: limits, left: new(atomic.Int64)}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return metered{next, r.left} })
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	r.discovery = client
	if r.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	return r, nil
}

// Scope limits which objects of a cluster are read.
type Scope struct {
	Namespace string // of networks and pods; "" for all
	Pods      bool   // workloads, too
}

// Inventory holds the objects of a cluster.
type Inventory struct {
	Objects   []map[string]any // as they are in JSON
	Read      []string         // the kinds that were read, with the number of objects, as 3 IPPool.whereabouts.cni.cncf.io
	NotServed []string         // the kinds that the API server does not have, as CIDR.multinic.fms.io
}

// ErrTooMuch is the error for a cluster with more than the limits.
var ErrTooMuch = errors.New("read a namespace with -n, or write the objects into files and name them with -f")

// Read lists the objects. Its error names all kinds that could not be read.
func (r *Reader) Read(ctx context.Context, scope Scope) (Inventory, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.limits.Time,
		fmt.Errorf("the cluster was not read within %s: %w", r.limits.Time, ErrTooMuch))
	defer cancel()
	ctx = klog.NewContext(ctx, logr.Discard()) // client-go logs what it returns, too
	r.left.Store(r.limits.Bytes)
	groups, err := r.discovery.ServerGroupsWithContext(ctx)
	if err != nil {
		return Inventory{}, fmt.Errorf("API server: its groups: %w", r.because(ctx, err))
	}
	var out Inventory
	var failures []error
	for _, from := range imports.Sources(scope.Pods) {
		resource, served, err := r.find(ctx, groups, from)
		if err == nil && !served {
			out.NotServed = append(out.NotServed, from.String())
			continue
		}
		var objects []map[string]any
		if err == nil {
			objects, err = r.list(ctx, resource, from, scope, r.limits.Objects-len(out.Objects))
		}
		if err != nil {
			failures = append(failures, err)
			if errors.Is(err, ErrTooMuch) || ctx.Err() != nil {
				break // the next kind would say the same
			}
			continue
		}
		out.Objects = append(out.Objects, objects...)
		out.Read = append(out.Read, fmt.Sprintf("%d %s", len(objects), from))
	}
	if len(failures) > 0 {
		return Inventory{}, errors.Join(failures...)
	}
	out.Objects = imports.Relevant(out.Objects)
	return out, nil
}

// find finds the resource of a kind, in the version that the API server prefers or else in another.
func (r *Reader) find(ctx context.Context, groups *metav1.APIGroupList, from imports.Source) (metav1.APIResource, bool, error) {
	i := slices.IndexFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == from.Group })
	if i < 0 {
		return metav1.APIResource{}, false, nil
	}
	versions := []string{groups.Groups[i].PreferredVersion.Version}
	for _, v := range groups.Groups[i].Versions {
		if !slices.Contains(versions, v.Version) {
			versions = append(versions, v.Version)
		}
	}
	for _, v := range versions {
		gv := schema.GroupVersion{Group: from.Group, Version: v}
		list, err := r.discovery.ServerResourcesForGroupVersionWithContext(ctx, gv.String())
		if err != nil {
			return metav1.APIResource{}, false,
				fmt.Errorf("%s: the API server does not list the resources of %s: %w", from, gv, r.because(ctx, err))
		}
		for _, resource := range list.APIResources {
			if resource.Kind == from.Kind && !strings.Contains(resource.Name, "/") {
				resource.Group, resource.Version = gv.Group, gv.Version
				return resource, true, nil
			}
		}
	}
	return metav1.APIResource{}, false, nil
}

// list reads the objects of a kind, page by page.
func (r *Reader) list(ctx context.Context, resource metav1.APIResource, from imports.Source, scope Scope,
	atMost int,
) ([]map[string]any, error) {
	gvr := schema.GroupVersionResource{Group: resource.Group, Version: resource.Version, Resource: resource.Name}
	var of dynamic.ResourceInterface = r.dynamic.Resource(gvr)
	where := "in all namespaces"
	switch {
	case !resource.Namespaced:
		where = "of the cluster"
	case scope.Namespace != "" && !from.Everywhere:
		of, where = r.dynamic.Resource(gvr).Namespace(scope.Namespace), fmt.Sprintf("in namespace %q", scope.Namespace)
	}
	again := true
	for {
		out, err := r.pages(ctx, of, scope, atMost)
		switch {
		case err == nil:
			return out, nil
		case apierrors.IsResourceExpired(err) && again: // between two pages: the list begins anew, so that it is of one moment
			again = false
			continue
		case apierrors.IsForbidden(err):
			return nil,
				fmt.Errorf("%s cannot be read: the right \"list\" on %s %s is missing: %w", from.Kind, gvr.GroupResource(), where, err)
		}
		return nil, fmt.Errorf("%s cannot be read: list of %s %s: %w", from.Kind, gvr.GroupResource(), where, r.because(ctx, err))
	}
}

func (r *Reader) pages(ctx context.Context, of dynamic.ResourceInterface, scope Scope, atMost int) (out []map[string]any, err error) {
	for next := ""; ; {
		page, err := of.List(ctx, metav1.ListOptions{Limit: r.limits.Page, Continue: next})
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			object := page.Items[i]
			object.SetManagedFields(nil)
			if !imports.Concerned(object.Object, scope.Namespace) {
				continue
			}
			if out = append(out, object.Object); len(out) > atMost {
				return nil, fmt.Errorf("more than %d objects: %w", r.limits.Objects, ErrTooMuch)
			}
		}
		if next = page.GetContinue(); next == "" {
			return out, nil
		}
	}
}

// because is the error of a request, or the reason for which the reading has ended.
func (r *Reader) because(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if r.left.Load() < 0 { // client-go does not wrap what reading a body returns
		return fmt.Errorf("more than %d MiB: %w", r.limits.Bytes>>20, ErrTooMuch)
	}
	return err
}

// metered counts the bytes of all answers, and ends them when none are left: a page has at most so many objects, but an
// object may have 1.5 MiB.
type metered struct {
	next http.RoundTripper
	left *atomic.Int64
}

func (m metered) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := m.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	answer.Body = meteredBody{answer.Body, m.left}
	return answer, nil
}

type meteredBody struct {
	io.ReadCloser
	left *atomic.Int64
}

func (b meteredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left.Add(-int64(n)) < 0 {
		return n, ErrTooMuch
	}
	return n, err
}
