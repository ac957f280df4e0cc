// Package bond is a step type.
package bond

import (
	"crypto/rand" // want depguard

	"github.com/vishvananda/netlink" // want depguard

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/vlan"  // want depguard
	"github.com/plumbline/plumbline/reconcile" // want depguard
	"github.com/plumbline/plumbline/topology/contract"
)

var _, _, _, _, _, _ = rand.Read, netlink.LinkList, netstate.Known, vlan.Known, reconcile.Known, contract.Known // want forbidigo

// Known is here to be imported.
const Known = "bond"
