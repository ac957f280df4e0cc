package openvswitch_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/ovsdb"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/openvswitch"
	"github.com/plumbline/plumbline/topology/fault"
)

// authority issues certificates for 127.0.0.1.
type authority struct {
	*testing.T
	dir, name string
	key       *ecdsa.PrivateKey
	of        *x509.Certificate
	pool      *x509.CertPool
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{T: t, dir: t.TempDir(), name: name, pool: x509.NewCertPool()}
	a.key, a.of = a.sign(name, nil, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	a.pool.AddCert(a.of)
	return a
}

// sign makes a certificate and a key, and writes both as files. parent is nil for one that
// signs itself.
func (a *authority) sign(name string, parent *authority, of *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.Fatal(err)
	}
	of.SerialNumber, of.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	of.NotBefore, of.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	signer, signed := key, of
	if parent != nil {
		signer, signed = parent.key, parent.of
	}
	der, err := x509.CreateCertificate(rand.Reader, of, signed, &key.PublicKey, signer)
	if err != nil {
		a.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.Fatal(err)
	}
	for suffix, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(filepath.Join(a.dir, name+"-"+suffix), pem.EncodeToMemory(block), 0o600); err != nil {
			a.Fatal(err)
		}
	}
	out, err := x509.ParseCertificate(der)
	if err != nil {
		a.Fatal(err)
	}
	return key, out
}

// pair returns the files of a new certificate and of its key.
func (a *authority) pair(name string) (certificate, key string) {
	a.Helper()
	a.sign(name, a, &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	return filepath.Join(a.dir, name+"-cert.pem"), filepath.Join(a.dir, name+"-key.pem")
}

// TestTLS holds that ports are written to a server of the right authority, by a client of the
// right authority, and that nothing is written otherwise.
func TestTLS(t *testing.T) {
	ours, other := newAuthority(t, "ours"), newAuthority(t, "other")
	serverCertificate, serverKey := ours.pair("server")
	s := &server{ovsdb.New(t, ovsdb.Northbound, "--remote=pssl:6641:127.0.0.1", "--private-key="+serverKey, "--certificate="+serverCertificate, "--ca-cert="+filepath.Join(ours.dir, "ours-cert.pem"))}
	for _, c := range []struct {
		name        string
		own, server *authority
		written     bool
	}{
		{"a server of another authority", ours, other, false},
		{"a client of another authority", other, ours, false},
		{"both of one authority", ours, ours, true},
	} {
		own, err := tls.LoadX509KeyPair(c.own.pair("client"))
		if err != nil {
			t.Fatal(err)
		}
		nb, err := openvswitch.NewNorthbound(openvswitch.Server{
			Endpoints: []string{"ssl:127.0.0.1:6641"}, Timeout: 20 * time.Second,
			TLS: func() (*tls.Config, error) {
				return &tls.Config{Certificates: []tls.Certificate{own}, RootCAs: c.server.pool, MinVersion: tls.VersionTLS12}, nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		switch err = s.opened(nb.Domain()).Apply(t.Context(), netstate.Change{After: logicalPort("ns_web", "sw0", "", 0)}); {
		case c.written && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case !c.written && fault.Of(err) != fault.NotReady:
			t.Errorf("%s: said %v", c.name, err)
		case (s.Nbctl("--bare", "--columns=name", "list", "Logical_Switch_Port") == "ns_web") != c.written:
			t.Errorf("%s: the ports are %s", c.name, s.Nbctl("list", "Logical_Switch_Port"))
		}
		nb.Close()
	}
}
