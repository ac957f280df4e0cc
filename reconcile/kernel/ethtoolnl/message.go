package ethtoolnl

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
)

// The attributes of features, private flags and bit sets, and of the header all
// messages share.
const (
	version = 1

	attrHeader     = 1
	headerDevIndex = 1
	headerFlags    = 3
	flagCompact    = 1 << 0 // bit sets without names
	flagOmitReply  = 1 << 1 // of a write: the ack is enough
	featuresHW     = 2
	featuresWanted = 3
	featuresActive = 4
	featuresFixed  = 5 // ETHTOOL_A_FEATURES_NOCHANGE
	privateFlags   = 2
	bitsetNoMask   = 1
	bitsetBits     = 3
	bitsetValue    = 4
	bitsetMask     = 5
	bitsetBitsBit  = 1
	bitsetBitName  = 2
	bitsetBitIsSet = 3 // ETHTOOL_A_BITSET_BIT_VALUE

	getStrings    = 1 // ETHTOOL_MSG_STRSET_GET
	stringSets    = 2
	oneStringSet  = 1
	stringSetID   = 1
	setStrings    = 3
	oneString     = 1
	stringIndex   = 1
	stringValue   = 2
	namesFeatures = 4 // ETH_SS_FEATURES
	maxFeatures   = 1 << 10
)

func header(ae *netlink.AttributeEncoder, index int, flags uint32) {
	ae.Nested(attrHeader, func(h *netlink.AttributeEncoder) error {
		h.Uint32(headerDevIndex, uint32(index))
		if flags != 0 {
			h.Uint32(headerFlags, flags)
		}
		return nil
	})
}

// encodeGet requests a class of settings of the device with that index.
func encodeGet(c Class, index int) (genetlink.Message, error) {
	k, ok := classes[c]
	if !ok {
		return genetlink.Message{}, fmt.Errorf("no class %q of ethtool settings", c)
	}
	ae := netlink.NewAttributeEncoder()
	flags := uint32(0)
	if c == Feature {
		flags = flagCompact
	}
	header(ae, index, flags)
	return message(k.get, ae)
}

// encodeFeatureNames requests the names of features by bit, which are the same for all devices.
func encodeFeatureNames() (genetlink.Message, error) {
	ae := netlink.NewAttributeEncoder()
	ae.Nested(attrHeader, func(*netlink.AttributeEncoder) error { return nil }) // the kernel wants one, though it names no device
	ae.Nested(stringSets, func(sets *netlink.AttributeEncoder) error {
		sets.Nested(oneStringSet, func(set *netlink.AttributeEncoder) error {
			set.Uint32(stringSetID, namesFeatures)
			return nil
		})
		return nil
	})
	return message(getStrings, ae)
}

// decodeFeatureNames reads the reply to encodeFeatureNames.
func decodeFeatureNames(data []byte) ([]string, error) {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return nil, err
	}
	var names []string
	within(ad, stringSets, func(sets *netlink.AttributeDecoder) {
		within(sets, oneStringSet, func(set *netlink.AttributeDecoder) {
			within(set, setStrings, func(list *netlink.AttributeDecoder) {
				within(list, oneString, func(one *netlink.AttributeDecoder) {
					index, name := uint32(maxFeatures), ""
					for one.Next() {
						switch one.Type() {
						case stringIndex:
							index = one.Uint32()
						case stringValue:
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
	ae := netlink.NewAttributeEncoder()
	header(ae, index, flagOmitReply)
	if k.bits != 0 {
		wantBit(ae, k.bits, name, value != 0)
		return message(k.set, ae)
	}
	for _, f := range k.fields {
		if f.name != name {
			continue
		}
		if f.size == 1 {
			ae.Uint8(f.attr, uint8(value))
		} else {
			ae.Uint32(f.attr, value)
		}
		return message(k.set, ae)
	}
	return genetlink.Message{}, fmt.Errorf("%w: %s %q", ErrUnknown, c, name)
}

// wantBit adds a bit set with one bit: without ETHTOOL_A_BITSET_NOMASK the bits that
// are not listed stay.
func wantBit(ae *netlink.AttributeEncoder, in uint16, name string, on bool) {
	ae.Nested(in, func(set *netlink.AttributeEncoder) error {
		set.Nested(bitsetBits, func(bits *netlink.AttributeEncoder) error {
			bits.Nested(bitsetBitsBit, func(bit *netlink.AttributeEncoder) error {
				bit.String(bitsetBitName, name)
				bit.Flag(bitsetBitIsSet, on)
				return nil
			})
			return nil
		})
		return nil
	})
}

func message(command uint8, ae *netlink.AttributeEncoder) (genetlink.Message, error) {
	data, err := ae.Encode()
	return genetlink.Message{Header: genetlink.Header{Command: command, Version: version}, Data: data}, err
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
		if typ < featuresHW || typ > featuresFixed {
			continue
		}
		ad.Nested(func(set *netlink.AttributeDecoder) error {
			for set.Next() {
				switch {
				case set.Type() == bitsetValue:
					sets[typ] = bitmap(set.Bytes())
				case set.Type() == bitsetMask && typ == featuresHW:
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
		return nil, errors.New("ethtool: the features of the hardware have no mask")
	}
	out := make([]Setting, 0, len(names))
	for i, name := range names {
		if name == "" || !all.has(i) {
			continue // a bit without a name is internal to the kernel
		}
		s := Setting{Name: name, Fixed: !sets[featuresHW].has(i) || sets[featuresFixed].has(i)}
		if sets[featuresActive].has(i) {
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

// decodeFlags reads the private flags of a driver. Their bit set comes with a mask,
// and so lists each of them.
func decodeFlags(data []byte) ([]Setting, error) {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return nil, err
	}
	var out []Setting
	for ad.Next() {
		if ad.Type() != privateFlags {
			continue
		}
		ad.Nested(func(set *netlink.AttributeDecoder) error {
			bits, err := decodeBits(set)
			for _, b := range bits {
				s := Setting{Name: b.name}
				if b.on {
					s.Value = 1
				}
				out = append(out, s)
			}
			return err
		})
	}
	return out, ad.Err()
}

type bit struct {
	name string
	on   bool
}

// decodeBits reads a bit set in its verbose form. Without a mask every bit that
// is listed is set, and none has the flag that says so.
func decodeBits(set *netlink.AttributeDecoder) ([]bit, error) {
	var out []bit
	noMask := false
	for set.Next() {
		switch set.Type() {
		case bitsetNoMask:
			noMask = true
		case bitsetBits:
			set.Nested(func(bits *netlink.AttributeDecoder) error {
				for bits.Next() {
					bits.Nested(func(one *netlink.AttributeDecoder) error {
						out = append(out, decodeBit(one))
						return nil
					})
				}
				return nil
			})
		}
	}
	if noMask {
		for i := range out {
			out[i].on = true
		}
	}
	return out, set.Err()
}

func decodeBit(ad *netlink.AttributeDecoder) (b bit) {
	for ad.Next() {
		switch ad.Type() {
		case bitsetBitName:
			b.name = ad.String()
		case bitsetBitIsSet:
			b.on = true
		}
	}
	return b
}
