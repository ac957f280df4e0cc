package addresspool

import (
	"errors"
	"fmt"

	"github.com/plumbline/plumbline/topology/contract"
)

// problems collects what is wrong with a pool, or with ipam, each with the path of its field.
type problems contract.Errors

func (p *problems) add(field, format string, args ...any) {
	*p = append(*p, fieldError(field, format, args...))
}

// addError adds what a function of this package returned, with a path before that of its field.
func (p *problems) addError(path string, err error) {
	for _, f := range FieldErrors(err) {
		f.Field = path + f.Field
		*p = append(*p, f)
	}
}

// err is nil, or contract.Errors.
func (p problems) err() error {
	if len(p) == 0 {
		return nil
	}
	return contract.Errors(p)
}

func fieldError(field, format string, args ...any) contract.FieldError {
	return contract.FieldError{Field: field, Message: fmt.Sprintf(format, args...)}
}

// FieldErrors returns the problems of an error of this package.
func FieldErrors(err error) []contract.FieldError {
	if all, ok := errors.AsType[contract.Errors](err); ok {
		return all
	}
	if f, ok := errors.AsType[contract.FieldError](err); ok {
		return []contract.FieldError{f}
	}
	return nil
}
