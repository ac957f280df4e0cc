package gate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/plumbline/plumbline/reconcile/recordfile"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/fault"
)

// FilePrefix begins the names of the files that gates are in.
const FilePrefix = claim.Driver + "-gate-"

const (
	kind = claim.Driver + "/gate"
	// cdiVersion is the oldest that knows all we use, which is device names that
	// begin with a digit, as UIDs do. Runtimes ignore a file of a version later
	// than theirs, and one that uses what its version does not know.
	cdiVersion = "0.5.0"
	fileSuffix = ".json"
	envPrefix  = "PLUMBLINE_CLAIM_"
	// mountDir is where a container finds the namespace: beside what kubelet's
	// own helper mounts for claims.
	mountDir = "/var/run/" + claim.Driver + "/gate/"
)

// Dir is a directory of CDI files that runtimes read.
type Dir string

// ID returns the CDI device a container that consumes the claim must have.
func ID(uid types.UID) string { return kind + "=" + string(uid) }

var uidForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,62}$`)

func (d Dir) path(uid types.UID) (string, error) {
	if !uidForm.MatchString(string(uid)) {
		return "", fault.New(fault.Invalid, fmt.Errorf("claim UID %q is not a UID", uid))
	}
	return filepath.Join(string(d), FilePrefix+string(uid)+fileSuffix), nil
}

// Gives holds the device nodes, variables and folders that containers get through a gate.
type Gives struct {
	Nodes []string // paths of device nodes
	Env   []string // variables as NAME=VALUE; a runtime replaces those of the same name that a container has
	// Folders have the files that containers find below At.
	Folders []Folder
}

// Open lets containers of a sandbox be created that consume the claim. netns is the path of
// the sandbox's network namespace. It closes the gate for an earlier sandbox; the file of a gate that is
// already open for this one is replaced if the containers get something else from now on.
func (d Dir) Open(uid types.UID, sandbox, netns string, gives Gives) error {
	path, err := d.path(uid)
	if err != nil {
		return fmt.Errorf("open gate: %w", err)
	}
	err = d.writeFolders(uid, gives.Folders) // first: who comes through the gate finds them
	if err == nil {
		err = writeSpec(path, d.spec(uid, sandbox, netns, gives))
	}
	if err != nil {
		return fmt.Errorf("open gate of claim %q: %w", uid, err)
	}
	return nil
}

// Hold keeps the gate closed, but lets the creation of a container of the claim reach the
// runtime's hook, which can return the reason for the refusal; without a file the runtime
// only reports an unknown device. The file names no sandbox, and a mount that must fail: if
// no agent answers the hook, the container does not start either. If the file cannot be written, the gate is closed without one.
func (d Dir) Hold(uid types.UID) error {
	path, err := d.path(uid)
	if err == nil {
		err = writeSpec(path, d.spec(uid, "", unusablePath, Gives{}))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("hold gate of claim %q: %w", uid, err), d.Close(uid))
	}
	return nil
}

// unusablePath is a path that cannot exist: its parent is no directory. A
// runtime that fails to mount it shows it to the user.
const unusablePath = "/dev/null/the network of the pod is not attached yet"

func (d Dir) spec(uid types.UID, sandbox, netns string, gives Gives) cdi.Spec {
	claims := variable(uid) + "=" + string(uid) + "/" + sandbox
	env := []string{claims}
	if len(gives.Env) > 0 {
		env = slices.Concat(env, gives.Env, env) // first for Replaced, and last, as the last of a name counts
	}
	var devices []*cdi.DeviceNode
	for _, n := range gives.Nodes {
		devices = append(devices, &cdi.DeviceNode{Path: n, Permissions: "rw"}) // not m: containers must not create nodes
	}
	mounts := []*cdi.Mount{readOnly(netns, mountDir+string(uid))}
	for _, f := range gives.Folders {
		mounts = append(mounts, readOnly(d.folder(uid, f.Name), f.At))
	}
	return cdi.Spec{Version: cdiVersion, Kind: kind, Devices: []cdi.Device{{
		Name: string(uid),
		ContainerEdits: cdi.ContainerEdits{
			DeviceNodes: devices,
			Env:         env,
			Mounts:      mounts,
		},
	}}}
}

func readOnly(host, container string) *cdi.Mount {
	return &cdi.Mount{HostPath: host, ContainerPath: container, Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"}}
}

func variable(uid types.UID) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(string(uid), "-", "_"))
}

func writeSpec(path string, spec cdi.Spec) error {
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return write(path, append(data, '\n'))
}

// write replaces a file atomically, unless it has this content. It need not be durable: the directory is of
// this boot. Runtimes only read names that end in .json and .yaml.
func write(path string, data []byte) error {
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	_, err := recordfile.Replace(path, data, recordfile.Options{Mode: 0o644})
	return err
}

// Close closes the claim's gate; one that is closed is no error. The files that containers were given stay until Remove: those
// that run still read them.
func (d Dir) Close(uid types.UID) error {
	path, err := d.path(uid)
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("close gate of claim %q: %w", uid, err)
	}
	return nil
}

// OpenFor returns the sandbox the claim's gate is open for, "" when it is closed or its
// file names none.
func (d Dir) OpenFor(uid types.UID) string {
	path, err := d.path(uid)
	if err != nil {
		return ""
	}
	return Consumed(environment(path))[uid]
}

// environment returns what a gate adds to the environment of a container; nothing if it is closed.
func environment(path string) []string {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var s cdi.Spec
	if json.Unmarshal(data, &s) != nil || len(s.Devices) != 1 || s.Kind != kind {
		return nil
	}
	return s.Devices[0].ContainerEdits.Env
}

// Replaced returns the variables that the image or spec of a container set, and that the claim's open gate has replaced. Runtimes
// replace a variable in its place, and append new ones in the order of the gate (AddMultipleProcessEnv of runtime-tools, which package
// cdi calls). So a variable of the gate that precedes the variable with the claim was there before.
func (d Dir) Replaced(uid types.UID, env []string) (out []string) {
	path, err := d.path(uid)
	if err != nil {
		return nil
	}
	has := func(name string) func(string) bool {
		return func(e string) bool { return strings.HasPrefix(e, name+"=") }
	}
	own := slices.IndexFunc(env, has(variable(uid)))
	gives := environment(path)
	if own < 0 || len(gives) == 0 || !has(variable(uid))(gives[0]) { // not first in a file of an earlier version
		return nil
	}
	for _, e := range gives[1:] {
		name, _, _ := strings.Cut(e, "=")
		if slices.ContainsFunc(env[:own], has(name)) {
			out = append(out, name)
		}
	}
	return out
}

// List returns the claims whose gates have a file, and those of which there are files that containers were given.
func (d Dir) List() ([]types.UID, error) {
	files, err := os.ReadDir(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("gates: %w", err)
	}
	var out []types.UID
	for _, f := range files {
		if name, ok := strings.CutPrefix(f.Name(), FilePrefix); ok {
			if uid, ok := strings.CutSuffix(name, fileSuffix); ok && uidForm.MatchString(uid) {
				out = append(out, types.UID(uid))
			}
		}
	}
	left, err := os.ReadDir(filepath.Join(string(d), foldersDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("gates: %w", err)
	}
	for _, f := range left {
		if uid := types.UID(f.Name()); uidForm.MatchString(f.Name()) && !slices.Contains(out, uid) {
			out = append(out, uid)
		}
	}
	return out, nil
}

// Consumed returns which claims a container consumes by its environment, and for
// which sandbox the gate was open when it was made.
func Consumed(env []string) map[types.UID]string {
	out := map[types.UID]string{}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		uid, sandbox, ok := strings.Cut(value, "/")
		if ok && strings.HasPrefix(name, envPrefix) && name == variable(types.UID(uid)) {
			out[types.UID(uid)] = sandbox
		}
	}
	return out
}
