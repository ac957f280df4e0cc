package kernel

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolIoctl uses ethtool through SIOCETHTOOL, for settings that the ethtool family
// of netlink cannot write in every kernel we support. Every driver has both. It
// addresses links by name, so it changes links of the host only.
type ethtoolIoctl struct {
	fd   int
	name string
}

// openEthtoolIoctl opens a socket in the namespace of the calling thread.
func openEthtoolIoctl(name string) (*ethtoolIoctl, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	return &ethtoolIoctl{fd, name}, err
}

func (e *ethtoolIoctl) close() { unix.Close(e.fd) }

// call passes a struct to the kernel, which begins with the command if that is one of
// ethtool's.
func (e *ethtoolIoctl) call(request uintptr, data []byte) error {
	ifr := make([]byte, 40) // struct ifreq
	copy(ifr[:unix.IFNAMSIZ-1], e.name)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&data[0])
	binary.NativeEndian.PutUint64(ifr[unix.IFNAMSIZ:], uint64(uintptr(unsafe.Pointer(&data[0]))))
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(e.fd), request, uintptr(unsafe.Pointer(&ifr[0]))); errno != 0 {
		return errno
	}
	return nil
}

func (e *ethtoolIoctl) command(cmd uint32, data []byte) error {
	binary.NativeEndian.PutUint32(data, cmd)
	return e.call(unix.SIOCETHTOOL, data)
}

// plainSetting is a setting whose struct has a fixed size. The part that can be set
// is compared; the rest is the device's current state.
type plainSetting struct {
	name           string
	get, set       uint32
	size, from, to int      // of the struct, and of the part
	request        []uint32 // what follows the command
}

func tunable(name string, id, typ uint32, size int) plainSetting {
	return plainSetting{name, unix.ETHTOOL_GTUNABLE, unix.ETHTOOL_STUNABLE, 16 + size, 16, 16 + size, []uint32{id, typ, uint32(size)}}
}

func rxHash(name string, flow uint32) plainSetting {
	return plainSetting{"rxhash." + name, unix.ETHTOOL_GRXFH, unix.ETHTOOL_SRXFH, rxnfcSize, 8, 16, []uint32{flow}}
}

// rxnfcSize is the size of struct ethtool_rxnfc.
const rxnfcSize = 192

// What drivers report about speed, offered modes and pause frames changes with the
// link, so it cannot be compared. Source: include/uapi/linux/ethtool.h, net_tstamp.h.
var plainSettings = []plainSetting{
	{"ethtool.wol", unix.ETHTOOL_GWOL, unix.ETHTOOL_SWOL, 20, 8, 20, nil},
	{"ethtool.msglvl", unix.ETHTOOL_GMSGLVL, unix.ETHTOOL_SMSGLVL, 8, 4, 8, nil},
	{"ethtool.eee", unix.ETHTOOL_GEEE, unix.ETHTOOL_SEEE, 40, 20, 24, nil}, // whether it is enabled
	tunable("ethtool.rx-copybreak", 1, 3, 4),
	tunable("ethtool.tx-copybreak", 2, 3, 4),
	tunable("ethtool.pfc-prevention", 3, 2, 2),
	tunable("ethtool.tx-copybreak-buffer", 4, 3, 4),
	rxHash("tcp4", 0x01), rxHash("udp4", 0x02), rxHash("sctp4", 0x03),
	rxHash("tcp6", 0x05), rxHash("udp6", 0x06), rxHash("sctp6", 0x07),
	{"ethtool.timestamp", unix.SIOCGHWTSTAMP, unix.SIOCSHWTSTAMP, 12, 0, 12, nil},
}

func (e *ethtoolIoctl) callSetting(cmd uint32, data []byte) error {
	if cmd == unix.SIOCGHWTSTAMP || cmd == unix.SIOCSHWTSTAMP { // which have no command in their data
		return e.call(uintptr(cmd), data)
	}
	return e.command(cmd, data)
}

func (e *ethtoolIoctl) read(s plainSetting) ([]byte, error) {
	data := make([]byte, s.size)
	for i, n := range s.request {
		binary.NativeEndian.PutUint32(data[4+4*i:], n)
	}
	return data, e.callSetting(s.get, data)
}

func (s plainSetting) value(data []byte) string { return hex.EncodeToString(data[s.from:s.to]) }

// write sets the part to a value that the method value has returned.
func (e *ethtoolIoctl) write(s plainSetting, value string) error {
	want, err := hex.DecodeString(value)
	if err != nil {
		return err
	}
	data, err := e.read(s)
	if err != nil {
		return err
	}
	if len(want) < s.to-s.from {
		return fmt.Errorf("the record has %d bytes", len(want))
	}
	copy(data[s.from:s.to], want)
	return e.callSetting(s.set, data)
}

// list reads all settings that the driver has.
func (e *ethtoolIoctl) list(out map[string]string) {
	for _, s := range plainSettings {
		if data, err := e.read(s); err == nil {
			out[s.name] = s.value(data)
		}
	}
	if v, err := e.rss(); err == nil {
		out["ethtool.rss"] = v
	}
	if rules, err := e.rules(); err == nil {
		for _, location := range rules {
			out["rule."+strconv.FormatUint(uint64(location), 10)] = "present"
		}
	}
}

// hasFEC reports whether the driver has forward error correction, which is read by
// other means (readFEC).
func (e *ethtoolIoctl) hasFEC() bool {
	return e.command(unix.ETHTOOL_GFECPARAM, make([]byte, 16)) == nil // struct ethtool_fecparam
}

// set restores one setting. It returns false for an unknown one.
func (e *ethtoolIoctl) set(name, value string) (known bool, err error) {
	if i := slices.IndexFunc(plainSettings, func(s plainSetting) bool { return s.name == name }); i >= 0 {
		return true, e.write(plainSettings[i], value)
	}
	if name == "ethtool.rss" {
		return true, e.setRSS(value)
	}
	return false, nil
}

const rssHeader = 24 // of struct ethtool_rxfh

// readRSS reads struct ethtool_rxfh with its table and key.
func (e *ethtoolIoctl) readRSS() ([]byte, error) {
	data := make([]byte, rssHeader)
	if err := e.command(unix.ETHTOOL_GRSSH, data); err != nil {
		return nil, err
	}
	table, key := binary.NativeEndian.Uint32(data[8:]), binary.NativeEndian.Uint32(data[12:])
	if table+key == 0 {
		return nil, unix.EOPNOTSUPP
	}
	sized := make([]byte, rssHeader+4*table+key)
	binary.NativeEndian.PutUint32(sized[8:], table)
	binary.NativeEndian.PutUint32(sized[12:], key)
	return sized, e.command(unix.ETHTOOL_GRSSH, sized)
}

// rss is the hash function, the key, and the table of queues, usually the driver's
// default: one queue after the other.
func (e *ethtoolIoctl) rss() (string, error) {
	data, err := e.readRSS()
	if err != nil {
		return "", err
	}
	table := binary.NativeEndian.Uint32(data[8:])
	queues := make([]uint32, table)
	for i := range queues {
		queues[i] = binary.NativeEndian.Uint32(data[rssHeader+4*i:])
	}
	return fmt.Sprintf("%d %s %s", data[16], queueTable(queues), hex.EncodeToString(data[rssHeader+4*table:])), nil
}

// queueTable formats a table, in short form if it repeats the queues in order.
func queueTable(queues []uint32) string {
	if len(queues) == 0 {
		return "none"
	}
	n := slices.Max(queues) + 1
	even := true
	var all []string
	for i, q := range queues {
		even = even && q == uint32(i)%n
		all = append(all, strconv.FormatUint(uint64(q), 10))
	}
	if even {
		return fmt.Sprintf("even:%d", n)
	}
	return strings.Join(all, ",")
}

func (e *ethtoolIoctl) setRSS(value string) error {
	data, err := e.readRSS()
	if err == nil {
		err = putRSS(data, value)
	}
	if err != nil {
		return err
	}
	return e.command(unix.ETHTOOL_SRSSH, data)
}

// putRSS writes a record into struct ethtool_rxfh.
func putRSS(data []byte, value string) error {
	fields := strings.Split(value, " ")
	table := int(binary.NativeEndian.Uint32(data[8:]))
	if len(fields) != 3 {
		return errors.New("the record of it is not readable")
	}
	function, err := strconv.ParseUint(fields[0], 10, 8)
	if err != nil {
		return err
	}
	key, err := hex.DecodeString(fields[2])
	if err != nil {
		return fmt.Errorf("the record has a key of %d bytes: %w", len(key), err)
	}
	if n := len(data) - rssHeader - 4*table; len(key) != n {
		return fmt.Errorf("the record has a key of %d bytes, there are %d", len(key), n)
	}
	queues, err := parseQueueTable(fields[1], table)
	if err != nil {
		return err
	}
	data[16] = uint8(function)
	for i, q := range queues {
		binary.NativeEndian.PutUint32(data[rssHeader+4*i:], q)
	}
	copy(data[rssHeader+4*table:], key)
	return nil
}

func parseQueueTable(text string, size int) ([]uint32, error) {
	out := make([]uint32, size)
	if n, ok := strings.CutPrefix(text, "even:"); ok {
		queues, err := strconv.ParseUint(n, 10, 32)
		if err != nil || queues == 0 {
			return nil, fmt.Errorf("the record has a table for %q queues", n)
		}
		for i := range out {
			out[i] = uint32(i) % uint32(queues)
		}
		return out, nil
	}
	words := strings.Split(text, ",")
	if text == "none" {
		words = nil
	}
	if len(words) != size {
		return nil, fmt.Errorf("the record has a table of %d entries, there are %d", len(words), size)
	}
	for i, w := range words {
		q, err := strconv.ParseUint(w, 10, 32)
		if err != nil {
			return nil, err
		}
		out[i] = uint32(q)
	}
	return out, nil
}

// maxRules bounds how many receive rules are listed.
const maxRules = 1 << 16

// rules lists the locations of the receive rules.
func (e *ethtoolIoctl) rules() ([]uint32, error) {
	const countAt, locationsAt = 184, 188
	data := make([]byte, rxnfcSize)
	if err := e.command(unix.ETHTOOL_GRXCLSRLCNT, data); err != nil {
		return nil, err
	}
	n := min(binary.NativeEndian.Uint32(data[countAt:]), maxRules)
	if n == 0 {
		return nil, nil
	}
	data = make([]byte, max(rxnfcSize, locationsAt+4*int(n)))
	binary.NativeEndian.PutUint32(data[countAt:], n)
	if err := e.command(unix.ETHTOOL_GRXCLSRLALL, data); err != nil {
		return nil, err
	}
	var out []uint32
	for i := range min(n, binary.NativeEndian.Uint32(data[countAt:])) {
		out = append(out, binary.NativeEndian.Uint32(data[locationsAt+4*i:]))
	}
	return out, nil
}

func (e *ethtoolIoctl) deleteRule(location uint32) error {
	const specAt, locationIn = 16, 160
	data := make([]byte, rxnfcSize)
	binary.NativeEndian.PutUint32(data[specAt+locationIn:], location)
	return e.command(unix.ETHTOOL_SRXCLSRLDEL, data)
}
