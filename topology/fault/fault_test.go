package fault_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/plumbline/plumbline/topology/fault"
)

// TestDetail holds that details for operators are found through wrapped errors, and are in
// no message.
func TestDetail(t *testing.T) {
	of := func(n int) error {
		return fault.Detailed(fmt.Errorf("device %d is in use", n), fmt.Sprintf("pod %d has it", n))
	}
	for _, c := range []struct {
		err          error
		text, detail string
	}{
		{nil, "", ""},
		{errors.New("x"), "x", ""},
		{fault.Detailed(nil, "y"), "", ""},
		{fault.Detailed(errors.New("x"), ""), "x", ""},
		{of(1), "device 1 is in use", "pod 1 has it"},
		{fmt.Errorf("step: %w", fault.New(fault.Conflict, of(1))), "step: device 1 is in use", "pod 1 has it"},
		{errors.Join(of(1), of(2)), "device 1 is in use\ndevice 2 is in use", "pod 1 has it; pod 2 has it"},
		{fault.Detailed(of(1), "twice"), "device 1 is in use", "twice; pod 1 has it"},
	} {
		text := ""
		if c.err != nil {
			text = c.err.Error()
		}
		if detail := fault.Detail(c.err); text != c.text || detail != c.detail {
			t.Errorf("%q and %q, want %q and %q", text, detail, c.text, c.detail)
		}
	}
}

func TestEach(t *testing.T) {
	one, two, three := errors.New("one"), fmt.Errorf("two: %w", errors.Join(io.EOF, io.ErrClosedPipe)), fault.New(fault.Invalid, errors.New("three\nlines"))
	for _, tt := range []struct {
		err  error
		want []error
	}{
		{nil, nil},
		{one, []error{one}},
		{errors.Join(one, nil, errors.Join(two, three)), []error{one, two, three}},
	} {
		if got := fault.Each(tt.err); !slices.Equal(got, tt.want) {
			t.Errorf("%v: %v, want %v", tt.err, got, tt.want)
		}
	}
}

func TestAs(t *testing.T) {
	cause := &named{"a"}
	for name, c := range map[string]struct {
		err error
		ok  bool
	}{
		"itself":             {cause, true},
		"of a kind":          {fault.New(fault.Invalid, cause), true},
		"with a detail":      {fault.Detailed(fault.New(fault.Invalid, cause), "detail"), true},
		"behind other words": {fmt.Errorf("words: %w", cause), false},
		"of another type":    {errors.New("a"), false},
		"none":               {nil, false},
	} {
		if found, ok := fault.As[*named](c.err); ok != c.ok || ok && found != cause {
			t.Errorf("%s: %v, %v", name, found, ok)
		}
	}
}

type named struct{ name string }

func (n *named) Error() string { return n.name }
