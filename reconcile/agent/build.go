package agent

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// declaration says how a part is built: what the function needs are its parameters, each a part that is
// declared before, by its type, or one of given. So nothing is used before it exists. A parameter of type
// writes is a part that it changes, and may read; it only reads or calls the others. The function returns the part, and
// perhaps an error. A part that the configuration leaves out is a nil pointer.
//
// A part with a method Run works until the agent is stopped; one with a method Close is closed then.
type declaration struct {
	name  string
	build any
}

// writes is a parameter of a declaration: a part that the one that is built changes.
type writes[T any] struct{ to T }

func (w *writes[T]) of() reflect.Type     { return reflect.TypeFor[T]() }
func (w *writes[T]) hand(v reflect.Value) { reflect.ValueOf(&w.to).Elem().Set(v) }

// written is a pointer to a writes.
type written interface {
	of() reflect.Type
	hand(v reflect.Value)
}

// writing returns a new writes of a type, if it is one.
func writing(t reflect.Type) (written, reflect.Value, bool) {
	p := reflect.New(t)
	w, ok := reflect.TypeAssert[written](p)
	return w, p.Elem(), ok
}

// Part is a part of the agent, as it is declared.
type Part struct {
	Name string
	// Runs: the part works until the agent is stopped. Otherwise it is data, or is called by others.
	Runs bool
	// Reads are the parts that it reads or calls, and Writes those that it changes.
	Reads, Writes []string
}

// isAlone reports whether the part is data that needs no other part.
func (p Part) isAlone() bool { return !p.Runs && len(p.Reads) == 0 && len(p.Writes) == 0 }

// given are the parameters that are no parts: the configuration, and what New makes.
var given = map[reflect.Type]bool{
	reflect.TypeFor[Config]():  true,
	reflect.TypeFor[started](): true,
}

// graph returns the parts in the order in which they are built, or what is wrong with the declarations.
func graph(all []declaration) ([]Part, error) {
	var parts []Part
	names, of := map[string]bool{}, map[reflect.Type]string{}
	for _, d := range all {
		t := reflect.TypeOf(d.build)
		p := Part{Name: d.name}
		for in := range t.Ins() {
			to := &p.Reads
			if w, _, ok := writing(in); ok {
				in, to = w.of(), &p.Writes
			}
			switch name, ok := of[in]; {
			case ok:
				*to = append(*to, name)
			case !given[in]:
				return nil, fmt.Errorf("part %q needs %s, which no earlier part is", d.name, in)
			}
		}
		out := t.Out(0)
		if names[d.name] || of[out] != "" || given[out] {
			return nil, fmt.Errorf("part %q is declared twice, by its name or as %s", d.name, out)
		}
		names[d.name], of[out] = true, d.name
		p.Runs = out.Implements(reflect.TypeFor[runner]()) || out.Implements(reflect.TypeFor[runnerWithError]())
		parts = append(parts, p)
	}
	return parts, nil
}

// built is a part that was built.
type built struct {
	name  string
	value reflect.Value
}

// build builds parts in the order of their declarations. with are the parameters that are no parts. With
// an error it returns those that were built before.
func build(all []declaration, with ...any) ([]built, error) {
	if _, err := graph(all); err != nil {
		return nil, err
	}
	have := map[reflect.Type]reflect.Value{}
	for _, v := range with {
		have[reflect.TypeOf(v)] = reflect.ValueOf(v)
	}
	var parts []built
	for _, d := range all {
		f := reflect.ValueOf(d.build)
		in := make([]reflect.Value, f.Type().NumIn())
		for i := range in {
			t := f.Type().In(i)
			if w, v, ok := writing(t); ok {
				w.hand(have[w.of()])
				in[i] = v
			} else {
				in[i] = have[t]
			}
		}
		out := f.Call(in)
		if len(out) > 1 && !out[1].IsNil() {
			err, _ := reflect.TypeAssert[error](out[1])
			return parts, err
		}
		have[f.Type().Out(0)] = out[0]
		parts = append(parts, built{d.name, out[0]})
	}
	return parts, nil
}

// Parts that run, without and with an error, and parts that are closed, with and without one.
type (
	runner          interface{ Run(ctx context.Context) }
	runnerWithError interface {
		Run(ctx context.Context) error
	}
	closer             interface{ Close() error }
	closerWithoutError interface{ Close() }
)

// absent reports whether the configuration has left a part out.
func (b built) absent() bool { return b.value.Kind() == reflect.Pointer && b.value.IsNil() }

// work returns what the part does until ctx ends, nil if it does nothing.
func (b built) work() func(ctx context.Context) error {
	if b.absent() {
		return nil
	}
	switch p := b.value.Interface().(type) {
	case runner:
		return func(ctx context.Context) error { p.Run(ctx); return nil }
	case runnerWithError:
		return p.Run
	}
	return nil
}

// closeAll closes parts, the last one first.
func closeAll(parts []built) error {
	var errs []error
	for _, b := range slices.Backward(parts) {
		if b.absent() {
			continue
		}
		switch p := b.value.Interface().(type) {
		case closer:
			errs = append(errs, p.Close())
		case closerWithoutError:
			p.Close()
		}
	}
	return errors.Join(errs...)
}

// the returns a part by its type, and the zero value if there is none.
func the[T any](parts []built) T {
	for _, b := range parts {
		if p, ok := reflect.TypeAssert[T](b.value); ok {
			return p
		}
	}
	var none T
	return none
}

// Graph returns the parts of every agent in the order in which they are built, in Markdown: a list of those that need no
// other, and one of the rest, made of the declarations that build the agent.
func Graph() (string, error) {
	parts, err := graph(declared())
	if err != nil {
		return "", err
	}
	var b strings.Builder
	var alone []string
	for _, p := range parts {
		if p.isAlone() {
			alone = append(alone, p.Name)
		}
	}
	fmt.Fprintf(&b,
		"Parts that do not run and need no other: %s.\n\nOthers, with the parts that they read or call (use) and change (write):\n\n",
		strings.Join(alone, ", "))
	for _, p := range parts {
		if p.isAlone() {
			continue
		}
		b.WriteString("- **" + p.Name + "**")
		if p.Runs {
			b.WriteString(", runs")
		}
		if len(p.Reads) > 0 {
			b.WriteString("; uses " + strings.Join(p.Reads, ", "))
		}
		if len(p.Writes) > 0 {
			b.WriteString("; writes " + strings.Join(p.Writes, ", "))
		}
		b.WriteString("\n")
	}
	return b.String(), nil
}
