package admission_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/plumbline/plumbline/topology/admission"
)

// TestDemandClient: with an authority of clients, only those with a certificate of it are answered.
func TestDemandClient(t *testing.T) {
	client := func(name string) (tls.Certificate, []byte) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	server, authority := client("api-server")
	other, _ := client("api-server") // of another authority of the name
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, authority, 0o600); err != nil {
		t.Fatal(err)
	}
	demand, err := admission.DemandClient(file)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	demand(s.TLS)
	s.StartTLS()
	defer s.Close()
	for name, c := range map[string]struct {
		with     []tls.Certificate
		answered bool
	}{"the API server": {[]tls.Certificate{server}, true}, "another authority": {[]tls.Certificate{other}, false}, "no certificate": {nil, false}} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{Certificates: c.with, RootCAs: s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs, MinVersion: tls.VersionTLS12}}
		answer, err := (&http.Client{Transport: transport}).Get(s.URL)
		if err == nil {
			answer.Body.Close()
		}
		if (err == nil) != c.answered {
			t.Errorf("%s: %v", name, err)
		}
		transport.CloseIdleConnections()
	}
	for _, text := range []string{"", "x"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := admission.DemandClient(file); err == nil {
			t.Errorf("a file with %q is an authority", text)
		}
	}
}
