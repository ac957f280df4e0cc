package maintenance

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/plumbline/plumbline/inventory"
)

const (
	// Taint is the key of the taints.
	Taint = inventory.Driver + "/maintenance"

	managedBy = "app.kubernetes.io/managed-by"
	manager   = "plumbline-maintain"
	// wordKey is the annotation with the word by which devices were named.
	wordKey = inventory.Driver + "/maintain"
	// extended marks the claims that the scheduler makes for pods without a claim.
	extended = "resource.kubernetes.io/extended-resource-claim"
)

// Device is a device of a node.
type Device struct {
	Node string `json:"node"`
	Name string `json:"name"`
}

func (d Device) String() string { return d.Node + "/" + d.Name }

// rule is the name of the rule for a device. The API server accepts no longer one than a node may have by itself.
func (d Device) rule() string {
	name := "plumbline-maintain-" + d.Node + "-" + d.Name
	if len(name) <= validation.DNS1123SubdomainMaxLength {
		return name
	}
	sum := sha256.Sum256([]byte(d.String()))
	hash := hex.EncodeToString(sum[:8])
	return strings.TrimRight(name[:validation.DNS1123SubdomainMaxLength-len(hash)-1], "-.") + "-" + hash
}

// User is a pod that uses one of the devices.
type User struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Claim     string `json:"claim"`
	Device    Device `json:"device"`
	// Stays is why an eviction does not end it permanently, "" if it does.
	Stays string `json:"stays,omitempty"`
}

// Find returns the devices that NODE/DEVICE means. DEVICE is a name in the ResourceSlices or an interface of the host; the
// interface of a PF means the PF and all its virtual functions.
func Find(ctx context.Context, kube kubernetes.Interface, word string) ([]Device, error) {
	node, name, ok := strings.Cut(word, "/")
	if !ok || node == "" || name == "" {
		return nil, fmt.Errorf("device %q is not of the form NODE/DEVICE, such as n1/pci-0000-03-10-0 or n1/enp3s0f0", word)
	}
	slices, err := kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + inventory.Driver + "," +
			resourceapi.ResourceSliceSelectorNodeName + "=" + node,
	})
	if err != nil {
		return nil, fmt.Errorf("list ResourceSlices: %w", err)
	}
	var out []Device
	for i := range slices.Items {
		s := &slices.Items[i]
		for j := range s.Spec.Devices {
			if d := &s.Spec.Devices[j]; d.Name == name || attribute(d, inventory.AttrIfName) == name ||
				attribute(d, inventory.AttrPFName) == name {
				out = append(out, Device{s.Spec.Pool.Name, d.Name})
			}
		}
	}
	switch {
	case len(slices.Items) == 0:
		return nil, fmt.Errorf("node %q publishes no devices of %s", node, inventory.Driver)
	case len(out) == 0:
		return nil,
			fmt.Errorf("node %q publishes no device %q: `kubectl get resourceslices --field-selector spec.nodeName=%s -o yaml` shows them",
				node, name, node)
	}
	return out, nil
}

func attribute(d *resourceapi.Device, name resourceapi.QualifiedName) string {
	return ptr.Deref(d.Attributes[name].StringValue, "")
}

// Users returns the pods that have one of the devices, in order of their names. Whether an eviction
// ends a pod depends on the version of the server, too.
func Users(ctx context.Context, kube kubernetes.Interface, devices []Device) ([]User, error) {
	server, err := serverOf(kube.Discovery())
	if err != nil {
		return nil, err
	}
	var out []User
	more := metav1.ListOptions{Limit: 500}
	for {
		claims, err := kube.ResourceV1().ResourceClaims("").List(ctx, more)
		if err != nil {
			return nil, fmt.Errorf("list ResourceClaims: %w", err)
		}
		for i := range claims.Items {
			out = append(out, usersOf(server, &claims.Items[i], devices)...)
		}
		if more.Continue = claims.Continue; more.Continue == "" {
			break
		}
	}
	slices.SortFunc(out, func(a, b User) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Pod, b.Pod),
			strings.Compare(a.Device.String(), b.Device.String()))
	})
	return out, nil
}

func usersOf(server *version.Version, c *resourceapi.ResourceClaim, devices []Device) []User {
	if c.Status.Allocation == nil {
		return nil
	}
	var out []User
	for i := range c.Status.Allocation.Devices.Results {
		r := &c.Status.Allocation.Devices.Results[i]
		d := Device{r.Pool, r.Device}
		if r.Driver != inventory.Driver || !slices.Contains(devices, d) {
			continue
		}
		for _, pod := range c.Status.ReservedFor {
			if pod.Resource != "pods" {
				continue
			}
			u := User{Namespace: c.Namespace, Pod: pod.Name, Claim: c.Name, Device: d, Stays: tolerated(r.Tolerations)}
			if c.Annotations[extended] == "true" && server.LessThan(evictsExtended) {
				u.Stays = fmt.Sprintf("it asks without a claim, and Kubernetes %s does not evict such pods (%s and later do)", server,
					evictsExtended)
			}
			out = append(out, u)
		}
	}
	return out
}

// tolerated says why an eviction does not end a pod. One that does not name its effect
// counts for the scheduler only (1.37).
func tolerated(all []resourceapi.DeviceToleration) string {
	why := ""
	for _, t := range all {
		ofAll := t.Key == "" && t.Operator == resourceapi.DeviceTolerationOpExists
		switch {
		case t.Key != Taint && !ofAll, t.Operator == resourceapi.DeviceTolerationOpEqual && t.Value != "":
		case t.Effect == resourceapi.DeviceTaintEffectNoExecute && t.TolerationSeconds == nil:
			return "its claim tolerates the taint"
		case t.Effect == resourceapi.DeviceTaintEffectNoExecute:
			why = fmt.Sprintf("its claim tolerates the taint for %d s, and then it is evicted", *t.TolerationSeconds)
		case t.Effect == "" && why == "":
			why = "its claim tolerates the taint without naming an effect: it is evicted, and may be scheduled to the device again"
		}
	}
	return why
}

// errUnserved: the server does not serve the API.
var errUnserved = errors.New("the API server does not serve DeviceTaintRules (resource.k8s.io/v1, on by default since Kubernetes 1.37): " +
	"drain the node, or remove the device from its DeviceExposurePolicy; plumbline version --cluster lists what the server lacks")

// Begin makes or changes the rule of each device. Without evict they have no effect: the
// condition EvictionInProgress of each says how many pods would be evicted.
func Begin(ctx context.Context, kube kubernetes.Interface, word string, devices []Device, evict bool) error {
	effect := resourceapi.DeviceTaintEffectNone
	if evict {
		effect = resourceapi.DeviceTaintEffectNoExecute
	}
	api := kube.ResourceV1().DeviceTaintRules()
	var errs []error
	for _, d := range devices {
		// All of the selector: a rule without one is for all devices of the cluster until 1.37.1, and
		// for none since.
		spec := resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: new(inventory.Driver), Pool: new(d.Node), Device: new(d.Name)},
			Taint:          resourceapi.DeviceTaint{Key: Taint, Effect: effect},
		}
		rule := &resourceapi.DeviceTaintRule{Spec: spec}
		rule.Name, rule.Labels, rule.Annotations = d.rule(), map[string]string{managedBy: manager}, map[string]string{wordKey: word}
		_, err := api.Create(ctx, rule, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			err = change(ctx, kube, rule)
		}
		if apierrors.IsNotFound(err) {
			return errUnserved
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("DeviceTaintRule %q: %w", rule.Name, err))
		}
	}
	return errors.Join(errs...)
}

func change(ctx context.Context, kube kubernetes.Interface, want *resourceapi.DeviceTaintRule) error {
	api := kube.ResourceV1().DeviceTaintRules()
	have, err := api.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return err
	case have.Labels[managedBy] != manager:
		return errors.New("exists, and was made by somebody else: delete it, or change it by hand")
	case have.Spec.Taint.Effect == want.Spec.Taint.Effect:
		return nil
	}
	have.Spec.Taint = want.Spec.Taint // without the old time: an eviction begins now
	_, err = api.Update(ctx, have, metav1.UpdateOptions{})
	return err
}

// End removes the DeviceTaintRules that were created for the same NODE/DEVICE, and those of the device that it means now. The device
// need not exist any more.
func End(ctx context.Context, kube kubernetes.Interface, word string) (removed []Device, err error) {
	api := kube.ResourceV1().DeviceTaintRules()
	rules, err := api.List(ctx, metav1.ListOptions{LabelSelector: managedBy + "=" + manager})
	if apierrors.IsNotFound(err) {
		return nil, errUnserved
	}
	if err != nil {
		return nil, fmt.Errorf("list DeviceTaintRules: %w", err)
	}
	var errs []error
	for i := range rules.Items {
		r := &rules.Items[i]
		s := r.Spec.DeviceSelector
		if s == nil || s.Pool == nil || s.Device == nil {
			continue
		}
		d := Device{*s.Pool, *s.Device}
		if r.Annotations[wordKey] != word && d.String() != word {
			continue
		}
		if err := api.Delete(ctx, r.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.UID}}); err != nil &&
			!apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("DeviceTaintRule %q: %w", r.Name, err))
			continue
		}
		removed = append(removed, d)
	}
	if len(removed) == 0 && len(errs) == 0 {
		return nil, fmt.Errorf("%q is not in maintenance", word)
	}
	return removed, errors.Join(errs...)
}
