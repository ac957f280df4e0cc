package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

// credentials are the files with which a database of OVN is reached over ssl.
type credentials struct {
	key, certificate, authority string
	prefix                      string // of the flags
}

func (c *credentials) flags(cmd *cobra.Command, prefix string) {
	c.prefix = prefix
	f := cmd.Flags()
	f.StringVar(&c.key, prefix+"private-key", "", "`file` with the private key, for ssl")
	f.StringVar(&c.certificate, prefix+"certificate", "", "`file` with the certificate, for ssl")
	f.StringVar(&c.authority, prefix+"ca-cert", "", "`file` with the server's CA certificate, for ssl")
}

// tls returns a function that reads the files for ssl, nil for none. It is called for each connection, since whoever issues certificates
// replaces the files.
func (c *credentials) tls() (func() (*tls.Config, error), error) {
	if c.key+c.certificate+c.authority == "" {
		return nil, nil
	}
	if c.key == "" || c.certificate == "" || c.authority == "" {
		return nil, fmt.Errorf("--%[1]sprivate-key, --%[1]scertificate and --%[1]sca-cert go together", c.prefix)
	}
	if _, err := c.read(); err != nil {
		return nil, err
	}
	return c.read, nil
}

func (c *credentials) read() (*tls.Config, error) {
	own, err := tls.LoadX509KeyPair(c.certificate, c.key)
	if err != nil {
		return nil, fmt.Errorf("--%[1]scertificate, --%[1]sprivate-key: %[2]w", c.prefix, err)
	}
	data, err := os.ReadFile(c.authority)
	if err != nil {
		return nil, fmt.Errorf("--%sca-cert: %w", c.prefix, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("--%sca-cert: %s has no certificate", c.prefix, c.authority)
	}
	return &tls.Config{Certificates: []tls.Certificate{own}, RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}
