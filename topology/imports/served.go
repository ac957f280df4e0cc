package imports

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Source is a kind of which objects of a cluster are read.
type Source struct {
	Group, Kind string
	// Everywhere says that objects of other namespaces count for the networks of one: networks refer to them, or
	// they name their namespace themselves.
	Everywhere bool
}

func (s Source) String() string { return strings.TrimSuffix(s.Kind+"."+s.Group, ".") }

// groups of the kinds of workloads.
var workloadGroups = map[string]string{"Pod": "", "CronJob": "batch", "Job": "batch"}

// Sources returns the kinds to read of a cluster, sorted; with those of workloads if pods are to be converted.
func Sources(pods bool) (out []Source) {
	for i, pass := range passes {
		for name, k := range pass {
			for group := range strings.SplitSeq(k.groups, ",") {
				out = append(out, Source{group, name, i == 0 || group == "sriovnetwork.openshift.io"})
			}
		}
	}
	for name := range workloads {
		group, other := workloadGroups[name]
		if !other {
			group = "apps"
		}
		if pods {
			out = append(out, Source{group, name, false})
		}
	}
	slices.SortFunc(out, func(a, b Source) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// Concerned reports whether an object of a cluster can have to do with the conversion: classes of other drivers than DRANET,
// claims of one pod, networks for another namespace than the given one ("" for all) and workloads without networks have not.
func Concerned(object map[string]any, namespace string) bool {
	u := unstructured.Unstructured{Object: object}
	kind := u.GetKind()
	switch kind {
	case "DeviceClass":
		return ofDRANET(object["spec"])
	case "ResourceClaim": // of one that was made for a pod the template is converted
		return ownerOf(object) == (owner{})
	case "SriovNetwork", "SriovIBNetwork", "HostDeviceNetwork", "IPoIBNetwork", "MacvlanNetwork":
		target, _ := asObject(object["spec"])["networkNamespace"].(string)
		return namespace == "" || cmp.Or(target, u.GetNamespace(), metav1.NamespaceDefault) == namespace // the last: it has no namespace
	}
	path, isWorkload := workloads[kind]
	if !isWorkload {
		return true
	}
	if hasStatus(object) {
		return true
	}
	for _, k := range path {
		object = asObject(object[k])
	}
	return asObject(asObject(object["metadata"])["annotations"])[networksAnnotation] != nil
}

// ofDRANET reports whether a class or claim names the driver of DRANET, which is the name of its class, too.
func ofDRANET(v any) bool {
	switch v := v.(type) {
	case string:
		return v == dranetDriver || strings.Contains(v, `"`+dranetDriver+`"`)
	case []any:
		return slices.ContainsFunc(v, ofDRANET)
	case map[string]any:
		return slices.ContainsFunc(slices.Collect(maps.Values(v)), ofDRANET)
	}
	return false
}

// Relevant leaves out of the concerned objects of a cluster the claims without a device of DRANET, and workloads that others of
// the objects make. Pods that have addresses stay: these are excluded from the pools.
func Relevant(objects []map[string]any) []map[string]any {
	there := map[owner]bool{}
	classes := map[string]bool{}
	for _, o := range objects {
		u := unstructured.Unstructured{Object: o}
		there[owner{u.GetNamespace(), u.GetKind(), u.GetName()}] = true
		if u.GetKind() == "DeviceClass" {
			classes[u.GetName()] = true
		}
	}
	return slices.DeleteFunc(objects, func(o map[string]any) bool {
		kind, _ := o["kind"].(string)
		if kind == "ResourceClaim" || kind == "ResourceClaimTemplate" {
			return !ofDRANET(o["spec"]) && !requests(o["spec"], classes)
		}
		_, isWorkload := workloads[kind]
		return isWorkload && !hasStatus(o) && there[ownerOf(o)]
	})
}

// requests reports whether a claim requests a device of one of the classes.
func requests(v any, classes map[string]bool) bool {
	switch v := v.(type) {
	case []any:
		return slices.ContainsFunc(v, func(e any) bool { return requests(e, classes) })
	case map[string]any:
		name, _ := v["deviceClassName"].(string)
		return classes[name] || slices.ContainsFunc(slices.Collect(maps.Values(v)), func(e any) bool { return requests(e, classes) })
	}
	return false
}

// owner is the creator of an object. Owners of an object with a namespace are in it, or have none.
type owner struct{ namespace, kind, name string }

// ownerOf returns the creator of an object; the zero value: none.
func ownerOf(object map[string]any) owner {
	u := unstructured.Unstructured{Object: object}
	owners := u.GetOwnerReferences()
	if len(owners) == 0 {
		return owner{}
	}
	return owner{u.GetNamespace(), owners[0].Kind, owners[0].Name}
}
