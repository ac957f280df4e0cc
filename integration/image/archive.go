package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// nameAnnotation is the name by which containerd tags what it imports, and what
// [Push] pushes to.
const nameAnnotation = "io.containerd.image.name"

// Named is an image or an index of several, and a name of it.
type Named struct {
	Name string
	What mutate.Appendable
}

// WriteFile writes an archive of images for this machine's architecture, each under
// all its names.
func WriteFile(file string, images ...Image) error {
	var named []Named
	for _, i := range images {
		built, err := i.Build(runtime.GOARCH)
		if err != nil {
			return err
		}
		for _, n := range i.Names {
			named = append(named, Named{n, built})
		}
	}
	return WriteLayout(file, named...)
}

// WriteLayout writes an OCI image layout into an archive
// (https://github.com/opencontainers/image-spec/blob/main/image-layout.md).
func WriteLayout(file string, named ...Named) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("write an archive: %w", err)
	}
	folder, err := os.MkdirTemp(filepath.Dir(file), filepath.Base(file)+".*")
	if err != nil {
		return fmt.Errorf("write an archive: %w", err)
	}
	defer os.RemoveAll(folder)
	into, err := layout.Write(folder, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return fmt.Errorf("write an archive: %w", err)
	}
	for _, n := range named {
		annotations := layout.WithAnnotations(map[string]string{nameAnnotation: n.Name})
		switch what := n.What.(type) {
		case v1.ImageIndex:
			err = into.AppendIndex(what, annotations)
		case v1.Image:
			err = into.AppendImage(what, annotations)
		default:
			err = fmt.Errorf("%T is neither an image nor an index", what)
		}
		if err != nil {
			return fmt.Errorf("write %q to an archive: %w", n.Name, err)
		}
	}
	return Create(file, func(w io.Writer) error { return Tar(w, os.DirFS(folder), "") })
}

// Create writes a file, which is there complete or not at all.
func Create(file string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	if err = errors.Join(write(f), f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write %q: %w", file, err)
	}
	return nil
}

// Tar writes the files of a folder and of those below as a tar archive, in the order of their
// names, in which each begins with a prefix.
func Tar(w io.Writer, folder fs.FS, prefix string) error {
	archive := tar.NewWriter(w)
	err := fs.WalkDir(folder, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		f, err := folder.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		return addFile(archive, path.Join(prefix, name), f)
	})
	return errors.Join(err, archive.Close())
}
