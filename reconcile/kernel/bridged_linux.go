package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"

	"github.com/plumbline/plumbline/topology/fault"
)

// bridgedSysctls say whether what a bridge forwards between its ports passes the host's rules for packets
// (Documentation/networking/ip-sysctl.rst, "/proc/sys/net/bridge/*"). They exist while br_netfilter is loaded.
var bridgedSysctls = []string{"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"}

// TranslateBridged makes what bridges of the host forward between their ports pass the translation of addresses: without
// it the answer of a Service whose endpoint is on the bridge of its client has the endpoint's address. It loads the
// module br_netfilter and sets the sysctls, unless that is so.
func (h *Host) TranslateBridged() error {
	for _, path := range bridgedSysctls {
		if err := h.setBridged(path); err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) setBridged(path string) error {
	name := strings.ReplaceAll(path, "/", ".")
	file, err := h.sysctlFile(path)
	if err != nil {
		return err
	}
	return h.socket.enter(func() error {
		value, err := readFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			if err := h.loadBridgeNetfilter(); err != nil {
				return err
			}
			value, err = readFile(file)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return fault.New(fault.NotReady, errors.New("the kernel has not loaded br_netfilter for the match physdev: "+
				"run modprobe br_netfilter on the node, and let it be loaded at boot"))
		}
		if err != nil {
			return fault.New(fault.NotReady, fmt.Errorf("read the sysctl %s: %w", name, err))
		}
		if strings.TrimSpace(string(value)) == "1" {
			return nil
		}
		if err := os.WriteFile(file, []byte("1"), 0); err != nil {
			return fault.New(fault.NotReady, fmt.Errorf("set the sysctl %s to 1: %w", name, err))
		}
		return nil
	})
}

// physdevIsIn is XT_PHYSDEV_OP_ISIN, and physdevBytes the size of struct xt_physdev_info with its padding
// (include/uapi/linux/netfilter/xt_physdev.h).
const (
	physdevIsIn  = 8
	physdevBytes = 72
	physdevFlags = 4*16 + 1 // the offset of bitmask
)

// loadBridgeNetfilter loads br_netfilter without CAP_SYS_MODULE and without the host's files: the kernel itself runs
// modprobe for a rule with the match physdev (physdev_mt_check in net/netfilter/xt_physdev.c). The rule is deleted
// in the transaction that creates it.
func (h *Host) loadBridgeNetfilter() error {
	err := h.withNAT(func(c *nftables.Conn) error {
		table := c.AddTable(&nftables.Table{Name: "plumbline-bridged", Family: nftables.TableFamilyIPv4})
		chain := c.AddChain(&nftables.Chain{Name: "load", Table: table})
		info := make(xt.Unknown, physdevBytes)
		info[physdevFlags] = physdevIsIn
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Match{Name: "physdev", Info: &info}}})
		c.DelTable(table)
		return c.Flush()
	})
	if err != nil {
		return fault.New(fault.NotReady, fmt.Errorf("load br_netfilter by a rule with the match physdev, "+
			"which needs the modules nft_compat and xt_physdev (or run modprobe br_netfilter on the node): %w", err))
	}
	return nil
}
