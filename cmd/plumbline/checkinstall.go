package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

var topologies = v1alpha1.GroupVersion.WithResource("networktopologies")

// checkInstall checks a release; the chart's test runs it.
type checkInstall struct {
	kubeconfig, namespace string
	agent, controller     string
	webhook               bool
	patience              time.Duration
	out                   io.Writer
}

// checkInterval is the pause between two attempts of a check.
const checkInterval = 2 * time.Second

func (a *app) checkInstall() *cobra.Command {
	var c checkInstall
	cmd := &cobra.Command{
		Use:   "check-install",
		Short: "Check an installation in a cluster",
		Long: "Exits with 0 if every agent is connected to the kubelet and the container runtime of its node, " +
			"and the controller's webhook refuses an invalid topology. Until it succeeds, the check is repeated. Used by helm test.",
		Example: "  plumbline check-install --namespace plumbline-system --agent plumbline-agent --controller plumbline-controller",
		Args:    noArgs,
		Hidden:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
			if err != nil {
				return fmt.Errorf("API server: %w", err)
			}
			client, err := dynamic.NewForConfig(config)
			if err != nil {
				return fmt.Errorf("API server: %w", err)
			}
			c.out = a.out
			return c.await(cmd.Context(), client, checkInterval)
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "kubeconfig `file`; default: the service account of the pod")
	f.StringVar(&c.namespace, "namespace", "", "`namespace` of the release")
	f.StringVar(&c.agent, "agent", "", "`name` of the DaemonSet")
	f.StringVar(&c.controller, "controller", "", "`name` of the Deployment")
	f.BoolVar(&c.webhook, "webhook", true, "the release has the webhook")
	f.DurationVar(&c.patience, "patience", 4*time.Minute,
		"repeat a check that fails for this `time`, since the pods of a new release need time to start")
	return cmd
}

// await repeats the check while it fails, until patience ends, and prints the result of the last attempt.
func (c checkInstall) await(ctx context.Context, client dynamic.Interface, pause time.Duration) error {
	end := time.Now().Add(c.patience)
	for {
		var said bytes.Buffer
		attempt := c
		attempt.out = &said
		err := attempt.run(ctx, client)
		if err == nil || time.Until(end) < pause || ctx.Err() != nil {
			_, failed := c.out.Write(said.Bytes())
			return errors.Join(err, failed)
		}
		loop.Wait(ctx, pause, nil)
	}
}

func (c checkInstall) run(ctx context.Context, client dynamic.Interface) error {
	apps := schema.GroupVersion{Group: "apps", Version: "v1"}
	// An agent is ready once the kubelet has registered it and the runtime calls it.
	err := errors.Join(
		c.available(ctx, client, apps.WithResource("daemonsets"), c.agent, "desiredNumberScheduled", "numberAvailable"),
		c.available(ctx, client, apps.WithResource("deployments"), c.controller, "replicas", "availableReplicas"))
	if c.webhook {
		err = errors.Join(err, c.refuses(ctx, client))
	}
	return err
}

// available compares two counts in the status of a workload.
func (c checkInstall) available(ctx context.Context, client dynamic.Interface, resource schema.GroupVersionResource, name, wanted,
	there string,
) error {
	o, err := client.Resource(resource).Namespace(c.namespace).Get(ctx, name, metav1.GetOptions{})
	var want, have int64
	if err == nil {
		want, _, err = unstructured.NestedInt64(o.Object, "status", wanted)
	}
	if err == nil {
		have, _, err = unstructured.NestedInt64(o.Object, "status", there)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s %q: %w", resource.Resource, name, err)
	case want == 0:
		return fmt.Errorf("%s %q: no pod is wanted: no node has the labels of its nodeSelector", resource.Resource, name)
	case have < want:
		return fmt.Errorf("%s %q: %d of %d pods are available: see their events and logs", resource.Resource, name, have, want)
	}
	_, err = fmt.Fprintf(c.out, "%s %q: %s available.\n", resource.Resource, name, excerpt.Count(int(have), "pod"))
	return err
}

// refuses holds that the webhook refuses a topology without a type, which the schema of the API server accepts.
func (c checkInstall) refuses(ctx context.Context, client dynamic.Interface) error {
	invalid := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.Kind,
		"metadata": map[string]any{"name": "plumbline-test"},
		"spec":     map[string]any{"steps": []any{map[string]any{"name": "net", "type": "no-such-type"}}},
	}}
	_, err := client.Resource(topologies).Create(ctx, invalid, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case err == nil:
		return errors.New("webhook: the API server accepted an invalid topology and did not ask the webhook: " +
			"check the ValidatingWebhookConfiguration, and the log of the controller")
	case !apierrors.HasStatusCause(err, v1alpha1.CauseRefused):
		return fmt.Errorf("webhook: %w", err)
	}
	_, err = fmt.Fprintln(c.out, "webhook: refuses an invalid topology.")
	return err
}
