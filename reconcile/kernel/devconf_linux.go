package kernel

import (
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A device that moves to another namespace gets the defaults of that for its sysctls (inetdev_init in
// net/ipv4/devinet.c, ipv6_add_dev in net/ipv6/addrconf.c). What the host is configured to have for it is
// a setting like others: recorded if it differs from the host's default, and restored when it has returned.

// devconf are the sysctls of a link that are recorded, by their names as settings, with their place in
// the array of the link message: IPV4_DEVCONF_* of linux/ip.h less 1, DEVCONF_* of linux/ipv6.h. Not among
// them is what follows the link or a router (mtu, hop_limit), is a key, or is read only.
var devconf = map[string]int{
	"ipv4.forwarding": 0, "ipv4.proxy_arp": 2, "ipv4.accept_redirects": 3, "ipv4.send_redirects": 5,
	"ipv4.rp_filter": 7, "ipv4.accept_source_route": 8, "ipv4.log_martians": 10, "ipv4.arp_filter": 12,
	"ipv4.arp_announce": 17, "ipv4.arp_ignore": 18, "ipv4.promote_secondaries": 19, "ipv4.arp_accept": 20,
	"ipv4.arp_notify": 21, "ipv4.accept_local": 22, "ipv4.src_valid_mark": 23, "ipv4.route_localnet": 25,

	"ipv6.forwarding": 0, "ipv6.accept_ra": 3, "ipv6.accept_redirects": 4, "ipv6.autoconf": 5, "ipv6.dad_transmits": 6,
	"ipv6.use_tempaddr": 10, "ipv6.accept_ra_defrtr": 17, "ipv6.accept_ra_pinfo": 18, "ipv6.accept_ra_rt_info_max_plen": 21,
	"ipv6.proxy_ndp": 22, "ipv6.accept_source_route": 24, "ipv6.disable_ipv6": 26, "ipv6.accept_dad": 27,
	"ipv6.ndisc_notify": 29, "ipv6.keep_addr_on_down": 42, "ipv6.addr_gen_mode": 47,
}

// The attributes of a family, of linux/if_link.h.
const (
	iflaInetConf     = 1
	iflaInet6Conf    = 2
	iflaInet6GenMode = 8
)

// sysctlsOf reads them in the attribute IFLA_AF_SPEC of a link message.
func sysctlsOf(b []byte) map[string]string {
	out := map[string]string{}
	for family, attrs := range attributes(b) {
		for typ, v := range attributes(attrs) {
			switch {
			case family == unix.AF_INET && typ == iflaInetConf:
				addSysctls(out, "ipv4.", v)
			case family == unix.AF_INET6 && typ == iflaInet6Conf:
				addSysctls(out, "ipv6.", v)
			}
		}
		for typ, v := range attributes(attrs) { // the array does not have it in all versions
			if family == unix.AF_INET6 && typ == iflaInet6GenMode {
				out["ipv6.addr_gen_mode"] = strconv.Itoa(int(u8(v)))
			}
		}
	}
	return out
}

func addSysctls(to map[string]string, class string, array []byte) {
	for name, i := range devconf {
		if strings.HasPrefix(name, class) && 4*i+4 <= len(array) {
			to[name] = strconv.Itoa(int(int32(u32(array[4*i:]))))
		}
	}
}

// devconfFile is the file of such a sysctl of a link, "default" for what new links get.
func (c *conn) devconfFile(name, link string) string {
	family, rest, _ := strings.Cut(name, ".")
	return filepath.Join(c.proc, "sys/net", family, "conf", link, rest)
}

// withoutDefaults drops from settings the sysctls that a link gets by itself. The calling thread is in the
// right namespace.
func (c *conn) withoutDefaults(settings map[string]string) {
	for name, value := range settings {
		if _, ok := devconf[name]; !ok {
			continue
		}
		b, err := readFile(c.devconfFile(name, "default"))
		if err != nil || strings.TrimSpace(string(b)) == value {
			delete(settings, name)
		}
	}
}
