package gate_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile/pod/gate"
)

const uid types.UID = "0b1c7a3e-1d2f-4c5a-9b8e-112233445566"

func TestGate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cdi")
	g := gate.Dir(dir)
	if open := g.OpenFor(uid); open != "" {
		t.Errorf("before all: open for %q", open)
	}
	for _, sandbox := range []string{"aa", "bb"} { // the next sandbox takes the gate over
		if err := g.Open(uid, sandbox, "/var/run/netns/cni-"+sandbox, gate.Gives{}); err != nil {
			t.Fatal(err)
		}
		if open := g.OpenFor(uid); open != sandbox {
			t.Errorf("open for %q, want %q", open, sandbox)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Errorf("files: %v, %v; want one, and nothing temporary", files, err)
	}
	listed, err := g.List()
	if err != nil || !slices.Equal(listed, []types.UID{uid}) {
		t.Errorf("List: %v, %v", listed, err)
	}
	for range 2 {
		if err := g.Close(uid); err != nil {
			t.Error(err)
		}
		if open := g.OpenFor(uid); open != "" {
			t.Errorf("closed, but open for %q", open)
		}
	}
}

// TestNodes holds that a container gets the device nodes of its claim, and cannot make
// others by the permission.
func TestNodes(t *testing.T) {
	dir := t.TempDir()
	if err := gate.Dir(dir).Open(uid, "aa", "/var/run/netns/cni-1", gate.Gives{Nodes: []string{"/dev/vfio/42", "/dev/vfio/vfio"}}); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	data, err := os.ReadFile(files[0])
	if err != nil || !strings.Contains(string(data), `"deviceNodes":[{"path":"/dev/vfio/42","permissions":"rw"},{"path":"/dev/vfio/vfio","permissions":"rw"}]`) {
		t.Errorf("%v: %s", err, data)
	}
}

// TestEnvironment holds that a container gets the variables of its claim, that it gets the new ones if they have changed, and that none of
// them hides which claim and sandbox the container is of.
func TestEnvironment(t *testing.T) {
	dir := t.TempDir()
	g := gate.Dir(dir)
	forged := "PLUMBLINE_CLAIM_0B1C7A3E_1D2F_4C5A_9B8E_112233445566=" + string(uid) + "/other"
	for _, hca := range []string{"=mlx5_0", "=mlx5_1"} {
		if err := g.Open(uid, "aa", "/var/run/netns/cni-1", gate.Gives{Env: []string{"NCCL_IB_HCA=" + hca, forged}}); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, gate.FilePrefix+string(uid)+".json"))
		if err != nil || !strings.Contains(string(data), `,"NCCL_IB_HCA=`+hca+`",`) {
			t.Errorf("%v: %s", err, data)
		}
		if open := g.OpenFor(uid); open != "aa" {
			t.Errorf("open for %q", open)
		}
	}
}

// TestFolders holds that a container has the folders of its claim mounted read-only, that files of an open gate are replaced, added and removed in
// the folder that is mounted, that they stay while the gate is closed, and that none lies elsewhere, whatever its name.
func TestFolders(t *testing.T) {
	dir := t.TempDir()
	g := gate.Dir(dir)
	open := func(folders ...gate.Folder) error {
		return g.Open(uid, "aa", "/var/run/netns/cni-1", gate.Gives{Folders: folders})
	}
	const at = "/var/run/dra.networking/files/t"
	folder := filepath.Join(dir, "dra.networking-files", string(uid), "t")
	files := func() (out []string) {
		found, _ := os.ReadDir(folder)
		for _, f := range found {
			data, _ := os.ReadFile(filepath.Join(folder, f.Name()))
			out = append(out, f.Name()+"="+string(data))
		}
		return out
	}
	inode := func() uint64 {
		info, err := os.Stat(folder)
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Ino
	}
	if err := open(gate.Folder{Name: "t", At: at, Files: []gate.File{{Name: "a", Content: "1"}, {Name: "b", Content: "2"}}}); err != nil {
		t.Fatal(err)
	}
	first := inode()
	data, err := os.ReadFile(filepath.Join(dir, gate.FilePrefix+string(uid)+".json"))
	if want := `{"hostPath":"` + folder + `","containerPath":"` + at + `","options":["bind","ro","nosuid","nodev","noexec"]}`; err != nil || !strings.Contains(string(data), want) {
		t.Errorf("%v: %s\nwant %s", err, data, want)
	}
	if have := files(); !slices.Equal(have, []string{"a=1", "b=2"}) {
		t.Errorf("files %q", have)
	}
	if err := g.Close(uid); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, ".c.123"), []byte("of a crash"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := open(gate.Folder{Name: "t", At: at, Files: []gate.File{{Name: "b", Content: "3"}, {Name: "c", Content: "4"}}}); err != nil {
		t.Fatal(err)
	}
	if have := files(); !slices.Equal(have, []string{"b=3", "c=4"}) || inode() != first {
		t.Errorf("files %q, in another folder: %v", have, inode() != first)
	}
	for _, name := range []string{"../x", "a/b", "..", ".", ""} {
		if err := open(gate.Folder{Name: "t", At: at, Files: []gate.File{{Name: name}}}); err == nil {
			t.Errorf("file %q was written", name)
		}
		if err := open(gate.Folder{Name: name, At: at, Files: []gate.File{{Name: "a"}}}); err == nil {
			t.Errorf("folder %q was written", name)
		}
	}
	for range 2 {
		if err := g.Remove(uid); err != nil {
			t.Error(err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*", "*")); len(left) > 0 || g.OpenFor(uid) != "" {
		t.Errorf("left: %q", left)
	}
	// A file that cannot be written keeps the gate closed.
	if err := os.MkdirAll(filepath.Join(folder, "a", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := open(gate.Folder{Name: "t", At: at, Files: []gate.File{{Name: "a"}}}); err == nil || g.OpenFor(uid) != "" {
		t.Errorf("opened for %q: %v", g.OpenFor(uid), err)
	}
	if listed, err := g.List(); err != nil || !slices.Equal(listed, []types.UID{uid}) {
		t.Errorf("files without a gate are listed as %v, %v", listed, err)
	}
}

// TestSpec holds the content of the file that a runtime reads.
func TestSpec(t *testing.T) {
	dir := t.TempDir()
	if err := gate.Dir(dir).Open(uid, "aa", "/var/run/netns/cni-1", gate.Gives{}); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var spec, want any
	const golden = `{"cdiVersion":"0.5.0","kind":"dra.networking/gate","containerEdits":{},"devices":[{
		"name":"0b1c7a3e-1d2f-4c5a-9b8e-112233445566","containerEdits":{
			"env":["PLUMBLINE_CLAIM_0B1C7A3E_1D2F_4C5A_9B8E_112233445566=0b1c7a3e-1d2f-4c5a-9b8e-112233445566/aa"],
			"mounts":[{"hostPath":"/var/run/netns/cni-1","containerPath":"/var/run/dra.networking/gate/0b1c7a3e-1d2f-4c5a-9b8e-112233445566",
				"options":["bind","ro","nosuid","nodev","noexec"]}]}}]}`
	if json.Unmarshal(data, &spec) != nil || json.Unmarshal([]byte(golden), &want) != nil {
		t.Fatalf("not JSON: %s", data)
	}
	have, _ := json.Marshal(spec)
	wanted, _ := json.Marshal(want)
	if string(have) != string(wanted) {
		t.Errorf("have %s\nwant %s", have, wanted)
	}
	if info, err := os.Stat(files[0]); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v, %v: the runtime must be able to read it", info.Mode(), err)
	}
	if id := gate.ID(uid); id != "dra.networking/gate="+string(uid) {
		t.Errorf("ID %q", id)
	}
}

func TestConsumed(t *testing.T) {
	const name = "PLUMBLINE_CLAIM_0B1C7A3E_1D2F_4C5A_9B8E_112233445566="
	for _, c := range []struct {
		name string
		env  []string
		want map[types.UID]string
	}{
		{"a claim", []string{"PATH=/bin", name + string(uid) + "/aa"}, map[types.UID]string{uid: "aa"}},
		{"another's variable", []string{"PLUMBLINE_CLAIM_X=" + string(uid) + "/aa"}, nil},
		{"a value of a user", []string{name + "yes", name, "PLUMBLINE_CLAIM_"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			have := gate.Consumed(c.env)
			if len(have) != len(c.want) || have[uid] != c.want[uid] {
				t.Errorf("have %v, want %v", have, c.want)
			}
		})
	}
}

// TestPath holds that no UID leads to a path outside of the directory.
func TestPath(t *testing.T) {
	dir := t.TempDir()
	for _, bad := range []types.UID{"", "../x", "a/b", ".", "a b"} {
		if err := gate.Dir(dir).Open(bad, "aa", "/n", gate.Gives{}); err == nil {
			t.Errorf("opened a gate for UID %q", bad)
		}
		if err := gate.Dir(dir).Close(bad); err == nil {
			t.Errorf("closed a gate of UID %q", bad)
		}
	}
}

// TestHold holds that a held gate is closed: what it adds to a container names no
// sandbox, and cannot be mounted.
func TestHold(t *testing.T) {
	dir := t.TempDir()
	g := gate.Dir(dir)
	if err := g.Hold(uid); err != nil {
		t.Fatal(err)
	}
	if open := g.OpenFor(uid); open != "" {
		t.Errorf("open for %q", open)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		Devices []struct {
			ContainerEdits struct {
				Env    []string
				Mounts []struct{ HostPath string }
			}
		}
	}
	if err := json.Unmarshal(data, &spec); err != nil {
		t.Fatal(err)
	}
	edits := spec.Devices[0].ContainerEdits
	if sandbox, consumed := gate.Consumed(edits.Env)[uid]; !consumed || sandbox != "" {
		t.Errorf("environment %q", edits.Env)
	}
	if err := os.MkdirAll(edits.Mounts[0].HostPath, 0o755); err == nil {
		t.Errorf("%q can be made", edits.Mounts[0].HostPath)
	}
	if err := g.Open(uid, "aa", "/var/run/netns/cni-1", gate.Gives{}); err != nil || g.OpenFor(uid) != "aa" {
		t.Errorf("opened: %v, for %q", err, g.OpenFor(uid))
	}
	if err := g.Close(uid); err != nil {
		t.Error(err)
	}
}

// TestName holds what a runtime reads of a CDI device that names a device of the node.
func TestName(t *testing.T) {
	dir := t.TempDir()
	g := gate.Dir(dir)
	for range 2 {
		id, err := g.Name("pci-0000-03-00-2")
		if err != nil || id != "dra.networking/device=pci-0000-03-00-2" {
			t.Fatalf("%q, %v", id, err)
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, "dra.networking-device-pci-0000-03-00-2.json"))
	const want = `{"cdiVersion":"0.5.0","kind":"dra.networking/device","devices":[{"name":"pci-0000-03-00-2","containerEdits":{"env":["PLUMBLINE_DEVICE_PCI_0000_03_00_2=pci-0000-03-00-2"]}}],"containerEdits":{}}` + "\n"
	if err != nil || string(data) != want {
		t.Errorf("%v: %s", err, data)
	}
	if listed, err := g.List(); err != nil || len(listed) != 0 {
		t.Errorf("taken for the gates of %v (%v)", listed, err)
	}
	if len(gate.Consumed([]string{"PLUMBLINE_DEVICE_PCI_0000_03_00_2=pci-0000-03-00-2"})) != 0 {
		t.Error("taken for a claim")
	}
	for _, name := range []string{"", "../x", "a/b", "A", strings.Repeat("a", 64)} {
		if _, err := g.Name(name); err == nil {
			t.Errorf("device %q has a file", name)
		}
	}
}

// TestHoldFails: a gate whose file cannot be replaced, as on a full disk, is closed.
func TestHoldFails(t *testing.T) {
	base := t.TempDir()
	if err := gate.Dir(base).Open(uid, "aa", "/var/run/netns/cni-aa", gate.Gives{}); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(base, "*.json"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	spec, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	// So deep that the path of the file is one of the longest that there are, and the file that should replace it has none.
	dir := base
	for {
		room := syscall.PathMax - 1 - len(filepath.Join(dir, filepath.Base(files[0])))
		if room < 2 {
			break
		}
		dir = filepath.Join(dir, strings.Repeat("d", min(room-1, 200)))
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, filepath.Base(files[0]))
	if err := os.WriteFile(file, spec, 0o644); err != nil {
		t.Fatal(err)
	}
	g := gate.Dir(dir)
	if open := g.OpenFor(uid); open != "aa" {
		t.Fatalf("open for %q", open)
	}
	if err := g.Hold(uid); err == nil {
		t.Error("no error")
	}
	if _, err := os.Stat(file); err == nil {
		t.Errorf("the gate is open for %q", g.OpenFor(uid))
	}
}
