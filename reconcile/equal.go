package reconcile

import "reflect"

// Equal reports whether two sandboxes are the same to a record: one read from disk is equal to the one that was written. So an empty
// list is as good as none, numbers of a config count by their value, and fields that are not recorded, such as AppliedBefore, not at all.
func (s Sandbox) Equal(o Sandbox) bool {
	return reflect.DeepEqual(s, o) || // the usual case, and much cheaper to find out
		recordedAs(reflect.ValueOf(s), reflect.ValueOf(o))
}

// recordedAs reports whether two values of one type are recorded in the same way.
func recordedAs(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Pointer:
		return a.IsNil() == b.IsNil() && (a.IsNil() || recordedAs(a.Elem(), b.Elem()))
	case reflect.Interface:
		return a.IsNil() == b.IsNil() && (a.IsNil() || anyRecordedAs(a.Elem(), b.Elem()))
	case reflect.Slice:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !recordedAs(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Map:
		if a.Len() != b.Len() {
			return false
		}
		for _, key := range a.MapKeys() {
			if in := b.MapIndex(key); !in.IsValid() || !recordedAs(a.MapIndex(key), in) {
				return false
			}
		}
		return true
	case reflect.Struct:
		exported := false
		for field := range a.Type().Fields() {
			if !field.IsExported() {
				continue
			}
			exported = true
			if field.Tag.Get("json") != "-" && !recordedAs(a.FieldByIndex(field.Index), b.FieldByIndex(field.Index)) {
				return false
			}
		}
		return exported || a.Equal(b) // an address
	default:
		return a.Equal(b)
	}
}

// anyRecordedAs is recordedAs for values of a config, of which a record does not keep the type of a number.
func anyRecordedAs(a, b reflect.Value) bool {
	if a.Type() == b.Type() {
		return recordedAs(a, b)
	}
	x, isNumber := number(a)
	y, areNumbers := number(b)
	return isNumber && areNumbers && x == y
}

func number(v reflect.Value) (n float64, ok bool) {
	switch {
	case v.CanInt():
		return float64(v.Int()), true
	case v.CanUint():
		return float64(v.Uint()), true
	case v.CanFloat():
		return v.Float(), true
	}
	return 0, false
}
