package ethtoolnl

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Client uses the ethtool family of one network namespace. It is safe for concurrent
// use.
type Client struct {
	conn   *genetlink.Conn
	family uint16

	mu sync.Mutex
	// features are the names of features by bit, once they were needed. With them, an answer has a few bytes instead of four
	// lists of names.
	features []string
}

// Dial opens a client in the network namespace of the calling thread.
func Dial() (*Client, error) {
	bare, err := netlink.Dial(unix.NETLINK_GENERIC, &netlink.Config{Strict: true})
	if err != nil {
		return nil, fmt.Errorf("ethtool: %w", err)
	}
	if err := connect(bare); err != nil {
		return nil, errors.Join(fmt.Errorf("ethtool: connect to the kernel: %w", err), bare.Close())
	}
	conn := genetlink.NewConn(bare)
	f, err := conn.GetFamily("ethtool")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ethtool: %w", err), conn.Close())
	}
	return &Client{conn: conn, family: f.ID}, nil
}

// connect makes a socket accept messages from the kernel only (af_netlink.c,
// netlink_getsockbyportid). Without it, CAP_NET_ADMIN in the namespace is enough to
// send it answers, which at best make a request fail.
func connect(conn *netlink.Conn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.Connect(int(fd), &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	})
	return errors.Join(failed, err)
}

// Close closes the client.
func (c *Client) Close() error { return c.conn.Close() }

// Get returns the settings of one class of the device with that index. For a device
// that does not have the class it returns the kernel's EOPNOTSUPP.
func (c *Client) Get(ctx context.Context, class Class, index int) ([]Setting, error) {
	m, err := encodeGet(class, index)
	if err != nil {
		return nil, err
	}
	var names []string
	if class == Feature {
		if names, err = c.featureNames(ctx); err != nil {
			return nil, err
		}
	}
	reply, err := c.query(ctx, m)
	if err != nil {
		return nil, err
	}
	return decode(class, reply, names)
}

// query returns the data of the only reply to a request.
func (c *Client) query(ctx context.Context, m genetlink.Message) ([]byte, error) {
	replies, err := c.execute(ctx, m, netlink.Request)
	if err != nil {
		return nil, err
	}
	if len(replies) != 1 {
		return nil, fmt.Errorf("ethtool: %d replies instead of one", len(replies))
	}
	return replies[0].Data, nil
}

// featureNames returns the names of features by bit.
func (c *Client) featureNames(ctx context.Context) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.features != nil {
		return c.features, nil
	}
	reply, err := c.query(ctx, encodeFeatureNames())
	if err != nil {
		return nil, err
	}
	names, err := decodeFeatureNames(reply)
	if err == nil && len(names) == 0 {
		err = errors.New("ethtool: the kernel has named no features")
	}
	if err != nil {
		return nil, err
	}
	c.features = names
	return names, nil
}

// Set changes one setting. The kernel accepts a feature that the driver then does not
// switch; only reading it again shows that. For a name that does not exist it returns
// ErrUnknown or the kernel's EOPNOTSUPP.
func (c *Client) Set(ctx context.Context, class Class, index int, name string, value uint32) error {
	m, err := encodeSet(class, index, name, value)
	if err != nil {
		return err
	}
	_, err = c.execute(ctx, m, netlink.Request|netlink.Acknowledge)
	return err
}

// execute waits no longer than ctx allows. The kernel answers while the request is
// being sent, so the wait is short.
func (c *Client) execute(ctx context.Context, m genetlink.Message, flags netlink.HeaderFlags) ([]genetlink.Message, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline() // the zero time is none
	if err := c.conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	return c.conn.Execute(m, c.family, flags)
}
