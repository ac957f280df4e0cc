// Package defaults sets options that are functions, as cmp.Or sets others.
package defaults

import "reflect"

// Func returns a function, or another one if it is nil.
func Func[F any](f, otherwise F) F {
	if reflect.ValueOf(f).IsNil() {
		return otherwise
	}
	return f
}
