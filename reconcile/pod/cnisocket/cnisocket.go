package cnisocket

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// DefaultPath is the agent's socket unless the network's configuration names another.
const DefaultPath = "/run/plumbline-cni/agent.sock"

// MaxBytes bounds a request and a reply. A list for GC has 150 bytes for each pod.
const MaxBytes = 1 << 20

// Command is the CNI command of the runtime.
type Command string

// The commands of CNI 1.1 that need the agent.
const (
	Add    Command = "ADD"
	Check  Command = "CHECK"
	Del    Command = "DEL"
	GC     Command = "GC"
	Status Command = "STATUS"
)

// Request is a call of the plugin.
type Request struct {
	Command   Command `json:"command"`
	Container string  `json:"container,omitempty"`
	Netns     string  `json:"netns,omitempty"`
	IfName    string  `json:"ifName,omitempty"`
	Args      string  `json:"args,omitempty"`
	// Config is the network's configuration as the runtime has given it.
	Config json.RawMessage `json:"config"`
}

// Reply is the answer to a Request.
type Reply struct {
	// Result is that of Add, in the structure of CNI 1.1.
	Result json.RawMessage `json:"result,omitempty"`
	Error  *types.Error    `json:"error,omitempty"`
}

// ErrPluginNotAvailable is the code with which CNI 1.1 answers STATUS; the library has no
// name for it.
const ErrPluginNotAvailable uint = 50

// Call sends a request to the agent and waits for the reply. The error says why there is
// none: it is the agent that is not there.
func Call(ctx context.Context, path string, r Request) (*Reply, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("the request has %d bytes, more than %d", len(data), MaxBytes)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if end, bounded := ctx.Deadline(); bounded {
		if err := conn.SetDeadline(end); err != nil {
			return nil, err
		}
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Write(data); err != nil {
		return nil, err
	}
	reply := &Reply{}
	switch err := decode(conn, reply); {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return nil, errors.New("it ended before it answered")
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, err
	}
	return reply, nil
}

// receiveTimeout is within which a client sends its request, and takes its reply.
const receiveTimeout = 10 * time.Second

// Receive reads the request of a client. left is closed when the client goes away, or the
// connection is closed.
func Receive(conn net.Conn) (r Request, left <-chan struct{}, err error) {
	deadline := time.Now().Add(receiveTimeout) //nolint:forbidigo // of a socket, whose clock is not that of Options
	if err := conn.SetReadDeadline(deadline); err != nil {
		return r, nil, err
	}
	if err := decode(conn, &r); err != nil {
		return r, nil, err
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return r, nil, err
	}
	gone := make(chan struct{})
	go func() { // ends with the connection
		defer close(gone)
		_, _ = conn.Read(make([]byte, 1)) // nothing more comes
	}()
	return r, gone, nil
}

// Send answers a client.
func Send(conn net.Conn, r Reply) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := conn.SetWriteDeadline(time.Now().Add(receiveTimeout)); err != nil { //nolint:forbidigo // as above
		return err
	}
	_, err = conn.Write(data)
	return err
}

// decode reads one value, without waiting for the end of the stream.
func decode(from io.Reader, into any) error {
	limited := &io.LimitedReader{R: from, N: MaxBytes + 1}
	err := json.NewDecoder(limited).Decode(into)
	if limited.N <= 0 {
		return fmt.Errorf("the message has more than %d bytes", MaxBytes)
	}
	return err
}
