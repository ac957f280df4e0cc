package claim

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
)

// Uses returns the topologies that an allocated claim was allocated for, by the config of
// its classes, each once. Unlike Allocated it ignores errors: a topology is kept for as
// long as a pod may use it.
func Uses(c *resourceapi.ResourceClaim) []TopologyRef {
	if c.Status.Allocation == nil {
		return nil
	}
	var out []TopologyRef
	for _, e := range c.Status.Allocation.Devices.Config {
		if e.Source != resourceapi.AllocationConfigSourceClass || e.Opaque == nil || e.Opaque.Driver != Driver {
			continue
		}
		if cfg, err := ParseConfig(e.Opaque.Parameters.Raw); err == nil && !slices.Contains(out, cfg.NetworkTopologyRef) {
			out = append(out, cfg.NetworkTopologyRef)
		}
	}
	return out
}
