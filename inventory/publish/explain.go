package publish

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// Cause classifies an error of the kubelet helper.
type Cause string

// The causes.
const (
	Dropped   Cause = "Dropped"   // the API server left out fields it does not know
	Refused   Cause = "Refused"   // the slice is invalid: trying again cannot help
	Forbidden Cause = "Forbidden" // by RBAC or an admission policy: somebody has to change that
	Fatal     Cause = "Fatal"     // the helper has ended
	Retried   Cause = "Retried"   // anything else; the helper tries again by itself
)

// Explanation is an error of the kubelet helper in words for an operator.
type Explanation struct {
	Cause   Cause
	Message string
	// NoTaints says that the cluster has no device taints, NoSharing no devices that are
	// shared, NoCounters no counters.
	NoTaints, NoSharing, NoCounters bool
}

// Explain classifies an error that kubeletplugin passes to HandleError. Kubeletplugin marks
// almost all errors as recoverable, also those that no retry can fix.
func Explain(err error) Explanation {
	if dropped, ok := errors.AsType[*resourceslice.DroppedFieldsError](err); ok {
		features := dropped.DisabledFeatures()
		return Explanation{
			Cause: Dropped,
			Message: fmt.Sprintf("the API server dropped fields of ResourceSlice %d: it does not support %s", dropped.SliceIndex,
				strings.Join(features, ", ")),
			NoTaints:   slices.Contains(features, "DRADeviceTaints"),
			NoSharing:  slices.Contains(features, "DRAConsumableCapacity"),
			NoCounters: slices.Contains(features, "DRAPartitionableDevices"),
		}
	}
	out := Explanation{Cause: Retried, Message: err.Error()}
	switch {
	case apierrors.IsInvalid(err):
		out.Cause, out.Message = Refused, "the API server rejects the slice as invalid, so none of its devices is published: "+out.Message
	case apierrors.IsForbidden(err):
		out.Cause, out.Message = Forbidden,
			"the agent may not write ResourceSlices of this node; check its ClusterRole and the policy on slices: "+out.Message
	case !errors.Is(err, kubeletplugin.ErrRecoverable):
		out.Cause = Fatal
	}
	return out
}
