package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Image is what an archive holds under one or more names.
type Image struct {
	// Names with tags, such as "plumbline.test/pod:1". Without a registry's host
	// in front a runtime takes them for names of the default registry.
	Names []string
	// Files by their absolute path in the image: paths on this machine. They
	// belong to root, and keep nothing of their mode but whether one may run them.
	Files map[string]string
	// Entrypoint is the program and its first arguments.
	Entrypoint []string
	// User the program runs as, a number: there is no /etc/passwd. Empty is root.
	User string
	// Labels such as org.opencontainers.image.version.
	Labels map[string]string
}

// The archive is that of docker save, which every runtime imports: a manifest.json
// that names, per image, the configuration and the layers.
type manifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

type config struct {
	Architecture string  `json:"architecture"`
	OS           string  `json:"os"`
	Created      string  `json:"created"`
	Config       program `json:"config"`
	RootFS       rootFS  `json:"rootfs"`
}

type program struct {
	Entrypoint []string          `json:"Entrypoint,omitempty"`
	User       string            `json:"User,omitempty"`
	Env        []string          `json:"Env,omitempty"`
	Labels     map[string]string `json:"Labels,omitempty"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

// epoch is the time of everything in an archive, so that it has none.
var epoch = time.Unix(0, 0).UTC()

// Write writes an archive of these images. Images of the same files share a layer.
func Write(w io.Writer, images ...Image) error {
	archive := tar.NewWriter(w)
	written := map[string]bool{}
	once := func(name string, content []byte) error {
		if written[name] {
			return nil
		}
		written[name] = true
		return add(archive, name, content, 0o644)
	}
	var manifests []manifest
	for _, image := range images {
		layer, err := image.layer()
		if err != nil {
			return fmt.Errorf("image %q: %w", image.Names, err)
		}
		digest := hash(layer)
		content, err := json.Marshal(config{
			Architecture: runtime.GOARCH,
			OS:           "linux",
			Created:      epoch.Format(time.RFC3339),
			Config: program{
				Entrypoint: image.Entrypoint,
				User:       image.User,
				Env:        []string{"PATH=/"},
				Labels:     image.Labels,
			},
			RootFS: rootFS{Type: "layers", DiffIDs: []string{"sha256:" + digest}},
		})
		if err != nil {
			return fmt.Errorf("image %q: %w", image.Names, err)
		}
		m := manifest{Config: hash(content) + ".json", RepoTags: image.Names, Layers: []string{digest + ".tar"}}
		if err := once(m.Layers[0], layer); err != nil {
			return err
		}
		if err := once(m.Config, content); err != nil {
			return err
		}
		manifests = append(manifests, m)
	}
	content, err := json.Marshal(manifests)
	if err != nil {
		return fmt.Errorf("write an archive: %w", err)
	}
	if err := once("manifest.json", content); err != nil {
		return err
	}
	return archive.Close()
}

// layer is a tar archive of the files and of the folders they lie in.
func (i Image) layer() ([]byte, error) {
	var buffer bytes.Buffer
	archive := tar.NewWriter(&buffer)
	folders := map[string]bool{".": true, "/": true}
	for _, name := range slices.Sorted(maps.Keys(i.Files)) {
		if !path.IsAbs(name) || path.Clean(name) != name {
			return nil, fmt.Errorf("file %q: not an absolute, clean path", name)
		}
		if err := addFolders(archive, folders, path.Dir(name)); err != nil {
			return nil, err
		}
		source := i.Files[name]
		info, err := os.Stat(source)
		if err != nil {
			return nil, fmt.Errorf("file %q: %w", name, err)
		}
		content, err := os.ReadFile(source)
		if err != nil {
			return nil, fmt.Errorf("file %q: %w", name, err)
		}
		mode := int64(0o644)
		if info.Mode()&0o111 != 0 {
			mode = 0o755
		}
		if err := add(archive, strings.TrimPrefix(name, "/"), content, mode); err != nil {
			return nil, err
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return buffer.Bytes(), nil
}

// addFolders adds a folder after those that it lies in.
func addFolders(archive *tar.Writer, folders map[string]bool, dir string) error {
	if folders[dir] {
		return nil
	}
	folders[dir] = true
	if err := addFolders(archive, folders, path.Dir(dir)); err != nil {
		return err
	}
	return archive.WriteHeader(&tar.Header{
		Typeflag: tar.TypeDir, Name: strings.TrimPrefix(dir, "/") + "/", Mode: 0o755, ModTime: epoch,
	})
}

func add(archive *tar.Writer, name string, content []byte, mode int64) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: mode, ModTime: epoch}
	if err := archive.WriteHeader(header); err != nil {
		return fmt.Errorf("write %q: %w", name, err)
	}
	if _, err := archive.Write(content); err != nil {
		return fmt.Errorf("write %q: %w", name, err)
	}
	return nil
}

func hash(content []byte) string { return fmt.Sprintf("%x", sha256.Sum256(content)) }

// WriteFile writes an archive to a file, which is there complete or not at all.
func WriteFile(name string, images ...Image) (err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return fmt.Errorf("write an archive: %w", err)
	}
	file, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return fmt.Errorf("write an archive: %w", err)
	}
	err = Write(file, images...)
	err = cmp.Or(err, file.Chmod(0o644))
	err = cmp.Or(err, file.Close())
	if err == nil {
		err = os.Rename(file.Name(), name)
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return fmt.Errorf("write an archive: %w", err)
	}
	return nil
}
