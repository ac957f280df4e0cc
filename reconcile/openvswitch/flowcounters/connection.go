package flowcounters

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// timeout of a reading, if the Reader has no other.
const timeout = 5 * time.Second

// connection is one to a bridge's management socket.
type connection struct {
	net.Conn
	in   *bufio.Reader
	xid  uint32
	stop func() bool
}

// Close ends it.
func (c *connection) Close() error {
	c.stop()
	return c.Conn.Close()
}

// dial connects, and holds that the bridge speaks OpenFlow 1.5. With ctx the connection ends, too.
func dial(ctx context.Context, socket string) (*connection, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: conn, in: bufio.NewReader(conn)}
	c.stop = context.AfterFunc(ctx, func() { conn.Close() })
	if err := c.greet(); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *connection) greet() error {
	if _, err := c.Write(hello(0)); err != nil {
		return err
	}
	m, err := c.next()
	switch {
	case err != nil:
		return err
	case m.typ != typeHello || m.version < version:
		return fmt.Errorf(
			"answers message %d of version %d of OpenFlow, and not of version %d: add OpenFlow15 to the protocols of the bridge", m.typ,
			m.version, version)
	}
	return nil
}

// message is one without its header.
type message struct {
	version, typ uint8
	xid          uint32
	body         []byte
}

// next reads a message, which has at most 64 KiB.
func (c *connection) next() (message, error) {
	var b [headerLength]byte
	if _, err := io.ReadFull(c.in, b[:]); err != nil {
		return message{}, err
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	if n < headerLength {
		return message{}, malformed("a header")
	}
	m := message{b[0], b[1], binary.BigEndian.Uint32(b[4:]), make([]byte, n-headerLength)}
	_, err := io.ReadFull(c.in, m.body)
	return m, err
}

// query sends a request, and hands the bodies of its replies over. They are bounded.
func (c *connection) query(kind uint16, request func(xid uint32) []byte, each func(body []byte) error) error {
	c.xid++
	if _, err := c.Write(request(c.xid)); err != nil {
		return err
	}
	for read := 0; read < hostileReplyBytes; {
		m, err := c.next()
		if err != nil {
			return err
		}
		read += headerLength + len(m.body)
		switch {
		case m.typ == typeEchoRequest:
			if _, err := c.Write(header(typeEchoReply, m.xid, m.body)); err != nil {
				return err
			}
			continue
		case m.typ == typeError && m.xid == c.xid && len(m.body) >= 4:
			return fmt.Errorf("the switch refuses it with error %d, code %d", binary.BigEndian.Uint16(m.body),
				binary.BigEndian.Uint16(m.body[2:]))
		case m.typ != typeMultipartReply || m.xid != c.xid:
			continue // about ports, which it reports by itself
		}
		const begin = multipartLength - headerLength
		if m.version != version || len(m.body) < begin || binary.BigEndian.Uint16(m.body) != kind {
			return malformed("another reply")
		}
		if err := each(m.body[begin:]); err != nil {
			return err
		}
		if binary.BigEndian.Uint16(m.body[2:])&replyMore == 0 {
			return nil
		}
	}
	return fmt.Errorf("the reply is longer than %d bytes", hostileReplyBytes)
}

// flows hands over the flows of a table that match at least these fields.
func (c *connection) flows(table uint8, fields []byte, each func(*flow)) error {
	n := 0
	return c.query(multipartFlowDesc, func(xid uint32) []byte { return flowsRequest(xid, table, fields) }, func(body []byte) error {
		return decodeFlows(body, func(f *flow) error {
			if n++; n > hostileReplyFlows {
				return fmt.Errorf("there are more than %d flows", hostileReplyFlows)
			}
			each(f)
			return nil
		})
	})
}

// meter reads a meter; found is false if it no longer exists.
func (c *connection) meter(id uint32) (out meter, found bool, err error) {
	err = c.query(multipartMeter, func(xid uint32) []byte { return meterRequest(xid, id) }, func(body []byte) error {
		all, err := decodeMeters(body)
		for _, m := range all {
			if m.id == id {
				out, found = m, true
			}
		}
		return err
	})
	return out, found, err
}
