// Package lldp listens for the Link Layer Discovery Protocol (IEEE 802.1AB) on the ports of
// a node, and says what each of them is connected to. It sends nothing.
//
// What it reads was sent by whoever is at the other end of the wire, and perhaps by a pod on
// a virtual function of the same card: it is bounded, checked and believed slowly (Table).
package lldp
