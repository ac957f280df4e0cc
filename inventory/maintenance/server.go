package maintenance

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
)

// evictsExtended is the first version of Kubernetes that evicts pods whose claim the scheduler made for their extended
// resources (KEP-5004, pkg/controller/devicetainteviction). Those before read spec.resourceClaims of a pod only.
var evictsExtended = version.MustParseSemantic("1.37.2")

// serverOf asks for the version of the API server. The controllers of the cluster are assumed to have the same version.
func serverOf(d discovery.ServerVersionInterface) (*version.Version, error) {
	info, err := d.ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("get the version of the API server: %w", err)
	}
	v, err := version.ParseGeneric(info.GitVersion)
	if err != nil {
		return nil, fmt.Errorf("version of the API server: %w", err)
	}
	return v, nil
}
