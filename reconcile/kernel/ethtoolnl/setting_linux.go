package ethtoolnl

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Class is a group of settings that is read and written with one message.
type Class string

// The classes.
const (
	Feature     Class = "feature"
	PrivateFlag Class = "private-flag"
	Ring        Class = "ring"
	Channel     Class = "channel"
	Coalesce    Class = "coalesce"
)

// Setting is one setting of a device. A switch has the value 0 or 1.
type Setting struct {
	Name  string
	Value uint32
	// Fixed: the driver does not permit a change.
	Fixed bool
}

// field is where a setting is in the messages of its class.
type field struct {
	name string
	attr uint16
	size int // bytes
}

// class is how settings of one class are encoded: in fields, or as bits with names.
type class struct {
	get, set uint8
	fields   []field
	bits     uint16 // the bit set that is written
}

// Switches reports whether the settings of a class are on or off.
func (c Class) Switches() bool { return classes[c].bits != 0 }

// Commands and attributes: linux/ethtool_netlink.h.
var classes = map[Class]class{
	Feature:     {get: 11, set: 12, bits: unix.ETHTOOL_A_FEATURES_WANTED},
	PrivateFlag: {get: 13, set: 14, bits: unix.ETHTOOL_A_PRIVFLAGS_FLAGS},
	Ring: {get: 15, set: 16, fields: []field{
		{"rx", 6, 4},
		{"rx-mini", 7, 4},
		{"rx-jumbo", 8, 4},
		{"tx", 9, 4},
		{"rx-buf-len", 10, 4},
		{"cqe-size", 12, 4},
		{"tx-push", 13, 1},
		{"rx-push", 14, 1},
		{"tx-push-buf-len", 15, 4},
	}},
	Channel: {get: 17, set: 18, fields: []field{
		{"rx", 6, 4}, {"tx", 7, 4}, {"other", 8, 4}, {"combined", 9, 4},
	}},
	Coalesce: {get: 19, set: 20, fields: []field{
		{"rx-usecs", 2, 4},
		{"rx-frames", 3, 4},
		{"rx-usecs-irq", 4, 4},
		{"rx-frames-irq", 5, 4},
		{"tx-usecs", 6, 4},
		{"tx-frames", 7, 4},
		{"tx-usecs-irq", 8, 4},
		{"tx-frames-irq", 9, 4},
		{"stats-block-usecs", 10, 4},
		{"adaptive-rx", 11, 1},
		{"adaptive-tx", 12, 1},
		{"pkt-rate-low", 13, 4},
		{"rx-usecs-low", 14, 4},
		{"rx-frames-low", 15, 4},
		{"tx-usecs-low", 16, 4},
		{"tx-frames-low", 17, 4},
		{"pkt-rate-high", 18, 4},
		{"rx-usecs-high", 19, 4},
		{"rx-frames-high", 20, 4},
		{"tx-usecs-high", 21, 4},
		{"tx-frames-high", 22, 4},
		{"sample-interval", 23, 4},
		{"cqe-mode-tx", 24, 1},
		{"cqe-mode-rx", 25, 1},
		{"tx-aggr-max-bytes", 26, 4},
		{"tx-aggr-max-frames", 27, 4},
		{"tx-aggr-time-usecs", 28, 4},
	}},
}

// ErrUnknown is the error for the name of a setting that no driver has.
var ErrUnknown = errors.New("unknown ethtool setting")
