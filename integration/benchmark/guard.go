package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/integration/namespace"
	"github.com/plumbline/plumbline/integration/traffic"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology"
)

// onBridge is a pod on a bridge, whose port is checked or not.
const onBridge = `apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: guarded}
spec:
  steps:
    - {name: net, type: bridge, config: {bridge: benchbr, macspoofchk: %t, raGuard: %[1]t,
        mac: "02:00:00:00:01:%02[2]x", dad: "off", addresses: [192.0.2.%[2]d/24, "2001:db8::%[2]d/64"]}}
`

// bridged is a pod, with its topology without checks and with them.
type bridged struct {
	*engine
	path     string
	versions []*topology.Topology
}

func newBridged(number int) (*bridged, error) {
	e, err := bareEngine(fmt.Sprintf(onBridge, false, number))
	if err != nil {
		return nil, err
	}
	checked, err := topology.Decode(fmt.Appendf(nil, onBridge, true, number))
	if err != nil {
		return nil, err
	}
	path, err := namespace.Add(fmt.Sprintf("guard-%d", number))
	return &bridged{e, path, []*topology.Topology{e.topology, checked}}, err
}

// guards measures what the checks of a bridge's ports cost a packet from one pod to another one, beside more pods of the bridge. The
// rules are deleted and made again between two runs.
func guards(ctx context.Context, n int) error {
	var pods []*bridged
	for number := range 12 {
		p, err := newBridged(number + 11)
		if err != nil {
			return err
		}
		pods = append(pods, p)
	}
	sender, sink := pods[0], &traffic.Pod{Netns: pods[1].path}
	runs := make([][]time.Duration, 2)
	s := &source{pod: &traffic.Pod{Netns: sender.path}, fd: -1}
	for i := range n + 1 {
		for k := range runs {
			for _, p := range pods {
				p.topology = p.versions[k]
				if err := p.apply(ctx, p.path); err != nil {
					return err
				}
			}
			if s.fd < 0 {
				if err := s.connect(ctx, "net1", "02:00:00:00:01:0c"); err != nil {
					return err
				}
			}
			if _, err := s.run(sink); err != nil { // it fills caches
				return err
			}
			d, err := s.run(sink)
			if err != nil {
				return err
			}
			if i > 0 {
				runs[k] = append(runs[k], d)
			}
		}
	}
	fmt.Printf("\n### A packet between two of %d pods on a bridge (n=%d runs of %d packets)\n\n", len(pods), n, perRun)
	fmt.Println("| | µs a packet | × not checked |\n|---|---|---|")
	for k, name := range []string{"not checked", "macspoofchk and raGuard"} {
		fmt.Printf("| %s | %s | %s |\n", name, micros(median(runs[k])), ratio(runs[k], runs[0]))
	}
	return nil
}

// connect has the pod send to the destination, over a link to a MAC.
func (s *source) connect(ctx context.Context, link, mac string) error {
	return errors.Join(s.pod.SendTo(ctx, link, mac), kernel.Within(s.pod.Netns, func() (err error) {
		if s.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Connect(s.fd, &unix.SockaddrInet4{Port: 9, Addr: traffic.Packet(destination, 0, 0).Destination.As4()})
	}))
}
