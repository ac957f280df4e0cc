package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

// withSettings is the topology of the comparison with more settings of its functions.
var withSettings = strings.ReplaceAll(compared, `spoofchk: "off"`, `vlan: 55, spoofchk: "off"`)

// settings measures what of applying a topology is spent on what physical functions hold
// for its virtual ones: one contender changes them, and the other finds them changed, as
// it would if they had been prepared before the sandbox.
func settings(ctx context.Context, n int) error {
	vfs, err := pairs(2)
	if err != nil {
		return err
	}
	names := []string{"settings changed in the sandbox's pass", "settings changed before"}
	var contenders []*engine
	for k, v := range vfs {
		e, err := bareEngine(withSettings)
		if err != nil {
			return err
		}
		e.devices = map[string]string{"vf0": v[0].pci, "vf1": v[1].pci}
		if k == 1 {
			for _, f := range v {
				if err := prepare(f); err != nil {
					return err
				}
			}
		}
		contenders = append(contenders, e)
	}
	got := make([]samples, len(contenders))
	for i := range n + 1 {
		for k, c := range contenders {
			a, r, err := once(ctx, c, fmt.Sprintf("settings-%d-%d", i, k))
			if err != nil {
				return fmt.Errorf("%s: %w", names[k], err)
			}
			time.Sleep(500 * time.Millisecond) // as for apply
			if i > 0 {
				got[k].apply, got[k].remove = append(got[k].apply, a), append(got[k].remove, r)
			}
		}
	}
	fmt.Printf("\n### VLAN, spoof check and trust of 2 VFs, with the rest of apply (n=%d)\n\n", n)
	fmt.Println("| | apply, ms | × the first | delete, ms | × the first |\n|---|---|---|---|---|")
	for k, name := range names {
		fmt.Printf("| %s | %s | %s | %s | %s |\n", name, millis(median(got[k].apply)), ratio(got[k].apply, got[0].apply),
			millis(median(got[k].remove)), ratio(got[k].remove, got[0].remove))
	}
	return nil
}

// prepare makes the settings of a function, which stay so when it is released.
func prepare(f vf) error {
	pf, err := netlink.LinkByName(f.pf)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetVfVlan(pf, f.index, 55); err != nil {
		return err
	}
	if err := netlink.LinkSetVfSpoofchk(pf, f.index, false); err != nil {
		return err
	}
	return netlink.LinkSetVfTrust(pf, f.index, true)
}
