// Package networkstatus reads the annotation k8s.v1.cni.cncf.io/network-status that plumbline writes by the packages that its users
// import. It is a module of its own, since these need hundreds of others.
package networkstatus

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"reflect"
	"strings"
	"testing"

	cni100 "github.com/containernetworking/cni/pkg/types/100"
	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	"github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/utils"
	"gopkg.in/k8snetworkplumbingwg/multus-cni.v4/pkg/k8sclient"
	multustypes "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/pkg/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"kubevirt.io/kubevirt/pkg/network/multus"
)

// annotation is the golden file of the package that makes the text.
const annotation = "../../topology/networkstatus/testdata/annotation.json"

func pod(t *testing.T) *corev1.Pod {
	t.Helper()
	text, err := os.ReadFile(annotation)
	if err != nil {
		t.Fatal(err)
	}
	p := &corev1.Pod{}
	p.Annotations = map[string]string{nadv1.NetworkStatusAnnot: strings.TrimSpace(string(text))}
	return p
}

// TestClient reads it by the client's own function, which multi-networkpolicy and others call, and nothing is lost.
func TestClient(t *testing.T) {
	p := pod(t)
	all, err := utils.GetNetworkStatus(p)
	if err != nil || len(all) != 6 {
		t.Fatalf("%d entries: %v", len(all), err)
	}
	vlan := all[3]
	if vlan.Name != "rail" || vlan.Interface != "bond0.7" || !reflect.DeepEqual(vlan.IPs, []string{"192.0.2.7", "2001:db8::7"}) || vlan.Mtu != 1500 || vlan.Default {
		t.Errorf("%+v", vlan)
	}
	if dev := all[5].DeviceInfo; dev == nil || dev.Type != nadv1.DeviceInfoTypePCI || dev.Version != nadv1.DeviceInfoVersion || dev.Pci.PciAddress != "0000:05:10.1" {
		t.Errorf("device %+v", dev)
	}
	strict := json.NewDecoder(strings.NewReader(p.Annotations[nadv1.NetworkStatusAnnot]))
	strict.DisallowUnknownFields()
	var again []nadv1.NetworkStatus
	if err := strict.Decode(&again); err != nil {
		t.Errorf("a key that the client does not know: %v", err)
	}
	// The client writes the same text, so that a program that adds an entry keeps ours.
	var ours, theirs any
	text, _ := json.Marshal(again)
	if json.Unmarshal(text, &theirs) != nil || json.Unmarshal([]byte(p.Annotations[nadv1.NetworkStatusAnnot]), &ours) != nil || !reflect.DeepEqual(ours, theirs) {
		t.Errorf("written again:\n%s", text)
	}
}

// TestKubeVirt reads it by the functions of KubeVirt's controller.
func TestKubeVirt(t *testing.T) {
	all := multus.NetworkStatusesFromPod(pod(t))
	if len(all) != 6 {
		t.Fatalf("%d entries", len(all))
	}
	if primary := multus.LookupPodPrimaryIfaceName(all); primary != "" {
		t.Errorf("%q is the primary interface, and nothing was said of it", primary)
	}
	if of := multus.NetworkStatusesByPodIfaceName(all)["net3"]; of.Name != "shop/office" || of.Mac != "02:00:00:00:00:03" {
		t.Errorf("%+v", of)
	}
}

// TestMultus compares an entry with the one that Multus makes of the same interfaces, and has Multus write its own over ours: its text
// is another, by which the controller knows that the annotation is no longer its own.
func TestMultus(t *testing.T) {
	p := pod(t)
	all, err := utils.GetNetworkStatus(p)
	if err != nil {
		t.Fatal(err)
	}
	at := 1
	theirs, err := utils.CreateNetworkStatuses(&cni100.Result{
		CNIVersion: "1.1.0",
		Interfaces: []*cni100.Interface{{Name: "vethhost"}, {Name: "net3", Mac: "02:00:00:00:00:03", Mtu: 1500, Sandbox: "/run/netns/p"}},
		IPs:        []*cni100.IPConfig{{Address: net.IPNet{IP: net.IPv4(198, 51, 100, 3), Mask: net.CIDRMask(24, 32)}, Interface: &at}},
	}, "shop/office", false, nil)
	if err != nil || len(theirs) != 1 {
		t.Fatalf("%d entries: %v", len(theirs), err)
	}
	have, _ := json.Marshal(all[4])
	want, _ := json.Marshal(theirs[0])
	if !bytes.Equal(have, want) {
		t.Errorf("ours   %s\nMultus %s", have, want)
	}

	p.Namespace, p.Name, p.UID = "shop", "web", "u"
	api := fake.NewClientset(p)
	if err := k8sclient.SetPodNetworkStatusAnnotation(&k8sclient.ClientInfo{Client: api}, "web", "shop", "u", []nadv1.NetworkStatus{*theirs[0]}, &multustypes.NetConf{}); err != nil {
		t.Fatal(err)
	}
	after, err := api.CoreV1().Pods("shop").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || after.Annotations[nadv1.NetworkStatusAnnot] == p.Annotations[nadv1.NetworkStatusAnnot] {
		t.Errorf("Multus left %q: %v", after.Annotations, err)
	}
}
