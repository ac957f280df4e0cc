package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// version is the format's. A reader takes no other: a log of a later plumbline
// may hold what this one would drop.
const version = "1"

// entry is the payload of a line; one of its fields is set.
type entry struct {
	Record *reconcile.Record `json:"record,omitempty"`
	Intend []netstate.Change `json:"intend,omitempty"`
}

// state is what a log amounts to.
type state struct {
	record reconcile.Record
	found  bool
	good   int // bytes of whole lines; what lies behind is torn
	size   int
	inode  uint64
	mtime  unix.Timespec
}

func checksum(payload []byte) uint32 {
	return crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli))
}

// encode writes an entry as one line.
func encode(e entry) ([]byte, error) {
	payload, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return fmt.Appendf(nil, "%s %08x %s\n", version, checksum(payload), payload), nil
}

// decode reads a line without its end.
func decode(line []byte) (entry, error) {
	v, rest, ok := bytes.Cut(line, []byte(" "))
	if !ok {
		return entry{}, errors.New("not a line of a journal")
	}
	if string(v) != version {
		return entry{}, fmt.Errorf("version %.20q is not %q", v, version)
	}
	sum, payload, _ := bytes.Cut(rest, []byte(" "))
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if err != nil || len(sum) != 8 {
		return entry{}, fmt.Errorf("no checksum: %.20q", sum)
	}
	if got := checksum(payload); got != uint32(want) {
		return entry{}, fmt.Errorf("checksum is %08x, content has %08x", want, got)
	}
	var e entry
	if err := unmarshal(payload, &e); err != nil {
		return entry{}, fmt.Errorf("content: %w", err)
	}
	if (e.Record != nil) == (len(e.Intend) > 0) {
		return entry{}, errors.New("content: neither a record nor intended changes")
	}
	return e, nil
}

// unmarshal is json.Unmarshal, but gives whole numbers in step configs back as
// the int64 that topology.Decode made of them: a float64 would differ from the
// topology as the user applies it again, and loses digits above 2^53.
func unmarshal(payload []byte, e *entry) error {
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.UseNumber()
	if err := dec.Decode(e); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	if e.Record != nil && e.Record.Sandbox.Topology != nil {
		for _, step := range e.Record.Sandbox.Topology.Steps {
			exact(step.Config)
		}
	}
	return nil
}

// exact turns the numbers within v into int64, else float64. What fits neither
// stays as it was written.
func exact(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = exact(v[k])
		}
	case []any:
		for i := range v {
			v[i] = exact(v[i])
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		} else if errors.Is(err, strconv.ErrRange) {
			return v
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
	}
	return v
}

// replay reads a log. An error says that the log is damaged; a torn end is
// none.
func replay(data []byte) (state, error) {
	s := state{size: len(data)}
	for n := 1; s.good < len(data); n++ {
		line, _, ended := bytes.Cut(data[s.good:], []byte("\n"))
		if !ended {
			return s, nil
		}
		e, err := decode(line)
		if err != nil {
			// The first line is exempt: its file was complete before it got
			// its name.
			if n > 1 && unwritten(data, s.good, len(line)) {
				return s, nil
			}
			return state{}, fmt.Errorf("line %d: %w", n, err)
		}
		switch {
		case e.Record != nil && s.found && e.Record.Sandbox.ID != s.record.Sandbox.ID:
			return state{}, fmt.Errorf("line %d: record of sandbox %q follows one of %q", n, e.Record.Sandbox.ID, s.record.Sandbox.ID)
		case e.Record != nil:
			s.record, s.found = *e.Record, true
		case !s.found:
			return state{}, fmt.Errorf("line %d: intended changes without a record", n)
		default:
			s.record = intended(s.record, e.Intend)
		}
		s.good += len(line) + 1
	}
	return s, nil
}

// unwritten reports whether a line that cannot be read holds a part that never
// reached the disk. A crash of the machine may leave a file with its new size
// and without some of the sectors appended, which then read as zeros; no line
// of ours holds a zero. What follows was not synced either, or nothing would be
// missing: it may be dropped with the line.
func unwritten(data []byte, start, length int) bool {
	const sectorBytes = 512
	i := bytes.IndexByte(data[start:start+length], 0)
	if i < 0 {
		return false
	}
	end := start + i
	for end < len(data) && data[end] == 0 {
		end++
	}
	return end == len(data) || end%sectorBytes == 0
}

// intended is the record once changes are about to be made.
func intended(r reconcile.Record, changes []netstate.Change) reconcile.Record {
	r.History = netstate.Coalesce(r.History, changes...)
	if len(r.History) == 0 {
		r.History = nil // as it is read back
	}
	if r.Phase != reconcile.Releasing {
		r.Phase = reconcile.Applying
	}
	return r
}
