// Package addresspool is the arithmetic of address pools: how a pool is divided into
// blocks, which addresses of a block can be allocated, and who has them.
//
// A Layout is a pool that was read and checked. It is divided into blocks, of which a
// node holds some: each block has a name that is that of its lease in the cluster, so
// that two nodes cannot hold the same block. Holdings has the blocks of one node, and to
// whom it has given what: data in, data out, with the time as an argument.
//
// Nothing is enumerated: a pool of 2^64 addresses needs no more memory than one of 16.
package addresspool
