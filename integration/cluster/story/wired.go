package story

import "fmt"

// WiredNode is the script that the first or second of two wired nodes, number 0 or 1, runs at each boot: both have
// addresses of two networks, one on each card, and reach each other by the addresses of their Node
// objects over the first card. Both cards are on one wire, so that each may answer for its own
// addresses only.
func WiredNode(number int) string {
	return fmt.Sprintf(`sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2
ip address add 10.0.%d.15/21 dev enp3s0f0
ip address add %s/24 dev enp3s0f0
ip address add %s/24 dev enp3s0f1`, 11+number, WiredAddress(number, 0), WiredAddress(number, 1))
}

// WiredAddress is the address of a wired node on its first or second card, number 0 or 1: of 10.1.1.0/24
// on the first, of 10.1.2.0/24 on the second.
func WiredAddress(node, card int) string { return fmt.Sprintf("10.1.%d.%d", 1+card, 1+node) }
