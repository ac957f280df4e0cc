package primary

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/reconcile/pod/loopback"
	"github.com/plumbline/plumbline/reconcile/recordfile"
	"github.com/plumbline/plumbline/reconcile/table"
)

// InstallerOptions are the settings of an Installer.
type InstallerOptions struct {
	// Program is the plugin, and BinDir where the container runtime looks for it.
	Program, BinDir string
	// ConfDir and ConfName are where the runtime looks for networks. It uses the first by name.
	ConfDir, ConfName string
	Socket            string
	// Ready returns nil when pods can be given a network.
	Ready func() error
	// Selected reports whether a topology is to be the network of pods.
	Selected func() (selected, known bool)
	// InUse reports whether pods have it.
	InUse func() (bool, error)
	// Leads reports whether the node has no later agent, whose program may be another one.
	Leads func() bool
	// LastEnded is when the runtime has last ended a pod, or the process began.
	LastEnded func() time.Time
	// WokenBy changes when Ready or Selected may return something else.
	WokenBy []table.Source
	Log     *slog.Logger
	Now     func() time.Time
}

// Installer keeps the plugin and its configuration where the container runtime finds them.
type Installer struct {
	InstallerOptions
	wake table.Wake

	verified os.FileInfo // the installed program, as it was compared
}

// NewInstaller returns an Installer.
func NewInstaller(o InstallerOptions) *Installer {
	return &Installer{InstallerOptions: o, wake: table.Woken(o.WokenBy...)}
}

// reinstall is how often the files are compared: another program may remove them.
const reinstall = 5 * time.Second

// linger is how long the files stay when no pod has the network any more: a runtime ends the
// sandboxes of earlier starts of a pod too, and those of an earlier boot, and cannot without a
// network. The kubelet tries again after some 10 s.
const linger = 2 * time.Minute

// Run installs the files once pods can be given a network, so that the kubelet says until
// then that its node has none. It removes them when no topology is to be the network of
// pods and no pod has it: a runtime cannot end a pod whose network is not configured.
func (i *Installer) Run(ctx context.Context) {
	loop.Loop{
		Every: reinstall, Wake: i.wake,
		Pass: func(context.Context) (time.Duration, error) { return 0, i.Pass() },
		Warn: func(err error) {
			i.Log.Error("the container runtime may not find the network of pods", "error", err)
		},
	}.Run(ctx)
}

// Pass is one comparison.
func (i *Installer) Pass() error {
	if !i.Leads() {
		i.verified = nil
		return nil
	}
	selected, known := i.Selected()
	inUse, err := i.InUse()
	conf := filepath.Join(i.ConfDir, i.ConfName)
	why := i.Ready()
	switch ready := why == nil; {
	case err != nil && !ready:
		return nil // reported by the server; what is there stays
	case known && !selected && !inUse && err == nil:
		if i.Now().Sub(i.LastEnded()) < linger {
			return nil
		}
		return i.remove()
	case !ready && !inUse:
		// The installed plugin stays, and says why. Without it nobody asks.
		if _, err := os.Stat(conf); known && selected && errors.Is(err, fs.ErrNotExist) {
			return why
		}
		return nil
	}
	if err := i.program(); err != nil {
		return err
	}
	if err := i.loopback(); err != nil {
		return err
	}
	want, err := i.configuration()
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(conf); err != nil || !bytes.Equal(have, want) {
		if _, err := recordfile.Replace(conf, want, recordfile.Options{Sync: (*os.File).Sync, Mode: 0o644}); err != nil {
			return err
		}
		i.Log.Info("configured the network of pods", "file", conf)
	}
	return i.first()
}

// configuration names the versions of CNI both for runtimes that choose among several and
// for older ones.
func (i *Installer) configuration() ([]byte, error) {
	out, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0", "cniVersions": []string{"1.0.0", "1.1.0"}, "name": Name,
		"plugins": []any{map[string]any{"type": pluginType, "socket": i.Socket, "capabilities": map[string]bool{"portMappings": true}}},
	}, "", "  ")
	return append(out, '\n'), err
}

// pluginType is the name of the plugin's file.
const pluginType = "plumbline"

// program copies the plugin, unless it is there.
func (i *Installer) program() error {
	path := filepath.Join(i.BinDir, pluginType)
	if info, err := os.Lstat(path); err == nil && i.verified != nil && os.SameFile(info, i.verified) &&
		info.ModTime().Equal(i.verified.ModTime()) && info.Mode() == i.verified.Mode() {
		return nil
	}
	want, err := os.ReadFile(i.Program)
	if err != nil {
		return fmt.Errorf("CNI plugin: %w", err)
	}
	have, err := os.ReadFile(path)
	if info, statErr := os.Lstat(path); err != nil || statErr != nil || !bytes.Equal(have, want) || info.Mode() != programMode {
		if _, err := recordfile.Replace(path, want, recordfile.Options{Sync: (*os.File).Sync, Mode: programMode}); err != nil {
			return fmt.Errorf("CNI plugin: %w", err)
		}
		i.Log.Info("installed the CNI plugin", "file", path)
	}
	i.verified, err = os.Lstat(path)
	return err
}

const programMode = 0o755

// loopback installs the plugin that sets lo up, unless the node has one: containerd starts it
// for each pod. The program is the same, under another name.
func (i *Installer) loopback() error {
	path := filepath.Join(i.BinDir, loopback.Name)
	switch err := os.Symlink(pluginType, path); {
	case errors.Is(err, fs.ErrExist):
		return nil
	case err != nil:
		return fmt.Errorf("CNI plugin: %w", err)
	}
	i.Log.Info("installed the CNI plugin", "file", path)
	return nil
}

// removeLoopback removes the plugin, if it is ours.
func (i *Installer) removeLoopback() error {
	path := filepath.Join(i.BinDir, loopback.Name)
	if to, err := os.Readlink(path); err != nil || to != pluginType {
		return nil //nolint:nilerr // none, or a program
	}
	return os.Remove(path)
}

// first is an error if the runtime uses another network.
func (i *Installer) first() error {
	entries, err := os.ReadDir(i.ConfDir)
	if err != nil {
		return err
	}
	for _, e := range entries { // in order of name, as runtimes take them
		if !e.IsDir() && slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			if e.Name() < i.ConfName {
				return fmt.Errorf(
					"%q comes before %q, so the container runtime uses it: remove it, or choose a name for ours that comes first",
					filepath.Join(i.ConfDir, e.Name()), i.ConfName)
			}
			return nil
		}
	}
	return nil
}

// remove removes what was installed.
func (i *Installer) remove() error {
	conf, program := filepath.Join(i.ConfDir, i.ConfName), filepath.Join(i.BinDir, pluginType)
	have, err := os.ReadFile(conf)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !strings.Contains(string(have), `"`+pluginType+`"`):
		return nil // another's
	default:
		if err := os.Remove(conf); err != nil {
			return err
		}
		i.Log.Info("removed the network of pods", "file", conf)
	}
	i.verified = nil
	if err := i.removeLoopback(); err != nil {
		return err
	}
	if err := os.Remove(program); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
