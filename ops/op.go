package ops

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
)

// Op is one step type.
type Op interface {
	// Contract describes the type; see package contract.
	Contract() contract.Contract
	// Plan declares the desired state of one step, in order, through p.Want. It is
	// pure: no clock, no I/O, no log, no state between calls. config is
	// canonical and contains no references.
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
	c, err := o.prepare(config)
	if err != nil {
		return err
	}
	return o.planPrepared(p, c)
}

// prepare makes a C of a canonical config.
func (o op[C]) prepare(config map[string]any) (any, error) {
	raw, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("encode config: %w", err)
	}
	var c C
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return nil, fmt.Errorf("config and contract of type %q disagree: %w", o.contract.Type, err)
	}
	return c, nil
}

func (o op[C]) planPrepared(p *Planner, config any) error { return o.plan(p, config.(C)) }

// preparer is an Op that can be given its config decoded.
type preparer interface {
	prepare(config map[string]any) (any, error)
	planPrepared(p *Planner, config any) error
}

// prepared caches decoded configs by step type. A node has few topologies and plans them
// repeatedly; decoding takes a third of that time.
type prepared struct {
	mu     sync.Mutex
	byType map[string][]preparedConfig // the latest last
}

// preparedConfig is a config without references, as written and decoded. Neither may be
// modified.
type preparedConfig struct {
	written map[string]any
	decoded any
}

// preparedPerType bounds the cache.
const preparedPerType = 64

func (r *prepared) get(typ string, written map[string]any) (any, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range slices.Backward(r.byType[typ]) {
		if reflect.DeepEqual(c.written, written) {
			return c.decoded, true
		}
	}
	return nil, false
}

func (r *prepared) put(typ string, written map[string]any, decoded any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := append(r.byType[typ], preparedConfig{written, decoded})
	r.byType[typ] = slices.Delete(all, 0, max(0, len(all)-preparedPerType))
}

// Registry holds the known step types. It implements contract.Set.
type Registry struct {
	ops      map[string]Op
	prepared *prepared
}

// NewRegistry returns a registry of the given types; two of one name are a
// programming error and refused.
func NewRegistry(ops ...Op) (*Registry, error) {
	r := &Registry{ops: map[string]Op{}, prepared: &prepared{byType: map[string][]preparedConfig{}}}
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
func (r *Registry) Types() []string { return slices.Sorted(maps.Keys(r.ops)) }

// StepError is a failure of one step. Every error a plan returns is one, so
// that messages name the step and conditions can point at it.
type StepError struct {
	Topology string
	Step     string
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
