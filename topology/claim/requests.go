package claim

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
)

func errTwice(c Config, one, other string) error {
	if steps := c.Steps(); len(steps) > 1 {
		return fmt.Errorf(
			"request %q is for one device too many: NetworkTopology %q takes %d devices of the class, for its root steps [%s]", other,
			c.NetworkTopologyRef.Name, len(steps), strings.Join(steps, ", "))
	}
	return fmt.Errorf("requests %q and %q are both for root step %q of NetworkTopology %q: "+
		"a topology takes one device for each of its root steps; request another topology's class for a second network", one, other,
		c.Step, c.NetworkTopologyRef.Name)
}

// Demand holds the requests of a claim for one topology.
type Demand struct {
	Topology TopologyRef
	Steps    []Demanded // in order of the requests
	// Parameters are the claim's values in the configs of the topology's steps. Permission is not checked.
	Parameters []topology.Parameters
}

// Demanded is one root step and the request for it.
type Demanded struct {
	Step    string
	Request string // "request", or "request/subrequest" of a prioritised list
}

// Classes returns a DeviceClass by name; nil when there is none (yet).
type Classes func(name string) (*resourceapi.DeviceClass, error)

// Requests returns what a claim requests for each topology, by the config of the classes.
// Classes that do not exist, or are not ours, are skipped: the scheduler waits for the
// former, other drivers check the latter. A user's error is of kind Invalid, and has one
// line for each problem: config for our driver in the claim that is more than parameters, more than one device of a
// class, or two requests for one step. The subrequests of a prioritised list are
// alternatives and must all be for the same step, since any of them may be allocated. The
// demands are returned with the error, as far as they are known.
func Requests(spec *resourceapi.DeviceClaim, classes Classes) ([]Demand, error) {
	var problems []error
	var out []Demand
	for _, r := range spec.Requests {
		requests, err := classRequests(r, classes)
		if err != nil && fault.Of(err) != fault.Invalid {
			return nil, err
		}
		if err != nil {
			problems = append(problems, err)
		}
		for i, a := range requests {
			if i > 0 && a.config.Equal(requests[0].config) {
				continue
			}
			if i > 0 {
				problems = append(problems, fault.New(fault.Invalid,
					fmt.Errorf("request %q: its alternatives %q and %q are for different steps (%q of NetworkTopology %q, %q of %q): "+
						"which one would be allocated is open, so a topology could lack a device",
						r.Name, requests[0].request, a.request, requests[0].config.Step, requests[0].config.NetworkTopologyRef.Name,
						a.config.Step, a.config.NetworkTopologyRef.Name)))
				continue
			}
			if err := demand(&out, a); err != nil {
				problems = append(problems, err)
			}
		}
	}
	return out, errors.Join(append(problems, requestedParameters(spec, out)...)...)
}

// requestedParameters adds to each topology what the claim sets for it.
func requestedParameters(spec *resourceapi.DeviceClaim, to []Demand) (problems []error) {
	for i, c := range spec.Config {
		if c.Opaque == nil || c.Opaque.Driver != Driver {
			continue
		}
		wrong := func(err error) {
			problems = append(problems, fault.New(fault.Invalid, fmt.Errorf("config[%d].opaque: %w", i, err)))
		}
		set, err := parseParameters(c.Opaque.Parameters.Raw)
		if err != nil {
			wrong(err)
			continue
		}
		d, err := onlyOne(to, func(d *Demand) (string, bool) {
			return d.Topology.Name, slices.ContainsFunc(d.Steps, func(s Demanded) bool { return isFor(c.Requests, s.Request) })
		})
		switch {
		case err != nil:
			wrong(err)
		case d != nil: // else its class may not exist yet: the node checks it again
			d.Parameters = append(d.Parameters, set...)
		}
	}
	return problems
}

// classRequest is one request, or alternative of one, for a class of ours.
type classRequest struct {
	request string
	config  Config
	count   int // of devices; no more than the class has steps
}

// classRequests returns what one request requests of us, also if the request is invalid.
func classRequests(r resourceapi.DeviceRequest, classes Classes) ([]classRequest, error) {
	var out []classRequest
	var problems []error
	invalid := func(format string, args ...any) {
		problems = append(problems, fault.New(fault.Invalid, fmt.Errorf("request %q: "+format, append([]any{r.Name}, args...)...)))
	}
	one := func(request, class string, mode resourceapi.DeviceAllocationMode, count int64) error {
		cfg, ours, err := classConfig(class, classes)
		switch {
		case fault.Of(err) == fault.Invalid:
			problems = append(problems, err)
		case err != nil:
			return err
		case ours:
			steps := cfg.Steps()
			if len(r.FirstAvailable) > 0 {
				steps = steps[:1]
			}
			out = append(out, classRequest{request, cfg, int(min(max(count, 1), int64(len(steps))))})
			if mode == resourceapi.DeviceAllocationModeAll {
				invalid("it is for all devices of DeviceClass %q, of which NetworkTopology %q takes %d, for [%s]: leave out allocationMode",
					class, cfg.NetworkTopologyRef.Name, len(steps), strings.Join(steps, ", "))
			}
			if count > int64(len(steps)) {
				invalid("it is for %d devices of DeviceClass %q, of which NetworkTopology %q takes %d, for [%s]: ask for %d",
					count, class, cfg.NetworkTopologyRef.Name, len(steps), strings.Join(steps, ", "), len(steps))
			}
		}
		return nil
	}
	if e := r.Exactly; e != nil {
		if err := one(r.Name, e.DeviceClassName, e.AllocationMode, e.Count); err != nil {
			return nil, err
		}
		if e.AdminAccess != nil && *e.AdminAccess && len(out) > 0 {
			invalid("admin access is for watching a device, and a topology would move it: remove adminAccess")
		}
	}
	for _, s := range r.FirstAvailable {
		if err := one(r.Name+"/"+s.Name, s.DeviceClassName, s.AllocationMode, s.Count); err != nil {
			return nil, err
		}
	}
	if n := len(r.FirstAvailable); len(out) > 0 && n > len(out) {
		invalid("alternative %q is for root step %q of NetworkTopology %q, and others are not: "+
			"which one would be allocated is open, so the topology could lack a device",
			out[0].request, out[0].config.Step, out[0].config.NetworkTopologyRef.Name)
	}
	return out, errors.Join(problems...)
}

// classConfig returns the config of a class of ours.
func classConfig(name string, classes Classes) (cfg Config, ours bool, err error) {
	class, err := classes(name)
	if err != nil {
		return Config{}, false, fmt.Errorf("DeviceClass %q: %w", name, err)
	}
	if class == nil {
		return Config{}, false, nil
	}
	for _, c := range class.Spec.Config {
		if c.Opaque == nil || c.Opaque.Driver != Driver {
			continue
		}
		parsed, err := ParseConfig(c.Opaque.Parameters.Raw)
		if err != nil {
			return Config{}, false, fault.New(fault.Invalid, fmt.Errorf("DeviceClass %q: %w", name, err))
		}
		if ours && !parsed.Equal(cfg) {
			return Config{}, false, fault.New(fault.Invalid,
				fmt.Errorf("DeviceClass %q has config for steps %q and %q: one class serves one step", name, cfg.Step, parsed.Step))
		}
		cfg, ours = parsed, true
	}
	return cfg, ours, nil
}

// demand adds the devices of a request, for the first steps of the class that have
// none, as add does when they are allocated.
func demand(to *[]Demand, a classRequest) error {
	i := slices.IndexFunc(*to, func(d Demand) bool { return d.Topology.Name == a.config.NetworkTopologyRef.Name })
	if i < 0 {
		*to = append(*to, Demand{Topology: a.config.NetworkTopologyRef})
		i = len(*to) - 1
	}
	d := &(*to)[i]
	of := func(step string) int {
		return slices.IndexFunc(d.Steps, func(s Demanded) bool { return s.Step == step })
	}
	for range a.count {
		steps := a.config.Steps()
		free := slices.IndexFunc(steps, func(s string) bool { return of(s) < 0 })
		if free < 0 {
			return fault.New(fault.Invalid, errTwice(a.config, d.Steps[of(a.config.Step)].Request, a.request))
		}
		d.Steps = append(d.Steps, Demanded{Step: steps[free], Request: a.request})
	}
	return nil
}

// Mismatch returns an error of kind Invalid unless the demand covers what the topology
// has Required.
func Mismatch(t *topology.Topology, set contract.Set, d Demand, of Source) error {
	roots := names(Required(t, set))
	var provided []string
	for _, s := range d.Steps {
		provided = append(provided, s.Step)
	}
	var missing []string
	for _, s := range roots {
		if !slices.Contains(provided, s) {
			missing = append(missing, s)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if of.Pod != "" {
		return fault.New(fault.Invalid, fmt.Errorf(
			"NetworkTopology %q takes devices for its root steps [%s],\nbut Pod %q only requests those of [%s].\nMissing: [%s]. %s",
			t.Name, strings.Join(roots, ", "), of.Pod, strings.Join(provided, ", "), strings.Join(missing, ", "), limits(t, set)))
	}
	return fault.New(fault.Invalid, fmt.Errorf(
		"NetworkTopology %q requires root step requests [%s],\nbut %s only provides requests [%s].\nMissing: [%s]",
		t.Name, strings.Join(roots, ", "), of, strings.Join(provided, ", "), strings.Join(missing, ", ")))
}
