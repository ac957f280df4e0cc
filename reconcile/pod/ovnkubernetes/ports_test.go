package ovnkubernetes_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	metadatafake "k8s.io/client-go/metadata/fake"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile/openvswitch"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/ovnkubernetes"
	"github.com/plumbline/plumbline/topology/fault"
)

// rows are ports by name.
type rows map[string]openvswitch.PodPort

func (r rows) PodPort(_ context.Context, name string) (openvswitch.PodPort, bool, error) {
	if _, away := r["away"]; away {
		return openvswitch.PodPort{}, false, fault.New(fault.NotReady, errors.New("the database is away"))
	}
	out, ok := r[name]
	return out, ok, nil
}

// ports are those of one pod with an annotation.
func ports(annotation string, of rows) *ovnkubernetes.Ports {
	scheme := metadatafake.NewTestScheme()
	_ = metav1.AddMetaToScheme(scheme)
	pod := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "ai", Name: "worker-0", UID: "uid-1"}}
	if annotation != "" {
		pod.Annotations = map[string]string{ovnkubernetes.Networks: annotation}
	}
	return &ovnkubernetes.Ports{Northbound: of, Pods: metadatafake.NewSimpleMetadataClient(scheme, []runtime.Object{pod}...)}
}

// written is an annotation as ovn-kubernetes writes it, with its default network beside.
func written(network string) string {
	return `{"default":{"ip_addresses":["10.244.0.5/24"],"mac_address":"0a:58:0a:f4:00:05","gateway_ips":["10.244.0.1"],"routes":[{"dest":"10.244.0.0/16","nextHop":"10.244.0.1"}],"ip_address":"10.244.0.5/24","gateway_ip":"10.244.0.1","role":"primary"},"default/tenant-blue":` + network + `}`
}

const both = `{"ip_addresses":["172.31.0.5/24","fd00::5/64"],"mac_address":"0a:58:ac:1f:00:05","gateway_ips":["172.31.0.1"],"routes":[{"dest":"10.9.0.0/16","nextHop":"172.31.0.2"},{"dest":"fd01::/64","nextHop":""}],"tunnel_id":7,"role":"secondary"}`

func blue(change func(*openvswitch.PodPort)) rows {
	const name = "default.tenant.blue_ai_worker-0"
	p := openvswitch.PodPort{
		Name: name, PodUID: "uid-1", MAC: "0a:58:ac:1f:00:05", Addresses: []netip.Addr{netip.MustParseAddr("172.31.0.5"), netip.MustParseAddr("fd00::5")},
		Attachment: "default/tenant-blue", Network: "blue", Topology: "layer2",
	}
	if change != nil {
		change(&p)
	}
	return rows{name: p}
}

// TestGiven reads ports as ovn-kubernetes makes them, and refuses what contradicts the database: a user can write
// the annotation of a pod.
func TestGiven(t *testing.T) {
	bare := func(p *openvswitch.PodPort) { p.Addresses = nil }
	for name, c := range map[string]struct {
		annotation string
		rows       rows
		want       string
		kind       fault.Kind
		says       string
	}{
		"two families": {
			annotation: written(both), rows: blue(nil),
			want: `{"addresses":["172.31.0.5/24","fd00::5/64"],"gateways":["172.31.0.1"],"routes":[{"destination":"0.0.0.0/0","gateway":"172.31.0.1"},{"destination":"10.9.0.0/16","gateway":"172.31.0.2"},{"destination":"fd01::/64"}],"port":{"name":"default.tenant.blue_ai_worker-0","holder":"uid-1","mac":"0a:58:ac:1f:00:05","addressed":true,"attachment":"default/tenant-blue","network":"blue","topology":"layer2"}}`,
		},
		"fields of before lists": {
			annotation: written(`{"ip_address":"172.31.0.5/24","gateway_ip":"172.31.0.1","mac_address":"0a:58:ac:1f:00:05"}`), rows: blue(func(p *openvswitch.PodPort) { p.Addresses, p.PodUID = p.Addresses[:1], "" }),
			want: `{"addresses":["172.31.0.5/24"],"gateways":["172.31.0.1"],"routes":[{"destination":"0.0.0.0/0","gateway":"172.31.0.1"}],"port":{"name":"default.tenant.blue_ai_worker-0","holder":"uid-1","mac":"0a:58:ac:1f:00:05","addressed":true,"attachment":"default/tenant-blue","network":"blue","topology":"layer2"}}`,
		},
		"no addresses": {
			annotation: written(`{"ip_addresses":null,"mac_address":"0a:58:ac:1f:00:05","role":"secondary"}`), rows: blue(bare),
			want: `{"port":{"name":"default.tenant.blue_ai_worker-0","holder":"uid-1","mac":"0a:58:ac:1f:00:05","attachment":"default/tenant-blue","network":"blue","topology":"layer2"}}`,
		},
		"the database is away":             {annotation: written(both), rows: rows{"away": {}}, kind: fault.NotReady, says: "is away"},
		"no port":                          {annotation: written(both), rows: rows{}, kind: fault.NotReady, says: `database has no port "default.tenant.blue_ai_worker-0"`},
		"no annotation":                    {rows: blue(nil), kind: fault.NotReady, says: "k8s.v1.cni.cncf.io/networks: default/tenant-blue"},
		"not this network":                 {annotation: `{"default":{}}`, rows: blue(nil), kind: fault.NotReady, says: "its annotation k8s.ovn.org/pod-networks does not have it"},
		"no JSON":                          {annotation: "x", rows: blue(nil), kind: fault.Invalid, says: "is not a JSON object"},
		"another type":                     {annotation: written(`[1]`), rows: blue(nil), kind: fault.Invalid, says: `network "default/tenant-blue"`},
		"an address that OVN drops":        {annotation: written(`{"ip_addresses":["172.31.0.9/24","fd00::5/64"]}`), rows: blue(nil), kind: fault.Invalid, says: "has the addresses [172.31.0.9 fd00::5] on network"},
		"more addresses than OVN has":      {annotation: written(`{"ip_addresses":["172.31.0.5/24"]}`), rows: blue(bare), kind: fault.Invalid, says: "only ovn-kubernetes may write"},
		"no prefix length":                 {annotation: written(`{"ip_addresses":["172.31.0.5"]}`), rows: blue(nil), kind: fault.Invalid, says: `"172.31.0.5" is not an address with a prefix length`},
		"a gateway of another network":     {annotation: written(`{"ip_addresses":["172.31.0.5/24","fd00::5/64"],"gateway_ips":["192.0.2.1"]}`), rows: blue(nil), kind: fault.Invalid, says: `"192.0.2.1" is not in the network of an address`},
		"a next hop of another family":     {annotation: written(`{"ip_addresses":["172.31.0.5/24","fd00::5/64"],"routes":[{"dest":"10.0.0.0/8","nextHop":"fd00::1"}]}`), rows: blue(nil), kind: fault.Invalid, says: `next hop "fd00::1"`},
		"a next hop outside":               {annotation: written(`{"ip_addresses":["172.31.0.5/24","fd00::5/64"],"routes":[{"dest":"10.0.0.0/8","nextHop":"10.0.0.1"}]}`), rows: blue(nil), kind: fault.Invalid, says: `next hop "10.0.0.1"`},
		"a long text":                      {annotation: written(`{"ip_addresses":["` + strings.Repeat("x", 200_000) + `"]}`), rows: blue(nil), kind: fault.Invalid, says: "xxx…"},
		"too many routes":                  {annotation: written(`{"ip_addresses":["172.31.0.5/24"],"routes":[` + strings.Repeat(`{"dest":"10.0.0.0/8"},`, 64) + `{"dest":"10.0.0.0/8"}]}`), rows: blue(nil), kind: fault.Invalid, says: "more than 64 routes"},
		"too many addresses":               {annotation: written(`{"ip_addresses":[` + strings.Repeat(`"172.31.0.5/24",`, 8) + `"172.31.0.5/24"]}`), rows: blue(nil), kind: fault.Invalid, says: "more than 8 addresses"},
		"the pod's own network":            {annotation: written(`{"role":"primary"}`), rows: blue(nil), kind: fault.Invalid, says: "own network"},
		"a name that another network has":  {annotation: written(both), rows: blue(func(p *openvswitch.PodPort) { p.Attachment = "default/tenant.blue" }), kind: fault.Conflict, says: `is of NetworkAttachmentDefinition "default/tenant.blue"`},
		"a port that is no pod's":          {annotation: written(both), rows: blue(func(p *openvswitch.PodPort) { p.Attachment = "" }), kind: fault.Conflict, says: "is of NetworkAttachmentDefinition"},
		"the port of the pod before":       {annotation: written(both), rows: blue(func(p *openvswitch.PodPort) { p.PodUID = "uid-0" }), kind: fault.NotReady, says: "earlier pod"},
		"a group address":                  {annotation: written(both), rows: blue(func(p *openvswitch.PodPort) { p.MAC = "01:00:5e:00:00:01" }), kind: fault.Invalid, says: "01:00:5e:00:00:01"},
		"a port without a MAC address yet": {annotation: written(both), rows: blue(func(p *openvswitch.PodPort) { p.MAC = "" }), kind: fault.NotReady, says: "no MAC address yet"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ports(c.annotation, c.rows).Given(t.Context(), "ai", claims.Pod{Name: "worker-0", UID: "uid-1"}, "default/tenant-blue")
			if c.says != "" {
				if fault.Of(err) != c.kind || !strings.Contains(fmt.Sprint(err), c.says) {
					t.Errorf("%s: %v", fault.Of(err), err)
				}
				if n := len(err.Error()); n > 1024 {
					t.Errorf("an error of %d bytes", n)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if have, _ := json.Marshal(got); string(have) != c.want {
				t.Errorf("got\n%s\nwant\n%s", have, c.want)
			}
		})
	}
	if _, err := ports(written(both), blue(nil)).Given(t.Context(), "ai", claims.Pod{Name: "worker-0", UID: "uid-2"}, "default/tenant-blue"); fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), "created again") {
		t.Errorf("another pod of the name: %v", err)
	}
}

// TestWriter: an annotation that was written as users write pods is not believed, although the database agrees: ovn-kubernetes
// makes the port of what it finds.
func TestWriter(t *testing.T) {
	fields := func(annotation string) *metav1.FieldsV1 {
		return metav1.NewFieldsV1(fmt.Sprintf(`{"f:metadata":{"f:annotations":{".":{},"f:%s":{}}}}`, annotation))
	}
	user := metav1.ManagedFieldsEntry{Manager: "kubectl", FieldsV1: fields(ovnkubernetes.Networks)}
	theirs := metav1.ManagedFieldsEntry{Manager: "ovnkube", Subresource: "status", FieldsV1: fields(ovnkubernetes.Networks)}
	other := metav1.ManagedFieldsEntry{Manager: "kubectl", FieldsV1: fields(ovnkubernetes.Selection)}
	for name, c := range map[string]struct {
		written []metav1.ManagedFieldsEntry
		refused bool
	}{
		"by ovn-kubernetes":              {[]metav1.ManagedFieldsEntry{other, theirs}, false},
		"by a user":                      {[]metav1.ManagedFieldsEntry{user}, true},
		"by both":                        {[]metav1.ManagedFieldsEntry{theirs, user}, true},
		"by a user, without a name":      {[]metav1.ManagedFieldsEntry{{FieldsV1: user.FieldsV1}}, true},
		"with fields that are not known": {[]metav1.ManagedFieldsEntry{{Manager: "x"}, {Manager: "x", FieldsV1: metav1.NewFieldsV1("[")}, theirs}, false},
	} {
		scheme := metadatafake.NewTestScheme()
		_ = metav1.AddMetaToScheme(scheme)
		pod := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{
			Namespace: "ai", Name: "worker-0", UID: "uid-1", Annotations: map[string]string{ovnkubernetes.Networks: written(both)}, ManagedFields: c.written,
		}}
		p := &ovnkubernetes.Ports{Northbound: blue(nil), Pods: metadatafake.NewSimpleMetadataClient(scheme, pod)}
		_, err := p.Given(t.Context(), "ai", claims.Pod{Name: "worker-0", UID: "uid-1"}, "default/tenant-blue")
		if refused := fault.Of(err) == fault.Invalid && strings.Contains(err.Error(), "not through pods/status"); refused != c.refused || err != nil && !refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzGiven holds that no annotation gives a pod more than is bounded, or an address that the database does not have.
func FuzzGiven(f *testing.F) {
	for _, s := range []string{both, `{}`, `{"ip_addresses":["172.31.0.5/24"]}`, `{"ip_addresses":["::ffff:172.31.0.5/120","fd00::5/64"]}`, `{"ip_address":"172.31.0.5/24","gateway_ip":"172.31.0.1"}`} {
		f.Add(written(s))
	}
	f.Fuzz(func(t *testing.T, annotation string) {
		of := blue(nil)
		got, err := ports(annotation, of).Given(t.Context(), "ai", claims.Pod{Name: "worker-0", UID: "uid-1"}, "default/tenant-blue")
		if err != nil {
			return
		}
		if len(got.Addresses) != 2 || len(got.Gateways) > 8 || len(got.Routes) > 72 {
			t.Errorf("%+v", got)
		}
		for _, p := range got.Addresses {
			if a := p.Addr().String(); a != "172.31.0.5" && a != "fd00::5" {
				t.Errorf("address %s", p)
			}
		}
		set := ops.Givens{"net": got}
		if !set.Plugged() || len(set.WithoutDevices()) != 1 || len(set.Networks()) != 1 {
			t.Errorf("what is given is lost: %+v", set)
		}
	})
}
