package kernel

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/plumbline/plumbline/integration/effort"
)

// TestManyHostPorts: pods of one tenant with as many ports of the host as a pod can have, while another program writes
// rules, keep no pod of another tenant from starting.
func TestManyHostPorts(t *testing.T) {
	pods, each := 5, 48
	if effort.Long() {
		pods, each = 24, 256
	}
	n, _ := newPortNode(t, `{name: eth, type: ptp, config: {isDefaultGateway: true, dad: "off"}}`)
	defer n.run(n.server(&process{}, nil, ""))()
	s := &foreignWriter{t: t}
	s.run("nft add set inet anothers s '{ type inet_service; }'")
	stop := make(chan struct{})
	var foreign sync.WaitGroup
	foreign.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(250 * time.Millisecond):
				s.run(fmt.Sprintf("nft add element inet anothers s '{ %d }'", i))
			}
		}
	})
	defer foreign.Wait()
	defer close(stop)

	of := func(namespace, container, protocol string, ports, first int) *libcni.RuntimeConf {
		rt := at(container, newNetns(t))
		rt.Args[0][1] = namespace
		var all []map[string]any
		for p := range ports {
			all = append(all, map[string]any{"hostPort": first + p, "containerPort": 80, "protocol": protocol})
		}
		if ports > 0 {
			rt.CapabilityArgs = map[string]any{"portMappings": all}
		}
		return rt
	}
	begun := time.Now()
	var ended atomic.Int32
	var wg sync.WaitGroup
	for i := range pods {
		rt := of("many", fmt.Sprintf("many-%d", i), []string{"tcp", "udp"}[i%2], each, 10000+i*each)
		wg.Go(func() {
			_, err := n.cni.AddNetworkList(ctxFor(t), n.list, rt)
			t.Logf("pod %d with %d ports after %s, %d before it: %v", i, each, time.Since(begun), ended.Add(1)-1, err)
			if err != nil {
				t.Errorf("a pod with %d ports: %v", each, err)
			}
		})
	}
	for i := range 3 {
		wg.Go(func() {
			rt := of("other", fmt.Sprintf("other-%d", i), "tcp", i, 60000+10*i)
			start := time.Now()
			_, err := n.cni.AddNetworkList(ctxFor(t), n.list, rt)
			t.Logf("another tenant's pod with %d ports after %s, %d before it: %v", i, time.Since(start), ended.Load(), err)
			if err != nil {
				t.Errorf("a pod of another tenant: %v", err)
			}
			if int(ended.Load()) == pods {
				t.Error("a pod of another tenant has waited for all of them")
			}
		})
	}
	wg.Wait()
}
