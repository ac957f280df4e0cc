package ops

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/fault"
	"github.com/plumbline/plumbline/topology/contract"
)

// Op is one step type.
type Op interface {
	// Contract describes the type; see package contract.
	Contract() contract.Contract
	// Plan says what must hold for one step, in order, through p.Want. It is
	// pure: no clock, no I/O, no log, no state between calls. config is
	// canonical and free of references.
	Plan(p *Planner, config map[string]any) error
}

// New makes an Op of a contract and a plan function whose config is a struct
// with JSON tags for the contract's canonical keys.
func New[C any](c contract.Contract, plan func(*Planner, C) error) Op {
	return op[C]{c, plan}
}

type op[C any] struct {
	contract contract.Contract
	plan     func(*Planner, C) error
}

func (o op[C]) Contract() contract.Contract { return o.contract }

func (o op[C]) Plan(p *Planner, config map[string]any) error {
	raw, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("encode config: %w", err)
	}
	var c C
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return fmt.Errorf("config and contract of type %q disagree: %w", o.contract.Type, err)
	}
	return o.plan(p, c)
}

// Registry holds the known step types. It implements contract.Set.
type Registry struct {
	ops map[string]Op
}

// NewRegistry returns a registry of the given types; two of one name are a
// programming error and refused.
func NewRegistry(ops ...Op) (*Registry, error) {
	r := &Registry{ops: map[string]Op{}}
	for _, o := range ops {
		typ := o.Contract().Type
		if _, ok := r.ops[typ]; ok {
			return nil, fmt.Errorf("step type %q is registered twice", typ)
		}
		r.ops[typ] = o
	}
	return r, nil
}

// Contract returns the contract of a type.
func (r *Registry) Contract(typ string) (contract.Contract, bool) {
	o, ok := r.ops[typ]
	if !ok {
		return contract.Contract{}, false
	}
	return o.Contract(), true
}

// Types returns the known types, sorted.
func (r *Registry) Types() []string {
	out := make([]string, 0, len(r.ops))
	for t := range r.ops {
		out = append(out, t)
	}
	slices.Sort(out)
	return out
}

// StepError is a failure of one step. Every error a plan returns is one, so
// that messages name the step and conditions can point at it.
type StepError struct {
	Topology string
	Step     string
	Type     string
	Err      error
}

func (e *StepError) Error() string {
	return fmt.Sprintf("topology %q: step %q: %v", e.Topology, e.Step, e.Err)
}

func (e *StepError) Unwrap() error { return e.Err }

// Invalid is an error of kind fault.Invalid about one config field.
func Invalid(field, format string, args ...any) error {
	return fault.New(fault.Invalid, contract.FieldError{Field: field, Message: fmt.Sprintf(format, args...)})
}
