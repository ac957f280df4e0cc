package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority is the cluster's own certificate authority, for servers and clients.
type authority struct {
	dir         string
	certificate *x509.Certificate
	key         crypto.Signer
	bundle      []byte // its certificate in PEM
}

// lifetime is that of all certificates: longer than any test, shorter than memory.
const lifetime = 7 * 24 * time.Hour

func newAuthority(dir string) (*authority, error) {
	a := &authority{dir: dir}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "plumbline test cluster"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, key, err := a.sign(template)
	if err != nil {
		return nil, err
	}
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("make the cluster's authority: %w", err)
	}
	a.key = key
	a.bundle = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a, a.write("ca.crt", a.bundle, 0o644)
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) write(name string, content []byte, mode os.FileMode) error {
	return os.WriteFile(a.path(name), content, mode)
}

// sign completes the template and signs it with the authority's key, or with its
// own while there is no authority yet.
func (a *authority) sign(template *x509.Certificate) (der []byte, key *ecdsa.PrivateKey, err error) {
	key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, fmt.Errorf("make a serial number: %w", err)
	}
	// Machines of the bench may be a little behind the host.
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().Add(lifetime)
	parent, signer := a.certificate, a.key
	if parent == nil {
		parent, signer = template, crypto.Signer(key)
	}
	der, err = x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, fmt.Errorf("sign the certificate of %q: %w", template.Subject.CommonName, err)
	}
	return der, key, nil
}

// client makes a certificate by which the API server knows user and groups. Both
// results are PEM.
func (a *authority) client(user string, groups ...string) (certificate, key []byte, err error) {
	return a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// server makes a certificate for a server known by these names and addresses.
func (a *authority) server(hosts ...string) (certificate, key []byte, err error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: hosts[0]},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if address := net.ParseIP(host); address != nil {
			template.IPAddresses = append(template.IPAddresses, address)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return a.issue(template)
}

func (a *authority) issue(template *x509.Certificate) (certificate, key []byte, err error) {
	der, private, err := a.sign(template)
	if err != nil {
		return nil, nil, err
	}
	key, err = encodeKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key, nil
}

// pair writes NAME.crt and NAME.key.
func (a *authority) pair(name string, certificate, key []byte, err error) error {
	if err != nil {
		return err
	}
	if err := a.write(name+".crt", certificate, 0o644); err != nil {
		return err
	}
	return a.write(name+".key", key, 0o600)
}

// signingKey writes NAME.key and NAME.pub, by which service account tokens are
// signed and known.
func (a *authority) signingKey(name string) error {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	key, err := encodeKey(private)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		return fmt.Errorf("encode a key: %w", err)
	}
	if err := a.write(name+".pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o644); err != nil {
		return err
	}
	return a.write(name+".key", key, 0o600)
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
