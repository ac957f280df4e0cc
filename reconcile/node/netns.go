package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/netns"
	"github.com/plumbline/plumbline/topology/fault"
)

// NetnsDir is where named network namespaces are mounted (ip-netns(8)).
const NetnsDir = "/run/netns"

// Netns is a network namespace as a user names it.
type Netns struct {
	Name string // the first part of a sandbox's ID
	Path string
}

// procPath is a namespace by process; all of them have the base name "net".
var procPath = regexp.MustCompile(`^/proc/([^/]+)(?:/task/([0-9]+))?/ns/net$`)

// ParseNetns reads a namespace's name, which stands for a file in NetnsDir, or its
// path. It does not check whether the namespace exists.
func ParseNetns(s string) (Netns, error) {
	switch {
	case s == "":
		return Netns{}, fault.New(fault.Invalid, errors.New("network namespace: the name is empty"))
	case s == "." || s == ".." || strings.ContainsAny(s, "\x00\n"):
		return Netns{}, fault.New(fault.Invalid, fmt.Errorf("network namespace %q: not a name or a path", s))
	case !strings.Contains(s, "/"):
		return Netns{Name: s, Path: filepath.Join(NetnsDir, s)}, nil
	}
	path, err := filepath.Abs(s)
	if err != nil {
		return Netns{}, fmt.Errorf("network namespace %q: %w", s, err)
	}
	if m := procPath.FindStringSubmatch(path); m != nil {
		if m[1] == "self" || m[1] == "thread-self" {
			return Netns{}, fault.New(fault.Invalid, fmt.Errorf("network namespace %q: it is the host's own", s))
		}
		return Netns{Name: "pid" + strings.TrimRight(m[1]+"-"+m[2], "-"), Path: path}, nil
	}
	// /var/run is a link to /run, and one namespace must not have two names.
	if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(dir, filepath.Base(path))
	}
	if path == "/" {
		return Netns{}, fault.New(fault.Invalid, fmt.Errorf("network namespace %q: it is a directory", s))
	}
	return Netns{Name: filepath.Base(path), Path: path}, nil
}

// Exists returns an error of kind Gone if nothing is at the namespace's path. Only
// opening it shows whether it is a namespace, and one that may be changed.
func (n Netns) Exists() error {
	_, err := os.Stat(n.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && filepath.Dir(n.Path) == NetnsDir:
		return fault.New(fault.Gone, fmt.Errorf("network namespace %q does not exist: create it with `ip netns add %s`", n.Name, n.Name))
	case errors.Is(err, fs.ErrNotExist):
		return fault.New(fault.Gone, fmt.Errorf("network namespace %q does not exist", n.Path))
	case err != nil:
		return fmt.Errorf("network namespace %q: %w", n.Name, err)
	}
	return nil
}

// ID returns the ID of the sandbox of a topology in the namespace.
func (n Netns) ID(topology string) reconcile.SandboxID {
	return reconcile.IDByHand(n.Name, topology)
}

// Alive reports whether the namespace of a record still exists: its path leads to the
// namespace that was recorded. A record of another boot counts as alive if any namespace
// is at its path, as the namespaces cannot be compared.
func Alive(rec reconcile.Record, bootID string) bool { return alive(rec, bootID, netns.At) }

func alive(rec reconcile.Record, bootID string, identify func(path string) (reconcile.NetnsID, error)) bool {
	if rec.Sandbox.Netns == "" {
		return rec.BootID == bootID // it needs no namespace, and ends with the boot
	}
	id, err := identify(rec.Sandbox.Netns)
	return err == nil && (rec.NetnsID == (reconcile.NetnsID{}) || rec.BootID != bootID || netns.Same(rec.NetnsID, id))
}
