package addresses

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/recordfile"
	"github.com/plumbline/plumbline/topology/addresspool"
)

// ledger is the file with what the node holds.
type ledger struct {
	path string
	// sync makes a file durable; a test fails or dies in it.
	sync func(*os.File) error
}

// change reads the file, has f change what is in it, and writes it if f says so. Nothing
// of a change may be answered unless the error is nil.
func (l *ledger) change(f func(h *addresspool.Holdings) (changed bool, err error)) error {
	lock, err := os.OpenFile(l.path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("leases of addresses: %w", err)
	}
	defer lock.Close()
	if err := flock(lock); err != nil {
		return fmt.Errorf("leases of addresses: lock: %w", err)
	}
	h, err := l.read()
	if err != nil {
		return err
	}
	changed, err := f(h)
	if err != nil || !changed {
		return err
	}
	data, err := frame.Encode(h)
	if err != nil {
		return fmt.Errorf("leases of addresses: %w", err)
	}
	if _, err := recordfile.Replace(l.path, data, recordfile.Options{Sync: l.sync}); err != nil {
		return fmt.Errorf("leases of addresses: %w", err)
	}
	return nil
}

// holdings returns what is in the file, for the caller alone.
func (l *ledger) holdings() (out *addresspool.Holdings, err error) {
	err = l.change(func(h *addresspool.Holdings) (bool, error) { out = h; return false, nil })
	return out, err
}

func flock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (l *ledger) read() (*addresspool.Holdings, error) {
	h := &addresspool.Holdings{}
	data, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return h, nil
	}
	if err != nil {
		return nil, fmt.Errorf("leases of addresses: %w", err)
	}
	if n := len(data); n > 0 && data[n-1] == '\n' {
		data = data[:n-1]
	}
	payload, err := frame.Decode(data)
	if err == nil {
		if err = json.Unmarshal(payload, h); err != nil {
			err = frame.PayloadError(payload, err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("leases of addresses: %q: %w", l.path, err)
	}
	return h, nil
}
