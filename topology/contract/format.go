package contract

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// formats has what returns the canonical form of a string of each format.
var formats = map[Format]func(s string) (string, error){
	MAC:           canonicalMAC,
	GUID:          canonicalGUID,
	CIDR:          canonicalCIDR,
	Prefix:        canonicalPrefix,
	IP:            canonicalIP,
	InterfaceName: func(s string) (string, error) { return canonicalInterfaceName(s, maxInterfaceName) },
	LinkName:      func(s string) (string, error) { return canonicalInterfaceName(s, maxAlternativeName) },
	PCIAddress:    canonicalPCIAddress,
	SysctlPath:    canonicalSysctlPath,
	"":            func(s string) (string, error) { return s, nil },
}

// Canonical checks a string and returns the form the kernel reads back.
func (f Format) Canonical(s string) (string, error) {
	canonical, known := formats[f]
	if !known {
		return "", fmt.Errorf("format %q is unknown", f)
	}
	return canonical(s)
}

func canonicalMAC(s string) (string, error) {
	mac, err := net.ParseMAC(s)
	if err != nil || len(mac) != 6 {
		return "", fmt.Errorf("%s is not a MAC address: want six pairs of hex digits, as in 52:54:00:12:34:56", quote(s))
	}
	// is_valid_ether_addr refuses it with EADDRNOTAVAIL.
	if mac[0]&1 != 0 {
		return "", fmt.Errorf("%s is a multicast address, which no interface can have: the first byte must be even", quote(s))
	}
	return mac.String(), nil
}

// canonicalGUID refuses the two GUIDs that mean that there is none. One with the group bit of an EUI-64 is accepted, since firmware and
// subnet managers take it, and users have it of the examples for mlx5 (11:22:33:44:77:66:77:90).
func canonicalGUID(s string) (string, error) {
	guid, err := net.ParseMAC(s)
	if err != nil || len(guid) != 8 {
		return "", fmt.Errorf("%s is not a GUID: want eight pairs of hex digits, as in 00:02:c9:03:00:21:6e:70", quote(s))
	}
	if all := bytes.Count(guid, guid[:1]); all == len(guid) && (guid[0] == 0 || guid[0] == 0xff) {
		return "", fmt.Errorf("%s means that there is no GUID: remove the key", quote(s))
	}
	return guid.String(), nil
}

func canonicalCIDR(s string) (string, error) {
	p, err := parsePrefix(s, "an address with its prefix length", netip.PrefixFrom)
	if err != nil {
		return "", err
	}
	return p.String(), nil
}

func canonicalPrefix(s string) (string, error) {
	if s == "default" {
		return s, nil
	}
	p, err := parsePrefix(s, "a network with its prefix length",
		func(a netip.Addr, bits int) netip.Prefix { return netip.PrefixFrom(a, bits).Masked() })
	if err != nil {
		return "", err
	}
	if p != p.Masked() {
		return "", fmt.Errorf("%s has host bits set: write %q for the network or \"%s/%d\" for the one address", quote(s), p.Masked(),
			p.Addr(), p.Addr().BitLen())
	}
	return p.String(), nil
}

func parsePrefix(s, what string, subnet func(netip.Addr, int) netip.Prefix) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		usual := 24
		if a.Is6() {
			usual = 64
		}
		return netip.Prefix{}, fmt.Errorf("%s has no prefix length: write that of the subnet, as in %q, or \"%s/%d\" for the one address",
			quote(s), subnet(a, usual), a, a.BitLen())
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%s is not %s, as in 10.100.0.5/24", quote(s), what)
	}
	err = pure(s, p.Addr())
	switch {
	case err != nil && p.Bits() >= 96: // of the 128 bits the first 96 say that it is IPv4
		return netip.Prefix{}, fmt.Errorf("%s is IPv4 written as IPv6: write %q", quote(s), netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96))
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("%w with the prefix length of its subnet", err)
	}
	return p, nil
}

func canonicalIP(s string) (string, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		if _, err := netip.ParsePrefix(s); err == nil {
			return "", fmt.Errorf("%s has a prefix length, an address without one is wanted", quote(s))
		}
		return "", fmt.Errorf("%s is not an IP address", quote(s))
	}
	if a.Zone() != "" {
		return "", fmt.Errorf("%s has a zone: name the interface by its own key", quote(s))
	}
	if err := pure(s, a); err != nil {
		return "", err
	}
	return a.String(), nil
}

// pure refuses IPv4 written as IPv6, which the kernel treats as IPv6.
func pure(s string, a netip.Addr) error {
	if a.Is4In6() {
		return fmt.Errorf("%s is IPv4 written as IPv6: write %q", quote(s), a.Unmap())
	}
	return nil
}

// IFNAMSIZ and ALTIFNAMSIZ without the final NUL.
const (
	maxInterfaceName   = 15
	maxAlternativeName = 127
)

func canonicalInterfaceName(s string, longest int) (string, error) {
	bad := func(reason string) (string, error) {
		return "", fmt.Errorf("%s is not an interface name: %s", quote(s), reason)
	}
	switch {
	case s == "":
		return bad("it is empty")
	case len(s) > longest:
		return bad(fmt.Sprintf("%d bytes are more than %d", len(s), longest))
	case s == "." || s == "..":
		return bad("the kernel reserves it")
	case s == "all" || s == "default":
		return bad("the sysctl tree reserves it")
	}
	for _, r := range s {
		switch {
		case r == '/' || r == ':' || unicode.IsSpace(r):
			return bad(fmt.Sprintf("the kernel refuses %q", r))
		case r == '%':
			return bad("the kernel treats '%' as a pattern")
		case !unicode.IsPrint(r):
			return bad(fmt.Sprintf("%q cannot be printed", r))
		}
	}
	return s, nil
}

var pciAddress = regexp.MustCompile(`^(?:([0-9a-f]{4}|[1-9a-f][0-9a-f]{4,7}):)?([0-9a-f]{2}):([01][0-9a-f])\.([0-7])$`)

func canonicalPCIAddress(s string) (string, error) {
	m := pciAddress.FindStringSubmatch(strings.ToLower(s))
	if m == nil {
		return "", fmt.Errorf("%s is not a PCI address: want domain:bus:device.function, as in 0000:03:00.2", quote(s))
	}
	if m[1] == "" {
		m[1] = "0000"
	}
	return m[1] + ":" + m[2] + ":" + m[3] + "." + m[4], nil
}

// canonicalSysctlPath reads a path as sysctl(8) does: the first separator,
// dot or slash, is the one between components, the other one is then part of
// a component (in dotted form a slash stands for a dot).
func canonicalSysctlPath(s string) (string, error) {
	path := s
	if i := strings.IndexAny(s, "./"); i >= 0 && s[i] == '.' {
		path = strings.Map(func(r rune) rune {
			switch r {
			case '.':
				return '/'
			case '/':
				return '.'
			}
			return r
		}, s)
	}
	parts := strings.Split(path, "/")
	if err := sysctlParts(parts); err != nil {
		return "", fmt.Errorf("%s is not a sysctl: %w", quote(s), err)
	}
	return path, nil
}

func sysctlParts(parts []string) error {
	for _, p := range parts {
		switch {
		case p == "":
			return errors.New("a component is empty")
		case p == "." || p == "..":
			return fmt.Errorf("the component %q leads elsewhere", p)
		case strings.ContainsFunc(p, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == '\\' }):
			return fmt.Errorf("the component %s cannot be a file name", quote(p))
		}
	}
	if parts[0] != "net" || len(parts) < 2 {
		return errors.New(
			"only those below net. can be set, as in net.ipv4.conf.all.arp_ignore; a pod may have others in its securityContext.sysctls")
	}
	if perInterface(parts) && len(parts) > 5 {
		return fmt.Errorf("write a dotted interface name in slash form, as in %q, or as IFNAME",
			strings.Join(parts[:3], "/")+"/"+strings.Join(parts[3:len(parts)-1], ".")+"/"+parts[len(parts)-1])
	}
	return nil
}

// perInterface reports whether a path lies in a directory per interface; then it has 5 components: net/ipv4/conf/<name>/<key>.
func perInterface(parts []string) bool {
	directories := []string{"net/ipv4/conf", "net/ipv6/conf", "net/ipv4/neigh", "net/ipv6/neigh", "net/mpls/conf"}
	return len(parts) > 3 && slices.Contains(directories, strings.Join(parts[:3], "/"))
}

// compatible reports whether a field of one format may fill a parameter of
// another; an address with host bits may be a network, and an interface has its name.
func (f Format) compatible(field string) bool {
	return f == "" || field == "" || string(f) == field || f == Prefix && field == string(CIDR) ||
		f == LinkName && field == string(InterfaceName)
}
