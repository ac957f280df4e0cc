package contract_test

import (
	"strings"
	"testing"

	"github.com/plumbline/plumbline/topology/contract"
)

func TestCanonical(t *testing.T) {
	for _, tt := range []struct {
		format contract.Format
		in     string
		want   string // the canonical form, or with a leading '!' the error
	}{
		{contract.MAC, "52:54:00:12:34:56", "52:54:00:12:34:56"},
		{contract.MAC, "52-54-00-AB-CD-EF", "52:54:00:ab:cd:ef"},
		{contract.MAC, "5254.00ab.cdef", "52:54:00:ab:cd:ef"},
		{contract.MAC, "00:00:00:00:00:00", "00:00:00:00:00:00"}, // clears a VF's admin MAC
		{contract.MAC, "01:00:5e:00:00:01", `!"01:00:5e:00:00:01" is a multicast address, which no interface can have: the first byte must be even`},
		{contract.MAC, "52:54:00:12:34:56:78:9a", `!"52:54:00:12:34:56:78:9a" is not a MAC address: want six pairs of hex digits, as in 52:54:00:12:34:56`},
		{contract.GUID, "00:02:C9:03:00:21:6e:70", "00:02:c9:03:00:21:6e:70"},
		{contract.GUID, "0002.c903.0021.6e70", "00:02:c9:03:00:21:6e:70"},
		{contract.GUID, "11:11:11:11:11:11:11:11", "11:11:11:11:11:11:11:11"},
		{contract.GUID, "11:22:33:44:77:66:77:90", "11:22:33:44:77:66:77:90"},
		{contract.GUID, "52:54:00:12:34:56", `!"52:54:00:12:34:56" is not a GUID: want eight pairs of hex digits, as in 00:02:c9:03:00:21:6e:70`},
		{contract.GUID, "00:00:00:00:00:00:00:00", `!"00:00:00:00:00:00:00:00" means that there is no GUID: remove the key`},
		{contract.GUID, "FF:FF:FF:FF:FF:FF:FF:FF", `!"FF:FF:FF:FF:FF:FF:FF:FF" means that there is no GUID: remove the key`},
		{contract.MAC, "", `!"" is not a MAC address: want six pairs of hex digits, as in 52:54:00:12:34:56`},

		{contract.CIDR, "10.100.0.5/24", "10.100.0.5/24"},
		{contract.CIDR, "2001:DB8:0::5/64", "2001:db8::5/64"},
		{contract.CIDR, "10.100.0.5", `!"10.100.0.5" has no prefix length: write that of the subnet, as in "10.100.0.5/24", or "10.100.0.5/32" for the one address`},
		{contract.CIDR, "10.100.0.5/33", `!"10.100.0.5/33" is not an address with its prefix length, as in 10.100.0.5/24`},
		{contract.CIDR, "fe80::1%eth0/64", `!"fe80::1%eth0/64" is not an address with its prefix length, as in 10.100.0.5/24`},
		{contract.CIDR, "::ffff:10.0.0.1/120", `!"::ffff:10.0.0.1/120" is IPv4 written as IPv6: write "10.0.0.1/24"`},
		{contract.CIDR, "::ffff:10.0.0.1/80", `!"::ffff:10.0.0.1/80" is IPv4 written as IPv6: write "10.0.0.1" with the prefix length of its subnet`},
		{contract.CIDR, "010.0.0.1/8", `!"010.0.0.1/8" is not an address with its prefix length, as in 10.100.0.5/24`},

		{contract.Prefix, "10.100.0.0/16", "10.100.0.0/16"},
		{contract.Prefix, "default", "default"},
		{contract.Prefix, "2001:db8:0:0::/64", "2001:db8::/64"},
		{contract.Prefix, "10.100.0.5/16", `!"10.100.0.5/16" has host bits set: write "10.100.0.0/16" for the network or "10.100.0.5/32" for the one address`},
		{contract.Prefix, "10.100.0.5", `!"10.100.0.5" has no prefix length: write that of the subnet, as in "10.100.0.0/24", or "10.100.0.5/32" for the one address`},

		{contract.IP, "10.100.0.1", "10.100.0.1"},
		{contract.IP, "2001:DB8::0001", "2001:db8::1"},
		{contract.IP, "fe80::1%eth0", `!"fe80::1%eth0" has a zone: name the interface by its own key`},
		{contract.IP, "10.100.0.1/24", `!"10.100.0.1/24" has a prefix length, an address without one is wanted`},
		{contract.IP, "gateway", `!"gateway" is not an IP address`},

		{contract.InterfaceName, "data0.100", "data0.100"},
		{contract.InterfaceName, "exactly-15-byte", "exactly-15-byte"},
		{contract.InterfaceName, "exactly-16-bytes", `!"exactly-16-bytes" is not an interface name: 16 bytes are more than 15`},
		{contract.InterfaceName, "ééééééé1", "ééééééé1"}, // 15 bytes
		{contract.InterfaceName, "éééééééé", `!"éééééééé" is not an interface name: 16 bytes are more than 15`},
		{contract.LinkName, "exactly-16-bytes", "exactly-16-bytes"},
		{contract.LinkName, strings.Repeat("x", 127), strings.Repeat("x", 127)},
		{contract.LinkName, strings.Repeat("x", 128), `!"` + strings.Repeat("x", 77) + `…" is not an interface name: 128 bytes are more than 127`},
		{contract.LinkName, "a/b", `!"a/b" is not an interface name: the kernel refuses '/'`},
		{contract.InterfaceName, "", `!"" is not an interface name: it is empty`},
		{contract.InterfaceName, "..", `!".." is not an interface name: the kernel reserves it`},
		{contract.InterfaceName, "all", `!"all" is not an interface name: the sysctl tree reserves it`},
		{contract.InterfaceName, "a/b", `!"a/b" is not an interface name: the kernel refuses '/'`},
		{contract.InterfaceName, "eth0:1", `!"eth0:1" is not an interface name: the kernel refuses ':'`},
		{contract.InterfaceName, "a b", `!"a b" is not an interface name: the kernel refuses ' '`},
		{contract.InterfaceName, "eth%d", `!"eth%d" is not an interface name: the kernel treats '%' as a pattern`},
		{contract.InterfaceName, "a\x00", `!"a\x00" is not an interface name: '\x00' cannot be printed`},

		{contract.PCIAddress, "0000:03:00.2", "0000:03:00.2"},
		{contract.PCIAddress, "03:1F.7", "0000:03:1f.7"},
		{contract.PCIAddress, "10000:E1:00.0", "10000:e1:00.0"}, // behind a VMD
		{contract.PCIAddress, "00000:e1:00.0", `!"00000:e1:00.0" is not a PCI address: want domain:bus:device.function, as in 0000:03:00.2`},
		{contract.PCIAddress, "0000:03:20.0", `!"0000:03:20.0" is not a PCI address: want domain:bus:device.function, as in 0000:03:00.2`},
		{contract.PCIAddress, "0000:03:00.8", `!"0000:03:00.8" is not a PCI address: want domain:bus:device.function, as in 0000:03:00.2`},

		{contract.SysctlPath, "net.ipv4.conf.all.arp_ignore", "net/ipv4/conf/all/arp_ignore"},
		{contract.SysctlPath, "net/ipv4/conf/data0.100/arp_ignore", "net/ipv4/conf/data0.100/arp_ignore"},
		{contract.SysctlPath, "net.ipv4.conf.data0/100.arp_ignore", "net/ipv4/conf/data0.100/arp_ignore"}, // as sysctl(8)
		{contract.SysctlPath, "net.ipv4.conf.IFNAME.arp_ignore", "net/ipv4/conf/IFNAME/arp_ignore"},
		{contract.SysctlPath, "net.core.somaxconn", "net/core/somaxconn"},
		{contract.SysctlPath, "net.ipv4.conf.data0.100.arp_ignore", `!"net.ipv4.conf.data0.100.arp_ignore" is not a sysctl: write a dotted interface name in slash form, as in "net/ipv4/conf/data0.100/arp_ignore", or as IFNAME`},
		{contract.SysctlPath, "kernel.panic", `!"kernel.panic" is not a sysctl: only those below net. can be set, as in net.ipv4.conf.all.arp_ignore; a pod may have others in its securityContext.sysctls`},
		{contract.SysctlPath, "net", `!"net" is not a sysctl: only those below net. can be set, as in net.ipv4.conf.all.arp_ignore; a pod may have others in its securityContext.sysctls`},
		{contract.SysctlPath, "net/../kernel/panic", `!"net/../kernel/panic" is not a sysctl: the component ".." leads elsewhere`},
		{contract.SysctlPath, "net./..kernel", `!"net./..kernel" is not a sysctl: the component "." leads elsewhere`},
		{contract.SysctlPath, "/net/core/x", `!"/net/core/x" is not a sysctl: a component is empty`},
		{contract.SysctlPath, "net.core.a b", `!"net.core.a b" is not a sysctl: the component "a b" cannot be a file name`},

		{"", "anything", "anything"},
		{"colour", "red", `!format "colour" is unknown`},
	} {
		got, err := tt.format.Canonical(tt.in)
		if err != nil {
			got = "!" + err.Error()
		}
		if got != tt.want {
			t.Errorf("%s %q:\n got %s\nwant %s", tt.format, tt.in, got, tt.want)
		}
	}
}

// FuzzCanonical holds that the canonical form is a fixed point.
func FuzzCanonical(f *testing.F) {
	formats := []contract.Format{contract.MAC, contract.GUID, contract.CIDR, contract.Prefix, contract.IP, contract.InterfaceName, contract.LinkName, contract.PCIAddress, contract.SysctlPath}
	for _, s := range []string{"52:54:00:12:34:56", "10.0.0.1/8", "::1/128", "default", "eth0.1", "0000:03:00.2", "net.ipv4.conf.a/b.c", "net/a/../b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, format := range formats {
			once, err := format.Canonical(s)
			if err != nil {
				continue
			}
			if twice, err := format.Canonical(once); err != nil || twice != once {
				t.Errorf("%s: %q becomes %q, and that %q (%v)", format, s, once, twice, err)
			}
		}
	})
}
