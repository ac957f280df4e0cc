package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestRenewedFiles: the files for ssl are read again for each connection, as a Secret in which a certificate is renewed changes them.
func TestRenewedFiles(t *testing.T) {
	dir := t.TempDir()
	c := &credentials{key: filepath.Join(dir, "tls.key"), certificate: filepath.Join(dir, "tls.crt"), authority: filepath.Join(dir, "ca.crt")}
	write := func(serial int64) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		of := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		for file, content := range map[string][]byte{
			c.key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), c.certificate: certificate, c.authority: certificate,
		} {
			if err := os.WriteFile(file, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(1)
	read, err := c.tls()
	if err != nil {
		t.Fatal(err)
	}
	for serial := int64(2); serial <= 3; serial++ {
		write(serial)
		config, err := read()
		if err != nil {
			t.Fatal(err)
		}
		if have := config.Certificates[0].Leaf.SerialNumber.Int64(); have != serial {
			t.Errorf("certificate %d is used, want %d", have, serial)
		}
	}
}
