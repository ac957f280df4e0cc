package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/topology/fault"
)

// errInterrupted means that something changed during a dump (NLM_F_DUMP_INTR).
var errInterrupted = errors.New("dump interrupted")

// exchange sends one request and passes the payloads of its answers of type reply, or
// of all answers if that is 0, to take, which copies what it keeps. An error of take
// ends the exchange. The kernel's refusal is an error that wraps its unix.Errno, with
// the kernel's reason.
//
// The one of package nl is not used because it allocates and clears 64 KiB for each
// datagram, which was most of what a pass allocated (docs/adr/0009), and collects a
// whole dump before its size can be checked.
func (s *socket) exchange(ctx context.Context, typ, flags uint16, parts []nl.NetlinkRequestData, reply uint16,
	take func([]byte) error,
) (err error) {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.seq++
	if err := again(func() error {
		return unix.Sendto(s.fd, request(typ, flags, s.seq, parts), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	buffer := s.buffers.Get().(*[]byte)
	defer s.buffers.Put(buffer)
	a := answers{seq: s.seq, port: s.port, reply: reply, take: take, acked: flags&unix.NLM_F_ACK != 0}
	dumps := flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP
	defer func() {
		if dumps && !a.done {
			s.abandon()
		}
	}()
	for !a.done {
		b, err := s.receive(*buffer)
		if err != nil {
			return unanswered(err)
		}
		if err := a.read(b); err != nil {
			return err
		}
		if err := ctx.Err(); dumps && !a.done && err != nil {
			return err
		}
	}
	if a.interrupted {
		return errInterrupted
	}
	return nil
}

// refusalsAtOnce is how many answers fit into the socket's buffer; each takes a page at
// most.
const refusalsAtOnce = 48

// refusals sends a request that is refused, once for each variant, at most
// refusalsAtOnce. vary turns a copy into a variant. take receives the reason of each,
// nil for one that was not refused.
func (s *socket) refusals(typ, flags uint16, parts []nl.NetlinkRequestData, variants int, vary func(i int, message []byte),
	take func(i int, err error),
) error {
	s.turn.Lock()
	defer s.turn.Unlock()
	first := s.seq + 1
	one := request(typ, flags|unix.NLM_F_ACK, 0, parts)
	all := make([]byte, 0, variants*len(one))
	for i := range variants {
		s.seq++
		message := append(all[len(all):], one...)
		binary.NativeEndian.PutUint32(message[8:], s.seq)
		vary(i, message)
		all = append(all, message...)
	}
	if err := again(func() error { return unix.Sendto(s.fd, all, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) }); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	buffer := s.buffers.Get().(*[]byte)
	defer s.buffers.Put(buffer)
	for i := range variants {
		a := answers{seq: first + uint32(i), port: s.port, acked: true, take: func([]byte) error { return nil }}
		var refused error
		for !a.done {
			n, err := s.recv(*buffer, 0) // an answer with the kernel's message fits into the buffer
			if err != nil {
				return unanswered(err)
			}
			refused = a.read((*buffer)[:n])
		}
		take(i, refused)
	}
	return nil
}

// errUnanswered means that it is unknown whether the kernel applied a request: a
// repetition would find the result of the first one, and take it for a foreign object.
var errUnanswered = errors.New("the kernel's answer is lost")

func unanswered(err error) error { return fmt.Errorf("%w: %w", errUnanswered, err) }

// receive reads one datagram of the kernel, into buffer if it fits. The rest of a
// larger one would be lost, so its size is queried first.
func (s *socket) receive(buffer []byte) ([]byte, error) {
	size, err := s.recv(nil, unix.MSG_PEEK|unix.MSG_TRUNC)
	switch {
	case err != nil:
		return nil, err
	case size > datagramBytes:
		return nil, fault.New(fault.Unsupported, fmt.Errorf("an answer of %d bytes: at most %d are read", size, datagramBytes))
	case size > len(buffer):
		buffer = make([]byte, size)
	}
	n, err := s.recv(buffer, 0)
	if err != nil {
		return nil, err
	}
	return buffer[:n], nil
}

func (s *socket) recv(buffer []byte, flags int) (n int, err error) {
	err = again(func() (err error) {
		n, _, err = unix.Recvfrom(s.fd, buffer, flags)
		return err
	})
	return n, err
}

// again repeats a call that a signal has interrupted. The runtime preempts goroutines
// by signals, so that is common.
func again(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// request writes a message: struct nlmsghdr and its parts.
func request(typ, flags uint16, seq uint32, parts []nl.NetlinkRequestData) []byte {
	out := make([]byte, unix.SizeofNlMsghdr, 256)
	for _, p := range parts {
		out = append(out, p.Serialize()...)
	}
	binary.NativeEndian.PutUint32(out, uint32(len(out)))
	binary.NativeEndian.PutUint16(out[4:], typ)
	binary.NativeEndian.PutUint16(out[6:], flags|unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(out[8:], seq)
	return out
}

// answers reads the kernel's answers to one request.
type answers struct {
	seq, port   uint32
	reply       uint16
	take        func(payload []byte) error
	interrupted bool
	acked       bool // an ack ends the exchange
	done        bool
}

// read reads one datagram.
func (a *answers) read(b []byte) error {
	for !a.done && len(b) >= unix.SizeofNlMsghdr {
		size := int(u32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return fmt.Errorf("the kernel sent a message of %d bytes in %d", size, len(b))
		}
		if err := a.message(b[:size]); err != nil {
			return err
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return nil
}

func (a *answers) message(b []byte) error {
	typ, flags := u16(b[4:]), u16(b[6:])
	if u32(b[8:]) != a.seq || u32(b[12:]) != a.port {
		return nil // the late answer to a request that was abandoned
	}
	a.interrupted = a.interrupted || flags&unix.NLM_F_DUMP_INTR != 0
	payload := b[unix.SizeofNlMsghdr:]
	if typ == unix.NLMSG_ERROR || typ == unix.NLMSG_DONE {
		a.done = true
		return refusal(typ, flags, payload)
	}
	if a.reply == 0 || typ == a.reply {
		if err := a.take(payload); err != nil {
			return err
		}
	}
	a.done = flags&unix.NLM_F_MULTI == 0 && !a.acked
	return nil
}

// refused is an error number with the message that the kernel adds to it (extended ACK). The message is part of the
// type because some refusals differ in nothing else.
type refused struct {
	errno   unix.Errno
	message string
}

func (e *refused) Error() string { return e.errno.Error() + ": " + e.message }

func (e *refused) Unwrap() error { return e.errno }

// refusal reads the error number that ends an exchange, nil for 0, and the kernel's
// message (NLMSGERR_ATTR_MSG), which follows the request if that is sent back.
func refusal(typ, flags uint16, b []byte) error {
	errno := -int32(u32(b))
	if errno == 0 {
		return nil
	}
	var err error = unix.Errno(errno)
	b = b[min(4, len(b)):]
	if typ == unix.NLMSG_ERROR {
		size := unix.SizeofNlMsghdr
		if flags&unix.NLM_F_CAPPED == 0 {
			size = (int(u32(b)) + 3) &^ 3
		}
		b = b[min(max(size, 0), len(b)):]
	}
	if flags&unix.NLM_F_ACK_TLVS == 0 {
		return err
	}
	if v := attribute(b, nl.NLMSGERR_ATTR_MSG); v != nil {
		return &refused{unix.Errno(errno), text(v)}
	}
	return err
}
