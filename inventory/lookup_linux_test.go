package inventory_test

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/k8snetworkplumbingwg/sriovnet"
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

func check(t *testing.T, what, have, want string, err error, wantErr string) {
	t.Helper()
	switch {
	case wantErr == "" && err != nil, wantErr != "" && (err == nil || len(err.Error()) < len(wantErr) || err.Error()[:len(wantErr)] != wantErr):
		t.Errorf("%s: error: have %v\nwant %s", what, err, wantErr)
	case have != want:
		t.Errorf("%s: have %q, want %q", what, have, want)
	}
}

// TestLookupUplink holds what the library finds to what a scan finds.
func TestLookupUplink(t *testing.T) {
	root(t, "mlx5")
	for _, c := range []struct{ address, want, err string }{
		{"0000:03:00.1", "enp3s0f1", ""},
		{"0000:03:01.2", "enp3s0f1", ""}, // a virtual function of it
		{"0000:03:00.0", "", `device "0000:03:00.0": uplink: failed to get uplink representor`},
	} {
		have, err := inventory.LookupUplink(c.address)
		check(t, c.address, have, c.want, err, c.err)
	}
	for _, d := range devices(t, "mlx5") {
		if pf, err := sriovnet.GetPfPciFromVfPci(d.ID); (err == nil) != (d.PF != nil) || err == nil && pf != d.PF.PCIAddress {
			t.Errorf("%s: its PF is %q (%v) to the library, %+v to the scan", d.Name, pf, err, d.PF)
		}
	}
}

// TestUplinkOf lets the caller say which of a PF's interfaces is its own.
func TestUplinkOf(t *testing.T) {
	const pf = "0000:03:00.1"
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"enp3s0f1_1", nil, "enp3s0f1_1"},
		{"enp3s0f1_1", errors.New("no devlink"), "enp3s0f1"},
		{"another", nil, "enp3s0f1"},
	} {
		asked := map[string]bool{}
		found, err := inventory.Discover(open(t, "mlx5").tree, inventory.Options{UplinkOf: func(address string) (string, error) {
			asked[address] = true
			return c.name, c.err
		}})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range found {
			if d.ID == pf && (d.IfName != c.want || len(d.OtherIfNames) != 4) {
				t.Errorf("%q, %v: have %q and %q", c.name, c.err, d.IfName, d.OtherIfNames)
			}
		}
		if !asked[pf] || len(asked) != 1 {
			t.Errorf("asked for %v, want only the PF with several interfaces", asked)
		}
	}
}
