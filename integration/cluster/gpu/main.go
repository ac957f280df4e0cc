// Command gpu stands in for a GPU vendor's DRA driver in tests on a cluster: it
// publishes a slice of devices that do not exist, with a product name and PCIe
// roots given on the command line, and prepares claims for them by doing
// nothing. It shows the scheduler's and the kubelet's part: one claim
// served by two drivers, devices chosen by PCIe root.
//
//	gpu --kubeconfig FILE --node-name NODE gpu-0=pci0000:00 gpu-1=pci0000:80
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const driverName = "gpu.nvidia.com" // the one that the tests' DeviceClass selects

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig `file`")
	node := flag.String("node-name", "", "`name` of the node")
	kubelet := flag.String("kubelet-dir", "/var/lib/kubelet", "the kubelet's `folder`")
	flag.Parse()
	devices, err := parse(flag.Args())
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	plugin := filepath.Join(*kubelet, "plugins", driverName)
	if err := os.MkdirAll(plugin, 0o750); err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, driver{},
		kubeletplugin.DriverName(driverName), kubeletplugin.KubeClient(client), kubeletplugin.NodeName(*node),
		kubeletplugin.PluginDataDirectoryPath(plugin),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(*kubelet, "plugins_registry")),
		kubeletplugin.HealthService(false))
	if err != nil {
		return err
	}
	defer helper.Stop()
	err = helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		*node: {Slices: []resourceslice.Slice{{Devices: devices}}},
	}})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func parse(words []string) ([]resourceapi.Device, error) {
	var out []resourceapi.Device
	for _, w := range words {
		name, root, ok := strings.Cut(w, "=")
		if !ok {
			return nil, fmt.Errorf("%q: want NAME=PCIEROOT", w)
		}
		out = append(out, resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"productName": {StringValue: new("H100")},
			resourceapi.QualifiedName(deviceattribute.StandardDeviceAttributePCIeRoot): {StringValue: new(root)},
			// The spelling of the tests' claims.
			"device.k8s.io/pcieRoot": {StringValue: new(root)},
		}})
	}
	if len(out) == 0 {
		return nil, errors.New("no devices given: gpu-0=pci0000:00")
	}
	return out, nil
}

type driver struct{}

// PrepareResourceClaims has nothing to prepare.
func (driver) PrepareResourceClaims(_ context.Context,
	claims []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	out := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		var result kubeletplugin.PrepareResult
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.Driver == driverName {
				result.Devices = append(result.Devices,
					kubeletplugin.Device{Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device})
			}
		}
		out[c.UID] = result
	}
	return out, nil
}

// UnprepareResourceClaims has nothing to undo.
func (driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	out := map[types.UID]error{}
	for _, c := range claims {
		out[c.UID] = nil
	}
	return out, nil
}

// HandleError reports what went wrong in the background.
func (driver) HandleError(_ context.Context, err error, msg string) { log.Print(msg, ": ", err) }

// WatchHealthStatus knows nothing of health.
func (driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
