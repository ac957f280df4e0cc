package kernel

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
)

// TestWithoutDefaults: of the sysctls of a device those remain that differ from the host's defaults, which are read once for
// all devices of an observation. A setting without a readable default is not recorded.
func TestWithoutDefaults(t *testing.T) {
	c := &conn{proc: t.TempDir()}
	write := func(name, value string) {
		t.Helper()
		file := c.devconfFile(name, "default")
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("ipv4.rp_filter", "2\n")
	write("ipv4.arp_notify", "0\n")
	defaults := devconfDefaults{}
	device := func() map[string]string {
		settings := map[string]string{
			"ipv4.rp_filter": "2", "ipv4.arp_notify": "1", "ipv4.log_martians": "0", "ipv6.accept_ra": "1", "link.txqlen": "1000",
		}
		c.withoutDefaults(settings, defaults)
		return settings
	}
	want := map[string]string{"ipv4.arp_notify": "1", "link.txqlen": "1000"}
	if got := device(); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	write("ipv4.arp_notify", "1\n")
	if got := device(); !maps.Equal(got, want) {
		t.Errorf("a second device of the observation: %v, want %v", got, want)
	}
	defaults = devconfDefaults{}
	if got := device(); len(got) != 1 {
		t.Errorf("another observation: %v", got)
	}
}
