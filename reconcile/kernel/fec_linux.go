package kernel

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/mdlayher/ethtool"
)

// fecSetting is the forward error correction that a port is configured for, as the
// modes' bits and whether the driver chooses among them: "rs" is 0x8. It is one of
// the settings that are read and restored on the host only: the client's socket is
// not connected to the kernel, so in a pod's namespace the pod could answer it.
const fecSetting = "ethtool.fec"

// readFEC returns the setting of a link of the namespace of the calling thread, ""
// for a link without. A port that is configured for no mode at all has none either:
// the kernel refuses to set that (net/ethtool/fec.c, ethnl_set_fec).
func readFEC(index int) string {
	client, err := ethtool.New()
	if err != nil {
		return ""
	}
	defer client.Close()
	fec, err := client.FEC(ethtool.Interface{Index: index})
	if err != nil || fec.Modes == 0 && !fec.Auto {
		return ""
	}
	return fmt.Sprintf("%#x auto=%t", int(fec.Modes), fec.Auto)
}

// writeFEC sets what readFEC has returned.
func writeFEC(index int, value string) error {
	modes, auto, _ := strings.Cut(value, " auto=")
	n, err := strconv.ParseInt(modes, 0, 32)
	on, err2 := strconv.ParseBool(auto)
	if err := cmp.Or(err, err2); err != nil {
		return fmt.Errorf("the record is %q: %w", value, err)
	}
	client, err := ethtool.New()
	if err != nil {
		return err
	}
	defer client.Close()
	return client.SetFEC(ethtool.FEC{Interface: ethtool.Interface{Index: index}, Modes: ethtool.FECModes(n), Auto: on})
}
