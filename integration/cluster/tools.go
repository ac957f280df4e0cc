package cluster

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/plumbline/plumbline/integration/image"
)

// tools builds what of ours runs in nodes and pods, and returns its folder in the
// cluster's. go build's own cache makes that quick.
func (c *Cluster) tools(ctx context.Context) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	folder := filepath.Dir(c.PodProgram())
	if exists(filepath.Join(c.dir, "images.tar")) {
		return folder, nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	if err := c.goBuild(ctx, folder+"/", "./integration/cluster/forward", "./integration/cluster/pod"); err != nil {
		return "", err
	}
	pod := image.Image{
		Names:      []string{PodImage},
		Files:      map[string]string{"/pod": filepath.Join(folder, "pod")},
		Entrypoint: []string{"/pod"},
	}
	pause := pod
	pause.Names, pause.Entrypoint = []string{pauseImage}, []string{"/pod", "pause"}
	return folder, image.WriteFile(filepath.Join(c.dir, "images.tar"), pod, pause)
}

// pack writes an archive of programs, without the folders they lie in.
func pack(name string, programs []string) (err error) {
	file, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("pack programs: %w", err)
	}
	archive := tar.NewWriter(file)
	for _, program := range programs {
		if err = packOne(archive, program); err != nil {
			break
		}
	}
	if err := errors.Join(err, archive.Close(), file.Close()); err != nil {
		return fmt.Errorf("pack programs: %w", err)
	}
	return nil
}

func packOne(archive *tar.Writer, program string) error {
	// Of a link, what it leads to.
	file, err := os.Open(program)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: filepath.Base(program), Size: info.Size(), Mode: 0o755}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(archive, file)
	return err
}
