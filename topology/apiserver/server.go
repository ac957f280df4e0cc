package apiserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
)

// Server holds the version and features of an API server.
type Server struct {
	Version string // as it says it itself
	// Unread is why the feature gates are not known, "" if they are.
	Unread string

	version   *version.Version
	resources map[string]bool // of resource.k8s.io/v1
	gates     map[string]bool // nil if they are not known
}

// Discover asks a server. Its gates are among its metrics, which not everybody may read.
func Discover(ctx context.Context, client discovery.DiscoveryInterfaceWithContext) (*Server, error) {
	info, err := client.ServerVersionWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("get the version of the API server: %w", err)
	}
	s := &Server{Version: info.GitVersion, resources: map[string]bool{}}
	if s.version, err = version.ParseGeneric(info.GitVersion); err != nil {
		return nil, fmt.Errorf("version of the API server: %w", err)
	}
	list, err := client.ServerResourcesForGroupVersionWithContext(ctx, "resource.k8s.io/v1")
	switch {
	case apierrors.IsNotFound(err): // it serves no such version
	case err != nil:
		return nil, fmt.Errorf("get the resources of resource.k8s.io/v1: %w", err)
	default:
		for i := range list.APIResources {
			s.resources[list.APIResources[i].Name] = true
		}
	}
	if s.gates, err = readGates(ctx, client); err != nil {
		s.Unread = fmt.Sprintf("the feature gates of the API server cannot be read, which needs get on the URL /metrics: %v", err)
	}
	return s, ctx.Err()
}

// enabled is the metric of a feature gate (k8s.io/component-base/metrics/prometheus/feature).
var enabled = regexp.MustCompile(`^kubernetes_feature_enabled\{name="([A-Za-z0-9]+)".*\} ([01])$`)

// maxMetrics bounds what is read, in bytes: large clusters have tens of MB.
const maxMetrics = 256 << 20

func readGates(ctx context.Context, client discovery.DiscoveryInterfaceWithContext) (map[string]bool, error) {
	stream, err := client.RESTClient().Get().AbsPath("/metrics").Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	return parseGates(io.LimitReader(stream, maxMetrics))
}

// parseGates reads the gates from metrics.
func parseGates(metrics io.Reader) (map[string]bool, error) {
	out := map[string]bool{}
	lines := bufio.NewScanner(metrics)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if m := enabled.FindSubmatch(lines.Bytes()); m != nil {
			out[string(m[1])] = string(m[2]) == "1"
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, errors.New("the metrics have no kubernetes_feature_enabled")
	}
	return out, nil
}
