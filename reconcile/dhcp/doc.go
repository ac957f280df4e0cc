// Package dhcp keeps leases of DHCP servers for links in sandboxes. It is a domain of the engine
// beside the kernel's network (docs/adr/0024, docs/adr/0053).
//
// A lease is a record on disk and a client, which requests the lease, renews it, and records what
// the server has said. It sets no address: the planner wants that of the lease, and the client
// only changes how long the kernel keeps it. Whatever a server says is checked before it is
// recorded (parse), and bounded in size, number and time (wire, exchange).
//
// Sources: RFC 2131, RFC 2132, RFC 4361 (client identifier), RFC 6842 (servers return it).
package dhcp
