package v1alpha1

import (
	"bytes"
	"strconv"
)

// Appends is a number of entries, written as one, or true for as many as
// configured, which is AsConfigured here.
type Appends int32

const (
	// AsConfigured stands for true.
	AsConfigured Appends = -1
	// Unreadable stands for what is neither a number up to 65535 nor a boolean.
	Unreadable Appends = -2
)

// MarshalJSON writes a number or true; what could not be read is null.
func (a Appends) MarshalJSON() ([]byte, error) {
	switch {
	case a == Unreadable:
		return []byte("null"), nil
	case a < 0:
		return []byte("true"), nil
	}
	return strconv.AppendInt(nil, int64(a), 10), nil
}

// UnmarshalJSON reads a number or a boolean; false is 0. It never fails: an
// error would be one of the whole list the object is in, see Properties.
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
		*a = Unreadable
		return nil
	}
	*a = Appends(n)
	return nil
}
