package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/pluginschema"
	schemav1alpha1 "github.com/plumbline/plumbline/topology/pluginschema/v1alpha1"
)

// Contracts are those of all step types, built in or described by a
// CNIPluginSchema. They are computed again only when a schema has changed.
type Contracts struct {
	Reader  client.Reader // a cache
	BuiltIn contract.Set

	mu       sync.Mutex
	versions string // of the schemas that set was made of
	set      contract.Set
}

// Set returns the current contracts.
func (c *Contracts) Set(ctx context.Context) (contract.Set, error) {
	var schemas schemav1alpha1.CNIPluginSchemaList
	if err := c.Reader.List(ctx, &schemas, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list schemas: %w", err)
	}
	each := make([]string, len(schemas.Items))
	for i := range schemas.Items {
		each[i] = schemas.Items[i].Name + " " + schemas.Items[i].ResourceVersion
	}
	slices.Sort(each)
	versions := strings.Join(each, "\n")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.set == nil || c.versions != versions {
		c.set, _ = pluginschema.Known(c.BuiltIn, schemas.Items) // Schemas reports what cannot be read
		c.versions = versions
	}
	return c.set, nil
}
