package admission

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// DemandClient returns a change of a server's configuration after which it answers only clients with a certificate of one
// of the authorities in a file of PEM. The API server has one for webhooks if it is configured to
// (WebhookAdmissionConfiguration).
func DemandClient(file string) (func(*tls.Config), error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%q has no certificate in PEM", file)
	}
	return func(c *tls.Config) { c.ClientCAs, c.ClientAuth = authorities, tls.RequireAndVerifyClientCert }, nil
}
