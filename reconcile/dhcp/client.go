package dhcp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/topology/fault"
)

// client keeps the lease of one record until it is stopped, or the record is replaced or removed, or
// the namespace no longer exists.
type client struct {
	h            *Host
	file, serial string
	cancel       context.CancelFunc
	done         chan struct{}

	mu      sync.Mutex
	failure string
}

// Pauses between rounds of messages in which no server has answered.
const (
	firstPause = time.Second
	longPause  = time.Minute
	idlePause  = 4 * time.Second // when nothing was sent
	// declinePause is the least pause after an address was declined (RFC 2131 section 3.1.5): the server may give one that is
	// in use again.
	declinePause = 10 * time.Second
	// resetAfterSeconds is how long a lease must last before the back-off is reset, so that a server that
	// gives and refuses in turn is not asked more often.
	resetAfterSeconds = 60
)

func (c *client) fail(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failure = what
}

func (c *client) failed() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure
}

func (c *client) run(ctx context.Context) {
	defer close(c.done)
	defer c.cancel()                     // the context is known to that of all clients until then
	pause, since := firstPause, int64(0) // since when there is a lease
	var t *tried                         // since there is none
	set, retry := int64(0), idlePause    // when the kernel deletes the address, as the client has set it
	for ctx.Err() == nil {
		r, err := c.h.read(c.file)
		if err == nil && (r == nil || r.Serial != c.serial) {
			return
		}
		if err != nil {
			c.fail(err.Error())
			loop.Wait(ctx, longPause, nil)
			continue
		}
		// Also of what an earlier process has recorded: one that was killed may not have done it.
		unset := longPause // until this is retried
		if r.live(c.h.Now()) && r.Lease.Expires != set {
			if c.prolong(ctx, r, r.Lease.Expires) == nil {
				set, retry = r.Lease.Expires, idlePause
			} else { // a pod can have it fail, and that it reads much
				unset, retry = retry, min(2*retry, longPause)
			}
		}
		now := c.h.Now()
		switch {
		case r.Lease != nil && !r.live(now):
			if err = c.drop(ctx, r); err != nil { // such as a full disk
				c.fail(err.Error())
				loop.Wait(ctx, pause, nil)
				pause = min(2*pause, longPause)
			}
		case r.Lease != nil && now < r.Lease.Renew:
			t = nil
			if now-since > resetAfterSeconds {
				pause = firstPause
			}
			loop.Wait(ctx, min(time.Duration(r.Lease.Renew-now)*time.Second, unset), nil)
		case r.Lease != nil:
			if err = c.extend(ctx, r); errors.Is(err, errNAK) {
				err = c.drop(ctx, r)
				loop.Wait(ctx, about(pause), nil)
				pause = min(2*pause, longPause)
			}
		default:
			set = 0
			if t == nil {
				t = &tried{sent: map[dhcpv4.MessageType]int{}, began: now, report: c.fail}
			}
			if err = c.acquire(ctx, r, t); err == nil {
				since = c.h.Now()
				break
			}
			t.now(c.h.Now())
			switch {
			case t.failed != nil: // the link is down, or does not exist
				loop.Wait(ctx, about(min(pause, idlePause)), nil)
			case errors.Is(err, errInUse):
				loop.Wait(ctx, max(pause, declinePause), nil)
			default:
				loop.Wait(ctx, about(pause), nil)
			}
			pause = min(2*pause, longPause)
		}
		if fault.Of(err) == fault.Gone {
			return // Run begins again if the namespace is not
		}
	}
}

// acquire requests a lease.
func (c *client) acquire(ctx context.Context, r *record, t *tried) error {
	w, err := c.h.dial(r)
	if err != nil {
		t.failed = err
		return err
	}
	defer w.close()
	m, err := discover(r, w.mac)
	if err != nil {
		return err
	}
	offer, err := c.h.exchange(ctx, w, r, m, toAll, netip.Addr{}, dhcpv4.MessageTypeOffer, t)
	if err != nil {
		return err
	}
	if m, err = request(r, w.mac, offer, m.TransactionID); err != nil {
		return err
	}
	lease, err := c.h.exchange(ctx, w, r, m, toAll, offer.Server, dhcpv4.MessageTypeAck, t)
	if err != nil {
		return err
	}
	holder, err := w.probe(ctx, lease.Address.Addr())
	if err != nil {
		t.failed = err
		return err
	}
	if holder != nil {
		return c.decline(w, r, lease, holder, t)
	}
	if err = c.keep(lease); err != nil {
		t.failed = err
	}
	return err
}

// decline tells the server that another host has the address of a lease, and does not ask for that address again. The error
// is errInUse.
func (c *client) decline(w *wire, r *record, of Lease, holder net.HardwareAddr, t *tried) error {
	t.answers++
	t.refused = fmt.Errorf("the host with MAC %s has %s already", holder, of.Address.Addr())
	m, err := decline(r, w.mac, of)
	if err != nil {
		return err
	}
	if err := w.send(m, toAll.from, toAll.to, toAll.at); err != nil {
		t.failed = err
		return err
	}
	t.sent[m.MessageType()]++
	if changed, err := c.h.change(c.file, c.serial, func(r *record) { r.Last = netip.Addr{} }); err != nil && changed == nil {
		return err
	}
	return errInUse
}

// errInUse: the address that a server has given is that of another host.
var errInUse = errors.New("the address is in use")

// extend renews the lease of a record, or pauses until that is to be tried again.
func (c *client) extend(ctx context.Context, r *record) error {
	lease, err := c.renew(ctx, r)
	if err == nil {
		err = c.keep(lease)
	}
	if err == nil || errors.Is(err, errNAK) || fault.Of(err) == fault.Gone {
		return err
	}
	loop.Wait(ctx, about(c.untilNext(r)), nil)
	return nil
}

// renew asks the server that has given the lease, and once that has not answered for long any other.
func (c *client) renew(ctx context.Context, r *record) (Lease, error) {
	w, err := c.h.dial(r)
	if err != nil {
		return Lease{}, err
	}
	defer w.close()
	m, err := prolong(r, w.mac)
	if err != nil {
		return Lease{}, err
	}
	t := &tried{sent: map[dhcpv4.MessageType]int{}}
	to, server := renewedAt(r.Lease, c.h.Now())
	lease, err := c.h.exchange(ctx, w, r, m, to, server, dhcpv4.MessageTypeAck, t)
	if err != nil {
		return Lease{}, err
	}
	return lease, r.Lease.renewedBy(lease)
}

// renewedAt is whom a client asks for more time, and whose answer counts; that of any server once the one that has given
// the lease has not answered for long (RFC 2131 section 4.4.5).
func renewedAt(l *Lease, now int64) (to way, server netip.Addr) {
	if now >= l.Rebind {
		return way{from: l.Address.Addr(), to: broadcast, at: everyone}, netip.Addr{}
	}
	return toServer(l), l.Server
}

// untilNext is the pause between two attempts to renew: half of the time that is left (RFC 2131
// section 4.4.5).
func (c *client) untilNext(r *record) time.Duration {
	now, until := c.h.Now(), r.Lease.Expires
	if now < r.Lease.Rebind {
		until = r.Lease.Rebind
	}
	return max(time.Duration(until-now)*time.Second/2, firstPause)
}

// toServer is the way to the server of a lease.
func toServer(l *Lease) way {
	out := way{from: l.Address.Addr(), to: l.Server, at: everyone}
	if mac, err := net.ParseMAC(l.Via); err == nil && len(mac) == 6 && mac[0]&1 == 0 {
		out.at = mac
	}
	return out
}

// keep records a lease. Run has the kernel keep its address for as long.
func (c *client) keep(l Lease) error {
	l.spread(c.h.Now())
	r, err := c.h.change(c.file, c.serial, func(r *record) { r.Lease, r.Last = &l, l.Address.Addr() })
	if r == nil {
		return err
	}
	c.fail("")
	return nil
}

// drop records that there is no lease any more. The kernel then deletes the address, which has the
// sandbox checked.
func (c *client) drop(ctx context.Context, r *record) error {
	c.fail("the lease of " + r.Lease.Address.String() + " has ended")
	changed, err := c.h.change(c.file, c.serial, func(r *record) { r.Lease = nil })
	if changed == nil {
		return err
	}
	return c.prolong(ctx, r, c.h.Now()+1)
}

// prolong has the kernel delete the address of a lease at another time. The engine creates it.
func (c *client) prolong(ctx context.Context, r *record, expires int64) error {
	ctx, cancel := context.WithTimeout(ctx, prolongWithin)
	defer cancel()
	err := c.h.Prolong(ctx, r.Netns, r.NetnsID, netstate.Addr{Link: r.Link, Address: r.Lease.Address.String(), Expires: expires})
	if fault.Of(err) == fault.Gone {
		return nil
	}
	return err
}

const prolongWithin = 10 * time.Second

// about is a time between three and five quarters of d. After a power cut, or when a server returns, the clients
// of all nodes begin at the same moment, and would all ask it at the same moments (RFC 2131 section 4.1).
func about(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2+1) //nolint:gosec // not a secret
}
