package reconcile

import (
	"bytes"
	"encoding/json"
	"reflect"
)

// Equal reports whether two sandboxes are the same to a record: one read from disk is equal to the one that was written. So an empty
// list is as good as none, numbers of a config count by their value, and fields that are not recorded, such as AppliedBefore, not at all.
func (s Sandbox) Equal(o Sandbox) bool {
	if reflect.DeepEqual(s, o) { // the usual case, and much cheaper to find out
		return true
	}
	a, errA := json.Marshal(s)
	b, errB := json.Marshal(o)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}
