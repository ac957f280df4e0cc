package dhcp

import (
	"net"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// maxMessage is the size of the largest message that a client takes.
const maxMessage = 1500

// requested are the options that each client requests.
var requested = []dhcpv4.OptionCode{
	dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionIPAddressLeaseTime, dhcpv4.OptionServerIdentifier,
	dhcpv4.OptionRenewTimeValue, dhcpv4.OptionRebindingTimeValue,
}

// message makes a message of a client.
func message(r *record, mac net.HardwareAddr, kind dhcpv4.MessageType, more ...dhcpv4.Modifier) (*dhcpv4.DHCPv4, error) {
	with := []dhcpv4.Modifier{
		dhcpv4.WithHwAddr(mac), dhcpv4.WithMessageType(kind),
		dhcpv4.WithOption(dhcpv4.OptClientIdentifier(r.clientID())),
	}
	if kind != dhcpv4.MessageTypeRelease && kind != dhcpv4.MessageTypeDecline {
		with = append(with, dhcpv4.WithRequestedOptions(r.requests()...), dhcpv4.WithOption(dhcpv4.OptMaxMessageSize(maxMessage)))
		if r.Hostname != "" {
			with = append(with, dhcpv4.WithOption(dhcpv4.OptHostName(r.Hostname)))
		}
	}
	return dhcpv4.New(append(with, more...)...)
}

// discover asks for offers. Answers are broadcasts: those to an address that the link does not have
// yet would not reach an ipvlan.
func discover(r *record, mac net.HardwareAddr) (*dhcpv4.DHCPv4, error) {
	more := []dhcpv4.Modifier{dhcpv4.WithBroadcast(true)}
	if r.Last.IsValid() {
		more = append(more, dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(r.Last.AsSlice())))
	}
	return message(r, mac, dhcpv4.MessageTypeDiscover, more...)
}

// request accepts an offer. It has the transaction of the offer (RFC 2131 section 4.4.1 and table 5): servers and relays may
// drop another one.
func request(r *record, mac net.HardwareAddr, offer Lease, xid dhcpv4.TransactionID) (*dhcpv4.DHCPv4, error) {
	return message(r, mac, dhcpv4.MessageTypeRequest, dhcpv4.WithBroadcast(true), dhcpv4.WithTransactionID(xid),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(offer.Address.Addr().AsSlice())),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(offer.Server.AsSlice())))
}

// decline refuses an address that another host has (RFC 2131 section 4.4.4 and table 5).
func decline(r *record, mac net.HardwareAddr, of Lease) (*dhcpv4.DHCPv4, error) {
	return message(r, mac, dhcpv4.MessageTypeDecline,
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(of.Address.Addr().AsSlice())),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(of.Server.AsSlice())))
}

// prolong asks for more time.
func prolong(r *record, mac net.HardwareAddr) (*dhcpv4.DHCPv4, error) {
	return message(r, mac, dhcpv4.MessageTypeRequest, dhcpv4.WithClientIP(r.Lease.Address.Addr().AsSlice()))
}

// release gives the address back.
func release(r *record, mac net.HardwareAddr) (*dhcpv4.DHCPv4, error) {
	return message(r, mac, dhcpv4.MessageTypeRelease, dhcpv4.WithClientIP(r.Lease.Address.Addr().AsSlice()),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(r.Lease.Server.AsSlice())))
}
