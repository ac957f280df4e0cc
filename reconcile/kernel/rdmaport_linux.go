package kernel

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

const (
	// maxGIDs bounds how many entries of a GID table are read, and maxGIDGap how many free ones in a row: tables are large,
	// and a new GID gets the first free entry (find_gid in drivers/infiniband/core/cache.c).
	maxGIDs   = 1024
	maxGIDGap = 64
)

// rdmaPort reads the first port of an RDMA device, with the GIDs of a link, or all where that is "". It is false without
// such a device.
func (f sysfs) rdmaPort(device, link string) (netstate.RDMAPort, bool) {
	out := netstate.RDMAPort{Device: device, Link: link}
	dir := filepath.Join(f.root, "class/infiniband", filepath.Base(device), "ports/1")
	_, state, ok := strings.Cut(f.text(dir, "state"), ": ")
	if !ok {
		return out, false
	}
	out.State = &state
	number, _, _ := strings.Cut(f.text(dir, "rate"), " ")
	if gigabits, err := strconv.ParseFloat(number, 64); err == nil {
		out.RateMbps = uint32(gigabits * 1000)
	}
	ethernet := f.text(dir, "link_layer") == "Ethernet"
	for i, gap := 0, 0; i < maxGIDs && gap < maxGIDGap; i++ {
		n := strconv.Itoa(i)
		gid, err := netip.ParseAddr(f.text(dir, "gids/"+n))
		if err != nil {
			break
		}
		if gid.IsUnspecified() {
			gap++
			continue
		}
		gap = 0
		if link != "" && f.text(dir, "gid_attrs/ndevs/"+n) != netstate.BaseName(link) {
			continue
		}
		typ := "IB" // gid_type_str in drivers/infiniband/core/cache.c
		switch {
		case f.text(dir, "gid_attrs/types/"+n) == "RoCE v2":
			typ = "RoCEv2"
		case ethernet:
			typ = "RoCEv1"
		}
		out.GIDs = append(out.GIDs, netstate.RDMAGID{Index: i, GID: gid.Unmap().String(), Type: typ})
	}
	return out, true
}

func (o *observer) queryRDMAPort(_ context.Context, queried netstate.RDMAPort) error {
	if got, there := o.host.sysfs.rdmaPort(queried.Device, queried.Link); there {
		o.snap.Put(got)
	} else {
		o.snap.PutAbsent(queried.Key())
	}
	return nil
}

func (s *Sandbox) applyRDMAPort(context.Context, netstate.Change) error {
	return fault.New(fault.Invalid, errors.New("the port of an RDMA device is read, and not changed"))
}
