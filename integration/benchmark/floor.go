package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// floor creates the same kernel objects with as few messages as possible, knows
// everything beforehand, observes nothing, keeps no record and checks nothing.
type floor struct {
	vfs  [2]vf
	macs [2]net.HardwareAddr
}

func (f *floor) name() string { return "kernel floor (one process, bare netlink)" }

func (f *floor) apply(_ context.Context, path string) error {
	ns, pod, err := openPod(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	defer pod.Close()
	var ports [2]int
	for i, v := range f.vfs {
		link, err := netlink.LinkByName(v.name)
		if err != nil {
			return err
		}
		pf, err := netlink.LinkByName(v.pf)
		if err != nil {
			return err
		}
		f.macs[i] = link.Attrs().HardwareAddr
		if err := netlink.LinkSetVfSpoofchk(pf, v.index, false); err != nil {
			return err
		}
		if err := netlink.LinkSetVfTrust(pf, v.index, true); err != nil {
			return err
		}
		if err := moveAs(link.Attrs().Index, int(ns), fmt.Sprintf("net%d", i+1), false); err != nil {
			return err
		}
		moved, err := pod.LinkByName(fmt.Sprintf("net%d", i+1))
		if err != nil {
			return err
		}
		ports[i] = moved.Attrs().Index
	}
	bond := netlink.NewLinkBond(netlink.LinkAttrs{Name: "bond0", MTU: 1450})
	bond.Mode, bond.FailOverMac, bond.Miimon = netlink.BOND_MODE_ACTIVE_BACKUP, netlink.BOND_FAIL_OVER_MAC_ACTIVE, 100
	if err := pod.LinkAdd(bond); err != nil {
		return err
	}
	for _, p := range ports {
		if err := pod.LinkSetMasterByIndex(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: p}}, bond.Index); err != nil {
			return err
		}
	}
	names := []string{"data0", "mgmt0"}
	vlans := make([]*netlink.Vlan, len(names))
	for i, name := range names {
		vlans[i] = &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: bond.Index, MTU: 1450}, VlanId: 100 * (i + 1)}
		if err := pod.LinkAdd(vlans[i]); err != nil {
			return err
		}
	}
	// As the engine: a link is up only after its settings, and then has addresses.
	if err := writeSysctls(ns, append([]string{bond.Name}, names...), names); err != nil {
		return err
	}
	if err := pod.LinkSetUp(bond); err != nil {
		return err
	}
	for i, v := range vlans {
		if err := pod.LinkSetUp(v); err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(fmt.Sprintf("10.%d.0.5/24", 100*(i+1)))
		if err != nil {
			return err
		}
		if err := pod.AddrAdd(v, addr); err != nil {
			return err
		}
	}
	return nil
}

func (f *floor) remove(_ context.Context, path string) error {
	ns, pod, err := openPod(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	defer pod.Close()
	bond, err := pod.LinkByName("bond0")
	if err != nil {
		return err
	}
	if err := pod.LinkDel(bond); err != nil { // the VLANs go with it
		return err
	}
	home, err := netns.Get()
	if err != nil {
		return err
	}
	defer home.Close()
	for i, v := range f.vfs {
		link, err := pod.LinkByName(fmt.Sprintf("net%d", i+1))
		if err != nil {
			return err
		}
		if err := moveFrom(ns, link.Attrs().Index, int(home), v.name); err != nil {
			return err
		}
		pf, err := netlink.LinkByName(v.pf)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetVfSpoofchk(pf, v.index, true); err != nil {
			return err
		}
		if err := netlink.LinkSetVfTrust(pf, v.index, false); err != nil {
			return err
		}
	}
	return nil
}

// openPod opens a namespace, and a netlink socket in it.
func openPod(path string) (netns.NsHandle, *netlink.Handle, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return netns.None(), nil, err
	}
	pod, err := netlink.NewHandleAt(ns)
	if err != nil {
		return netns.None(), nil, errors.Join(err, ns.Close())
	}
	return ns, pod, nil
}

// moveAs moves and renames a link in one message.
func moveAs(index, nsFD int, name string, up bool) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	fillMove(req, index, nsFD, name, up)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func fillMove(req *nl.NetlinkRequest, index, nsFD int, name string, up bool) {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	if up {
		msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	}
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(nsFD))))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
}

// moveFrom is moveAs from within another namespace.
func moveFrom(ns netns.NsHandle, index, target int, name string) error {
	return inside(ns, func() error {
		req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
		fillMove(req, index, target, name, false)
		_, err := req.Execute(unix.NETLINK_ROUTE, 0) // on a socket of this thread's namespace
		return err
	})
}

// writeSysctls has links ignore routers, as those of the engine do, and sets what the topologies of the comparison tune.
func writeSysctls(ns netns.NsHandle, links, tuned []string) error {
	return inside(ns, func() error {
		for _, link := range links {
			for _, name := range []string{"accept_ra", "accept_redirects"} {
				if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/"+name, []byte("0"), 0); err != nil {
					return err
				}
			}
		}
		for _, link := range tuned {
			for name, value := range map[string]string{"rp_filter": "2", "arp_notify": "1"} {
				if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+link+"/"+name, []byte(value), 0); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func inside(ns netns.NsHandle, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		return err
	}
	defer home.Close()
	if err := netns.Set(ns); err != nil {
		return err
	}
	ferr := f()
	if err := netns.Set(home); err != nil {
		return err
	}
	return ferr
}
