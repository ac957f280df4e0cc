package inventory

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
)

// Listed is a device as the command line lists it.
type Listed struct {
	Device
	// Withheld is why the device is not offered to pods, "" when it is.
	Withheld string `json:"withheld,omitempty"`
	// Policy is the policy that decided, or that prevents a decision; "" is the built-in
	// rules.
	Policy string `json:"policy,omitempty"`
}

// List joins devices, in all forms, with the reasons why some are not offered, by name.
func List(devices []Device, withheld map[string]string) []Listed {
	out := []Listed{}
	for _, d := range Forms(devices) {
		out = append(out, Listed{d, withheld[d.Name], d.Exposure.Policy})
	}
	return out
}

// JSON writes devices as one indented array; an empty one is "[]", not "null".
func JSON(w io.Writer, devices []Listed) error {
	if devices == nil {
		devices = []Listed{}
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(devices)
}

// Table writes one device a line, for people.
func Table(w io.Writer, devices []Listed) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "DEVICE\tKIND\tIFNAME\tPF\tDRIVER\tNUMA\tRDMA\tMTU\tMAC\tSTATE\tOFFERED")
	for _, d := range devices {
		cells := []string{
			d.Name, string(d.Kind), d.IfName, d.PF.String(), d.Driver,
			"", strings.Join(d.RDMADevices, ","), "", d.MAC, d.State(), "yes",
		}
		if d.NUMANode != nil {
			cells[5] = strconv.Itoa(*d.NUMANode)
		}
		if d.MTU != 0 {
			cells[7] = strconv.Itoa(d.MTU)
		}
		switch {
		case d.Withheld != "":
			cells[10] = "no: " + d.Withheld
		case d.Shared != nil:
			cells[10] = fmt.Sprintf("yes: policy %q shares it", d.Policy)
		case d.Policy != "":
			cells[10] = fmt.Sprintf("yes: policy %q exposes it", d.Policy)
		}
		for i, cell := range cells {
			switch {
			case cell == "":
				cells[i] = "-"
			case strings.ContainsFunc(cell, unicode.IsControl): // a pod can choose names of interfaces and RDMA devices
				cells[i] = strconv.Quote(cell)
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
	name := cmp.Or(p.IfName, p.PCIAddress)
	if p.VFIndex < 0 {
		return name
	}
	return name + " vf " + strconv.Itoa(p.VFIndex)
}
