package inventory

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// JSON writes devices as one indented array; an empty one is "[]", not "null".
func JSON(w io.Writer, devices []Device) error {
	if devices == nil {
		devices = []Device{}
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(devices)
}

// Table writes devices one a line, for people.
func Table(w io.Writer, devices []Device) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "DEVICE\tKIND\tIFNAME\tPF\tDRIVER\tNUMA\tRDMA\tMTU\tMAC\tSTATE")
	for _, d := range devices {
		cells := []string{d.Name, string(d.Kind), d.IfName, d.PF.String(), d.Driver, "", strings.Join(d.RDMADevices, ","), "", d.MAC, d.State()}
		if d.NUMANode != nil {
			cells[5] = strconv.Itoa(*d.NUMANode)
		}
		if d.MTU != 0 {
			cells[7] = strconv.Itoa(d.MTU)
		}
		for i, cell := range cells {
			if cell == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	return tw.Flush()
}

// String is "enp3s0f0 vf 2", or "" for nil.
func (p *PF) String() string {
	if p == nil {
		return ""
	}
	name := p.IfName
	if name == "" {
		name = p.PCIAddress
	}
	if p.VFIndex < 0 {
		return name
	}
	return name + " vf " + strconv.Itoa(p.VFIndex)
}
