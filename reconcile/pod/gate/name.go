package gate

import (
	"fmt"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/fault"
)

const (
	nameKind   = claim.Driver + "/device"
	namePrefix = claim.Driver + "-device-"
	nameEnv    = "PLUMBLINE_DEVICE_"
)

// Name returns the CDI device that only represents a device of the node: with it a
// container gets an environment variable with the name, since a CDI device has to give
// something. Its file depends only on the name and not on a claim, so it is kept until the
// next boot: a version that does not know it can neither break it nor leave more files than
// the node has devices.
func (d Dir) Name(device string) (id string, err error) {
	if problems := validation.IsDNS1123Label(device); len(problems) > 0 {
		return "", fault.New(fault.Invalid, fmt.Errorf("device %q: %s", device, problems[0]))
	}
	path := filepath.Join(string(d), namePrefix+device+fileSuffix)
	err = writeSpec(path, cdi.Spec{Version: cdiVersion, Kind: nameKind, Devices: []cdi.Device{{
		Name:           device,
		ContainerEdits: cdi.ContainerEdits{Env: []string{nameEnv + strings.ToUpper(strings.ReplaceAll(device, "-", "_")) + "=" + device}},
	}}})
	if err != nil {
		return "", fmt.Errorf("CDI device of %q: %w", device, err)
	}
	return nameKind + "=" + device, nil
}
