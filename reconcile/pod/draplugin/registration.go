package draplugin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology"
)

// Registration is that of a Plugin with the kubelet. It exists before the plugin, for those that the
// plugin needs.
type Registration struct {
	helper table.Value[*kubeletplugin.Helper] // known once it is served
}

func (g *Registration) serving() *kubeletplugin.Helper {
	helper, _ := g.helper.Get()
	return helper
}

// Ready returns nil once kubelet has accepted the plugin.
func (g *Registration) Ready() error {
	helper := g.serving()
	if helper == nil {
		return errors.New("kubelet plugin: not served yet")
	}
	status := helper.RegistrationStatus()
	switch {
	case status == nil:
		return errors.New("kubelet plugin: kubelet has not registered it yet")
	case !status.PluginRegistered:
		return fmt.Errorf("kubelet plugin: kubelet refuses it: %s", status.Error)
	}
	return nil
}

// Refine writes what is known of the interfaces into the metadata that containers of the
// claim see. It has to be called before the first of them is created: a container keeps the
// file it was started with.
func (g *Registration) Refine(ctx context.Context, c *claims.Claim, results [][]topology.StepResult) error {
	helper := g.serving()
	if helper == nil {
		return errors.New("kubelet plugin: not served yet")
	}
	of := map[string][]kubeletplugin.Device{}
	var requests []string
	for _, d := range describe(c, results) {
		request, _, _ := strings.Cut(d.Requests[0], "/")
		if of[request] == nil {
			requests = append(requests, request)
		}
		of[request] = append(of[request], d)
	}
	var errs []error
	for _, r := range requests {
		errs = append(errs, helper.UpdateRequestMetadata(ctx, c.Namespace, c.Name, c.UID, of[r][0].Requests[0], of[r]))
	}
	return errors.Join(errs...)
}
