// Package frame is the outer form of the records on a node's disk, and decides
// whether one that cannot be used is damaged or of another version of plumbline.
//
// A frame is one line:
//
//	1 8c3e1f06 {"record":{...}}
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
	"slices"
	"strconv"

	"github.com/plumbline/plumbline/topology/fault"
)

// The versions that Decode reads. Encode writes the lowest that a payload can be read
// with (Versioned): docs/adr/0016.
const (
	Version = "1"
	// Addressed is the version of a record in which steps are given addresses or a VLAN.
	// A reader of version 1 would take them for drift and remove them.
	Addressed = "2"
	// Routed is the version of a record in which steps are given gateways or routes. A
	// reader of version 2 would remove these routes.
	Routed = "3"
	// Filtered is the version of a record with filters for what a pod sends. A reader of
	// version 3 would remove them.
	Filtered = "4"
	// Plugged is the version of a record in which a step is given a port of ovn-kubernetes. A
	// reader of version 4 would make a port of its own, and bind the interface to that.
	Plugged = "5"
	// Chained is the version of a record with filters in a chain of their own. A reader of version 5 would take them for
	// filters of the first chain.
	Chained = "6"
	// Parameterized is the version of a record in which a claim sets keys of steps' configs. A reader of version 6 would
	// plan without them, and remove the address that the pod has.
	Parameterized = "7"
	// Repeated is the version of the record of a claim with a topology whose steps stand for several. A reader of version 7
	// would take the step as it is written for the only one, and release the devices of the others.
	Repeated = "8"
)

// Versioned is a payload that not every version can be given.
type Versioned interface{ FrameVersion() string }

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
	return fmt.Sprintf("written by another version of plumbline and left alone (%v): run the version that wrote it, or remove the file when the pod is gone", o.Err)
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
	version := Version
	if v, ok := v.(Versioned); ok {
		version = v.FrameVersion()
	}
	return fmt.Appendf(nil, "%s %08x %s\n", version, checksum(payload), payload), nil
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
	if !slices.Contains([]string{Version, Addressed, Routed, Filtered, Plugged, Chained, Parameterized, Repeated}, string(v)) {
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
