package northbound

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/plumbline/plumbline/qos/ovn"
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
	Options
	mu   sync.Mutex
	open client.Client // nil: not connected
}

// New returns a Client that is not connected.
func New(o Options) (*Client, error) {
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	if o.Owner == "" {
		return nil, errors.New("owner: is missing")
	}
	if len(o.Endpoints) == 0 {
		return nil, errors.New("endpoints: are missing: name one such as unix:/var/run/ovn/ovnnb_db.sock")
	}
	for i, e := range o.Endpoints {
		if err := check(e); err != nil {
			return nil, fmt.Errorf("endpoints[%d]: %w", i, err)
		}
		if strings.HasPrefix(e, "ssl:") && o.TLS == nil {
			return nil, fmt.Errorf("endpoints[%d]: %q needs a private key, a certificate and that of the authority", i, e)
		}
	}
	return &Client{Options: o}, nil
}

// check refuses what the library takes for the socket of another database: a path that is not
// absolute, or none.
func check(endpoint string) error {
	scheme, rest, _ := strings.Cut(endpoint, ":")
	switch scheme {
	case "unix":
		if strings.HasPrefix(rest, "/") {
			return nil
		}
		return fmt.Errorf("%q is no absolute path, such as unix:/var/run/ovn/ovnnb_db.sock", endpoint)
	case "tcp", "ssl":
		if host, port, err := net.SplitHostPort(rest); err == nil && host != "" && port != "" {
			return nil
		}
	}
	return fmt.Errorf("%q is none of unix:PATH, tcp:HOST:PORT and ssl:HOST:PORT", endpoint)
}

// Close ends the connection.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop()
}

func (c *Client) drop() {
	if c.open != nil {
		c.open.Close()
		c.open = nil
	}
}

// Plan returns the changes that Apply would make now. Kinds of errors: NotReady while the
// database is away, and for each switch that does not exist; the changes are then those for the
// other switches.
func (c *Client) Plan(ctx context.Context, want *ovn.Desired) (ovn.Changes, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.plan(ctx, want)
}

// Apply makes the owner's rows those that are wanted, in one transaction, and returns the changes
// that this took. Errors are those of Plan; Conflict if a foreign row is in the way.
func (c *Client) Apply(ctx context.Context, want *ovn.Desired) (ovn.Changes, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changes, missing := c.plan(ctx, want)
	if changes.Empty() {
		return changes, missing
	}
	if _, err := c.transact(ctx, c.operations(&changes)); err != nil {
		return ovn.Changes{}, fmt.Errorf("write: %w", err)
	}
	return changes, missing
}

func (c *Client) plan(ctx context.Context, want *ovn.Desired) (ovn.Changes, error) {
	have, err := c.observe(ctx)
	if err != nil {
		return ovn.Changes{}, fmt.Errorf("read: %w", err)
	}
	changes, missing := ovn.Diff(have, want)
	return changes, fault.New(fault.NotReady, errors.Join(missing...))
}

// transact runs operations as one transaction. A connection that failed is dropped: the next
// call opens another one.
func (c *Client) transact(ctx context.Context, operations []ovsdb.Operation) ([]ovsdb.OperationResult, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	if err := c.connect(ctx); err != nil {
		return nil, c.away(err)
	}
	results, err := c.open.Transact(ctx, operations...)
	if err != nil {
		c.drop()
		return nil, c.away(err)
	}
	if failed, err := ovsdb.CheckOperationResults(results, operations); err != nil {
		return nil, c.refused(failed, err)
	}
	return results, nil
}

func (c *Client) connect(ctx context.Context) error {
	if c.open != nil && c.open.Connected() {
		return nil
	}
	c.drop()
	tables, err := model.NewClientDBModel("OVN_Northbound", map[string]model.Model{
		tableSwitch: &logicalSwitch{}, tableQoS: &qosRow{}, tableSet: &addressSet{},
	})
	if err != nil {
		return err
	}
	options := []client.Option{client.WithLeaderOnly(len(c.Endpoints) > 1)}
	for _, e := range c.Endpoints {
		options = append(options, client.WithEndpoint(e))
	}
	if c.TLS != nil {
		options = append(options, client.WithTLSConfig(c.TLS))
	}
	open, err := client.NewOVSDBClient(tables, options...)
	if err != nil {
		return err
	}
	if err := open.Connect(ctx); err != nil {
		open.Close()
		return err
	}
	c.open = open
	return nil
}

func (c *Client) away(err error) error {
	return fault.New(fault.NotReady, fmt.Errorf("OVN Northbound database %s: %w", strings.Join(c.Endpoints, ","), err))
}

// refused explains why the database refused a transaction, of which nothing is applied.
func (c *Client) refused(failed []ovsdb.OperationError, err error) error {
	if len(failed) > 0 {
		err = failed[0] // those after it are not tried
	}
	kind := fault.Internal
	if _, taken := errors.AsType[*ovsdb.ConstraintViolation](err); taken {
		kind = fault.Conflict // the name of an address set, which is unique
	}
	return fault.New(kind, fmt.Errorf("OVN Northbound database %s: refused: %w", strings.Join(c.Endpoints, ","), err))
}
