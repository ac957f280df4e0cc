package watchstore_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/plumbline/plumbline/topology/watchstore"
)

// paged is an API with two pages of one object, or an error.
type paged struct {
	failed  error
	options []metav1.ListOptions
}

func (p *paged) List(_ context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	p.options = append(p.options, o)
	if p.failed != nil {
		return nil, p.failed
	}
	out := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "b"}}
	out.Items = []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "1"}}}
	if o.Continue == "b" {
		out.Continue, out.Items[0].Name = "", "b"
	}
	return out, nil
}

func (p *paged) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	p.options = append(p.options, o)
	return watch.NewFake(), p.failed
}

// TestPages: a list has the objects of all pages, and each request the selectors.
func TestPages(t *testing.T) {
	api := &paged{}
	pages := watchstore.Pages[*metav1.PartialObjectMetadataList, *metav1.PartialObjectMetadata, *metav1.PartialObjectMetadata]{
		API: api, Of: shorter, Limit: 1, Labels: "l", Fields: "f",
	}
	o, err := pages.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	list := o.(*internalversion.List)
	for _, o := range list.Items {
		names = append(names, o.(*metav1.PartialObjectMetadata).Name+o.(*metav1.PartialObjectMetadata).ResourceVersion)
	}
	if !slices.Equal(names, []string{"a", "b"}) || list.ResourceVersion != "7" {
		t.Errorf("list %v of version %q", names, list.ResourceVersion)
	}
	if _, err := pages.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "7"}); err != nil {
		t.Fatal(err)
	}
	if want := []metav1.ListOptions{
		{Limit: 1, LabelSelector: "l", FieldSelector: "f"},
		{Limit: 1, LabelSelector: "l", FieldSelector: "f", Continue: "b"},
		{LabelSelector: "l", FieldSelector: "f", ResourceVersion: "7"},
	}; !slices.EqualFunc(api.options, want, func(a, b metav1.ListOptions) bool { return a.String() == b.String() }) {
		t.Errorf("asked for %+v", api.options)
	}
	pages.Keep = func(o *metav1.PartialObjectMetadata) bool { return o.Name == "b" }
	if o, err = pages.List(t.Context(), metav1.ListOptions{}); err != nil || len(o.(*internalversion.List).Items) != 1 {
		t.Errorf("kept %+v, %v", o, err)
	}

	api.failed = apierrors.NewNotFound(schema.GroupResource{Resource: "networkqoses"}, "")
	if _, err := pages.List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("error %v", err)
	}
	pages.Again = time.Minute
	if o, err := pages.List(t.Context(), metav1.ListOptions{}); err != nil || len(o.(*internalversion.List).Items) > 0 {
		t.Errorf("a kind that is not served: %v, %v", o, err)
	}
	api.failed = errors.New("no connection")
	if _, err := pages.List(t.Context(), metav1.ListOptions{}); err != api.failed { //nolint:errorlint // it must not be wrapped
		t.Errorf("error %v", err)
	}
}
