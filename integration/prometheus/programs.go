package prometheus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// programs are the programs of Debian's package that we use.
var programs = []string{"prometheus", "promtool"}

// Programs returns the path of a folder with prometheus and promtool, after unpacking them into
// the cache if need be. That takes apt's lists, and root to fetch them when there
// are none.
func Programs(ctx context.Context, cache string, log io.Writer) (string, error) {
	if onPath, err := exec.LookPath(programs[0]); err == nil {
		if second, err := exec.LookPath(programs[1]); err == nil && filepath.Dir(onPath) == filepath.Dir(second) {
			return filepath.Dir(onPath), nil
		}
	}
	cache, err := filepath.Abs(cache)
	if err != nil {
		return "", err
	}
	folder := filepath.Join(cache, "prometheus")
	if _, err := os.Stat(filepath.Join(folder, programs[0])); err == nil {
		return folder, nil
	}
	fmt.Fprintln(log, "prometheus: fetching Debian's package, once")
	if err := unpack(ctx, cache, folder); err != nil {
		return "", fmt.Errorf("fetch Debian's package prometheus: %w", err)
	}
	return folder, nil
}

// unpack makes the folder beside its place: what exists is complete.
func unpack(ctx context.Context, cache, folder string) error {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(cache, "prometheus-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := command(ctx, work, "apt-get", "download", "prometheus"); err != nil {
		if updateErr := command(ctx, work, "apt-get", "update"); updateErr != nil {
			return errors.Join(err, updateErr)
		}
		if err := command(ctx, work, "apt-get", "download", "prometheus"); err != nil {
			return err
		}
	}
	archives, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil {
		return err
	}
	if len(archives) != 1 {
		return fmt.Errorf("apt-get has fetched %q, not one package", archives)
	}
	if err := command(ctx, work, "dpkg-deb", "--extract", archives[0], "root"); err != nil {
		return err
	}
	made := filepath.Join(work, "made")
	if err := os.Mkdir(made, 0o755); err != nil {
		return err
	}
	for _, program := range programs {
		if err := os.Rename(filepath.Join(work, "root", "usr", "bin", program), filepath.Join(made, program)); err != nil {
			return err
		}
	}
	if err := os.Rename(made, folder); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

func command(ctx context.Context, dir, program string, arguments ...string) error {
	c := exec.CommandContext(ctx, program, arguments...)
	c.Dir = dir
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s %q: %w: %s", program, arguments, err, bytes.TrimSpace(said.Bytes()))
	}
	return nil
}

// Promtool runs promtool in a folder, and returns what it says; an error says it,
// too.
func Promtool(ctx context.Context, programs, dir string, arguments ...string) (string, error) {
	c := exec.CommandContext(ctx, filepath.Join(programs, "promtool"), arguments...)
	c.Dir = dir
	said, err := c.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("promtool %q: %w:\n%s", arguments, err, said)
	}
	return string(said), nil
}
