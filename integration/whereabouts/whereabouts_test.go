// Package whereabouts_test compares what whereabouts assigns of a range, by its own packages, with what the AddressPool gives that
// plumbline import makes of it.
package whereabouts_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8snetworkplumbingwg/whereabouts/pkg/allocate"
	"github.com/k8snetworkplumbingwg/whereabouts/pkg/config"
	"github.com/k8snetworkplumbingwg/whereabouts/pkg/types"
)

// differences are the addresses that whereabouts assigns beyond the pool (+) or not (-), with the reason.
var differences = map[string]struct{ addresses, reason string }{
	`{"range": "10.0.0.0/29", "gateway": "10.0.0.1"}`:     {"+10.0.0.1", "a pool does not allocate its gateway"},
	`{"range": "10.0.0.0/31"}`:                            {"-10.0.0.0 -10.0.0.1", "both addresses of such a network are hosts' (RFC 3021)"},
	`{"range": "fd00::/125"}`:                             {"-fd00::7", lastOfIPv6},
	`{"range": "fd00::/125", "exclude": ["fd00::4/127"]}`: {"-fd00::7", lastOfIPv6},
	`{"range": "10.0.0.0/29", "ipRanges": [{"range": "fd00::/126", "exclude": ["fd00::2/128"]}], "exclude": ["10.0.0.1/32"]}`: {"-fd00::3", lastOfIPv6},
}

const lastOfIPv6 = "IPv6 has no broadcast address"

// TestRanges holds that both give the same addresses, but for the differences. The file has what the pools give (TestRanges of
// topology/imports).
func TestRanges(t *testing.T) {
	data, err := os.ReadFile("../../topology/imports/testdata/ranges.txt")
	if err != nil {
		t.Fatal(err)
	}
	flat := filepath.Join(t.TempDir(), "whereabouts.conf")
	if err := os.WriteFile(flat, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	used := 0
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		ipam, given := lines[i], strings.Fields(lines[i+1])[1:]
		have := diff(given, assigned(t, flat, ipam))
		want := differences[ipam]
		if have != want.addresses {
			t.Errorf("%s: the pool gives %q, and whereabouts differs by %q, want %q", ipam, given, have, want.addresses)
		}
		if want.addresses != "" {
			used++
		}
	}
	if len(lines) < 20 || used != len(differences) {
		t.Errorf("%d lines, and %d of %d differences are of a range in the file", len(lines), used, len(differences))
	}
}

// assigned are all addresses that whereabouts assigns, in its order.
func assigned(t *testing.T, flat, ipam string) (out []string) {
	t.Helper()
	text := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net", "type": "macvlan", "ipam": {"type": "whereabouts", "configuration_path": %q, "log_level": "panic", "kubernetes": {"kubeconfig": "/none"}, %s}`, flat, ipam[1:])
	c, _, err := config.LoadIPAMConfig([]byte(text), "")
	if err != nil {
		t.Fatalf("%s: %v", ipam, err)
	}
	for _, r := range c.IPRanges {
		var reserved []types.IPReservation
		for n := range 64 {
			pod := fmt.Sprint("default/web-", n)
			got, next, err := allocate.AssignIP(r, reserved, pod, pod, "net1")
			if err != nil {
				break
			}
			reserved = next
			out = append(out, got.IP.String())
		}
	}
	return out
}

func diff(ours, theirs []string) string {
	var out []string
	in := func(list []string, a string) bool {
		for _, l := range list {
			if l == a {
				return true
			}
		}
		return false
	}
	for _, a := range theirs {
		if !in(ours, a) {
			out = append(out, "+"+a)
		}
	}
	for _, a := range ours {
		if !in(theirs, a) {
			out = append(out, "-"+a)
		}
	}
	return strings.Join(out, " ")
}
