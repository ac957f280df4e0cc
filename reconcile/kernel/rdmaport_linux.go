package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

const (
	// maxGIDs bounds how many entries of a GID table are read, and maxGIDGap how many free ones in a row: a new GID gets the
	// first free entry (find_gid in drivers/infiniband/core/cache.c), and cards of mlx5 have 256 entries, which are all read.
	maxGIDs   = 1024
	maxGIDGap = 256
	// rdmaPortPatience bounds how long a port is waited for: the driver of a card asks its firmware for state and rate.
	rdmaPortPatience = 5 * time.Second
)

// rdmaReads are the reads of ports of RDMA devices that have not ended: one for each device.
type rdmaReads struct {
	mu      sync.Mutex
	running map[string]chan struct{} // closed when it ends, by device
}

// read calls f, which may never return, after an earlier call for the device has returned. It waits rdmaPortPatience.
func (r *rdmaReads) read(ctx context.Context, device string, f func()) error {
	limited, cancel := context.WithTimeout(ctx, rdmaPortPatience)
	defer cancel()
	for {
		r.mu.Lock()
		before, busy := r.running[device]
		done := before
		if !busy {
			done = make(chan struct{})
			if r.running == nil {
				r.running = map[string]chan struct{}{}
			}
			r.running[device] = done
			go func() {
				f()
				r.mu.Lock()
				defer r.mu.Unlock()
				delete(r.running, device)
				close(done)
			}()
		}
		r.mu.Unlock()
		select {
		case <-done:
			if !busy {
				return nil
			}
		case <-limited.Done():
			if err := ctx.Err(); err != nil {
				return err
			}
			return fault.New(fault.NotReady, fmt.Errorf("the driver of %s does not answer", device))
		}
	}
}

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

func (o *observer) queryRDMAPort(ctx context.Context, queried netstate.RDMAPort) error {
	c := o.outside
	if queried.Link != "" {
		var gone error
		if c, _, gone = o.at(queried.Link); gone != nil {
			o.snap.PutAbsent(queried.Key())
			return nil
		}
	}
	var got netstate.RDMAPort
	var there bool
	var unseen error
	err := o.host.rdmaReads.read(ctx, queried.Device, func() {
		unseen = o.rdmaSysfs(c, func(f sysfs) { got, there = f.rdmaPort(queried.Device, queried.Link) })
	})
	if err == nil {
		err = unseen
	}
	if err != nil {
		if ctx.Err() == nil { // steps that require something of the device wait, and a release does not
			o.snap.Withhold(netstate.KindRDMAPort, err)
			return nil
		}
		return err
	}
	if there {
		o.snap.Put(got)
	} else {
		o.snap.PutAbsent(queried.Key())
	}
	return nil
}

func (s *Sandbox) applyRDMAPort(context.Context, netstate.Change) error {
	return fault.New(fault.Invalid, errors.New("the port of an RDMA device is read, and not changed"))
}
