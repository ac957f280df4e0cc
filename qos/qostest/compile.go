package qostest

import (
	"net/netip"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/topology"
)

// Objects reads the NetworkQoS objects of a text.
func Objects(text []byte) ([]*v1alpha1.NetworkQoS, error) {
	f, err := topology.Parse("", text)
	if err != nil {
		return nil, err
	}
	return qos.Objects(f)
}

// Compile returns the rules of the objects in a text for a pod with one network, the winning rule first, and a function that
// returns the members of their sets.
func Compile(text []byte, network qos.Network, namespace string, labels map[string]string) (
	rules []qos.Rule, members func(qos.SetID) []netip.Addr, err error,
) {
	objects, err := Objects(text)
	if err != nil {
		return nil, nil, err
	}
	c := qos.NewCompiler()
	for _, o := range objects {
		p := qos.New(o)
		if p.Err != nil {
			return nil, nil, p.Err
		}
		c.SetPolicy(p)
	}
	pod := &qos.Pod{Labels: labels, Attachments: []qos.Attachment{{Network: network}}}
	pod.Key.Namespace, pod.Key.Name = namespace, "pod"
	c.SetPod(pod)
	return c.Rules(pod.Key)[0], c.Members, nil
}
