package draplugin

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/reconcile/ports"
	"github.com/plumbline/plumbline/reconcile/table"
)

// healthEvery is how often the health of devices is sent without a change. The kubelet
// treats reports older than 30 s as unknown. When one of its streams ends, such as that of
// a replaced agent, it also forgets the reports of the others.
const healthEvery = 10 * time.Second

// WatchHealthStatus implements kubeletplugin.DRAPlugin. It reports only the devices of
// running pods: the kubelet shows no others.
func (p *Plugin) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	if p.Ports == nil {
		return kubeletplugin.ErrHealthNotSupported
	}
	changed := make(table.Wake, 1)
	defer p.PortsChanged.Wakes(changed)()
	loop.Loop{Every: healthEvery, Wake: changed, Pass: func(ctx context.Context) (time.Duration, error) {
		select {
		case reports <- kubeletplugin.DeviceHealthReport{Devices: p.healthOfDevices()}:
		case <-ctx.Done():
		}
		return 0, nil
	}}.Run(ctx)
	return nil
}

var healthOf = map[ports.Status]kubeletplugin.HealthStatus{
	ports.Up: kubeletplugin.HealthStatusHealthy, ports.Down: kubeletplugin.HealthStatusUnhealthy,
	ports.Unknown: kubeletplugin.HealthStatusUnknown,
}

// healthOfDevices returns what is known of the devices of running pods. The kubelet has one
// health for each device: for a shared device the worst is sent.
func (p *Plugin) healthOfDevices() []kubeletplugin.DeviceHealth {
	type key struct{ pool, name string }
	places := map[key]int{}
	var out []kubeletplugin.DeviceHealth
	var of []types.UID // the claims that these are of
	for _, r := range p.Ports() {
		uid := types.UID(r.Sandbox.Origin().ClaimUID)
		e, known, err := p.Store.Get(uid)
		if err != nil || !known {
			continue
		}
		t := e.Topology(r.Topology.Name)
		if t == nil {
			continue
		}
		for _, d := range t.Devices {
			at := ports.Leg(r.Ports, d.Step)
			if at < 0 || r.Verdicts[at].Status == "" {
				continue
			}
			v := r.Verdicts[at]
			health := kubeletplugin.DeviceHealth{
				PoolName: d.Pool, DeviceName: d.Name, Health: healthOf[v.Status], Message: v.Text(r.Ports[at]), LastUpdated: p.Now(),
			}
			switch i, listed := places[key{d.Pool, d.Name}]; {
			case !listed:
				places[key{d.Pool, d.Name}], out, of = len(out), append(out, health), append(of, uid)
			case of[i] == uid || out[i].Health != kubeletplugin.HealthStatusUnhealthy:
				out[i], of[i] = health, uid
			}
		}
	}
	return out
}
