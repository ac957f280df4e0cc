package reconcile_test

import (
	"context"
	"errors"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
)

const zeroMAC = "00:00:00:00:00:00"

// refusing is the driver of a physical function that reports no MAC for a virtual one, and refuses to take away one that was set.
type refusing struct{ *sandbox }

func (r refusing) Apply(ctx context.Context, c netstate.Change) error {
	if vf, ok := c.After.(netstate.VF); ok && vf.MAC != nil && *vf.MAC == zeroMAC {
		return errors.New("invalid argument")
	}
	return r.sandbox.Apply(ctx, c)
}

// TestZeroMACIsRefused: a virtual function whose physical one held no MAC for it, and takes none, is released with its own MAC.
func TestZeroMACIsRefused(t *testing.T) {
	const id, own, pods = "0000:03:00.2", "02:00:00:00:00:01", "02:00:00:00:00:02"
	for name, refuses := range map[string]bool{"refused": true, "taken": false} {
		t.Run(name, func(t *testing.T) {
			store, err := journal.Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			home, inside := netstate.HostName("eth2"), "net1"
			before, after := netstate.VF{ID: id, MAC: new(zeroMAC), VLAN: new(uint16(0))}, netstate.VF{ID: id, MAC: new(pods), VLAN: new(uint16(7))}
			at := func(name, mac string) netstate.Device {
				return netstate.Device{ID: id, At: &name, LinkKind: "device", MAC: &mac, MTU: new(uint32(1500)), Up: new(false)}
			}
			k := &sandbox{t: t, Snapshot: netstate.NewSnapshot(
				netstate.Link{Name: "lo", LinkKind: "device"}, at(inside, pods), after,
				netstate.Link{Name: inside, LinkKind: "device", DeviceID: id, MAC: new(pods), MTU: new(uint32(1500)), Up: new(true), Master: new("")},
			)}
			sb := shared(t, "t", "d0", bare)
			rec := reconcile.Record{Sandbox: sb, BootID: "boot", NetnsID: k.NetnsID(), Phase: reconcile.Applied, History: []netstate.Change{
				{Step: "d", Before: before, After: after}, {Step: "d", Before: at(home, own), After: at(inside, pods)},
			}}
			if err := store.Put(rec); err != nil {
				t.Fatal(err)
			}
			var domain reconcile.Domain = k
			want := zeroMAC
			if refuses {
				domain, want = refusing{k}, own
			}
			r := reconcile.New(reconcile.Options{Store: store, BootID: "boot", Open: func(string) (reconcile.Domain, error) { return domain, nil }})
			if rep, err := r.Release(t.Context(), sb.ID); err != nil || rep.Unclean != "" {
				t.Fatal(err, rep.Unclean)
			}
			vf, _ := netstate.Lookup(k.Snapshot, before)
			d, _ := k.Device(id)
			if *vf.MAC != want || *vf.VLAN != 0 || *d.At != home || *d.MAC != own {
				t.Errorf("the physical function holds %s and VLAN %d, the device is %s with %s", *vf.MAC, *vf.VLAN, *d.At, *d.MAC)
			}
		})
	}
}
