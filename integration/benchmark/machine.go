package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// vf is one virtual function of the machine.
type vf struct {
	pci   string
	name  string // of its interface on the host
	pf    string
	index int
}

// pairs returns n pairs of VFs, one of each of two PFs.
func pairs(n int) ([][2]vf, error) {
	var out [][2]vf
	for i := range n {
		p, err := pair(i)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

func pair(index int) (out [2]vf, err error) {
	all, err := ports(index)
	if err == nil && copy(out[:], all) < len(out) {
		err = fmt.Errorf("two network cards with %d VFs are needed, found %d", index+1, len(all))
	}
	return out, err
}

// ports returns the functions with an index, of all cards.
func ports(index int) (out []vf, err error) {
	links, _ := filepath.Glob(fmt.Sprintf("/sys/class/net/*/device/virtfn%d", index)) // the pattern is sound
	if len(links) == 0 {
		return nil, fmt.Errorf("no network card has %d VFs", index+1)
	}
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil {
			return out, err
		}
		pci := filepath.Base(target)
		nets, err := os.ReadDir("/sys/bus/pci/devices/" + pci + "/net")
		if err != nil || len(nets) == 0 {
			return out, fmt.Errorf("VF %s has no interface: %w", pci, err)
		}
		out = append(out, vf{pci: pci, name: nets[0].Name(), pf: filepath.Base(filepath.Dir(filepath.Dir(link))), index: index})
	}
	return out, nil
}
