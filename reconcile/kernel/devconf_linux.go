package kernel

import (
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A device that moves to another namespace gets the defaults of that for its sysctls (inetdev_init in
// net/ipv4/devinet.c, ipv6_add_dev in net/ipv6/addrconf.c). The host's configured value for it is
// a setting like others: recorded if it differs from the host's default, and restored when it has returned.

// devconf are the sysctls of a link that are recorded, by their names as settings, with their place in
// the array of the link message: IPV4_DEVCONF_* of linux/ip.h less 1, DEVCONF_* of linux/ipv6.h. Not among
// them are values that follow the link or a router (mtu, hop_limit), keys, and read-only ones.
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

// addSysctlsOf reads them in the attribute IFLA_AF_SPEC of a link message.
func addSysctlsOf(out map[string]string, b []byte) {
	addSysctls(out, ipv4Devconf, attribute(b, unix.AF_INET, unix.IFLA_INET_CONF))
	addSysctls(out, ipv6Devconf, attribute(b, unix.AF_INET6, unix.IFLA_INET6_CONF))
	if mode := attribute(b, unix.AF_INET6, unix.IFLA_INET6_ADDR_GEN_MODE); mode != nil { // the array does not have it in all versions
		out["ipv6.addr_gen_mode"] = strconv.Itoa(int(u8(mode)))
	}
}

func addSysctls(to map[string]string, in []placedSysctl, array []byte) {
	for _, s := range in {
		if 4*s.at+4 <= len(array) {
			to[s.name] = strconv.Itoa(int(int32(u32(array[4*s.at:]))))
		}
	}
}

// placedSysctl is a sysctl of devconf with its place.
type placedSysctl struct {
	name string
	at   int
}

var ipv4Devconf, ipv6Devconf = devconfOf("ipv4."), devconfOf("ipv6.")

func devconfOf(class string) (out []placedSysctl) {
	for name, at := range devconf {
		if strings.HasPrefix(name, class) {
			out = append(out, placedSysctl{name, at})
		}
	}
	return out
}

// devconfFile is the file of such a sysctl of a link, "default" for what new links get.
func (c *conn) devconfFile(name, link string) string {
	family, rest, _ := strings.Cut(name, ".")
	return filepath.Join(c.proc, "sys/net", family, "conf", link, rest)
}

// devconfDefaults are the defaults of a namespace that an observation has read, by setting.
type devconfDefaults map[string]string

// withoutDefaults drops from settings the sysctls that a link gets by itself. The calling thread is in the
// right namespace.
func (c *conn) withoutDefaults(settings map[string]string, defaults devconfDefaults) {
	c.readDefaults(ipv4Devconf, settings, defaults)
	c.readDefaults(ipv6Devconf, settings, defaults)
	for name, value := range settings {
		if _, ok := devconf[name]; !ok {
			continue
		}
		if usual, read := defaults[name]; !read || usual == value {
			delete(settings, name)
		}
	}
}

// readDefaults adds the defaults of those settings of a class that were not read yet. There are some fifteen, so their folder is
// opened once.
func (c *conn) readDefaults(class []placedSysctl, settings map[string]string, defaults devconfDefaults) {
	folder := -1
	for _, s := range class {
		_, wanted := settings[s.name]
		if _, read := defaults[s.name]; read || !wanted {
			continue
		}
		file := c.devconfFile(s.name, "default")
		if folder < 0 {
			var err error
			if folder, err = unix.Open(filepath.Dir(file), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
				return // a kernel without this family
			}
			defer unix.Close(folder)
		}
		if b, err := readFileAt(folder, filepath.Base(file)); err == nil {
			defaults[s.name] = strings.TrimSpace(string(b))
		}
	}
}
