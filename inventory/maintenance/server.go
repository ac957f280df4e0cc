package maintenance

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
)

// The effect of an eviction by a device taint depends on the version of Kubernetes. These are the
// versions in which it changed, from pkg/controller/devicetainteviction.
var (
	// evictsExtended is the first that evicts pods whose claim the scheduler made for their extended
	// resources (KEP-5004). Those before read spec.resourceClaims of a pod only.
	evictsExtended = version.MustParseSemantic("1.37.2")
)

// Server is the version of a Kubernetes API server. The controllers of the cluster are assumed to have the same version.
type Server struct{ version *version.Version }

// serverOf asks for the version of the server.
func serverOf(d discovery.ServerVersionInterface) (Server, error) {
	info, err := d.ServerVersion()
	if err != nil {
		return Server{}, fmt.Errorf("get the version of the API server: %w", err)
	}
	return parse(info.GitVersion)
}

func parse(git string) (Server, error) {
	v, err := version.ParseGeneric(git)
	if err != nil {
		return Server{}, fmt.Errorf("version of the API server: %w", err)
	}
	return Server{v}, nil
}

func (s Server) String() string { return s.version.String() }

// evictsExtended reports whether a taint with the effect NoExecute evicts pods that ask by extended resources.
func (s Server) evictsExtended() bool { return s.version.AtLeast(evictsExtended) }
