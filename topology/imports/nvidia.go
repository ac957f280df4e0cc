package imports

// ofNVIDIA is the prefix of the resource names of NVIDIA's network operator.
const ofNVIDIA = "nvidia.com"

// macvlanNetwork converts a MacvlanNetwork of NVIDIA's network operator.
func (c *converter) macvlanNetwork(s *source) {
	spec := s.record.sub("spec")
	c.nvidia(c.definedBy(s, spec), spec, "macvlan")
}

// hostDeviceNetwork converts a HostDeviceNetwork of NVIDIA's network operator.
func (c *converter) hostDeviceNetwork(s *source) {
	spec := s.record.sub("spec")
	c.nvidia(c.withResource(s, spec, ofNVIDIA), spec, "host-device")
}

// ipoibNetwork converts an IPoIBNetwork of NVIDIA's network operator.
func (c *converter) ipoibNetwork(s *source) {
	spec := s.record.sub("spec")
	c.nvidia(c.definedBy(s, spec), spec, "ipoib")
}

// nvidia converts the plugin that the operator configures.
func (c *converter) nvidia(n *network, spec *record, plugin string) {
	conf := spec.below(spec.at, map[string]any{"type": plugin})
	for _, k := range []string{"master", "mode", "mtu"} {
		if v, has := spec.take(k); has {
			conf.left[k] = v
		}
	}
	c.chained(n, spec, conf)
}
