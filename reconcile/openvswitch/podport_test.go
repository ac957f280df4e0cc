package openvswitch_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/ovsdb"
	"github.com/plumbline/plumbline/reconcile/openvswitch"
)

// TestPodPort reads ports as ovn-kubernetes writes them: of a layer2 network, of a localnet network with
// a VLAN beside another one, without addresses, and what is no port of it.
func TestPodPort(t *testing.T) {
	s := newServer(t, ovsdb.Northbound)
	n, err := openvswitch.NewNorthbound(openvswitch.Server{Endpoints: []string{s.Endpoint}, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	s.Nbctl("ls-add", "tenant.blue_ovn_layer2_switch", "--", "ls-add", "blue_ovn_localnet_switch", "--", "ls-add", "red_ovn_localnet_switch",
		"--", "lsp-add", "blue_ovn_localnet_switch", "blue_ovn_localnet_port", "--", "set", "Logical_Switch_Port", "blue_ovn_localnet_port", "type=localnet", "options:network_name=phys", "tag_request=200",
		"--", "lsp-add", "red_ovn_localnet_switch", "red_ovn_localnet_port", "--", "set", "Logical_Switch_Port", "red_ovn_localnet_port", "type=localnet", "options:network_name=other", "tag_request=7")
	port := func(of, name, nad, topology, addresses string) {
		t.Helper()
		s.Nbctl("lsp-add", of, name, "--", "lsp-set-addresses", name, addresses, "--", "lsp-set-port-security", name, addresses,
			"--", "set", "Logical_Switch_Port", name, "options:iface-id-ver=uid-1", "options:requested-chassis=node-1", "external_ids:pod=true", "external_ids:namespace=ai",
			`external_ids:k8s.ovn.org/nad="`+nad+`"`, "external_ids:k8s.ovn.org/network=net", "external_ids:k8s.ovn.org/topology="+topology)
	}
	blue := openvswitch.PodPortName("default/tenant-blue", "ai", "worker-0")
	if blue != "default.tenant.blue_ai_worker-0" {
		t.Errorf("a port is called %q", blue)
	}
	port("tenant.blue_ovn_layer2_switch", blue, "default/tenant-blue", "layer2", "0a:58:ac:1f:00:05 172.31.0.5 fd00::5")
	port("blue_ovn_localnet_switch", "local", "default/local", "localnet", "0A:58:00:00:00:01")
	s.Nbctl("lsp-add", "red_ovn_localnet_switch", "plain", "--", "lsp-set-addresses", "plain", "unknown")
	for name, want := range map[string]string{
		blue:    "{default.tenant.blue_ai_worker-0 uid-1 0a:58:ac:1f:00:05 [172.31.0.5 fd00::5] default/tenant-blue net layer2  0} true",
		"local": "{local uid-1 0a:58:00:00:00:01 [] default/local net localnet phys 200} true",
		"plain": "{plain   []     0} true",
		"none":  "{none   []     0} false",
	} {
		got, found, err := n.PodPort(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if have := fmt.Sprint(got, found); have != want {
			t.Errorf("%s: %s, want %s", name, have, want)
		}
	}
}
