package draplugin

import (
	"net/netip"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/gate"
	"github.com/plumbline/plumbline/topology"
)

// devices returns kubelet's answer for a claim. Each device comes with the claim's
// gate, so that a container which consumes one request of the claim waits for all of
// it. The data of the interfaces is repeated each time: kubelet's helper rewrites
// the metadata of a claim when it is prepared again.
func (p *Plugin) devices(e claims.Entry) []kubeletplugin.Device {
	var results [][]topology.StepResult
	for i := range e.Topologies {
		var of []topology.StepResult
		for _, s := range e.In {
			if s.Phase == claims.Attached {
				of = p.Results(e.SandboxID(s.ID, &e.Topologies[i]))
			}
		}
		results = append(results, of)
	}
	out := describe(&e.Claim, results)
	for i := range out {
		p.name(&out[i])
	}
	return out
}

// name gives a device a CDI device of its own, before that of the gate: the kubelet shows
// one health for each first CDI device of a claim.
func (p *Plugin) name(d *kubeletplugin.Device) {
	if p.CDI == "" {
		return
	}
	id, err := p.CDI.Name(d.DeviceName)
	if err != nil {
		p.Log.Warn("cannot give a device a CDI device of its own: its health is missing in the status of pods", "error", err)
		return
	}
	d.CDIDeviceIDs = append([]string{id}, d.CDIDeviceIDs...)
}

// describe describes the devices of a claim, with the results per topology.
func describe(c *claims.Claim, results [][]topology.StepResult) []kubeletplugin.Device {
	var out []kubeletplugin.Device
	for i, t := range c.Topologies {
		for _, d := range t.Devices {
			out = append(out, kubeletplugin.Device{
				Requests: []string{d.Request}, PoolName: d.Pool, DeviceName: d.Name, ShareID: d.ShareID,
				CDIDeviceIDs: []string{gate.ID(c.UID)},
				Metadata: &kubeletplugin.DeviceMetadata{
					Attributes:  attributes(d, results[i]),
					NetworkData: networkData(results[i], d.Step),
				},
			})
		}
	}
	return out
}

// attributes are those the device was published with, which share of it the claim has, and
// the IOMMU group, RDMA device and device node with which a process uses it, if the step has any. The
// metadata have no field for a share.
func attributes(d claims.Device, results []topology.StepResult) map[string]resourceapi.DeviceAttribute {
	out := map[string]resourceapi.DeviceAttribute{}
	for name, value := range inventory.Attributes(d.Host) {
		out[string(name)] = value
	}
	if d.Bandwidth != 0 {
		out[inventory.CapacityBandwidth] = resourceapi.DeviceAttribute{IntValue: new(d.Bandwidth)}
	}
	if d.ShareID != nil {
		out["shareID"] = resourceapi.DeviceAttribute{StringValue: new(string(*d.ShareID))}
	}
	given := givenOf(d, results)
	if given == nil {
		return out
	}
	if given.IOMMUGroup != "" {
		out["iommuGroup"] = resourceapi.DeviceAttribute{StringValue: &given.IOMMUGroup}
	}
	if given.RDMADevice != "" {
		out["rdmaDevice"] = resourceapi.DeviceAttribute{StringValue: &given.RDMADevice}
	}
	if len(given.DeviceNodes) > 0 {
		out["deviceNode"] = resourceapi.DeviceAttribute{StringValue: &given.DeviceNodes[0]}
	}
	return out
}

// givenOf is what the step with a device gives besides its interface, else what a step that is derived from it gives of the device.
func givenOf(d claims.Device, results []topology.StepResult) *topology.Devices {
	i := slices.IndexFunc(results, func(r topology.StepResult) bool { return r.Name == d.Step && r.Result.Devices != nil })
	if i < 0 {
		i = slices.IndexFunc(results, func(r topology.StepResult) bool {
			return r.Result.Devices != nil && d.Host.PCIAddress() != "" && r.Result.Devices.PCIAddress == d.Host.PCIAddress()
		})
	}
	if i < 0 {
		return nil
	}
	return results[i].Result.Devices
}

// networkData is the result of a root step for its device: its last interface,
// with the addresses of that interface in canonical form. Nil when nothing is
// known yet.
func networkData(results []topology.StepResult, step string) *resourceapi.NetworkDeviceData {
	i := slices.IndexFunc(results, func(r topology.StepResult) bool { return r.Name == step })
	if i < 0 || len(results[i].Result.Interfaces) == 0 {
		return nil
	}
	r := results[i].Result
	last := len(r.Interfaces) - 1
	out := &resourceapi.NetworkDeviceData{InterfaceName: r.Interfaces[last].Name, HardwareAddress: r.Interfaces[last].MAC}
	for _, ip := range r.IPs {
		if ip.Interface == nil || *ip.Interface != last {
			continue
		}
		if a, err := netip.ParsePrefix(ip.Address); err == nil {
			out.IPs = append(out.IPs, a.String())
		}
	}
	return out
}
