// Package frame is the outer form of the records on a node's disk, and decides
// whether one that cannot be used is damaged or of another version of plumbline.
//
// A frame is one line:
//
//	10 8c3e1f06 {"record":{...}}
//
// version, CRC-32C of the payload in eight hexadecimal digits, payload (JSON).
// Every version of plumbline writes this form. So a line whose checksum fits was
// written as it is by somebody: where its version, an object type, a phase or its
// shape is unknown, another version wrote it, and the record is OtherVersion. It is
// left where it is, not acted upon, and does not affect others. A line whose
// checksum does not fit is Damage.
//
// Within a version, fields that are unknown are ignored, and lost when the record
// is written again: docs/adr/0016 says what may be added how.
package frame

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"regexp"
	"strconv"

	"github.com/plumbline/plumbline/topology/fault"
)

// Version is the version that this plumbline reads and writes: docs/adr/0016. Those below are of commits before the first
// release.
const Version = "10"

// versionForm matches the version of a later plumbline. Anything
// else at the start of a line is no frame.
var versionForm = regexp.MustCompile(`^[0-9][0-9.]{0,15}$`)

// Damage is an error that a file will not recover from by itself.
type Damage struct{ Err error }

// Error implements error.
func (d *Damage) Error() string { return "damaged: " + d.Err.Error() }

// Unwrap returns what is wrong.
func (d *Damage) Unwrap() error { return d.Err }

// IsDamage reports whether an error says that a file is damaged.
func IsDamage(err error) bool {
	_, ok := errors.AsType[*Damage](err)
	return ok
}

// OtherVersion is the error of a record that another version of plumbline has
// written and this one does not know in full.
type OtherVersion struct {
	Path string // of the file; set by the store
	// BootID is the boot whose state the record is about; "" when it is unknown.
	BootID string
	Err    error // what is unknown: `version "3" is unknown`
	// Mentions holds every string of the record. A device whose ID or name is
	// among them counts as held by it.
	Mentions map[string]bool
}

// Error implements error.
func (o *OtherVersion) Error() string {
	return fmt.Sprintf("written by another version of plumbline and left alone (%v): "+
		"run the version that wrote it, or remove the file when the pod is gone", o.Err)
}

// Unwrap returns what is unknown.
func (o *OtherVersion) Unwrap() error { return o.Err }

// AsOtherVersion returns the OtherVersion within an error, nil when there is none.
func AsOtherVersion(err error) *OtherVersion {
	o, _ := errors.AsType[*OtherVersion](err)
	return o
}

func checksum(payload []byte) uint32 {
	return crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli))
}

// Encode writes v as one line.
func Encode(v any) ([]byte, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return fmt.Appendf(nil, "%s %08x %s\n", Version, checksum(payload), payload), nil
}

// Decode returns the payload of a line without its end. It fails with Damage, or
// with OtherVersion of kind fault.Conflict and with the payload.
func Decode(line []byte) ([]byte, error) {
	v, rest, ok := bytes.Cut(line, []byte(" "))
	if !ok {
		return nil, &Damage{errors.New("not a line of a record")}
	}
	if !versionForm.Match(v) {
		return nil, &Damage{fmt.Errorf("version %.20q is none", v)}
	}
	sum, payload, _ := bytes.Cut(rest, []byte(" "))
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if err != nil || len(sum) != 8 {
		return nil, &Damage{fmt.Errorf("no checksum: %.20q", sum)}
	}
	if got := checksum(payload); got != uint32(want) {
		return nil, &Damage{fmt.Errorf("checksum is %08x, content has %08x", want, got)}
	}
	if string(v) != Version {
		return payload, unknown(fmt.Errorf("version %q is unknown", v), payload)
	}
	return payload, nil
}

// PayloadError returns the error of a payload that Decode returned and that does not say
// what this version knows: no version writes what is not JSON.
func PayloadError(payload []byte, why error) error {
	if !json.Valid(payload) {
		return &Damage{fmt.Errorf("content: %w", why)}
	}
	return unknown(fmt.Errorf("content: %w", why), payload)
}

func unknown(why error, payload []byte) error {
	o := &OtherVersion{Err: why, Mentions: map[string]bool{}}
	o.Mention(payload)
	return fault.New(fault.Conflict, o)
}

// mentionBytes bounds the strings that are remembered: no device ID is longer.
const mentionBytes = 128

// Mention adds the strings of a payload, as far as it can be read.
func (o *OtherVersion) Mention(payload []byte) {
	dec := json.NewDecoder(bytes.NewReader(payload))
	for {
		t, err := dec.Token()
		if err != nil {
			return
		}
		if s, ok := t.(string); ok && len(s) <= mentionBytes {
			o.Mentions[s] = true
		}
	}
}
