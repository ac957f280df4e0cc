package main

import (
	"encoding/binary"
	"net"
	"os"
	"time"

	"github.com/mdlayher/packet"
)

// announce says by LLDP what a switch of this name would.
func announce(link, name string, end <-chan os.Signal) error {
	ifi, err := net.InterfaceByName(link)
	if err != nil {
		return err
	}
	conn, err := packet.Listen(ifi, packet.Datagram, 0x88cc, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	tlv := func(typ int, value string) string {
		return string(binary.BigEndian.AppendUint16(nil, uint16(typ<<9|len(value)))) + value
	}
	unit := []byte(tlv(1, "\x04\x02\x00\x00\x00\x00\xaa") + tlv(2, "\x05Ethernet7") + tlv(3, "\x00\x78") + tlv(5, name) + tlv(0, ""))
	to := &packet.Addr{HardwareAddr: net.HardwareAddr{0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e}}
	for {
		if _, err := conn.WriteTo(unit, to); err != nil {
			return err
		}
		select {
		case <-end:
			return nil
		case <-time.After(time.Second):
		}
	}
}
