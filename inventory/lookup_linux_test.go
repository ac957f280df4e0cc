package inventory_test

import (
	"path/filepath"
	"testing"

	"github.com/k8snetworkplumbingwg/sriovnet/pkg/utils/filesystem"
	"golang.org/x/tools/txtar"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/sysfstest"
)

// root makes the sriovnet library see a fixture as /sys.
func root(t *testing.T, name string) {
	t.Helper()
	archive, err := txtar.ParseFile("testdata/tree/" + name + ".txtar")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "root")
	rooted, remove, err := filesystem.NewFakeFs(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	if err := sysfstest.Write(filepath.Join(dir, "sys"), archive); err != nil {
		t.Fatal(err)
	}
	before := filesystem.Fs
	filesystem.Fs = rooted
	t.Cleanup(func() { filesystem.Fs = before })
}

func TestLookupIfName(t *testing.T) {
	root(t, "mlx5")
	for _, c := range []struct{ address, want, err string }{
		{"0000:03:00.2", "enp3s0f0v0", ""},
		{"0000:03:00.1", "", `device "0000:03:00.1": want one interface, have ["enp3s0f1" "enp3s0f1_0" "enp3s0f1_1" "enp3s0f1sf0rep"]`},
		{"0000:03:00.3", "", `device "0000:03:00.3": interface: could not stat the directory /sys/bus/pci/devices/0000:03:00.3/net`},
	} {
		have, err := inventory.LookupIfName(c.address)
		check(t, c.address, have, c.want, err, c.err)
	}
}

func TestLookupRepresentor(t *testing.T) {
	root(t, "mlx5")
	for _, d := range devices(t, "mlx5") {
		want, wantErr := "", ""
		switch d.ID {
		case "0000:03:01.2":
			want = "enp3s0f1_0"
		case "0000:03:01.3":
			want = "enp3s0f1_1"
		case "0000:03:00.2", "0000:03:00.3": // port 0 is not in switchdev mode
			wantErr = `device "` + d.Name + `": representor of ` + d.PF.String() + `: uplink enp3s0f0 is not a switchdev`
		default:
			wantErr = `device "` + d.Name + `": representor: not a virtual function`
		}
		have, err := inventory.LookupRepresentor(d)
		check(t, d.ID, have, want, err, wantErr)
	}
}

func check(t *testing.T, what, have, want string, err error, wantErr string) {
	t.Helper()
	switch {
	case wantErr == "" && err != nil, wantErr != "" && (err == nil || len(err.Error()) < len(wantErr) || err.Error()[:len(wantErr)] != wantErr):
		t.Errorf("%s: error: have %v\nwant %s", what, err, wantErr)
	case have != want:
		t.Errorf("%s: have %q, want %q", what, have, want)
	}
}
