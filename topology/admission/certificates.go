package admission

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Certificates maintains the serving certificate of the webhook, and the CA that the API
// server trusts. Both are our own, kept in a Secret that all replicas share: the leader
// creates and renews them and writes the CA into the webhooks' registrations; every replica
// serves the current content of the Secret. The private key is never in a file. The Secret
// must exist, even if empty: the controller does not need the permission to create Secrets.
// Permissions in its own namespace, on that Secret: get, list, watch, update. In the cluster:
// validatingwebhookconfigurations get, list, watch, and update and patch on those of Registrations.
type Certificates struct {
	Secret        types.NamespacedName
	Hosts         []string // host names the API server uses; at least one
	Registrations []string // ValidatingWebhookConfigurations to write the CA into
	Dir           string   // an empty directory of our own
	// Server is how long a certificate is valid, Ahead how long before its end it is
	// renewed, Check how often that is checked. Zero: a year, 90 days, 12 hours.
	Server, Ahead, Check time.Duration
	Now                  func() time.Time

	current   atomic.Pointer[tls.Certificate]
	authority atomic.Pointer[[]byte]
	reader    client.Reader
}

// Cache restricts a manager's cache to the one Secret.
func (c *Certificates) Cache() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{&corev1.Secret{}: {
		Namespaces: map[string]cache.Config{c.Secret.Namespace: {}},
		Field:      fields.OneTermEqualSelector("metadata.name", c.Secret.Name),
	}}
}

// Setup adds rotation to a manager, and a watch of the Secret.
func (c *Certificates) Setup(mgr manager.Manager) error {
	if len(c.Hosts) == 0 {
		return errors.New("certificate: no host name")
	}
	r := &rotator.CertRotator{
		SecretKey: c.Secret, CertDir: c.Dir,
		CAName: "plumbline", CAOrganization: "plumbline", DNSName: c.Hosts[0], ExtraDNSNames: c.Hosts[1:],
		IsReady: make(chan struct{}), FieldOwner: "plumbline-controller", RequireLeaderElection: true,
		ServerCertDuration: c.Server, LookaheadInterval: c.Ahead, RotationCheckFrequency: c.Check,
	}
	for _, name := range c.Registrations {
		r.Webhooks = append(r.Webhooks, rotator.WebhookInfo{Name: name, Type: rotator.Validating})
	}
	if err := rotator.AddRotator(oneSecret{mgr, c.Secret}, r); err != nil {
		return fmt.Errorf("certificate rotation: %w", err)
	}
	c.reader = mgr.GetClient()
	if len(c.Registrations) > 0 {
		again := &again{Client: mgr.GetClient(), registrations: c.Registrations, now: c.Now, changed: map[string]change{}}
		if err := again.setup(mgr); err != nil {
			return fmt.Errorf("registrations: %w", err)
		}
	}
	return builder.ControllerManagedBy(mgr).Named("webhook-certificate").
		For(&corev1.Secret{}).
		WithOptions(controller.Options{NeedLeaderElection: new(false)}).
		Complete(reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{}, c.load(ctx, mgr.GetClient(), request.NamespacedName)
		}))
}

// oneSecret is a manager for the rotator, whose cache would hold all Secrets of the namespace and
// has no option for less. Requests that name one object are authorized by its name.
type oneSecret struct {
	manager.Manager
	secret types.NamespacedName
}

// GetConfig implements cluster.Cluster.
func (m oneSecret) GetConfig() *rest.Config {
	config := rest.CopyConfig(m.Manager.GetConfig())
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return selectSecret{next, m.secret} })
	return config
}

// selectSecret restricts lists and watches of the Secrets of a namespace to one of them.
type selectSecret struct {
	next   http.RoundTripper
	secret types.NamespacedName
}

// RoundTrip implements http.RoundTripper.
func (s selectSecret) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/api/v1/namespaces/"+s.secret.Namespace+"/secrets") {
		r = r.Clone(r.Context())
		query := r.URL.Query()
		query.Set("fieldSelector", fields.OneTermEqualSelector("metadata.name", s.secret.Name).String())
		r.URL.RawQuery = query.Encode()
	}
	return s.next.RoundTrip(r)
}

func (c *Certificates) load(ctx context.Context, from client.Reader, name types.NamespacedName) error {
	if name != c.Secret {
		return nil
	}
	secret := &corev1.Secret{}
	if err := from.Get(ctx, name, secret); err != nil {
		return client.IgnoreNotFound(err) // what was loaded is still served
	}
	crt, key := secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]
	if len(crt) == 0 || len(key) == 0 {
		return nil // not created yet
	}
	pair, err := tls.X509KeyPair(crt, key)
	if err != nil {
		return fmt.Errorf("secret %q: %w", name, err)
	}
	c.current.Store(&pair)
	c.authority.Store(new(secret.Data[authorityKey]))
	// The rotator waits for a file, as it expects the Secret to be mounted.
	if err := os.WriteFile(filepath.Join(c.Dir, corev1.TLSCertKey), crt, 0o600); err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	return nil
}

// TLS makes a server use the current certificate.
func (c *Certificates) TLS(config *tls.Config) {
	config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if pair := c.current.Load(); pair != nil {
			return pair, nil
		}
		return nil, errNone
	}
}

var errNone = errors.New("there is no certificate yet")

// authorityKey is the key of the CA's certificate in the Secret.
const authorityKey = "ca.crt"

// Ready is a readiness check: there is a certificate to serve with, and its CA is in the
// registrations. A registration that does not exist is no error.
func (c *Certificates) Ready(r *http.Request) error {
	authority := c.authority.Load()
	if c.current.Load() == nil || authority == nil {
		return errNone
	}
	ctx, cancel := context.WithTimeout(r.Context(), time.Second)
	defer cancel()
	for _, name := range c.Registrations {
		var registration admissionregistrationv1.ValidatingWebhookConfiguration
		if err := c.reader.Get(ctx, types.NamespacedName{Name: name}, &registration); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("registration %q: %w", name, err)
		}
		for _, w := range registration.Webhooks {
			if !bytes.Contains(w.ClientConfig.CABundle, bytes.TrimSpace(*authority)) {
				return fmt.Errorf("registration %q does not name our authority yet", name)
			}
		}
	}
	return nil
}
