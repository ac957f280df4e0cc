// Package lldp listens for the Link Layer Discovery Protocol (IEEE 802.1AB) on the ports of
// a node, and reports what each of them is connected to. It sends nothing.
//
// Frames come from the other end of the wire, or from a pod on a virtual function of the
// same card: they are limited, checked, and accepted only after a delay (Table).
package lldp
