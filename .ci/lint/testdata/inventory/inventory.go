// Package inventory imports nothing of ours.
package inventory

import (
	resource "k8s.io/api/resource/v1"

	"github.com/plumbline/plumbline/ops/netstate" // want depguard
)

var _, _ = resource.ResourceClaim{}, netstate.Known
