package admission

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

// pipes is a listener in memory, for a bubble of synctest.
type pipes struct {
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func newPipes() *pipes { return &pipes{accepted: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accepted:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// Addr implements net.Listener.
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

// from is a connection from an address.
type from struct {
	net.Conn
	address string
}

// RemoteAddr implements net.Conn.
func (f from) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.ParseIP(f.address), Port: 1}
}

func (p *pipes) dial(address string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.accepted <- from{server, address}:
		return client, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// post sends a request with a body, and returns the answer's code and body.
func (p *pipes) post(address string, body string) (int, string, error) {
	conn, err := p.dial(address)
	if err != nil {
		return 0, "", err
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "POST %s?timeout=10s HTTP/1.1\r\nHost: webhook\r\nContent-Length: %d\r\n\r\n%s", Path, len(body), body); err != nil {
		return 0, "", err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text), err
}

// TestAnswersDespiteOthers: clients that say that a large body comes, and send nothing, or little, or all of
// it but slowly, do not delay the answers to others by a second. They come back whenever they are refused.
func TestAnswersDespiteOthers(t *testing.T) {
	send := map[string]func(c net.Conn, size int){
		"nothing": func(net.Conn, int) {},
		"a byte a second": func(c net.Conn, _ int) {
			for {
				if _, err := c.Write([]byte("x")); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		},
		"all but a byte": func(c net.Conn, size int) {
			_, _ = c.Write(make([]byte, size-1))
		},
		"all, at a low rate": func(c net.Conn, _ int) {
			for {
				if _, err := c.Write(make([]byte, 8<<10)); err != nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		},
	}
	for name, body := range send {
		for clients, size := range map[int]int{5: maxBody, 500: maxBody / 16} {
			t.Run(fmt.Sprintf("%s, %d", name, clients), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { answerDespite(t, clients, size, body) })
			})
		}
	}
}

// answerDespite posts small and large bodies for some seconds, beside clients with bodies of a size.
func answerDespite(t *testing.T, clients, size int, send func(c net.Conn, size int)) {
	t.Helper()
	l := newPipes()
	server := newHTTPServer(bounded(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "%d %v", len(body), err)
	})))
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := server.Serve(limited(l)); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	for range clients {
		wg.Go(func() {
			for ctx.Err() == nil {
				conn, err := l.dial("192.0.2.1")
				if err != nil {
					return
				}
				stop := context.AfterFunc(ctx, func() { conn.Close() })
				if _, err := fmt.Fprintf(conn, "POST %s?timeout=30s HTTP/1.1\r\nHost: webhook\r\nContent-Length: %d\r\n\r\n", Path, size); err == nil {
					send(conn, size)
					_, _ = io.Copy(io.Discard, conn) // until it is closed
				}
				stop()
				conn.Close()
				time.Sleep(time.Second)
			}
		})
	}
	time.Sleep(time.Second)
	late, refused := 0, 0
	var longest time.Duration
	for range 10 {
		for _, ours := range []int{2 << 10, 500 << 10} {
			begun := time.Now()
			code, text, err := l.post("192.0.2.9", strings.Repeat("x", ours))
			took := time.Since(begun)
			longest = max(longest, took)
			if took > time.Second {
				late++
			}
			if err != nil || code != http.StatusOK || text != fmt.Sprintf("%d <nil>", ours) {
				refused++
			}
		}
		time.Sleep(time.Second)
	}
	if late > 0 || refused > 0 {
		t.Errorf("beside %d others, of 20 requests %d were answered late, after %s at most, and %d not", clients, late, longest, refused)
	}
	cancel()
	server.Close()
	wg.Wait()
}

// TestServer: an API server gets an answer by HTTP/2, and the server is ready once it has a certificate.
func TestServer(t *testing.T) {
	free, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	free.Close()
	signed := httptest.NewTLSServer(nil)
	defer signed.Close()
	var certificate atomic.Pointer[tls.Certificate]
	s := NewServer(webhook.Options{Host: "127.0.0.1", Port: port, TLSOpts: []func(*tls.Config){func(c *tls.Config) {
		c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if c := certificate.Load(); c != nil {
				return c, nil
			}
			return nil, errors.New("none yet")
		}
	}}})
	s.Register(Path, bounded(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprint(rw, len(body), err)
	})))
	ready := s.StartedChecker()
	get := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil)
	if ready(get) == nil {
		t.Error("ready before it has started")
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- s.Start(ctx) }()
	for !strings.Contains(fmt.Sprint(ready(get)), "remote error: tls") {
		select {
		case err := <-stopped:
			t.Fatal(err)
		default:
			runtime.Gosched()
		}
	}
	certificate.Store(&signed.TLS.Certificates[0])
	if err := ready(get); err != nil {
		t.Error(err)
	}
	client := signed.Client()
	client.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	for _, size := range []int{1, smallBody, maxBody} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, fmt.Sprintf("https://127.0.0.1:%d%s?timeout=30s", port, Path), bytes.NewReader(make([]byte, size)))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if want := fmt.Sprint(size, error(nil)); err != nil || answer.ProtoMajor != 2 || string(text) != want {
			t.Errorf("a body of %d bytes by HTTP/%d: %q, %v", size, answer.ProtoMajor, text, err)
		}
	}
	client.CloseIdleConnections()
	cancel()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
