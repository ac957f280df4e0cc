package connection

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
	"github.com/ovn-kubernetes/libovsdb/ovsdb/serverdb"

	"github.com/plumbline/plumbline/topology/fault"
)

// Options of a Connection.
type Options struct {
	// Database is its name in its schema, and Title what errors call it.
	Database, Title string
	// Tables are structs with the columns that are used, by table: a server without them is
	// refused.
	Tables map[string]model.Model
	// Endpoints are addresses of the database's servers as OVN writes them: "unix:PATH",
	// "tcp:HOST:PORT" or "ssl:HOST:PORT". Several are members of one cluster; the leader is used.
	Endpoints []string
	// TLS is for endpoints of ssl. It is called for each connection, since certificates are renewed.
	TLS func() (*tls.Config, error)
	// Timeout of a connection and of a transaction. Default 10 s.
	Timeout time.Duration
	// Pause is between two attempts to connect: until it is over, the answer is why the last
	// one failed. Otherwise many callers would wait for a server that is away one after another.
	Pause time.Duration
}

// Connection is a connection to a database, which is opened when it is first used. Its methods
// may be called by several goroutines.
type Connection struct {
	options Options

	// turn has a value while a caller opens a connection, who may change first: the index of the
	// endpoint that is tried first.
	turn  chan struct{}
	first int

	mu   sync.Mutex // of what follows
	open *server
	// failed is why the last attempt to connect failed, during the pause after it.
	failed error
}

// New returns a Connection that is not open.
func New(o Options) (*Connection, error) {
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
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
	return &Connection{options: o, turn: make(chan struct{}, 1)}, nil
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
		return fmt.Errorf("%q is not an absolute path, such as unix:/var/run/ovn/ovnnb_db.sock", endpoint)
	case "tcp", "ssl":
		if host, port, err := net.SplitHostPort(rest); err == nil && host != "" && port != "" {
			return nil
		}
	}
	return fmt.Errorf("%q is not unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT", endpoint)
}

// Close ends the connection.
func (c *Connection) Close() {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open != nil {
		c.open.Close()
		c.open = nil
	}
}

// drop closes a connection that failed, unless another caller has opened a new one. The caller has
// the lock. Closing waits for the transactions of other callers.
func (c *Connection) drop(failed *server) {
	if c.open != nil && c.open == failed {
		go c.open.Close()
		c.open = nil
	}
}

// Read runs operations that change nothing: they are repeated if the connection was lost since
// the last call, or its server leads the cluster no more.
func (c *Connection) Read(ctx context.Context, operations []ovsdb.Operation) ([]ovsdb.OperationResult, error) {
	results, err := c.run(ctx, operations, true)
	if errors.Is(err, client.ErrNotConnected) || errors.Is(err, errFollows) {
		return c.run(ctx, operations, true)
	}
	return results, err
}

// Transact runs operations as one transaction. Kinds of errors: NotReady while the database is
// away, and ErrWait where a wait operation does not hold; Conflict and ErrTaken if a name is taken. A
// database that went away in the meantime may nevertheless have done all of it. A server that leads no
// more passes it to the one that does.
func (c *Connection) Transact(ctx context.Context, operations []ovsdb.Operation) ([]ovsdb.OperationResult, error) {
	return c.run(ctx, operations, false)
}

// run is Transact. If it reads, the answer counts only if the server leads the cluster: another one may not
// know yet what was written, or have lost contact.
func (c *Connection) run(ctx context.Context, operations []ovsdb.Operation, reads bool) ([]ovsdb.OperationResult, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	open, err := c.connect(ctx)
	if err != nil {
		return nil, c.away(err)
	}
	leads := make(chan error, 1)
	if reads {
		go func() { leads <- open.leads(ctx) }()
	} else {
		leads <- nil
	}
	results, err := transact(ctx, open, operations)
	if err == nil {
		err = <-leads
	}
	if err != nil {
		if !canceled(ctx) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.drop(open)
		}
		return nil, c.away(err)
	}
	if failed, err := ovsdb.CheckOperationResults(results, operations); err != nil {
		return nil, c.refused(failed, err)
	}
	return results, nil
}

// transact sends operations and waits for the results. The library sends without a deadline, and a server that
// reads nothing takes no more than the buffers of its socket.
func transact(ctx context.Context, open client.Client, operations []ovsdb.Operation) ([]ovsdb.OperationResult, error) {
	var results []ovsdb.OperationResult
	done := make(chan error, 1)
	go func() {
		answer, err := open.Transact(ctx, operations...)
		results = answer
		done <- err
	}()
	if err := await(ctx, done); err != nil {
		return nil, err
	}
	return results, nil
}

// await waits for the end of a call of the library, or for that of the context, whose error it then returns: the
// library has only its text.
func await(ctx context.Context, done <-chan error) error {
	select {
	case err := <-done:
		if err == nil {
			return nil
		}
		return cmp.Or(ctx.Err(), err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// canceled reports whether the caller no longer wants an answer, which says nothing about the
// server, and is no concern of other callers.
func canceled(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }

func (c *Connection) connect(ctx context.Context) (*server, error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if open, err := c.connected(); open != nil || err != nil {
		return open, err
	}
	open, err := c.dial(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.open = open
	case !canceled(ctx):
		c.pause(err)
	}
	return open, err
}

// connected returns the open connection, or why none is to be opened now.
func (c *Connection) connected() (*server, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open != nil && c.open.Connected() {
		return c.open, nil
	}
	c.drop(c.open)
	return nil, c.failed
}

// pause begins the pause after an attempt to connect. The caller has the lock.
func (c *Connection) pause(failed error) {
	if c.options.Pause == 0 {
		return
	}
	c.failed = failed
	time.AfterFunc(c.options.Pause, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.failed = nil
	})
}

// dial connects to the first endpoint that answers, beginning with the one that did so last. Each has
// its part of the time: a silent one, such as that of a node that is off, leaves enough for the others.
func (c *Connection) dial(ctx context.Context) (*server, error) {
	var failed error
	n := len(c.options.Endpoints)
	for range n {
		endpoint := c.options.Endpoints[c.first]
		open, err := c.dialOne(ctx, endpoint)
		if err == nil {
			return open, nil
		}
		c.first = (c.first + 1) % n
		if n > 1 {
			err = fmt.Errorf("%s: %w", endpoint, err)
		}
		if failed == nil {
			failed = err
		} else {
			failed = fmt.Errorf("%w; %w", failed, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, failed
}

func (c *Connection) dialOne(ctx context.Context, endpoint string) (*server, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout/time.Duration(len(c.options.Endpoints)))
	defer cancel()
	s := &server{database: c.options.Database}
	if len(c.options.Endpoints) > 1 {
		members, err := serverdb.FullDatabaseModel()
		if err != nil {
			return nil, err
		}
		if s.member, err = c.dialDatabase(ctx, endpoint, members); err != nil {
			return nil, err
		}
		if err := s.leads(ctx); err != nil {
			go s.member.Close()
			return nil, err
		}
	}
	tables, err := model.NewClientDBModel(c.options.Database, c.options.Tables)
	if err == nil {
		s.Client, err = c.dialDatabase(ctx, endpoint, tables)
	}
	if err != nil {
		if s.member != nil {
			go s.member.Close()
		}
		return nil, err
	}
	return s, nil
}

func (c *Connection) dialDatabase(ctx context.Context, endpoint string, tables model.ClientDBModel) (client.Client, error) {
	options := []client.Option{client.WithEndpoint(endpoint)}
	if strings.HasPrefix(endpoint, "ssl:") {
		secured, err := c.options.TLS()
		if err != nil {
			return nil, err
		}
		options = append(options, client.WithTLSConfig(secured))
	}
	open, err := client.NewOVSDBClient(tables, options...)
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- open.Connect(ctx) }() // sends without a deadline
	if err := await(ctx, done); err != nil {
		go open.Close()
		return nil, err
	}
	return open, nil
}

// server is a connection to a server. That to a member of a cluster has a second one beside it, to the
// member's database _Server, which says whether it leads. The library can follow that itself
// (client.WithLeaderOnly), but the goroutine that does so does not end with the connection, and keeps
// 1 MiB of it (libovsdb v0.8.1): an agent would lose that each time a leader is lost.
type server struct {
	client.Client
	database string
	member   client.Client // nil for a server that is no member
}

// Close ends both connections.
func (s *server) Close() {
	s.Client.Close()
	if s.member != nil {
		s.member.Close()
	}
}

// errFollows says that a server does not lead its cluster.
var errFollows = errors.New("endpoint is not leader")

// leads returns an error if the server is a member of a cluster that another one leads, or none.
func (s *server) leads(ctx context.Context) error {
	if s.member == nil {
		return nil
	}
	query := ovsdb.Operation{
		Op: ovsdb.OperationSelect, Table: serverdb.DatabaseTable, Where: Named(s.database),
		Columns: []string{"model", "leader"},
	}
	results, err := transact(ctx, s.member, []ovsdb.Operation{query})
	if err != nil {
		return err
	}
	for _, result := range results {
		for _, row := range result.Rows {
			if row["model"] == serverdb.DatabaseModelClustered && row["leader"] != true {
				return errFollows
			}
		}
	}
	return nil
}

func (c *Connection) named() string {
	return c.options.Title + " " + strings.Join(c.options.Endpoints, ",")
}

func (c *Connection) away(err error) error {
	return fault.New(fault.NotReady, fmt.Errorf("%s: %w", c.named(), err))
}

// ErrWait says that what an operation of a transaction waits for does not hold: somebody else has
// changed it since it was read.
var ErrWait = errors.New("it was changed by somebody else meanwhile")

// ErrTaken says that a row of this name exists. If it did not when it was read, somebody else has created it
// since, or what was read was old: a server of a cluster that has just become the leader, or is none any more, may not know yet
// what was written before.
var ErrTaken = errors.New("a row of this name exists")

// refused explains why the database refused a transaction, of which nothing is applied.
func (c *Connection) refused(failed []ovsdb.OperationError, err error) error {
	if len(failed) > 0 {
		err = failed[0] // those after it are not tried
	}
	kind := fault.Internal
	if _, waited := errors.AsType[*ovsdb.TimedOut](err); waited {
		kind, err = fault.NotReady, fmt.Errorf("%w: %w", ErrWait, err)
	}
	if _, taken := errors.AsType[*ovsdb.ConstraintViolation](err); taken {
		kind, err = fault.Conflict, fmt.Errorf("%w: %w", ErrTaken, err) // a name that is unique
	}
	return fault.New(kind, fmt.Errorf("%s: refused: %w", c.named(), err))
}
