package contract

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"

	"github.com/plumbline/plumbline/topology/excerpt"
)

// maxExact is the largest integer a float64 holds exactly with all below it.
const maxExact = 1 << 53

// integer returns a number without loss, or an error.
func integer(p Param, v any) (int64, error) {
	if s, ok := v.(string); ok {
		if !p.NumericString {
			return 0, fmt.Errorf("want an integer, got %s%s", describe(v), NumberHint(s))
		}
		return digits(s)
	}
	switch n := v.(type) {
	case json.Number:
		if i, err := strconv.ParseInt(n.String(), 10, 64); err == nil {
			return i, nil
		} else if errors.Is(err, strconv.ErrRange) {
			return 0, fmt.Errorf("%s is out of range", n)
		}
		f, err := n.Float64()
		if err != nil {
			return 0, fmt.Errorf("%s is out of range", n)
		}
		return fromFloat(f)
	case float64:
		return fromFloat(n)
	case float32:
		return fromFloat(float64(n))
	}
	switch r := reflect.ValueOf(v); {
	case r.IsValid() && r.CanInt():
		return r.Int(), nil
	case r.IsValid() && r.CanUint():
		if r.Uint() > math.MaxInt64 {
			return 0, fmt.Errorf("%d is out of range", r.Uint())
		}
		return int64(r.Uint()), nil
	}
	return 0, fmt.Errorf("want an integer, got %s", describe(v))
}

func fromFloat(f float64) (int64, error) {
	switch {
	case f != math.Trunc(f):
		return 0, fmt.Errorf("want an integer, got the fraction %s", strconv.FormatFloat(f, 'g', -1, 64))
	case f > maxExact || f < -maxExact || math.IsNaN(f):
		return 0, fmt.Errorf("%s is out of range", strconv.FormatFloat(f, 'g', -1, 64))
	}
	return int64(f), nil
}

// digits reads a decimal number. A leading zero is refused: unquoted, YAML
// would have read it as octal.
func digits(s string) (int64, error) {
	if s == "" || strings.Trim(s, "0123456789") != "" || len(s) > 1 && s[0] == '0' {
		return 0, fmt.Errorf("want an integer, got the string %s", quote(s))
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is out of range", quote(s))
	}
	return n, nil
}

// scalarText returns integers, and with bools booleans, as text, anything else
// unchanged.
func scalarText(v any, bools bool) any {
	switch b := v.(type) {
	case bool:
		switch {
		case !bools:
			return v
		case b:
			return "1"
		}
		return "0"
	case nil, string:
		return v
	}
	if n, err := integer(Param{}, v); err == nil {
		return strconv.FormatInt(n, 10)
	}
	return v
}

// Bounds of what an error quotes, in bytes.
const (
	maxQuoted = 80
	maxNumber = 253
)

func describe(v any) string { return Describe(v, maxQuoted) }

// Describe names a value in an error, with at most so many bytes of a string.
func Describe(v any, most int) string {
	switch v := v.(type) {
	case nil:
		return "nothing"
	case string:
		return "the string " + strconv.Quote(excerpt.Of(v, most))
	case bool:
		return fmt.Sprintf("the boolean %t", v)
	case json.Number:
		return excerpt.Of("the number "+v.String(), maxNumber)
	case float64:
		return "the number " + strconv.FormatFloat(v, 'g', -1, 64)
	}
	switch reflect.ValueOf(v).Kind() {
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Slice, reflect.Array:
		return "a list"
	default:
		return fmt.Sprintf("the number %v", v)
	}
}

// quote quotes user text, cut to a bounded length.
func quote(s string) string {
	return strconv.Quote(excerpt.Of(s, maxQuoted))
}

func quoteHint(v any) string {
	switch v.(type) {
	case nil, map[string]any, []any:
		return ""
	}
	return ": put it in quotes"
}

// NumberHint is the end of an error about a string where a number is wanted.
func NumberHint(s string) string {
	if _, err := digits(s); err == nil {
		return ": remove the quotes"
	}
	if strings.Trim(s, "0123456789") != "" && s[0] >= '0' && s[0] <= '9' {
		return ": write one number, without a unit"
	}
	return ""
}
