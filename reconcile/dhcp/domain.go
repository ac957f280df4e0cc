package dhcp

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/reconcile/netns"
	"github.com/plumbline/plumbline/topology/fault"
)

// Options are the settings of a Host. All but MinLease and Warn are required.
type Options struct {
	Dir    string // of the records
	BootID string
	// Within calls f on a thread inside the namespace at path (kernel.Within).
	Within func(path string, f func() error) error
	// Prolong changes when the kernel deletes an address, if it exists (kernel.Host).
	Prolong func(ctx context.Context, path string, id reconcile.NetnsID, a netstate.Addr) error
	// Now is the clock in seconds since boot (kernel.SinceBoot).
	Now func() int64
	// MinLease is the shortest lease that is accepted; default one minute.
	MinLease time.Duration
	// Warn is told what cannot be recorded; nil: nobody is.
	Warn func(error)
}

// Host keeps the leases of this machine's sandboxes. It is safe for concurrent use, also by
// several processes.
type Host struct {
	Options
	files sync.Mutex
	ctx   context.Context
	stop  context.CancelFunc

	mu        sync.Mutex
	clients   map[string]*client // by file
	ending    map[string]bool    // files that are about to be removed
	unwritten map[string]*record // by file: the newer state of a record of the same serial
}

// Open returns the leases of the machine. Clients run until Close: for leases that are requested
// here, and with Run for all.
func Open(o Options) *Host {
	o.MinLease = cmp.Or(o.MinLease, defaultMinLease)
	ctx, stop := context.WithCancel(context.Background())
	return &Host{
		Options: o, ctx: ctx, stop: stop, clients: map[string]*client{}, ending: map[string]bool{},
		unwritten: map[string]*record{},
	}
}

// Close stops all clients. Leases stay as they are.
func (h *Host) Close() {
	h.stop()
	h.mu.Lock()
	running := h.clients
	h.clients = map[string]*client{}
	h.mu.Unlock()
	for _, c := range running {
		<-c.done
	}
}

// scanEvery is the interval at which Run looks for leases without a client.
const scanEvery = time.Minute

// Run keeps all leases, also those that other processes have requested, until ctx ends.
func (h *Host) Run(ctx context.Context) error {
	h.tidy()
	loop.Loop{Every: scanEvery, Warn: h.Warn, Pass: func(context.Context) (time.Duration, error) {
		h.adopt()
		return 0, h.rewrite()
	}}.Run(ctx)
	if err := h.rewrite(); err != nil && h.Warn != nil { // the next process reads what is on disk
		h.Warn(err)
	}
	return nil
}

// tidy removes the records of earlier boots: their namespaces ended with these.
func (h *Host) tidy() {
	records, _ := h.list() // read again in a minute
	for _, r := range records {
		if r.BootID != h.BootID {
			_ = h.remove(name(r.Sandbox, r.Link)) // nothing uses it
		}
	}
}

func (h *Host) adopt() {
	records, _ := h.list() // read again in a minute
	for _, r := range records {
		if r.BootID == h.BootID {
			h.start(r)
		}
	}
}

// start runs the client of a record, unless it runs already.
func (h *Host) start(r *record) {
	file := name(r.Sandbox, r.Link)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ending[file] || h.ctx.Err() != nil {
		return
	}
	if have := h.clients[file]; have != nil {
		select {
		case <-have.done:
		default:
			if have.serial == r.Serial {
				return
			}
			have.cancel()
		}
	}
	ctx, cancel := context.WithCancel(h.ctx)
	c := &client{h: h, file: file, serial: r.Serial, cancel: cancel, done: make(chan struct{})}
	h.clients[file] = c
	go c.run(ctx)
}

// running returns the client of a file, nil if none runs.
func (h *Host) running(file string) *client {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.clients[file]
	if c == nil {
		return nil
	}
	select {
	case <-c.done:
		return nil
	default:
		return c
	}
}

// Domain is the part of the engine's options that makes it keep leases. Their history ends with
// the boot, as the namespaces do.
func (h *Host) Domain() reconcile.ExternalDomain {
	return reconcile.ExternalDomain{
		Name: "DHCP leases", Kinds: []netstate.Kind{netstate.KindDHCPLease},
		Open: func(_ context.Context, sb reconcile.Sandbox) (reconcile.External, error) { return view{h, sb}, nil },
	}
}

// view is the leases of one sandbox.
type view struct {
	h  *Host
	sb reconcile.Sandbox
}

// Close implements reconcile.External: nothing is held open.
func (view) Close() error { return nil }

// Extend implements reconcile.External.
func (v view) Extend(_ context.Context, s *netstate.Snapshot, queried []netstate.Object) error {
	now := v.h.Now()
	for _, o := range queried {
		link := o.Key().ID
		file := name(v.sb.ID, link)
		r, err := v.h.read(file)
		switch {
		case err != nil:
			return fmt.Errorf("read %s: %w", o.Key(), err)
		case r == nil, r.BootID != v.h.BootID: // its times are of the clock of another boot
			s.PutAbsent(o.Key())
			continue
		}
		c := v.h.running(file)
		out := netstate.DHCPLease{
			Link: link, ClientID: &r.Client, Hostname: &r.Hostname, Requested: &r.Requested,
			Active: new(c != nil || r.live(now)),
		}
		if r.live(now) {
			out.Address, out.Server, out.Expires = r.Lease.Address.String(), r.Lease.Server.String(), r.Lease.Expires
			out.Routes, out.MTU = r.Lease.Routes, r.Lease.MTU
			if r.Lease.Router.IsValid() {
				out.Router = r.Lease.Router.String()
			}
		} else if c != nil {
			out.Failure = c.failed()
		}
		s.Put(out)
	}
	return nil
}

// Apply implements reconcile.External. A lease is requested in the background: the engine observes
// until it is there.
func (v view) Apply(ctx context.Context, c netstate.Change) error {
	for _, part := range c.Parts() {
		want, ok := part.After.(netstate.DHCPLease)
		var err error
		switch {
		case !ok:
			err = v.end(ctx, part.Key().ID)
		case want.Active != nil && !*want.Active: // the undo of a request
			err = v.h.halt(ctx, name(v.sb.ID, want.Link))
		default:
			err = v.begin(want)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// begin records that a lease is wanted, and starts its client.
func (v view) begin(want netstate.DHCPLease) error {
	ns, id, err := netns.OpenIdentified(v.sb.Netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	var r *record
	err = v.h.locked(func() error {
		have, err := v.h.read(name(v.sb.ID, want.Link))
		if err != nil {
			return err
		}
		have = cmp.Or(have, &record{})
		next := record{
			Sandbox: v.sb.ID, Link: want.Link, Netns: v.sb.Netns, NetnsID: id, BootID: v.h.BootID, Last: have.Last,
			Client: have.Client, Hostname: have.Hostname, Requested: have.Requested, Serial: rand.Text(),
		}
		if want.ClientID != nil { // an update has only what differs
			next.Client = *want.ClientID
		}
		if want.Hostname != nil {
			next.Hostname = *want.Hostname
		}
		if want.Requested != nil {
			next.Requested = *want.Requested
		}
		if b, err := hex.DecodeString(next.Client); err != nil || len(b) < 2 || len(b) > 255 {
			return fault.New(fault.Invalid, fmt.Errorf("%q is not a client identifier", next.Client))
		}
		same := have.Client == next.Client && have.Hostname == next.Hostname && have.Requested == next.Requested &&
			have.BootID == next.BootID && netns.Same(have.NetnsID, id)
		if same && have.live(v.h.Now()) {
			next.Lease = have.Lease // as after a crash
		}
		r = &next
		return v.h.write(r)
	})
	if err != nil {
		return err
	}
	v.h.start(r)
	return nil
}

// halt stops the client of a file, and waits until it has ended.
func (h *Host) halt(ctx context.Context, file string) error {
	c := h.running(file)
	if c == nil {
		return nil
	}
	c.cancel()
	if !loop.Wait(ctx, loop.Forever, c.done) {
		return context.Cause(ctx)
	}
	return nil
}

// end stops the client of a lease, releases it while the namespace exists, and removes the record.
// Nothing waits for a server, which does not answer a release.
func (v view) end(ctx context.Context, link string) error {
	file := name(v.sb.ID, link)
	v.h.mu.Lock()
	v.h.ending[file] = true // Run starts no other one
	v.h.mu.Unlock()
	defer func() {
		v.h.mu.Lock()
		defer v.h.mu.Unlock()
		delete(v.h.ending, file)
	}()
	if err := v.h.halt(ctx, file); err != nil {
		return err
	}
	r, err := v.h.read(file)
	if err != nil {
		return err
	}
	if r != nil && r.live(v.h.Now()) {
		v.h.release(r)
	}
	if err := v.h.remove(file); err != nil {
		return err
	}
	v.h.mu.Lock()
	defer v.h.mu.Unlock()
	delete(v.h.clients, file)
	return nil
}

// release tells the server that the address is free. If that cannot be sent, or is lost, the lease
// expires. A claim that has another sandbox by now has the same identifier there, and keeps the lease.
func (h *Host) release(r *record) {
	others, err := h.list()
	if err != nil {
		return
	}
	for _, o := range others {
		if o.Client == r.Client && o.Serial != r.Serial {
			return
		}
	}
	w, err := h.dial(r)
	if err != nil {
		return
	}
	defer w.close()
	m, err := release(r, w.mac)
	if err != nil {
		return
	}
	to := toServer(r.Lease)
	_ = w.send(m, to.from, to.to, to.at) // see above
}
