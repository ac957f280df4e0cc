package ethtoolnl

import (
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
	flagOmitReply  = 1 << 1 // of a write: the ack is enough
	featuresHW     = 2
	featuresWanted = 3
	featuresActive = 4
	featuresFixed  = 5 // ETHTOOL_A_FEATURES_NOCHANGE
	privateFlags   = 2
	bitsetNoMask   = 1
	bitsetBits     = 3
	bitsetBitsBit  = 1
	bitsetBitName  = 2
	bitsetBitIsSet = 3 // ETHTOOL_A_BITSET_BIT_VALUE
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
	header(ae, index, 0)
	return message(k.get, ae)
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

// decode reads a reply.
func decode(c Class, data []byte) ([]Setting, error) {
	if c == Feature {
		return decodeFeatures(data)
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

// decodeFeatures reads the four bit sets of features. That of the hardware comes
// with a mask and so lists every feature there is; of the others only the bits
// that are set are listed. A feature is fixed when the hardware cannot switch it
// or the driver never does, as ethtool(8) has it.
func decodeFeatures(data []byte) ([]Setting, error) {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return nil, err
	}
	var all []bit
	sets := map[uint16]map[string]bool{}
	for ad.Next() {
		typ := ad.Type()
		if typ < featuresHW || typ > featuresFixed {
			continue
		}
		sets[typ] = map[string]bool{}
		ad.Nested(func(set *netlink.AttributeDecoder) error {
			bits, err := decodeBits(set)
			for _, b := range bits {
				sets[typ][b.name] = b.on
			}
			if typ == featuresHW {
				all = bits
			}
			return err
		})
	}
	if err := ad.Err(); err != nil {
		return nil, err
	}
	var out []Setting
	for _, b := range all {
		if b.name == "" {
			continue // a bit without a name is internal to the kernel
		}
		s := Setting{Name: b.name, Fixed: !b.on || sets[featuresFixed][b.name]}
		if sets[featuresActive][b.name] {
			s.Value = 1
		}
		out = append(out, s)
	}
	return out, nil
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
