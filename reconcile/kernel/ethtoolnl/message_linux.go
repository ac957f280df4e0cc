package ethtoolnl

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	namesFeatures = 4 // ETH_SS_FEATURES
	maxFeatures   = 1 << 10
)

// nested is an attribute that contains others.
func nested(typ int) *nl.RtAttr { return nl.NewRtAttr(typ|unix.NLA_F_NESTED, nil) }

func header(index int, flags uint32) *nl.RtAttr {
	h := nested(unix.ETHTOOL_A_FEATURES_HEADER)
	h.AddRtAttr(unix.ETHTOOL_A_HEADER_DEV_INDEX, nl.Uint32Attr(uint32(index)))
	if flags != 0 {
		h.AddRtAttr(unix.ETHTOOL_A_HEADER_FLAGS, nl.Uint32Attr(flags))
	}
	return h
}

// encodeGet requests a class of settings of the device with that index.
func encodeGet(c Class, index int) (genetlink.Message, error) {
	k, ok := classes[c]
	if !ok {
		return genetlink.Message{}, fmt.Errorf("no class %q of ethtool settings", c)
	}
	flags := uint32(0)
	if c == Feature {
		flags = unix.ETHTOOL_FLAG_COMPACT_BITSETS // without the names of bits
	}
	return message(k.get, header(index, flags)), nil
}

// encodeFeatureNames requests the names of features by bit, which are the same for all devices. The kernel wants a header, though
// it names no device.
func encodeFeatureNames() genetlink.Message {
	sets := nested(unix.ETHTOOL_A_STRSET_STRINGSETS)
	set := sets.AddRtAttr(unix.ETHTOOL_A_STRINGSETS_STRINGSET|unix.NLA_F_NESTED, nil)
	set.AddRtAttr(unix.ETHTOOL_A_STRINGSET_ID, nl.Uint32Attr(namesFeatures))
	return message(unix.ETHTOOL_MSG_STRSET_GET, nested(unix.ETHTOOL_A_STRSET_HEADER), sets)
}

// decodeFeatureNames reads the reply to encodeFeatureNames.
func decodeFeatureNames(data []byte) ([]string, error) {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return nil, err
	}
	var names []string
	within(ad, unix.ETHTOOL_A_STRSET_STRINGSETS, func(sets *netlink.AttributeDecoder) {
		within(sets, unix.ETHTOOL_A_STRINGSETS_STRINGSET, func(set *netlink.AttributeDecoder) {
			within(set, unix.ETHTOOL_A_STRINGSET_STRINGS, func(list *netlink.AttributeDecoder) {
				within(list, unix.ETHTOOL_A_STRINGS_STRING, func(one *netlink.AttributeDecoder) {
					index, name := uint32(maxFeatures), ""
					for one.Next() {
						switch one.Type() {
						case unix.ETHTOOL_A_STRING_INDEX:
							index = one.Uint32()
						case unix.ETHTOOL_A_STRING_VALUE:
							name = one.String()
						}
					}
					if index < maxFeatures {
						names = append(names, make([]string, max(0, int(index)+1-len(names)))...)
						names[index] = name
					}
				})
			})
		})
	})
	return names, ad.Err()
}

// within calls f for each attribute of a type, which contains others.
func within(ad *netlink.AttributeDecoder, typ uint16, f func(*netlink.AttributeDecoder)) {
	for ad.Next() {
		if ad.Type() == typ {
			ad.Nested(func(nested *netlink.AttributeDecoder) error { f(nested); return nested.Err() })
		}
	}
}

// encodeSet changes one setting and leaves the others of its class as they are.
func encodeSet(c Class, index int, name string, value uint32) (genetlink.Message, error) {
	k, ok := classes[c]
	if !ok {
		return genetlink.Message{}, fmt.Errorf("no class %q of ethtool settings", c)
	}
	h := header(index, unix.ETHTOOL_FLAG_OMIT_REPLY) // the ack is enough
	if k.bits != 0 {
		return message(k.set, h, wantedBit(k.bits, name, value != 0)), nil
	}
	for _, f := range k.fields {
		switch {
		case f.name != name:
		case f.size == 1:
			return message(k.set, h, nl.NewRtAttr(int(f.attr), []byte{uint8(value)})), nil
		default:
			return message(k.set, h, nl.NewRtAttr(int(f.attr), nl.Uint32Attr(value))), nil
		}
	}
	return genetlink.Message{}, fmt.Errorf("%w: %s %q", ErrUnknown, c, name)
}

// wantedBit is a bit set with one bit: without ETHTOOL_A_BITSET_NOMASK the bits that
// are not listed stay.
func wantedBit(in uint16, name string, on bool) *nl.RtAttr {
	set := nested(int(in))
	bits := set.AddRtAttr(unix.ETHTOOL_A_BITSET_BITS|unix.NLA_F_NESTED, nil)
	bit := bits.AddRtAttr(unix.ETHTOOL_A_BITSET_BITS_BIT|unix.NLA_F_NESTED, nil)
	bit.AddRtAttr(unix.ETHTOOL_A_BITSET_BIT_NAME, nl.ZeroTerminated(name))
	if on {
		bit.AddRtAttr(unix.ETHTOOL_A_BITSET_BIT_VALUE, nil)
	}
	return set
}

func message(command uint8, parts ...*nl.RtAttr) genetlink.Message {
	m := genetlink.Message{Header: genetlink.Header{Command: command, Version: unix.ETHTOOL_GENL_VERSION}}
	for _, p := range parts {
		m.Data = append(m.Data, p.Serialize()...)
	}
	return m
}

// decode reads a reply. Features are named by names, see decodeFeatureNames.
func decode(c Class, data []byte, names []string) ([]Setting, error) {
	if c == Feature {
		return decodeFeatures(data, names)
	}
	if c == PrivateFlag {
		return decodeFlags(data)
	}
	at := map[uint16]field{}
	for _, f := range classes[c].fields {
		at[f.attr] = f
	}
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return nil, err
	}
	var out []Setting
	for ad.Next() {
		f, ok := at[ad.Type()]
		switch {
		case !ok:
		case f.size == 1:
			out = append(out, Setting{Name: f.name, Value: uint32(ad.Uint8())})
		default:
			out = append(out, Setting{Name: f.name, Value: ad.Uint32()})
		}
	}
	return out, ad.Err()
}

// decodeFeatures reads the four bit sets of features. That of the hardware comes with a mask of the features there are. A
// feature is fixed when the hardware cannot switch it or the driver never does, as ethtool(8) has it.
func decodeFeatures(data []byte, names []string) ([]Setting, error) {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return nil, err
	}
	var all bitmap
	sets := map[uint16]bitmap{}
	for ad.Next() {
		typ := ad.Type()
		if typ < unix.ETHTOOL_A_FEATURES_HW || typ > unix.ETHTOOL_A_FEATURES_NOCHANGE {
			continue
		}
		ad.Nested(func(set *netlink.AttributeDecoder) error {
			for set.Next() {
				switch {
				case set.Type() == unix.ETHTOOL_A_BITSET_VALUE:
					sets[typ] = bitmap(set.Bytes())
				case set.Type() == unix.ETHTOOL_A_BITSET_MASK && typ == unix.ETHTOOL_A_FEATURES_HW:
					all = set.Bytes()
				}
			}
			return set.Err()
		})
	}
	if err := ad.Err(); err != nil {
		return nil, err
	}
	if all == nil {
		return nil, errors.New("ethtool: the answer of the kernel does not say which features the hardware can have")
	}
	out := make([]Setting, 0, len(names))
	for i, name := range names {
		if name == "" || !all.has(i) {
			continue // a bit without a name is internal to the kernel
		}
		s := Setting{Name: name, Fixed: !sets[unix.ETHTOOL_A_FEATURES_HW].has(i) || sets[unix.ETHTOOL_A_FEATURES_NOCHANGE].has(i)}
		if sets[unix.ETHTOOL_A_FEATURES_ACTIVE].has(i) {
			s.Value = 1
		}
		out = append(out, s)
	}
	return out, nil
}

// bitmap is a bit set in its compact form: words of 32 bits in the byte order of the machine.
type bitmap []byte

func (b bitmap) has(i int) bool {
	at := i / 32 * 4
	return at+4 <= len(b) && binary.NativeEndian.Uint32(b[at:])>>(i%32)&1 != 0
}

// decodeFlags reads the private flags of a driver. Their bit set, in its verbose form, comes with a mask, and so lists
// each of them. Without a mask every bit that is listed is set, and none has the attribute that says so.
func decodeFlags(data []byte) ([]Setting, error) {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return nil, err
	}
	var out []Setting
	noMask := false
	within(ad, unix.ETHTOOL_A_PRIVFLAGS_FLAGS, func(set *netlink.AttributeDecoder) {
		for set.Next() {
			switch set.Type() {
			case unix.ETHTOOL_A_BITSET_NOMASK:
				noMask = true
			case unix.ETHTOOL_A_BITSET_BITS:
				set.Nested(func(bits *netlink.AttributeDecoder) error {
					within(bits, unix.ETHTOOL_A_BITSET_BITS_BIT, func(bit *netlink.AttributeDecoder) { out = append(out, decodeBit(bit)) })
					return bits.Err()
				})
			}
		}
	})
	for i := range out {
		if noMask {
			out[i].Value = 1
		}
	}
	return out, ad.Err()
}

func decodeBit(ad *netlink.AttributeDecoder) (s Setting) {
	for ad.Next() {
		switch ad.Type() {
		case unix.ETHTOOL_A_BITSET_BIT_NAME:
			s.Name = ad.String()
		case unix.ETHTOOL_A_BITSET_BIT_VALUE:
			s.Value = 1
		}
	}
	return s
}
