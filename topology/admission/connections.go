package admission

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
)

// maxConnections is how many clients may be connected. Each API server has one connection, or a few.
const maxConnections = 128

// connections is a listener with a bounded number of connections. A new one beyond the bound is accepted in place
// of another: of the address that has most, the one for which nothing has been done for longest. So clients
// that keep connections open cannot keep others from connecting.
type connections struct {
	net.Listener

	mu   sync.Mutex
	open map[*connection]bool
	uses uint64
}

// connection is one of them.
type connection struct {
	net.Conn
	of   *connections
	from string // the address

	// Under of.mu.
	used    uint64 // when it was accepted or a request of it ended, in the order of these
	working int    // requests that are complete, and not answered yet
}

func limited(l net.Listener) net.Listener {
	return &connections{Listener: l, open: map[*connection]bool{}}
}

// Accept implements net.Listener.
func (l *connections) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &connection{Conn: accepted, of: l, from: accepted.RemoteAddr().String()}
		if host, _, err := net.SplitHostPort(c.from); err == nil {
			c.from = host
		}
		replaced, admitted := l.admit(c)
		if replaced != nil {
			replaced.Conn.Close()
		}
		if admitted {
			return c, nil
		}
		accepted.Close()
	}
}

// admit adds a connection, and returns the one that it replaces.
func (l *connections) admit(c *connection) (replaced *connection, admitted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= maxConnections {
		if replaced = l.leastUsed(); replaced == nil {
			return nil, false
		}
		delete(l.open, replaced)
	}
	l.uses++
	c.used = l.uses
	l.open[c] = true
	return replaced, true
}

// leastUsed is the connection to close for another one; nil if requests of all are being worked on. The
// caller holds mu.
func (l *connections) leastUsed() (least *connection) {
	from := map[string]int{}
	for c := range l.open {
		from[c.from]++
	}
	for c := range l.open {
		switch {
		case c.working > 0:
		case least == nil, from[c.from] > from[least.from], from[c.from] == from[least.from] && c.used < least.used:
			least = c
		}
	}
	return least
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

type connectionKey struct{}

// withConnection is the ConnContext of a server.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	if over, ok := c.(*tls.Conn); ok {
		c = over.NetConn()
	}
	if c, ok := c.(*connection); ok {
		return context.WithValue(ctx, connectionKey{}, c)
	}
	return ctx
}

// working keeps the connection of a request from being closed for another one, until done is called.
func working(ctx context.Context) (done func()) {
	c, ok := ctx.Value(connectionKey{}).(*connection)
	if !ok {
		return func() {}
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.working++
	return func() {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		c.working--
		c.of.uses++
		c.used = c.of.uses
	}
}
