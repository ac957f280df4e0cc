// Command forward runs in a node's machine and is the API server's way to what is
// behind it: the kubelet, pods, endpoints of webhook services. On every connection it
// reads an address in one line, answers "ok" or an error in one line, and passes on
// everything else both ways. An address is HOST:PORT, or unix:PATH for a socket of the
// machine.
//
//	forward LISTEN-ADDRESS
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

func main() {
	slog.Error("forward", "error", run(os.Args[1:]))
	os.Exit(1)
}

// run forwards until it cannot.
func run(arguments []string) error {
	if len(arguments) != 1 {
		return errors.New("usage: forward LISTEN-ADDRESS")
	}
	listener, err := net.Listen("tcp", arguments[0])
	if err != nil {
		return err
	}
	for {
		near, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			if err := serve(near); err != nil {
				slog.Warn("forward", "error", err)
			}
		}()
	}
}

const (
	// askWithin is how long the other end may take for a line: its host may pause.
	askWithin = 30 * time.Second
	// connectWithin is short: a pod that does not answer is not there any more.
	connectWithin = 10 * time.Second
)

func serve(near net.Conn) error {
	defer near.Close()
	if err := near.SetReadDeadline(time.Now().Add(askWithin)); err != nil {
		return err
	}
	reader := bufio.NewReader(near)
	line, err := reader.ReadString('\n')
	if err != nil {
		return err
	}
	if err := near.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	kind, address := "tcp", strings.TrimSpace(line)
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		kind, address = "unix", path
	}
	far, err := net.DialTimeout(kind, address, connectWithin)
	if err != nil {
		_, answerErr := fmt.Fprintln(near, strings.ReplaceAll(err.Error(), "\n", " "))
		return errors.Join(err, answerErr)
	}
	defer far.Close()
	if _, err := io.WriteString(near, "ok\n"); err != nil {
		return err
	}
	var group sync.WaitGroup
	group.Go(func() { pass(far, reader) })
	group.Go(func() { pass(near, far) })
	group.Wait()
	return nil
}

// pass copies until the end, and passes the end on, too.
func pass(to net.Conn, from io.Reader) {
	_, _ = io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}
