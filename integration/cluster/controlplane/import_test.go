//go:build cluster

package controlplane_test

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	godiff "github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/integration/cluster"
)

// foreign are two kinds of other projects, with objects of both.
const foreign = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: network-attachment-definitions.k8s.cni.cncf.io}
spec:
  group: k8s.cni.cncf.io
  scope: Namespaced
  names: {plural: network-attachment-definitions, singular: network-attachment-definition, kind: NetworkAttachmentDefinition, listKind: NetworkAttachmentDefinitionList}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ippools.whereabouts.cni.cncf.io}
spec:
  group: whereabouts.cni.cncf.io
  scope: Namespaced
  names: {plural: ippools, singular: ippool, kind: IPPool, listKind: IPPoolList}
  versions: [{name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

const foreignObjects = `
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: office, namespace: default}
spec: {config: '{"cniVersion": "1.0.0", "name": "office", "type": "macvlan", "master": "eth1", "ipam": {"type": "whereabouts", "range": "192.0.2.0/24"}}'}
---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: misspelt, namespace: default}
spec: {config: '{"type": "macvlan", "mastre": "eth1"}'}
---
apiVersion: whereabouts.cni.cncf.io/v1alpha1
kind: IPPool
metadata: {name: 192.0.2.0-24, namespace: kube-system}
spec: {range: 192.0.2.0/24, allocations: {"7": {id: a, podref: default/web-0}}}
`

// TestImport converts the objects of a real API server, as a user who may read them all, and as one who may not.
func TestImport(t *testing.T) {
	b := start(t)
	b.mustKubectl(t, foreign, "create", "-f", "-")
	b.mustKubectl(t, "", "wait", "--for=condition=Established", "crd/network-attachment-definitions.k8s.cni.cncf.io", "crd/ippools.whereabouts.cni.cncf.io")
	b.mustKubectl(t, foreignObjects, "create", "-f", "-")
	b.mustKubectl(t, "", "create", "serviceaccount", "reader", "-n", "default")
	if _, err := b.ServiceAccount(t.Context(), "default", "reader", cluster.TokenFor{}); err != nil {
		t.Fatal(err)
	}
	run := func(stdin string, args ...string) (stdout, stderr string, code int) {
		cmd := exec.CommandContext(t.Context(), b.program, append([]string{"import"}, args...)...)
		var out, said bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &said
		_ = cmd.Run()
		return out.String(), said.String(), cmd.ProcessState.ExitCode()
	}
	reader := []string{"--from-cluster", "--pods", "--kubeconfig", filepath.Join(b.Dir(), "default-reader.kubeconfig")}

	out, said, code := run("", reader...)
	for _, want := range []string{
		`NetworkAttachmentDefinition cannot be read: the right "list" on network-attachment-definitions.k8s.cni.cncf.io in all namespaces is missing`,
		`IPPool cannot be read: the right "list" on ippools.whereabouts.cni.cncf.io in all namespaces is missing`,
		`the right "list" on deviceclasses.resource.k8s.io of the cluster is missing`,
	} {
		if out != "" || code != 1 || !strings.Contains(said, want) {
			t.Errorf("without rights: exit status %d, printed %q and\n%s\nlacks %q", code, out, said, want)
		}
	}

	b.mustKubectl(t, "", "create", "clusterrole", "reader", "--verb=list", "--resource=network-attachment-definitions.k8s.cni.cncf.io,ippools.whereabouts.cni.cncf.io,deviceclasses.resource.k8s.io,resourceclaims.resource.k8s.io,resourceclaimtemplates.resource.k8s.io,pods,deployments.apps,daemonsets.apps,replicasets.apps,statefulsets.apps,jobs.batch,cronjobs.batch")
	b.mustKubectl(t, "", "create", "clusterrolebinding", "reader", "--clusterrole=reader", "--serviceaccount=default:reader")
	out, said, code = run("", reader...)
	fromFile, saidOfFile, codeOfFile := run(b.mustKubectl(t, "", "get", "network-attachment-definitions,ippools", "-A", "-o", "yaml"), "-f", "-")
	if diff := godiff.Diff(fromFile, out); diff != "" || code != codeOfFile {
		t.Errorf("exit status %d of the cluster, %d of the file: %s\n(-file +cluster):\n%s", code, codeOfFile, said, diff)
	}
	if !strings.Contains(out, "192.0.2.7") || !strings.Contains(said, `"mastre"`) && !strings.Contains(said, "mastre") {
		t.Errorf("printed\n%s\nand\n%s\nwant the allocated address excluded, and the misspelt key named", out, said)
	}
	for line := range strings.SplitSeq(strings.TrimSpace(saidOfFile), "\n") {
		if !strings.Contains(said, place.ReplaceAllString(line, "plumbline: ")) {
			t.Errorf("of the file is said %q, of the cluster\n%s", line, said)
		}
	}
	for _, want := range []string{"2 NetworkAttachmentDefinition.k8s.cni.cncf.io", "1 IPPool.whereabouts.cni.cncf.io", "does not have the kinds", "SriovNetwork.sriovnetwork.openshift.io"} {
		if !strings.Contains(said, want) {
			t.Errorf("said\n%s\nlacks %q", said, want)
		}
	}
	if diff := godiff.Diff(b.mustKubectl(t, "", "get", "network-attachment-definitions,ippools", "-A", "-o", "jsonpath={.items[*].metadata.generation}"), "1 1 1"); diff != "" {
		t.Errorf("the objects were written:\n%s", diff)
	}
}
