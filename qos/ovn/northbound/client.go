package northbound

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ovn-kubernetes/libovsdb/model"

	"github.com/plumbline/plumbline/qos/ovn"
	"github.com/plumbline/plumbline/qos/ovn/connection"
	"github.com/plumbline/plumbline/topology/fault"
)

// Options of a Client.
type Options struct {
	// Endpoints are addresses of the database's servers as OVN writes them: "unix:PATH",
	// "tcp:HOST:PORT" or "ssl:HOST:PORT". Several are members of one cluster; the leader is used.
	Endpoints []string
	// TLS is for endpoints of ssl.
	TLS *tls.Config
	// Owner is whose rows the client reads and writes. No two clients that run at the same time
	// may have the same.
	Owner string
	// Timeout of a connection and of a transaction. Default 10 s.
	Timeout time.Duration
}

// Client applies what an owner is to have. Its methods may be called by several goroutines.
type Client struct {
	owner string
	mu    sync.Mutex
	to    *connection.Connection
}

// New returns a Client that is not connected.
func New(o Options) (*Client, error) {
	if o.Owner == "" {
		return nil, errors.New("owner: is missing")
	}
	to, err := connection.New(connection.Options{
		Database: "OVN_Northbound", Title: "OVN Northbound database", Endpoints: o.Endpoints, TLS: o.TLS, Timeout: o.Timeout,
		Tables: map[string]model.Model{tableSwitch: &logicalSwitch{}, tableQoS: &qosRow{}, tableSet: &addressSet{}},
	})
	if err != nil {
		return nil, err
	}
	return &Client{owner: o.Owner, to: to}, nil
}

// Close ends the connection.
func (c *Client) Close() { c.to.Close() }

// Plan returns the changes that Apply would make now. Kinds of errors: NotReady while the
// database is away, and for each switch that does not exist; the changes are then those for the
// other switches.
func (c *Client) Plan(ctx context.Context, want *ovn.Desired) (ovn.Changes, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.plan(ctx, want)
}

// attempts of a change, if what was read is no longer so when it is written.
const attempts = 4

// Apply makes the owner's rows those that are wanted, in one transaction, and returns the changes
// that this took. Errors are those of Plan; Conflict if a foreign row is in the way.
func (c *Client) Apply(ctx context.Context, want *ovn.Desired) (ovn.Changes, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := 1; ; i++ {
		changes, missing := c.plan(ctx, want)
		if changes.Empty() {
			return changes, missing
		}
		_, err := c.to.Transact(ctx, c.operations(&changes))
		switch {
		case err == nil:
			return changes, missing
		case i < attempts && (errors.Is(err, connection.ErrWait) || errors.Is(err, connection.ErrTaken)):
			continue
		}
		return ovn.Changes{}, fmt.Errorf("write: %w", err)
	}
}

func (c *Client) plan(ctx context.Context, want *ovn.Desired) (ovn.Changes, error) {
	have, err := c.observe(ctx)
	if err != nil {
		return ovn.Changes{}, fmt.Errorf("read: %w", err)
	}
	changes, missing := ovn.Diff(have, want)
	return changes, fault.New(fault.NotReady, errors.Join(missing...))
}
