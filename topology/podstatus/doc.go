// Package podstatus reads what the objects of a cluster say about the network of one pod: its claims with what its node
// has reported, its Events, and the topologies of the claims. It reads with the rights of whoever asks, and calls no
// agent: what may not be read is named, and the rest is shown.
//
// Fields that it does not know, of a later version, are left out. Undecodable objects are named.
package podstatus
