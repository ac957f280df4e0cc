package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	runtimelog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	runtimemetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	qoscontroller "github.com/plumbline/plumbline/qos/controller"
	"github.com/plumbline/plumbline/reconcile/metrics"
	"github.com/plumbline/plumbline/topology/admission"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/controller"
	"github.com/plumbline/plumbline/topology/exposure"
)

// controllerCommand holds the flags of the controller command.
type controllerCommand struct {
	kubeconfig, namespace   string
	elect                   bool
	lease                   time.Duration
	metrics, health         string
	port                    int
	service, secret, tlsDir string
	clientCA                string
	hosts, registrations    []string
	level                   slog.Level
	interval                time.Duration
	leaseGrace              time.Duration
	networkQoS              string
	podNetwork              bool
	networkStatus           bool
	certificateLife, before time.Duration
}

func (a *app) controller() *cobra.Command {
	var c controllerCommand
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Run the controller of a cluster",
		Long: `Keeps DeviceClasses for root steps that take a device, the status of NetworkTopologies,
and CNIPluginSchemas. Serves the webhook that validates topologies, policies, address
pools, CNIPluginSchemas, claims, claim templates, DeviceClasses and NetworkQoS objects.

One replica leads and writes; all serve the webhook. The controller renews the webhook's
certificate and writes its authority into the webhook configurations, unless --tls-dir is
set. It serves /metrics, and on another address /healthz and /readyz.`,
		Example: `  plumbline controller --kubeconfig ~/.kube/config --namespace plumbline --leader-elect=false --webhook-port 0`,
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context(), a) },
	}
	f := cmd.Flags()
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "kubeconfig `file`; default: the service account of the pod")
	f.StringVar(&c.namespace, "namespace", "", "`namespace` of the lease and the certificate; default: the namespace of the pod")
	f.BoolVar(&c.elect, "leader-elect", true, "elect a leader among replicas")
	f.DurationVar(&c.lease, "leader-elect-lease-duration", 2*time.Minute,
		"`time` after which another replica takes over if the leader does not renew its lease; "+
			"a leader exits if it cannot reach the API server for two thirds of this time")
	f.StringVar(&c.metrics, "metrics-address", ":9478", "`address` to serve metrics on; 0 for none")
	f.StringVar(&c.health, "health-address", ":9479", "`address` to serve probes on; 0 for none")
	f.IntVar(&c.port, "webhook-port", 9443, "`port` of the admission webhook; 0 for none")
	f.StringVar(&c.service, "webhook-service", "plumbline-webhook", "`name` of the webhook's Service")
	f.StringSliceVar(&c.hosts, "webhook-host", nil, "host `names` of a webhook without a Service")
	f.StringVar(&c.secret, "webhook-secret", "plumbline-webhook", "`name` of the existing Secret for the webhook's certificate")
	f.StringSliceVar(&c.registrations, "webhook-configuration", []string{admission.Definitions, admission.Requests},
		"`names` of the ValidatingWebhookConfigurations")
	f.DurationVar(&c.certificateLife, "webhook-certificate-life", 365*24*time.Hour, "validity `time` of a certificate")
	f.DurationVar(&c.before, "webhook-certificate-renewal", 90*24*time.Hour, "`time` from the renewal of a certificate to its end")
	f.StringVar(&c.clientCA, "webhook-client-ca", "",
		"`file` of CA certificates, one of which must have signed the certificate of a webhook client")
	f.StringVar(&c.tlsDir, "tls-dir", "", "`directory` with your tls.crt and tls.key for the webhook")
	f.DurationVar(&c.interval, "status-interval", 10*time.Second, "`interval` of the counts in a topology's status")
	f.DurationVar(&c.leaseGrace, "lease-grace", 10*time.Minute, "`time` from a node's deletion to the end of its address leases")
	f.StringVar(&c.networkQoS, "network-qos", "",
		"NetworkQoS `objects` that get conditions: topologies (those that select NetworkTopologies) or all; none if empty")
	f.BoolVar(&c.podNetwork, "pod-network", false, "agents run with --pod-network")
	f.BoolVar(&c.networkStatus, "network-status", false,
		"annotate pods with k8s.v1.cni.cncf.io/network-status; needs get of pods and patch of pods/status")
	f.TextVar(&c.level, "log-level", slog.LevelInfo, "lowest `level` to log: debug, info, warn or error")
	a.daemon.add(cmd)
	_ = cmd.MarkFlagFilename("kubeconfig")
	_ = cmd.MarkFlagDirname("tls-dir")
	_ = cmd.MarkFlagFilename("webhook-client-ca")
	return cmd
}

// ownNamespace is the file with the namespace of the pod.
const ownNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

func (c *controllerCommand) run(ctx context.Context, a *app) error {
	if c.before <= 0 || c.before >= c.certificateLife {
		return errors.New(
			"--webhook-certificate-renewal: must be less than --webhook-certificate-life, or each certificate is renewed at once")
	}
	if c.lease < time.Second {
		return errors.New("--leader-elect-lease-duration: must be 1s or more")
	}
	if !slices.Contains([]string{"", "topologies", "all"}, c.networkQoS) {
		return fmt.Errorf("--network-qos: %q is not topologies or all", c.networkQoS)
	}
	log := a.log(c.level)
	logStart(log)
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
	if err := a.daemon.profile(ctx, log); err != nil {
		return err
	}
	runtimemetrics.Registry.MustRegister(metrics.BuildInfo(build()))
	mgr, err := c.manager(config, certificates)
	if err != nil {
		return err
	}
	if err := c.serve(ctx, a, log, mgr, certificates); err != nil {
		return err
	}
	log.Info("running", "namespace", c.namespace, "webhook", c.port)
	err = mgr.Start(ctx)
	log.Info("stopped")
	return err
}

func (c *controllerCommand) client() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 50, 100 // enough for all topologies of a cluster
	return rest.AddUserAgent(config, "plumbline-controller"), nil
}

func (c *controllerCommand) certificates() (*admission.Certificates, error) {
	dir, err := os.MkdirTemp("", "plumbline-controller-")
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	if len(c.hosts) == 0 {
		c.hosts = []string{c.service + "." + c.namespace + ".svc"}
	}
	certificates := &admission.Certificates{
		Hosts: c.hosts, Registrations: c.registrations, Dir: dir,
		Server: c.certificateLife, Ahead: c.before, Now: time.Now,
	}
	certificates.Secret.Namespace, certificates.Secret.Name = c.namespace, c.secret
	return certificates, nil
}

func (c *controllerCommand) manager(config *rest.Config, certificates *admission.Certificates) (manager.Manager, error) {
	scheme, err := controller.Scheme()
	if err != nil {
		return nil, err
	}
	options := manager.Options{
		Scheme: scheme,
		Cache: cache.Options{
			// Nobody here reads who wrote which field.
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject:         controller.Cached(),
		},
		LeaderElection:   c.elect,
		LeaderElectionID: "plumbline-controller", LeaderElectionNamespace: c.namespace, LeaderElectionReleaseOnCancel: true,
		// The process ends with the lease, and with it the webhook. The library's 10 s are less than an API server is away while it is
		// updated. Nothing that the leader writes is urgent for pods.
		LeaseDuration: &c.lease, RenewDeadline: new(c.lease * 2 / 3), RetryPeriod: new(c.lease / 12),
		Metrics:                server.Options{BindAddress: c.metrics},
		HealthProbeBindAddress: c.health,
	}
	if c.port != 0 {
		serving := webhook.Options{Port: c.port, CertDir: c.tlsDir}
		if c.tlsDir == "" {
			serving.TLSOpts = append(serving.TLSOpts, certificates.TLS)
			maps.Copy(options.Cache.ByObject, certificates.Cache())
		}
		if c.clientCA != "" {
			demand, err := admission.DemandClient(c.clientCA)
			if err != nil {
				return nil, fmt.Errorf("--webhook-client-ca: %w", err)
			}
			serving.TLSOpts = append(serving.TLSOpts, demand)
		}
		options.WebhookServer = admission.NewServer(serving)
	}
	mgr, err := manager.New(config, options)
	if err != nil {
		return nil, fmt.Errorf("controller: %w", err)
	}
	return mgr, nil
}

// serve adds everything to the manager.
func (c *controllerCommand) serve(ctx context.Context, a *app, log *slog.Logger, mgr manager.Manager,
	certificates *admission.Certificates,
) error {
	recorder := mgr.GetEventRecorder("plumbline-controller")
	if err := controller.Index(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	claims, err := controller.NewClaims(mgr.GetConfig())
	if err != nil {
		return err
	}
	if err := c.serveNetworkStatus(log, mgr, claims); err != nil {
		return err
	}
	if err := mgr.Add(claims); err != nil {
		return fmt.Errorf("claims: %w", err)
	}
	contracts := &controller.Contracts{Reader: mgr.GetClient(), BuiltIn: a.registry}
	compiled := &exposure.Compiled{}
	for _, part := range []interface {
		Setup(mgr manager.Manager) error
	}{
		&controller.Controller{
			Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Claims: claims, Contracts: contracts,
			Policies: compiled, Recorder: recorder, Log: log, Now: time.Now, Interval: c.interval,
		},
		&controller.Policies{Client: mgr.GetClient(), Interval: c.interval, Compiled: compiled},
		&controller.Pools{
			Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Log: log, Now: time.Now, Interval: c.interval,
			Grace: c.leaseGrace,
		},
		&controller.Schemas{Client: mgr.GetClient(), Recorder: recorder, BuiltIn: a.registry, Log: log},
	} {
		if err := part.Setup(mgr); err != nil {
			return err
		}
	}
	if err := c.serveNetworkQoS(log, mgr, claims, a.registry); err != nil {
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
		decisions := admission.New(mgr.GetClient(), contracts, compiled, claims.Users)
		decisions.AllNetworkQoS, decisions.PodNetwork = c.networkQoS == "all", c.podNetwork
		decisions.Register(mgr.GetWebhookServer())
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

// serveNetworkStatus adds what writes the networks of pods into their annotations, if it is wanted.
func (c *controllerCommand) serveNetworkStatus(log *slog.Logger, mgr manager.Manager, claims *controller.Claims) error {
	if !c.networkStatus {
		return nil
	}
	n, err := controller.NewNetworkStatus(mgr.GetConfig(), mgr.GetClient(), claims, log)
	if err != nil {
		return err
	}
	if err := mgr.Add(n); err != nil {
		return fmt.Errorf("network status: %w", err)
	}
	return nil
}

// serveNetworkQoS adds what writes the conditions of NetworkQoS objects, if it is wanted.
func (c *controllerCommand) serveNetworkQoS(log *slog.Logger, mgr manager.Manager, claims *controller.Claims, builtIn contract.Set) error {
	if c.networkQoS == "" {
		return nil
	}
	objects, err := dynamic.NewForConfig(mgr.GetConfig())
	metadatas, also := metadata.NewForConfig(mgr.GetConfig())
	if err = cmp.Or(err, also); err != nil {
		return fmt.Errorf("NetworkQoS: %w", err)
	}
	if err := mgr.Add(&qoscontroller.NetworkQoS{
		Objects: objects, Metadata: metadatas, Claims: claims, Topologies: mgr.GetCache(), Contracts: builtIn,
		Ours: c.networkQoS == "all", PodNetwork: c.podNetwork, Log: log, Now: time.Now, Interval: min(c.interval, time.Second),
		Reported: c.interval,
	}); err != nil {
		return fmt.Errorf("NetworkQoS: %w", err)
	}
	return nil
}
