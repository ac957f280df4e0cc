// Package recordfile replaces the files of records at once, and sets damaged ones aside. A
// reader sees the old content or the new one, also after a crash. Package frame
// defines the content.
package recordfile

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// DamagedInfix is in the name of each file that was set aside; a number follows.
const DamagedInfix = ".damaged-"

// Options are the options of replacing a file.
type Options struct {
	// Sync makes the file, and then its folder, durable; (*os.File).Sync does. Nil for
	// a file that need not survive a crash of the machine.
	Sync func(*os.File) error
	// Mode is of the new file; default 0600.
	Mode fs.FileMode
	// Temp is the path of the new file until it has its name; what a crash has left
	// there is removed. Default: a name of its own beside the file, for callers that
	// do not hold a lock.
	Temp string
}

// Replace writes a file and returns its inode, also when it is in place and an error
// says that this is not durable.
func Replace(path string, data []byte, o Options) (inode uint64, err error) {
	f, err := create(path, o)
	if err != nil {
		return 0, err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(cmp.Or(o.Mode, 0o600))
	}
	if err == nil && o.Sync != nil {
		err = o.Sync(f)
	}
	var st unix.Stat_t
	if err == nil {
		err = unix.Fstat(int(f.Fd()), &st)
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return 0, errors.Join(err, os.Remove(f.Name()))
	}
	if o.Sync == nil {
		return st.Ino, nil
	}
	// Without this a later append could be durable in a file that a crash leaves
	// without a name.
	return st.Ino, SyncDir(filepath.Dir(path), o.Sync)
}

func create(path string, o Options) (*os.File, error) {
	if o.Temp == "" {
		return os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".new-*")
	}
	if err := os.Remove(o.Temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(o.Temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// SyncDir makes the names in a folder durable.
func SyncDir(dir string, sync func(*os.File) error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return sync(d)
}

// SetAside renames a damaged file to the first free name and returns that, without
// folder. A file that does not exist is fs.ErrNotExist: another process was faster.
func SetAside(path string) (name string, err error) {
	for n := 1; ; n++ {
		to := fmt.Sprintf("%s%s%d", path, DamagedInfix, n)
		switch _, err := os.Lstat(to); {
		case err == nil:
			continue
		case !errors.Is(err, fs.ErrNotExist):
			return "", err
		}
		return filepath.Base(to), os.Rename(path, to)
	}
}
