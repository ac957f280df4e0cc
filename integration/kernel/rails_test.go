package kernel

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/ops"
)

// TestEightRails attaches a pod to eight functions of four cards, by two steps with forEach: each rail has an RDMA device of its own, with the GID
// that it requires. A rail that loses its address is the only one with drift. The release leaves nothing behind.
func TestEightRails(t *testing.T) {
	if !hasCards() {
		return
	}
	l, host := newRDMALane(t)
	home := l.state("")
	path := newNetns(t)
	const values = `forEach: ["0", "1", "2", "3", "4", "5", "6", "7"]`
	s := box(path, parse(t, "rails", `
    - {name: rail, `+values+`, type: sriov, config: {name: "rail{{ each.value }}", addresses: ["10.{{ each.value }}.0.5/24"]}}
    - {name: roce, `+values+`, type: rxe, dependOn: [rail], config: {require: {gid: {type: RoCEv2, family: IPv4, scope: global}, state: ACTIVE}}}
`))
	at := map[string]string{}
	for rail := range 8 { // two functions of each card
		at[fmt.Sprintf("rail%d", rail)] = fmt.Sprintf("enp%ds0f%d/%d", 3+rail/4, rail/2%2, 1+rail%2)
	}
	s.Given = ops.Givens{}.WithDevices(functions(t, at))
	engine := l.engine(nil)
	release := released(t, engine, s.ID)
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience) // eight tables of GIDs are read in each pass
	defer cancel()
	report, err := engine.Ensure(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	var devices, nodes []string
	for rail := range 8 {
		got := stepDevices(report.Results, fmt.Sprintf("roce%d", rail))
		if len(got.DeviceNodes) != 2 || got.GIDIndex == nil {
			t.Fatalf("rail %d: %+v", rail, got)
		}
		gid := strings.TrimSpace(read(t, fmt.Sprintf("/sys/class/infiniband/%s/ports/1/gids/%d", got.RDMADevice, *got.GIDIndex)))
		if want := fmt.Sprintf("0000:0000:0000:0000:0000:ffff:0a%02x:0005", rail); gid != want {
			t.Errorf("rail %d: GID %d of %s is %s, want %s", rail, *got.GIDIndex, got.RDMADevice, gid, want)
		}
		devices, nodes = append(devices, got.RDMADevice), append(nodes, got.DeviceNodes[0])
	}
	for _, all := range [][]string{slices.Clone(devices), slices.Clone(nodes)} {
		if slices.Sort(all); len(slices.Compact(all)) != 8 {
			t.Errorf("two rails have one device: %q %q", devices, nodes)
		}
	}

	pod := &foreignWriter{t, filepath.Base(path), ""}
	pod.run("ip -n $NS address delete 10.5.0.5/24 dev rail5")
	eventually.True(t, time.Minute, "drift of one rail", func() bool {
		status, err := engine.Check(ctx, s.ID)
		if err != nil {
			t.Fatal(err)
		}
		drift := fmt.Sprint(status.Drift)
		return strings.Contains(drift, "rail5") && strings.Contains(drift, devices[5]) && !strings.Contains(drift, "rail4") && !strings.Contains(drift, "rail6")
	})
	eventually.Succeeds(t, time.Minute, "eight rails again", func() error {
		_, err := engine.Ensure(ctx, s)
		return err
	})

	release()
	eventually.True(t, 20*time.Second, "no RDMA device", func() bool { return strings.TrimSpace(host.run("ls /sys/class/infiniband")) == "" })
	l.mustEqual(home, "", "after the release")
}
