package dhcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/time/rate"
)

// A message is sent again when about these times have passed without an answer.
var resend = []time.Duration{time.Second, 2 * time.Second, 4 * time.Second}

const (
	maxAnswers  = 256 // to one message, sent up to three times
	answersEach = 5 * time.Millisecond
	burst       = 32
)

// tried counts what a client has done without success, for people.
type tried struct {
	sent    map[dhcpv4.MessageType]int
	began   int64
	answers int
	refused error // the last answer
	failed  error // to send
	report  func(string)
	said    int64 // after how many seconds it was reported last
}

// reportEach is the time, in seconds, in which each message and answer is reported: about as long as an attach waits.
const reportEach = 16

// now reports what was tried. Later it does so at twice the time of the last report: each text that is
// new is written into the status of the claim, and what a server answers is in it.
func (t *tried) now(now int64) {
	age := now - t.began
	if t.report == nil || age > reportEach && age < 2*t.said {
		return
	}
	t.said = age
	t.report(t.String(now))
}

func (t *tried) String(now int64) string {
	var sent []string
	for _, kind := range []dhcpv4.MessageType{dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRequest, dhcpv4.MessageTypeDecline} {
		if n := t.sent[kind]; n > 0 {
			sent = append(sent, fmt.Sprintf("%d DHCP%s", n, kind))
		}
	}
	did := fmt.Sprintf("%s in %d s", strings.Join(sent, " and "), now-t.began)
	switch {
	case len(t.sent) == 0 && t.failed != nil:
		return t.failed.Error()
	case t.failed != nil:
		return did + ", then " + t.failed.Error()
	case t.refused != nil:
		return fmt.Sprintf("%s, and %d answers; the last was refused: %v", did, t.answers, t.refused)
	}
	return did + ", and no answer"
}

var (
	errSilent = errors.New("no answer")
	errNAK    = errors.New("the server refuses the address (DHCPNAK)")
)

// way is where a message goes.
type way struct {
	from, to netip.Addr
	at       net.HardwareAddr
}

var toAll = way{to: broadcast, at: everyone}

// exchange sends a message until an answer of a kind is acceptable, and returns the lease that this
// gives. Answers that are not acceptable are ignored: another server may be right.
func (h *Host) exchange(ctx context.Context, w *wire, r *record, m *dhcpv4.DHCPv4, to way, server netip.Addr, kind dhcpv4.MessageType,
	t *tried,
) (Lease, error) {
	q := question{xid: m.TransactionID, mac: w.mac, clientID: r.clientID(), server: server, since: h.Now()}
	if err := w.follow(m.TransactionID); err != nil {
		return Lease{}, err
	}
	pace, answers := rate.NewLimiter(rate.Every(answersEach), burst), 0
	for _, wait := range resend {
		if err := w.send(m, to.from, to.to, to.at); err != nil {
			t.failed = err
			return Lease{}, err
		}
		t.failed = nil
		t.sent[m.MessageType()]++
		t.now(h.Now())
		within, cancel := context.WithTimeout(ctx, about(wait))
		lease, err := h.await(within, w, q, kind, t, pace, &answers)
		cancel()
		if ctx.Err() != nil {
			return Lease{}, context.Cause(ctx)
		}
		if err == nil || !errors.Is(err, context.DeadlineExceeded) {
			lease.keepRequested(r.Requested)
			return lease, err
		}
	}
	return Lease{}, errSilent
}

// await receives until an answer is acceptable.
func (h *Host) await(ctx context.Context, w *wire, q question, kind dhcpv4.MessageType, t *tried, pace *rate.Limiter,
	answers *int,
) (Lease, error) {
	for {
		if *answers >= maxAnswers || pace.Wait(ctx) != nil { // somebody floods
			<-ctx.Done()
			return Lease{}, context.DeadlineExceeded
		}
		m, via, err := w.receive(ctx)
		if err != nil {
			return Lease{}, err
		}
		*answers++
		lease, err := h.judge(m, q, kind)
		if err == nil {
			lease.Via = via
			return lease, nil
		}
		t.answers++
		t.refused = err
		t.now(h.Now())
		if errors.Is(err, errNAK) {
			return Lease{}, err
		}
	}
}

// judge returns the lease of an answer, or why it is not acceptable.
func (h *Host) judge(m *dhcpv4.DHCPv4, q question, kind dhcpv4.MessageType) (Lease, error) {
	switch {
	case m == nil:
		return Lease{}, errMalformed
	case !q.answers(m):
		return Lease{}, errors.New("it is for another client, or of another server")
	case m.MessageType() == dhcpv4.MessageTypeNak && kind == dhcpv4.MessageTypeAck:
		return Lease{}, errNAK
	case m.MessageType() != kind:
		return Lease{}, fmt.Errorf("it is a DHCP%s", m.MessageType())
	}
	return parse(m, q.since, h.MinLease)
}
