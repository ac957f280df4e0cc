package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// egress is the API server's door to the nodes: kubelets, pods and the endpoints of webhook
// services are behind QEMU's user-mode networks, of which this host has no routes. The API
// server requests an address by HTTP CONNECT, and is connected by a forwarder in the node's
// machine.
type egress struct {
	socket    string
	elsewhere string // a folder of its own, if it has one
	server    *http.Server
	done      chan struct{}
	// route is where to dial instead, and whether the far end wants to be asked
	// by CONNECT itself.
	route func(address string) (via string, connect bool, err error)
}

// longestSocket is how many bytes the path of a Unix socket may have.
const longestSocket = 107

// newEgress opens the door as a socket in the folder: the API server wants either
// that or TLS. At the end of a path too long for a socket it opens elsewhere.
func newEgress(dir string, route func(address string) (via string, connect bool, err error)) (*egress, error) {
	e := &egress{route: route, done: make(chan struct{}), socket: filepath.Join(dir, "egress.sock")}
	if len(e.socket) > longestSocket {
		elsewhere, err := os.MkdirTemp("", "plumbline-")
		if err != nil {
			return nil, fmt.Errorf("open the door to the nodes: %w", err)
		}
		e.elsewhere, e.socket = elsewhere, filepath.Join(elsewhere, "egress.sock")
	}
	listener, err := net.Listen("unix", e.socket)
	if err != nil {
		return nil, fmt.Errorf("open the door to the nodes: %w", err)
	}
	e.server = &http.Server{Handler: e, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(e.done)
		_ = e.server.Serve(listener)
	}()
	return e, nil
}

func (e *egress) close() error {
	err := e.server.Close()
	<-e.done
	if e.elsewhere == "" {
		return err
	}
	return errors.Join(err, os.RemoveAll(e.elsewhere))
}

// ServeHTTP answers CONNECT, and nothing else.
func (e *egress) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		http.Error(w, "only CONNECT", http.StatusMethodNotAllowed)
		return
	}
	far, err := e.dial(r.Context(), r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer far.Close()
	near, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer near.Close()
	if _, err := io.WriteString(near, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	join(near, buffered, far)
}

func (e *egress) dial(ctx context.Context, address string) (net.Conn, error) {
	via, connect, err := e.route(address)
	if err != nil {
		return nil, err
	}
	far, err := (&net.Dialer{Timeout: answerWithin}).DialContext(ctx, "tcp", via)
	if err != nil || !connect {
		return far, err
	}
	if err := ask(far, address); err != nil {
		far.Close()
		return nil, fmt.Errorf("reach %s through its node: %w", address, err)
	}
	return far, nil
}

// answerWithin is long for what takes milliseconds: the node may pause for some seconds.
const answerWithin = 30 * time.Second

// ask requests an address of the forwarder at the other end: a line there, a line back.
func ask(far net.Conn, address string) error {
	if err := far.SetDeadline(time.Now().Add(answerWithin)); err != nil {
		return err
	}
	if _, err := io.WriteString(far, address+"\n"); err != nil {
		return err
	}
	// One byte at a time: what follows the line belongs to the connection.
	var answer []byte
	for b := make([]byte, 1); len(answer) < 512; {
		if _, err := io.ReadFull(far, b); err != nil {
			return err
		}
		if b[0] == '\n' {
			break
		}
		answer = append(answer, b[0])
	}
	if string(answer) != "ok" {
		return errors.New(string(answer))
	}
	return far.SetDeadline(time.Time{})
}

// join copies both ways until both are at their end.
func join(near net.Conn, fromNear io.Reader, far net.Conn) {
	var group sync.WaitGroup
	group.Go(func() { pass(far, fromNear) })
	group.Go(func() { pass(near, far) })
	group.Wait()
}

func pass(to net.Conn, from io.Reader) {
	_, _ = io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}
