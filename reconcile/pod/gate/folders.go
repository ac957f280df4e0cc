package gate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/topology/fault"
)

// foldersDir is where the files that containers are given are, in a folder of each claim. It lies in the directory of CDI files, since
// the runtime sees that at the path that the agent sees; it reads no folders in it.
const foldersDir = "dra.networking-files"

// Folder is a folder of files that containers are given. A running container sees the files that are written later: it has
// the folder, and not the files, mounted.
type Folder struct {
	Name  string // among those of the claim
	At    string // the path in a container
	Files []File
}

// File is a file in a folder.
type File struct{ Name, Content string }

func (d Dir) folder(uid types.UID, name string) string {
	return filepath.Join(string(d), foldersDir, string(uid), name)
}

// writeFolders makes the files of a claim what they are to be. Each is replaced at once; a folder that is not given any more stays
// empty, as running containers have it mounted.
func (d Dir) writeFolders(uid types.UID, folders []Folder) error {
	keep := map[string]bool{} // paths
	for _, f := range folders {
		for _, name := range append([]string{f.Name}, names(f.Files)...) {
			if name == "" || name == "." || name == ".." || filepath.Base(name) != name {
				return fault.New(fault.Invalid, fmt.Errorf("%q is not a file name", name))
			}
		}
		dir := d.folder(uid, f.Name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		for _, file := range f.Files {
			path := filepath.Join(dir, file.Name)
			keep[path] = true
			if err := write(path, []byte(file.Content)); err != nil {
				return err
			}
		}
	}
	all, err := filepath.Glob(d.folder(uid, "*/*")) // a UID has no special characters
	if err != nil {
		return err
	}
	for _, path := range all {
		if !keep[path] {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

func names(files []File) (out []string) {
	for _, f := range files {
		out = append(out, f.Name)
	}
	return out
}

// Remove closes the claim's gate and removes the files that containers were given; if there is nothing, that is no error.
func (d Dir) Remove(uid types.UID) error {
	if err := d.Close(uid); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(string(d), foldersDir, string(uid))); err != nil {
		return fmt.Errorf("files of claim %q: %w", uid, err)
	}
	return nil
}
