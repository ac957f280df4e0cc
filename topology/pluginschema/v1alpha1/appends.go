package v1alpha1

import (
	"bytes"
	"fmt"
	"strconv"
)

// Appends is a number of entries, written as one, or true for as many as
// configured, which is AsConfigured here.
type Appends int32

// AsConfigured stands for true.
const AsConfigured Appends = -1

// MarshalJSON writes a number or true.
func (a Appends) MarshalJSON() ([]byte, error) {
	if a < 0 {
		return []byte("true"), nil
	}
	return strconv.AppendInt(nil, int64(a), 10), nil
}

// UnmarshalJSON reads a number or a boolean; false is 0.
func (a *Appends) UnmarshalJSON(data []byte) error {
	switch data = bytes.TrimSpace(data); string(data) {
	case "null":
		return nil
	case "true":
		*a = AsConfigured
		return nil
	case "false":
		*a = 0
		return nil
	}
	n, err := strconv.ParseUint(string(data), 10, 16)
	if err != nil {
		return fmt.Errorf("appends is %.20s, want a number of entries or a boolean", data)
	}
	*a = Appends(n)
	return nil
}
