package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestCheckInstall plays the answers of an API server; the chart's test runs on a real one.
func TestCheckInstall(t *testing.T) {
	workload := func(kind, name string, status map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apps/v1", "kind": kind, "metadata": map[string]any{"name": name, "namespace": "ns"}, "status": status,
		}}
	}
	refused := apierrors.NewForbidden(topologies.GroupResource(), "x", errors.New("a word of the webhook"))
	refused.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: v1alpha1.CauseRefused}}
	for _, c := range []struct {
		name          string
		agents, ready int64
		webhook       error
		want          string // of the error; "" for none
	}{
		{"all is well", 2, 2, refused, ""},
		{"an agent is not connected", 2, 1, refused, "1 of 2 pods"},
		{"no node is selected", 0, 0, refused, "nodeSelector"},
		{"no webhook", 2, 2, nil, "accepted"},
		{"a webhook of others", 2, 2, apierrors.NewForbidden(topologies.GroupResource(), "x", errors.New(`"no-such-type"`)), "webhook: "},
		{"an unreachable webhook", 2, 2, apierrors.NewInternalError(errors.New("failed calling webhook")), "failed calling webhook"},
	} {
		client := fake.NewSimpleDynamicClient(runtime.NewScheme(),
			workload("DaemonSet", "a", map[string]any{"desiredNumberScheduled": c.agents, "numberAvailable": c.ready}),
			workload("Deployment", "c", map[string]any{"replicas": int64(1), "availableReplicas": int64(1)}))
		client.PrependReactor("create", "networktopologies", func(kubetesting.Action) (bool, runtime.Object, error) {
			return true, &unstructured.Unstructured{}, c.webhook
		})
		var out bytes.Buffer
		check := checkInstall{out: &out, namespace: "ns", agent: "a", controller: "c", webhook: true}
		err := check.run(t.Context(), client)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: want an error with %q, have %v", c.name, c.want, err)
		}
		if c.want == "" && strings.Count(out.String(), "\n") != 3 {
			t.Errorf("%s: said %q", c.name, out.String())
		}
	}
}

// TestCheckInstallWaits: a check that is run right after the installation waits until the pods are there, and no longer than it is told to.
func TestCheckInstallWaits(t *testing.T) {
	for name, c := range map[string]struct {
		available int // the attempt from which on the pods are there, 0 for never
		asked     int
		took      time.Duration
	}{
		"at once": {available: 1, asked: 1},
		"later":   {available: 3, asked: 3, took: 4 * time.Second},
		"never":   {asked: 31, took: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				agent := &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": map[string]any{"name": "a", "namespace": "ns"},
					"status": map[string]any{"desiredNumberScheduled": int64(1), "numberAvailable": int64(1)},
				}}
				controller := &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "c", "namespace": "ns"}, "status": map[string]any{"replicas": int64(1)},
				}}
				client := fake.NewSimpleDynamicClient(runtime.NewScheme(), agent, controller)
				asked := 0
				client.PrependReactor("get", "deployments", func(kubetesting.Action) (bool, runtime.Object, error) {
					if asked++; asked == c.available {
						_ = unstructured.SetNestedField(controller.Object, int64(1), "status", "availableReplicas")
					}
					return true, controller, nil
				})
				var out bytes.Buffer
				check := checkInstall{out: &out, namespace: "ns", agent: "a", controller: "c", patience: time.Minute}
				began := time.Now()
				err := check.await(t.Context(), client, checkInterval)
				if (err == nil) != (c.available > 0) || asked != c.asked || time.Since(began) != c.took {
					t.Errorf("asked %d times in %s, want %d in %s: %v", asked, time.Since(began), c.asked, c.took, err)
				}
				lines := 1
				if err == nil {
					lines = 2
				}
				if strings.Count(out.String(), "\n") != lines {
					t.Errorf("said %q, want %d lines", out.String(), lines)
				}
			})
		})
	}
}
