package imports

// nvidia converts a network of NVIDIA's network operator, which configures one plugin.
func nvidia(plugin string) func(*converter, *source) {
	return func(c *converter, s *source) {
		spec := s.record.sub("spec")
		var n *network
		if plugin == "host-device" {
			n = c.withResource(s, spec, "nvidia.com")
		} else {
			n = c.definedBy(s, spec)
		}
		conf := spec.below(spec.at, map[string]any{"type": plugin})
		for _, k := range []string{"master", "mode", "mtu"} {
			if v, has := spec.take(k); has {
				conf.left[k] = v
			}
		}
		c.chained(n, spec, conf)
	}
}
