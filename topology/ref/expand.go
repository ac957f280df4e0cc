package ref

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Object is one entry of an expanded list of objects, such as an interface of "{{
// step.interfaces }}". A decoder ignores its unknown keys, while an unknown key in a user's
// config is an error.
type Object map[string]any

// Use is a reference and its position.
type Use struct {
	Path string // within the walked value, e.g. "links[1].name"
	Ref  Ref
}

// Error is an error of the value at one path.
type Error struct {
	Path string
	Ref  *Ref // the reference that could not be resolved; nil for other errors
	Err  error
}

func (e *Error) Error() string {
	if e.Path == "" {
		return e.Message()
	}
	return e.Path + ": " + e.Message()
}

// Message is Error without the path.
func (e *Error) Message() string {
	if e.Ref == nil {
		return e.Err.Error()
	}
	return e.Ref.String() + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Has reports whether a string must be parsed to know its value.
func Has(s string) bool { return strings.Contains(s, opening) }

// maxErrors bounds the errors of one value.
const maxErrors = 64

// Walk collects the references of a value made of maps, lists and scalars, in
// order of path. Malformed templates are joined errors, each an *Error, the first
// 64 of them; the references found elsewhere are still returned.
func Walk(value any) ([]Use, error) {
	var uses []Use
	var errs []error
	add := func(err error) {
		if len(errs) < maxErrors {
			errs = append(errs, err)
		}
	}
	_, err := transform(value, "", func(path, s string) (any, error) {
		t, err := Parse(s)
		if err != nil {
			add(&Error{Path: path, Err: err})
			return s, nil
		}
		for _, r := range t.Refs() {
			uses = append(uses, Use{path, r})
		}
		return s, nil
	}, func(err *Error) error {
		add(err)
		return nil
	})
	return uses, errors.Join(append(errs, err)...)
}

// Expand returns value with every reference replaced by what resolve returns
// for it. The value itself is not changed. The first failure in order of path
// is returned, as an *Error.
func Expand(value any, resolve func(Ref) (any, error)) (any, error) {
	return transform(value, "", func(path, s string) (any, error) {
		t, err := Parse(s)
		if err != nil {
			return nil, &Error{Path: path, Err: err}
		}
		v, err := t.Expand(resolve)
		if failed, ok := errors.AsType[*Error](err); ok {
			failed.Path = path
		}
		return v, err
	}, func(err *Error) error { return err })
}

// Expand returns the template's value: of a whole token the field as it is,
// else text. An error is an *Error without a path.
func (t Template) Expand(resolve func(Ref) (any, error)) (any, error) {
	if r, ok := t.Whole(); ok {
		v, err := resolve(r)
		if err != nil {
			return nil, &Error{Ref: &r, Err: err}
		}
		return v, nil
	}
	var b strings.Builder
	for _, p := range t.parts {
		if p.ref == nil {
			b.WriteString(p.text)
			continue
		}
		v, err := resolve(*p.ref)
		if err != nil {
			return nil, &Error{Ref: p.ref, Err: err}
		}
		s, err := text(v)
		if err != nil {
			return nil, &Error{Ref: p.ref, Err: fmt.Errorf("cannot stand inside a string: %w; write it as the whole value", err)}
		}
		b.WriteString(s)
	}
	return b.String(), nil
}

// text returns a scalar as it is written in a config.
func text(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case bool:
		return strconv.FormatBool(v), nil
	case json.Number:
		return v.String(), nil
	case int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64:
		return fmt.Sprint(v), nil
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), nil
	case nil:
		return "", errors.New("it has no value")
	case map[string]any, Object:
		return "", errors.New("it is an object")
	default:
		return "", errors.New("it is a list")
	}
}

// transform rebuilds value with every string that holds a token replaced.
// badKey is called for a map key that holds one.
func transform(value any, path string, replace func(path, s string) (any, error), badKey func(*Error) error) (any, error) {
	switch v := value.(type) {
	case string:
		if !Has(v) {
			return v, nil
		}
		return replace(path, v)
	case map[string]any:
		if v == nil {
			return v, nil
		}
		out := make(map[string]any, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if Has(k) {
				if err := badKey(&Error{Path: path, Err: fmt.Errorf("key %q holds a reference: only values can", k)}); err != nil {
					return nil, err
				}
			}
			e, err := transform(v[k], Join(path, k), replace, badKey)
			if err != nil {
				return nil, err
			}
			out[k] = e
		}
		return out, nil
	case []any:
		if v == nil {
			return v, nil
		}
		out := make([]any, len(v))
		for i := range v {
			e, err := transform(v[i], path+"["+strconv.Itoa(i)+"]", replace, badKey)
			if err != nil {
				return nil, err
			}
			out[i] = e
		}
		return out, nil
	default:
		return v, nil
	}
}

// Join returns the path of a key of the object at a path.
func Join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
