package connection_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ovn-kubernetes/libovsdb/model"

	"github.com/plumbline/plumbline/qos/ovn/connection"
)

// server accepts connections and answers nothing. Each one is sent to the channel.
func server(t *testing.T) (endpoint string, accepted chan net.Conn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "db.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	accepted = make(chan net.Conn, 16)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
			accepted <- conn
		}
	}()
	return "unix:" + path, accepted
}

type row struct {
	UUID string `ovsdb:"_uuid"`
	Name string `ovsdb:"name"`
}

func newConnection(t *testing.T, o connection.Options) *connection.Connection {
	t.Helper()
	o.Database, o.Title, o.Tables = "OVN_Northbound", "database", map[string]model.Model{"Logical_Switch": &row{}}
	c, err := connection.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestSilentEndpoint: an endpoint that answers nothing leaves time for the next one.
func TestSilentEndpoint(t *testing.T) {
	silent, _ := server(t)
	next, accepted := server(t)
	c := newConnection(t, connection.Options{Endpoints: []string{silent, next}, Timeout: 10 * time.Second})
	if _, err := c.Read(t.Context(), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the answer of silent servers is %v", err)
	}
	select {
	case <-accepted:
	default:
		t.Error("the second endpoint was not tried")
	}
}

// TestCanceledCaller: who no longer wants an answer says nothing to others about the server.
func TestCanceledCaller(t *testing.T) {
	endpoint, accepted := server(t)
	c := newConnection(t, connection.Options{Endpoints: []string{endpoint}, Timeout: 5 * time.Second, Pause: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-accepted
		cancel()
	}()
	if _, err := c.Read(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("of a canceled caller: %v", err)
	}
	if _, err := c.Read(t.Context(), nil); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		t.Errorf("of the next caller: %v", err)
	}
	if len(accepted) == 0 {
		t.Error("the next caller has not tried to connect")
	}
}

// TestWaitingCaller: who waits while another caller connects waits no longer than it wants to.
func TestWaitingCaller(t *testing.T) {
	endpoint, accepted := server(t)
	c := newConnection(t, connection.Options{Endpoints: []string{endpoint}, Timeout: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := c.Read(ctx, nil)
		first <- err
	}()
	<-accepted // the first connects
	gone, leave := context.WithCancel(t.Context())
	leave()
	second := make(chan error, 1)
	go func() {
		_, err := c.Read(gone, nil)
		second <- err
	}()
	select {
	case err := <-second:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("of the one that waits: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the second caller waits for the first one's server")
	}
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("of the first: %v", err)
	}
}

func TestEndpoints(t *testing.T) {
	for _, c := range []struct{ endpoint, want string }{
		{"unix:nb.sock", `endpoints[0]: "unix:nb.sock" is not an absolute path`},
		{"unix:", "is not an absolute path"},
		{"tcp:127.0.0.1", "is not unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT"},
		{"tcp::6641", "is not unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT"},
		{"", "is not unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT"},
		{"ssl:127.0.0.1:6641", "needs a private key"},
		{"tcp:[::1]:6641", ""},
	} {
		_, err := connection.New(connection.Options{Endpoints: []string{c.endpoint}})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q: %v, want %s", c.endpoint, err, c.want)
		}
	}
}

// TestRenewedCertificate: a connection is opened with the certificate of that moment. That of the last one may have expired, and the
// authority may be another one.
func TestRenewedCertificate(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	certificate := func(serial int64) tls.Certificate {
		of := &x509.Certificate{
			SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			IsCA: true, BasicConstraintsValid: true,
		}
		der, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
		return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate(100)}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	serials := make(chan int64, 2)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if secured := conn.(*tls.Conn); secured.Handshake() == nil {
				serials <- secured.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
			}
			conn.Close()
		}
	}()
	renewals := int64(0)
	c := newConnection(t, connection.Options{Endpoints: []string{"ssl:" + l.Addr().String()}, Timeout: 10 * time.Second, TLS: func() (*tls.Config, error) {
		renewals++
		return &tls.Config{Certificates: []tls.Certificate{certificate(renewals)}, RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
	}})
	for want := int64(1); want <= 2; want++ {
		if _, err := c.Read(t.Context(), nil); err == nil {
			t.Fatal("a server that closes the connection has answered")
		}
		if have := <-serials; have != want {
			t.Errorf("connection %d has the certificate %d", want, have)
		}
	}
}
