package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	runtimelog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/plumbline/plumbline/topology/admission"
	"github.com/plumbline/plumbline/topology/deviceclass"
)

// controller is the flags of controller.
type controller struct {
	kubeconfig, namespace   string
	elect                   bool
	metrics, health         string
	port                    int
	service, secret, tlsDir string
	hosts, registrations    []string
	level                   slog.Level
	interval                time.Duration
	certificateLife, before time.Duration
}

func (a *app) controller() *cobra.Command {
	var c controller
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Serve NetworkTopologies in a cluster",
		Long: `Makes a DeviceClass for every root step of every NetworkTopology, keeps it as it
should be, and says in the topology's status what became of it. Describes the step
types as CNIPluginSchemas. Answers the API server's questions whether a topology,
a claim or a claim template makes sense (admission webhook).

Of several replicas one leads and writes; all of them answer. The webhook's
certificate is made, renewed and told to the API server by itself; with --tls-dir
it is yours to look after. It serves /metrics, and on another address /healthz and
/readyz.`,
		Example: `  plumbline controller --kubeconfig ~/.kube/config --namespace plumbline --leader-elect=false --webhook-port 0
  kubectl get networktopologies`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context(), a) },
	}
	f := cmd.Flags()
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "`file` to reach the API server with; the pod's own account by default")
	f.StringVar(&c.namespace, "namespace", "", "`namespace` of the lease and the certificate; the pod's own by default")
	f.BoolVar(&c.elect, "leader-elect", true, "let one of several replicas lead")
	f.StringVar(&c.metrics, "metrics-address", ":9478", "`address` to serve metrics on; 0 for none")
	f.StringVar(&c.health, "health-address", ":9479", "`address` to serve health and readiness on; 0 for none")
	f.IntVar(&c.port, "webhook-port", 9443, "`port` of the admission webhook; 0 for none")
	f.StringVar(&c.service, "webhook-service", "plumbline-webhook", "`name` of the Service the API server reaches the webhook by")
	f.StringSliceVar(&c.hosts, "webhook-host", nil, "`names` it reaches the webhook by when not by a Service")
	f.StringVar(&c.secret, "webhook-secret", "plumbline-webhook", "`name` of the Secret that keeps the webhook's certificate; it must exist")
	f.StringSliceVar(&c.registrations, "webhook-configuration", []string{admission.Definitions, admission.Requests}, "`names` of the ValidatingWebhookConfigurations to write the authority into")
	f.DurationVar(&c.certificateLife, "webhook-certificate-life", 365*24*time.Hour, "`time` a certificate is good for")
	f.DurationVar(&c.before, "webhook-certificate-renewal", 90*24*time.Hour, "`time` before its end at which it is renewed")
	f.StringVar(&c.tlsDir, "tls-dir", "", "`directory` with tls.crt and tls.key to serve the webhook with, in place of a certificate of its own")
	f.DurationVar(&c.interval, "status-interval", 10*time.Second, "`time` for which changes of the counts in a topology's status are collected; every node that runs it is sent each status")
	f.TextVar(&c.level, "log-level", slog.LevelInfo, "least `level` to log: debug, info, warn or error")
	_ = cmd.MarkFlagFilename("kubeconfig")
	_ = cmd.MarkFlagDirname("tls-dir")
	return cmd
}

// ownNamespace is where a pod finds its namespace.
const ownNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

func (c *controller) run(ctx context.Context, a *app) error {
	if c.before <= 0 || c.before >= c.certificateLife {
		return errors.New("--webhook-certificate-renewal: must be less than --webhook-certificate-life, or each certificate is renewed at once")
	}
	log := a.log(c.level)
	runtimelog.SetLogger(logr.FromSlogHandler(log.Handler()))
	klog.SetSlogLogger(log)
	if c.namespace == "" {
		name, err := os.ReadFile(ownNamespace)
		if err != nil {
			return errors.New("--namespace: is missing, and this is not a pod")
		}
		c.namespace = strings.TrimSpace(string(name))
	}
	config, err := c.client()
	if err != nil {
		return err
	}
	certificates, err := c.certificates()
	if err != nil {
		return err
	}
	defer os.RemoveAll(certificates.Dir)
	mgr, err := c.manager(config, certificates)
	if err != nil {
		return err
	}
	if err := c.serve(ctx, a, log, mgr, certificates); err != nil {
		return err
	}
	log.Info("running", "namespace", c.namespace, "webhook", c.port, "version", build().Version)
	err = mgr.Start(ctx)
	log.Info("stopped")
	return err
}

func (c *controller) client() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 50, 100 // a cluster's worth of topologies, and no flood
	return rest.AddUserAgent(config, "plumbline-controller"), nil
}

func (c *controller) certificates() (*admission.Certificates, error) {
	dir, err := os.MkdirTemp("", "plumbline-controller-")
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	if len(c.hosts) == 0 {
		c.hosts = []string{c.service + "." + c.namespace + ".svc"}
	}
	certificates := &admission.Certificates{
		Hosts: c.hosts, Registrations: c.registrations, Dir: dir,
		Server: c.certificateLife, Ahead: c.before,
	}
	certificates.Secret.Namespace, certificates.Secret.Name = c.namespace, c.secret
	return certificates, nil
}

func (c *controller) manager(config *rest.Config, certificates *admission.Certificates) (manager.Manager, error) {
	scheme, err := deviceclass.Scheme()
	if err != nil {
		return nil, err
	}
	options := manager.Options{
		Scheme: scheme,
		Cache: cache.Options{
			// Nobody here reads who wrote which field.
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject:         deviceclass.Cached(),
		},
		LeaderElection:   c.elect,
		LeaderElectionID: "plumbline-controller", LeaderElectionNamespace: c.namespace, LeaderElectionReleaseOnCancel: true,
		Metrics:                server.Options{BindAddress: c.metrics},
		HealthProbeBindAddress: c.health,
	}
	if c.port != 0 {
		serving := webhook.Options{Port: c.port, CertDir: c.tlsDir}
		if c.tlsDir == "" {
			serving.TLSOpts = append(serving.TLSOpts, certificates.TLS)
			maps.Copy(options.Cache.ByObject, certificates.Cache())
		}
		options.WebhookServer = webhook.NewServer(serving)
	}
	mgr, err := manager.New(config, options)
	if err != nil {
		return nil, fmt.Errorf("controller: %w", err)
	}
	return mgr, nil
}

// serve adds everything to the manager.
func (c *controller) serve(ctx context.Context, a *app, log *slog.Logger, mgr manager.Manager, certificates *admission.Certificates) error {
	recorder := mgr.GetEventRecorder("plumbline-controller")
	if err := deviceclass.Index(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	claims, err := deviceclass.NewClaims(mgr.GetConfig())
	if err != nil {
		return err
	}
	if err := mgr.Add(claims); err != nil {
		return fmt.Errorf("claims: %w", err)
	}
	contracts := &deviceclass.Contracts{Reader: mgr.GetClient(), BuiltIn: a.registry}
	topologies := &deviceclass.Controller{Client: mgr.GetClient(), Claims: claims, Contracts: contracts, Recorder: recorder, Log: log, Now: time.Now, Interval: c.interval}
	if err := topologies.Setup(mgr); err != nil {
		return err
	}
	schemas := &deviceclass.Schemas{Client: mgr.GetClient(), Recorder: recorder, BuiltIn: a.registry, Log: log}
	if err := schemas.Setup(mgr); err != nil {
		return err
	}
	ready := map[string]healthz.Checker{"caches": func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if !mgr.GetCache().WaitForCacheSync(ctx) || !claims.Synced() {
			return errors.New("the caches are not filled yet")
		}
		return nil
	}}
	if c.port != 0 {
		admission.New(mgr.GetClient(), contracts, claims.Users).Register(mgr.GetWebhookServer())
		ready["webhook"] = mgr.GetWebhookServer().StartedChecker()
		if c.tlsDir == "" {
			if err := certificates.Setup(mgr); err != nil {
				return err
			}
			ready["certificate"] = certificates.Ready
		}
	}
	for name, check := range ready {
		if err := mgr.AddReadyzCheck(name, check); err != nil {
			return fmt.Errorf("readiness: %w", err)
		}
	}
	if err := mgr.AddHealthzCheck("alive", healthz.Ping); err != nil {
		return fmt.Errorf("health: %w", err)
	}
	return nil
}
