package hostengine

import (
	"context"
	"os"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/kernel"
)

// Devices lists the devices of a host and marks those that carry its default route. networks
// names the physical network of a PF, by interface.
func Devices(ctx context.Context, host *kernel.Host, networks map[string]string) ([]inventory.Device, error) {
	routes := hostRoutes{host.WithoutSandbox()}
	defer routes.Close()
	return inventory.DiscoverGuarded(ctx, os.DirFS("/sys"), inventory.Options{
		PhysicalNetworks: networks, UplinkOf: inventory.LookupUplink,
		RDMANetdevs: func(names []string) (map[string]string, error) { return host.RDMANetdevs(ctx, names) },
	}, routes)
}

// Uplinks returns which of these devices carry a default route of the host.
func Uplinks(ctx context.Context, host *kernel.Host, devices []inventory.Device) (inventory.Uplinks, error) {
	routes := hostRoutes{host.WithoutSandbox()}
	defer routes.Close()
	return inventory.QueryUplinks(ctx, devices, routes)
}

// hostRoutes queries the kernel for the default routes and networks of the host.
type hostRoutes struct{ *kernel.Sandbox }

// Best implements inventory.Routes.
func (r hostRoutes) Best(ctx context.Context) (string, error) {
	return r.Over(ctx, netstate.DefaultRouteDevice)
}

// Over implements inventory.Routes.
func (r hostRoutes) Over(ctx context.Context, id string) (string, error) {
	snap, err := r.Observe(ctx, []netstate.Object{netstate.Device{ID: id}})
	if err != nil {
		return "", err
	}
	d, _ := snap.Device(id)
	if d.At == nil || d.Use != string(inventory.DefaultRoute) {
		return "", nil
	}
	return netstate.BaseName(*d.At), nil
}
