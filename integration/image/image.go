package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Image has the parts of an image.
type Image struct {
	// Names with tags, such as "plumbline.test/pod:1", which it has in an archive of
	// [WriteFile].
	Names []string
	// Files by their absolute path in the image: paths on this machine. They
	// belong to root, and keep nothing of their mode but whether one may run them.
	Files map[string]string
	// Entrypoint is the program and its first arguments.
	Entrypoint []string
	// Command is its further arguments, unless a container has others.
	Command []string
	// User the program runs as, a number: there is no /etc/passwd. Empty is root.
	User string
	// Labels such as org.opencontainers.image.version.
	Labels map[string]string
	// Compressed images take less space, and longer to build and to unpack.
	Compressed bool
}

// Epoch is the time of everything in an image or archive, so that it has none.
var Epoch = time.Unix(0, 0).UTC()

// Build returns the image for Linux on an architecture, in Go's name for it.
func (i Image) Build(architecture string) (v1.Image, error) {
	content, err := i.content()
	if err != nil {
		return nil, fmt.Errorf("image %q: %w", i.Names, err)
	}
	layer := static.NewLayer(content, types.OCIUncompressedLayer)
	if i.Compressed {
		layer, err = tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(content)), nil
		}, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return nil, fmt.Errorf("image %q: %w", i.Names, err)
		}
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	base, err = mutate.ConfigFile(base, &v1.ConfigFile{
		Architecture: architecture,
		OS:           "linux",
		Created:      v1.Time{Time: Epoch},
		RootFS:       v1.RootFS{Type: "layers"},
		Config:       v1.Config{Entrypoint: i.Entrypoint, Cmd: i.Command, User: i.User, Env: []string{"PATH=/"}, Labels: i.Labels},
	})
	if err != nil {
		return nil, fmt.Errorf("image %q: %w", i.Names, err)
	}
	return mutate.Append(base, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: Epoch}}})
}

// Index is one image of several architectures. A runtime chooses its own.
func Index(images map[string]v1.Image) v1.ImageIndex {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, architecture := range slices.Sorted(maps.Keys(images)) {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        images[architecture],
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}},
		})
	}
	return index
}

// content is a tar archive of the files and of the folders they lie in.
func (i Image) content() ([]byte, error) {
	for _, text := range i.Names {
		if _, err := name.NewTag(text, name.StrictValidation); err != nil {
			return nil, err
		}
	}
	var buffer bytes.Buffer
	archive := tar.NewWriter(&buffer)
	folders := map[string]bool{".": true, "/": true}
	for _, file := range slices.Sorted(maps.Keys(i.Files)) {
		if !path.IsAbs(file) || path.Clean(file) != file {
			return nil, fmt.Errorf("file %q: not an absolute, clean path", file)
		}
		if err := addFolders(archive, folders, path.Dir(file)); err != nil {
			return nil, err
		}
		source, err := os.Open(i.Files[file])
		if err != nil {
			return nil, fmt.Errorf("file %q: %w", file, err)
		}
		err = addFile(archive, file[1:], source)
		source.Close()
		if err != nil {
			return nil, fmt.Errorf("file %q: %w", file, err)
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return buffer.Bytes(), nil
}

// addFolders adds a folder after those that it lies in.
func addFolders(archive *tar.Writer, folders map[string]bool, folder string) error {
	if folders[folder] {
		return nil
	}
	folders[folder] = true
	if err := addFolders(archive, folders, path.Dir(folder)); err != nil {
		return err
	}
	return archive.WriteHeader(&tar.Header{
		Typeflag: tar.TypeDir, Name: folder[1:] + "/", Mode: 0o755, ModTime: Epoch,
	})
}

func addFile(archive *tar.Writer, file string, source fs.File) error {
	info, err := source.Stat()
	if err != nil {
		return err
	}
	mode := int64(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: file, Size: info.Size(), Mode: mode, ModTime: Epoch}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(archive, source)
	return err
}
