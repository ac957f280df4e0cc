package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

const (
	// maxGIDs bounds how many entries of a GID table are read, and maxGIDGap how many free ones in a row: a new GID gets the
	// first free entry (find_gid in drivers/infiniband/core/cache.c), and cards of mlx5 have 256 entries, which are all read.
	maxGIDs   = 1024
	maxGIDGap = 256
	// rdmaPortPatience bounds how long a file of a port is waited for: the driver of a card asks its firmware for state and rate.
	// rdmaPortLimit bounds how long all files of the ports of an observation are.
	rdmaPortPatience = 5 * time.Second
	rdmaPortLimit    = 6 * rdmaPortPatience
)

// rdmaReads are the reads of ports of RDMA devices that have not ended: one for each device, so that a driver that does not
// answer keeps one thread.
type rdmaReads struct {
	patience time.Duration // rdmaPortPatience if 0

	mu      sync.Mutex
	running map[string]*rdmaRead // by device
}

// rdmaRead is a read of a port.
type rdmaRead struct {
	done chan struct{}          // closed when it ends
	late chan struct{}          // closed when a file has taken too long
	file atomic.Pointer[string] // that is read now
}

// read calls f, which may never return, after an earlier call for the device has returned. f calls at before it reads a file. Read waits
// until a file has taken rdmaPortPatience, or all have taken rdmaPortLimit, and not for a call in which one has.
func (r *rdmaReads) read(ctx context.Context, device string, f func(at func(file string))) error {
	limit := time.NewTimer(rdmaPortLimit)
	defer limit.Stop()
	for {
		run, ours := r.begin(device, f)
		err := &silentDriver{device: device, waited: r.waits()}
		select {
		case <-run.done:
			if ours {
				return nil
			}
			continue
		case <-ctx.Done():
			return ctx.Err()
		case <-run.late:
			if file := run.file.Load(); file != nil {
				err.file = *file
			}
		case <-limit.C:
			err.waited = rdmaPortLimit // for all of the port, of which no file took long
		}
		return fault.New(fault.NotReady, err)
	}
}

// begin returns the running read of a device, or begins one, which is then ours.
func (r *rdmaReads) begin(device string, f func(at func(file string))) (run *rdmaRead, ours bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if run, busy := r.running[device]; busy {
		return run, false
	}
	if r.running == nil {
		r.running = map[string]*rdmaRead{}
	}
	run = &rdmaRead{done: make(chan struct{}), late: make(chan struct{})}
	r.running[device] = run
	patience := time.AfterFunc(r.waits(), func() { close(run.late) })
	go func() {
		f(func(file string) {
			run.file.Store(&file)
			if patience.Stop() {
				patience.Reset(r.waits())
			}
		})
		patience.Stop()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.running, device)
		close(run.done)
	}()
	return run, true
}

func (r *rdmaReads) waits() time.Duration { return cmp.Or(r.patience, rdmaPortPatience) }

// silentDriver is the error of a read that a driver does not end.
type silentDriver struct {
	device string
	file   string // below the folder of the device
	waited time.Duration
}

func (e *silentDriver) Error() string {
	return fmt.Sprintf("RDMA device %q: its driver has not answered a read of %s for %s: "+
		"look for its messages in the kernel's log (dmesg), and bind the function to its driver again, or reboot the node", e.device,
		cmp.Or(e.file, "its port"), e.waited)
}

// rdmaPort reads the first port of an RDMA device, with the GIDs of a link, or all on InfiniBand or where that is "", or the one
// that is asked for. It is false without such a device. It calls at before it reads a file.
func (f sysfs) rdmaPort(queried netstate.RDMAPort, at func(file string)) (netstate.RDMAPort, bool) {
	out := netstate.RDMAPort{Device: queried.Device, Link: queried.Link}
	const port = "ports/1"
	dir := filepath.Join(f.root, "class/infiniband", filepath.Base(queried.Device), port)
	text := func(file string) string {
		at(filepath.Join(port, file))
		return f.text(dir, file)
	}
	_, state, ok := strings.Cut(text("state"), ": ")
	if !ok {
		return out, false
	}
	out.State = &state
	number, _, _ := strings.Cut(text("rate"), " ")
	if gigabits, err := strconv.ParseFloat(number, 64); err == nil {
		out.RateMbps = uint32(gigabits * 1000)
	}
	if out.Only = queried.Only; out.Only != nil && *out.Only < 0 {
		return out, true
	}
	ethernet := text("link_layer") == "Ethernet"
	gids, err := os.Open(filepath.Join(dir, "gids")) // whose hundreds of files are read without their paths
	if err != nil {
		return out, true
	}
	defer gids.Close()
	// keep adds the GID of an entry. It is false for one that is free, and beyond the table.
	keep := func(i int) (used, exists bool) {
		n := strconv.Itoa(i)
		at(filepath.Join(port, "gids", n))
		gid, err := netip.ParseAddr(textAt(gids, n))
		if err != nil || gid.IsUnspecified() {
			return false, err == nil
		}
		if ethernet && queried.Link != "" && text("gid_attrs/ndevs/"+n) != netstate.BaseName(queried.Link) {
			return true, true
		}
		typ := "IB" // gid_type_str in drivers/infiniband/core/cache.c
		switch {
		case text("gid_attrs/types/"+n) == "RoCE v2":
			typ = "RoCEv2"
		case ethernet:
			typ = "RoCEv1"
		}
		out.GIDs = append(out.GIDs, netstate.RDMAGID{Index: i, GID: gid.Unmap().String(), Type: typ})
		return true, true
	}
	if out.Only != nil {
		if keep(*out.Only); len(out.GIDs) > 0 {
			return out, true
		}
		out.Only = nil
	}
	for i, gap := 0, 0; i < maxGIDs && gap < maxGIDGap; i++ {
		used, exists := keep(i)
		if !exists {
			break
		}
		if gap++; used {
			gap = 0
		}
	}
	return out, true
}

// textAt returns the content of a small file of a folder, "" if it cannot be read.
func textAt(dir *os.File, file string) string {
	fd, err := unix.Openat(int(dir.Fd()), file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var b [64]byte
	n, err := unix.Read(fd, b[:])
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b[:n]))
}

// queryRDMAPorts reads ports of RDMA devices, each device beside the others. One whose driver does not answer is withheld: steps that
// require something of it wait, and others, and a release, do not.
func (o *observer) queryRDMAPorts(ctx context.Context, queried []netstate.RDMAPort) error {
	type read struct {
		of     []netstate.RDMAPort
		got    []netstate.Object
		absent []netstate.Key
		err    error
	}
	reads := map[string]*read{}
	var waiting sync.WaitGroup
	for _, q := range queried {
		if reads[q.Device] == nil {
			reads[q.Device] = &read{}
		}
		reads[q.Device].of = append(reads[q.Device].of, q)
	}
	for device, r := range reads {
		waiting.Go(func() {
			var got read // by a goroutine that may go on
			err := o.host.rdmaReads.read(ctx, device, func(at func(file string)) {
				for _, q := range r.of {
					c := o.outside
					if q.Link != "" {
						var gone error
						if c, _, gone = o.at(q.Link); gone != nil {
							got.absent = append(got.absent, q.Key())
							continue
						}
					}
					unseen := o.rdmaSysfs(c, func(f sysfs) {
						if port, there := f.rdmaPort(q, at); there {
							got.got = append(got.got, port)
						} else {
							got.absent = append(got.absent, q.Key())
						}
					})
					got.err = cmp.Or(got.err, unseen)
				}
			})
			if err == nil {
				r.got, r.absent, err = got.got, got.absent, got.err
			}
			r.err = err
		})
	}
	waiting.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, r := range reads {
		for _, q := range r.of {
			if r.err != nil {
				o.snap.Withhold(q.Key(), r.err)
			}
		}
		for _, port := range r.got {
			o.snap.Put(port)
		}
		for _, key := range r.absent {
			o.snap.PutAbsent(key)
		}
	}
	return nil
}

func (s *Sandbox) applyRDMAPort(context.Context, netstate.Change) error {
	return fault.New(fault.Invalid, errors.New("the port of an RDMA device is read, and not changed"))
}
