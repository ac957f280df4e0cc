package dhcp

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/recordfile"
)

// record is the file of one lease, so that another process renews it instead of requesting
// another one.
type record struct {
	Sandbox  reconcile.SandboxID `json:"sandbox"`
	Link     string              `json:"link"`
	Netns    string              `json:"netns"`
	NetnsID  reconcile.NetnsID   `json:"netnsID"`
	BootID   string              `json:"bootID"`
	Client   string              `json:"clientID"` // hexadecimal
	Hostname string              `json:"hostname,omitempty"`
	// Requested are the codes of options that are requested beside those of each lease, see netstate.DHCPLease.
	Requested string `json:"requested,omitempty"`
	// Serial tells it from another one of the same sandbox and link, before or after it.
	Serial string     `json:"serial"`
	Lease  *Lease     `json:"lease,omitempty"`
	Last   netip.Addr `json:"last,omitzero"` // the address to ask for again
	// over is the file's content when it was read.
	over string
}

func (r *record) clientID() []byte {
	b, _ := hex.DecodeString(r.Client) // checked by Apply
	return b
}

// requests are the options that a client requests. No other is used.
func (r *record) requests() []dhcpv4.OptionCode {
	out := slices.Clone(requested)
	for code := range strings.SplitSeq(r.Requested, ",") {
		if n, err := strconv.ParseUint(code, 10, 8); err == nil {
			out = append(out, dhcpv4.GenericOptionCode(n))
		}
	}
	return out
}

// live reports whether the lease can be used. It ends a little earlier here than in the kernel.
func (r *record) live(now int64) bool { return r.Lease != nil && now+margin < r.Lease.Expires }

// margin in seconds before the kernel deletes an address.
const margin = 2

const (
	suffix   = ".lease"
	maxBytes = 16 << 10
)

// name is the file of a lease.
func name(id reconcile.SandboxID, link string) string {
	sum := sha256.Sum256([]byte(string(id) + "\x00" + link))
	return hex.EncodeToString(sum[:16]) + suffix
}

// locked calls f while no other process changes the files.
func (h *Host) locked(f func() error) error {
	h.files.Lock()
	defer h.files.Unlock()
	if err := os.MkdirAll(h.Dir, 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(h.Dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil { // others hold it for one write
		return fmt.Errorf("lock: %w", err)
	}
	return f()
}

// read reads a record, nil if there is none. A damaged one is removed: the lease is requested again.
func (h *Host) read(file string) (*record, error) {
	f, err := os.OpenFile(filepath.Join(h.Dir, file), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxBytes))
	if err != nil {
		return nil, err
	}
	payload, err := frame.Decode(bytes.TrimSuffix(b, []byte("\n")))
	if frame.AsOtherVersion(err) != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	var r record
	if err == nil {
		err = json.Unmarshal(payload, &r)
	}
	if err != nil || name(r.Sandbox, r.Link) != file {
		if err := os.Remove(f.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return nil, nil
	}
	r.over = string(payload)
	h.mu.Lock()
	defer h.mu.Unlock()
	if held := h.unwritten[file]; held != nil && held.Serial == r.Serial && held.counts(&r) {
		held.over = r.over
		r = *held
	}
	return &r, nil
}

// counts reports whether a record in memory is newer than that on disk: no other process has written that since, or its lease ends earlier.
func (r *record) counts(disk *record) bool {
	return r.over == disk.over || r.Lease != nil && disk.Lease != nil && r.Lease.Expires > disk.Lease.Expires
}

func (h *Host) write(r *record) error {
	line, err := frame.Encode(r)
	if err != nil {
		return err
	}
	// It need not survive a crash of the machine, which ends the namespace.
	path := filepath.Join(h.Dir, name(r.Sandbox, r.Link))
	_, err = recordfile.Replace(path, line, recordfile.Options{Temp: path + ".new"}) // the caller holds the lock
	return err
}

// change changes a record, or returns nil if it was replaced or removed. If it cannot be written, as on a full disk, this process
// uses the new state, and rewrite writes it later.
func (h *Host) change(file, serial string, f func(*record)) (out *record, err error) {
	apply := func() error {
		r, err := h.read(file)
		if err == nil && r != nil && r.Serial == serial {
			f(r)
			out = r
		}
		return err
	}
	hold := func(r *record) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if r != nil {
			h.unwritten[file] = r
		} else if have := h.unwritten[file]; have != nil && have.Serial == serial {
			delete(h.unwritten, file)
		}
	}
	err = h.locked(func() error {
		err := apply()
		if err == nil && out != nil {
			err = h.write(out)
		}
		if err == nil {
			hold(nil)
		}
		return err
	})
	if err == nil {
		return out, nil
	}
	if out == nil {
		_ = apply() // err is the reason
	}
	if out != nil {
		hold(out)
	}
	return out, err
}

// rewrite writes what could not be written before.
func (h *Host) rewrite() error {
	h.mu.Lock()
	held := slices.Collect(maps.Values(h.unwritten))
	h.mu.Unlock()
	slices.SortFunc(held, func(a, b *record) int { return cmp.Or(cmp.Compare(a.Sandbox, b.Sandbox), cmp.Compare(a.Link, b.Link)) })
	var first error
	for _, r := range held {
		if _, err := h.change(name(r.Sandbox, r.Link), r.Serial, func(*record) {}); err != nil && first == nil {
			first = fmt.Errorf("%d leases are in memory only and lost by a restart, first that of %q in sandbox %q: %w",
				len(held), r.Link, r.Sandbox, err)
		}
	}
	return first
}

func (h *Host) remove(file string) error {
	h.mu.Lock()
	delete(h.unwritten, file)
	h.mu.Unlock()
	return h.locked(func() error {
		err := os.Remove(filepath.Join(h.Dir, file))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}

// list returns all records; those that cannot be read are left out.
func (h *Host) list() ([]*record, error) {
	entries, err := os.ReadDir(h.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []*record
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), suffix) {
			continue
		}
		if r, err := h.read(e.Name()); err == nil && r != nil {
			out = append(out, r)
		}
	}
	return out, nil
}
