package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Push pushes what an archive of [WriteLayout] holds to the registries in its names, with
// the credentials of docker's configuration, and returns references with digests.
func Push(ctx context.Context, file string) (pushed []string, err error) {
	folder, err := os.MkdirTemp("", "push-*")
	if err != nil {
		return nil, fmt.Errorf("push %q: %w", file, err)
	}
	defer os.RemoveAll(folder)
	if err := extract(file, folder); err != nil {
		return nil, fmt.Errorf("push %q: %w", file, err)
	}
	all, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		return nil, fmt.Errorf("push %q: %w", file, err)
	}
	list, err := all.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("push %q: %w", file, err)
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	for _, d := range list.Manifests {
		ref, err := name.NewTag(d.Annotations[nameAnnotation], name.StrictValidation)
		if err != nil {
			return pushed, fmt.Errorf("push %q: %w", file, err)
		}
		if d.MediaType.IsIndex() {
			index, readErr := all.ImageIndex(d.Digest)
			if err = readErr; err == nil {
				err = remote.WriteIndex(ref, index, options...)
			}
		} else {
			one, readErr := all.Image(d.Digest)
			if err = readErr; err == nil {
				err = remote.Write(ref, one, options...)
			}
		}
		if err != nil {
			return pushed, fmt.Errorf("push %q: %w", ref, err)
		}
		pushed = append(pushed, ref.String()+"@"+d.Digest.String())
	}
	return pushed, nil
}

// extract unpacks an archive of ours into a folder. Names that lead out of it are refused.
func extract(file, folder string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer root.Close()
	for archive := tar.NewReader(f); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := root.MkdirAll(filepath.Dir(header.Name), 0o755); err != nil {
			return err
		}
		out, err := root.Create(header.Name)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, archive)
		if err := errors.Join(err, out.Close()); err != nil {
			return err
		}
	}
}
