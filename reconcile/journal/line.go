package journal

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/topology"
)

// entry is the content of a line; one of its fields is set.
type entry struct {
	Record *reconcile.Record `json:"record,omitempty"`
	Intend []netstate.Change `json:"intend,omitempty"`
}

// encode writes a line. It is faster than to encode the entry, of which each change would be encoded by itself.
func (e entry) encode() ([]byte, error) {
	type record struct {
		*reconcile.Record
		History []netstate.Line `json:"history,omitempty"` // instead of the record's
	}
	out := struct {
		Record *record         `json:"record,omitempty"`
		Intend []netstate.Line `json:"intend,omitempty"`
	}{Intend: netstate.Lines(e.Intend)}
	if e.Record != nil {
		out.Record = &record{e.Record, netstate.Lines(e.Record.History)}
	}
	return frame.Encode(out)
}

// state is the sum of a log's lines.
type state struct {
	record reconcile.Record
	found  bool
	good   int // bytes of complete lines; the rest is torn
	size   int
	inode  uint64
	mtime  unix.Timespec
}

// decode reads a line without its end. Its errors are those of frame.Decode.
func decode(line []byte) (entry, error) {
	payload, err := frame.Decode(line)
	if err != nil {
		return entry{}, err
	}
	var e entry
	if err = unmarshal(payload, &e); err == nil {
		err = e.check()
	}
	if err != nil {
		return entry{}, frame.PayloadError(payload, err)
	}
	return e, nil
}

// check refuses what this version never writes.
func (e *entry) check() error {
	if (e.Record != nil) == (len(e.Intend) > 0) {
		return errors.New("neither a record nor intended changes")
	}
	if e.Record == nil {
		return nil
	}
	switch e.Record.Phase {
	case "", reconcile.Applying, reconcile.Applied, reconcile.Failed, reconcile.Releasing:
		return nil
	default:
		return fmt.Errorf("unknown phase %q", e.Record.Phase)
	}
}

// unmarshal is json.Unmarshal, but gives whole numbers in step configs back as
// the int64 that topology.Decode made of them: a float64 would differ from the
// topology as the user applies it again, and loses digits above 2^53.
func unmarshal(data []byte, e *entry) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(e); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	if e.Record != nil && e.Record.Sandbox.Topology != nil {
		for _, step := range e.Record.Sandbox.Topology.Steps {
			topology.Exact(step.Config)
		}
	}
	return nil
}

// replay reads a log. An error says that the log is damaged or of another version;
// a torn end is none. A log is of another version when one of its lines is that a later
// record does not replace: what the others say is not all.
func replay(data []byte) (state, error) {
	s, err := replayLines(data)
	if err == nil {
		return s, nil
	}
	if other := otherVersion(data); other != nil {
		return state{}, other
	}
	return state{}, &frame.Damage{Err: err}
}

// otherVersion returns the frame.OtherVersion of a log, with what all its lines
// mention; nil when it is of this version.
func otherVersion(data []byte) error {
	var found error
	var payloads [][]byte
	for n := 1; ; n++ {
		line, rest, ended := bytes.Cut(data, []byte("\n"))
		if !ended {
			break
		}
		data = rest
		if _, err := decode(line); found == nil && frame.AsOtherVersion(err) != nil {
			found = fmt.Errorf("line %d: %w", n, err)
		}
		if payload, _ := frame.Decode(line); payload != nil {
			payloads = append(payloads, payload)
		}
	}
	if found == nil {
		return nil
	}
	other := frame.AsOtherVersion(found)
	for _, payload := range payloads {
		other.Mention(payload)
		other.BootID = cmp.Or(bootID(payload), other.BootID)
	}
	return found
}

// bootID returns the boot ID of a line, "" if it has none.
func bootID(payload []byte) string {
	var e struct {
		Record struct {
			BootID string `json:"bootID"`
		} `json:"record"`
	}
	_ = json.Unmarshal(payload, &e) // what can be known
	return e.Record.BootID
}

func replayLines(data []byte) (state, error) {
	if s, lines := lastRecord(data); lines > 0 {
		return replayFrom(data, s, lines+1)
	}
	return replayFrom(data, state{size: len(data)}, 1)
}

// replayFrom reads the lines of a log behind s.good, of which n is the number of the first.
func replayFrom(data []byte, s state, n int) (state, error) {
	for ; s.good < len(data); n++ {
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
			if d, ok := errors.AsType[*frame.Damage](err); ok {
				err = d.Err // of the file, not of the line alone
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

// lastRecord returns what a log amounts to up to its last record, and how many lines that
// are. The record replaces the lines before it, which therefore are not decoded: that is
// most of the work of reading a log. It returns no lines if one of them is damaged, or says
// that it is of another version or sandbox.
func lastRecord(data []byte) (s state, lines int) {
	const prefix = `{"record":{"sandbox":{"id":`
	start, records := 0, 0
	var ids [][]byte
	for good := 0; ; {
		line, _, ended := bytes.Cut(data[good:], []byte("\n"))
		if !ended {
			break
		}
		payload, err := frame.Decode(line)
		if err != nil {
			return state{}, 0
		}
		lines++
		if id, isRecord := bytes.CutPrefix(payload, []byte(prefix)); isRecord {
			start, records, ids = good, lines, append(ids, id)
		}
		good += len(line) + 1
	}
	if len(ids) < 2 {
		return state{}, 0
	}
	line, _, _ := bytes.Cut(data[start:], []byte("\n"))
	e, err := decode(line)
	if err != nil {
		return state{}, 0
	}
	own, err := json.Marshal(e.Record.Sandbox.ID)
	if err != nil || slices.ContainsFunc(ids, func(id []byte) bool { return !bytes.HasPrefix(id, own) }) {
		return state{}, 0
	}
	return state{record: *e.Record, found: true, good: start + len(line) + 1, size: len(data)}, records
}

// unwritten reports whether a line that cannot be read holds a part that never
// reached the disk. A crash of the machine may leave a file with its new size
// and without some of the sectors appended, which then read as zeros; no line
// of ours holds a zero. The rest was not synced either, or nothing would be
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
		r.History = nil // as it is decoded
	}
	if r.Phase != reconcile.Releasing {
		r.Phase = reconcile.Applying
	}
	return r
}
