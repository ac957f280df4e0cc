// Package loopback is the CNI plugin of the same name: it sets the interface lo of a pod up.
// containerd starts it for each pod, whatever network pods have, unless its configuration says
// otherwise; a node without CNI plugins has none.
//
// It needs no agent and keeps nothing. It imports nothing but the types of CNI and a library
// that opens a socket in a namespace, so that the program stays small.
package loopback

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"
)

// Name is the name under which container runtimes look for the plugin.
const Name = "loopback"

// link is the interface that the kernel creates in each namespace.
const link = "lo"

// Main is the plugin: the program that a container runtime starts for each call.
func Main() {
	none := func(*skel.CmdArgs) error { return nil }
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Check: check, Del: del, GC: none, Status: none}, version.All,
		"CNI plugin loopback of plumbline: sets lo up")
}

func add(a *skel.CmdArgs) error {
	var conf types.PluginConf
	if err := json.Unmarshal(a.StdinData, &conf); err != nil {
		return types.NewError(types.ErrDecodingFailure, "configuration of the network", err.Error())
	}
	if _, err := flags(a.Netns, func(f uint16) uint16 { return f | unix.IFF_UP }); err != nil {
		return err
	}
	return types.PrintResult(&types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{{Name: link, Mac: "00:00:00:00:00:00", Sandbox: a.Netns}},
		IPs: []*types100.IPConfig{ // the kernel adds them
			{Interface: new(0), Address: net.IPNet{IP: net.IPv4(127, 0, 0, 1), Mask: net.CIDRMask(8, 32)}},
			{Interface: new(0), Address: net.IPNet{IP: net.IPv6loopback, Mask: net.CIDRMask(128, 128)}},
		},
	}, conf.CNIVersion)
}

func check(a *skel.CmdArgs) error {
	f, err := flags(a.Netns, nil)
	if err != nil {
		return err
	}
	if f&unix.IFF_UP == 0 {
		return types.NewError(types.ErrInternal, fmt.Sprintf("interface %q is down", link), "")
	}
	return nil
}

// del sets lo down. A namespace that does not exist any more is no error.
func del(a *skel.CmdArgs) error {
	if a.Netns == "" {
		return nil
	}
	_, err := flags(a.Netns, func(f uint16) uint16 { return f &^ unix.IFF_UP })
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNone) {
		return nil
	}
	return err
}

// errNone: what is left of a namespace that was unmounted is an empty file.
var errNone = errors.New("nothing is mounted there")

// flags reads the flags of lo in the namespace at a path, and writes what change makes of
// them; a nil change only reads.
func flags(path string, change func(uint16) uint16) (uint16, error) {
	// O_NONBLOCK: whatever the path is, opening it must not wait.
	ns, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, fmt.Errorf("network namespace: %w", err)
	}
	defer ns.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(ns.Fd()), &st); err != nil {
		return 0, fmt.Errorf("network namespace %q: %w", path, err)
	}
	if st.Type != unix.NSFS_MAGIC {
		return 0, fmt.Errorf("network namespace %q: %w", path, errNone)
	}
	s, err := socket.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0, Name, &socket.Config{NetNS: int(ns.Fd())})
	if err != nil {
		return 0, fmt.Errorf("network namespace %q: %w", path, err)
	}
	defer s.Close()
	raw, err := s.SyscallConn()
	if err != nil {
		return 0, err
	}
	request, err := unix.NewIfreq(link)
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		if failed = unix.IoctlIfreq(int(fd), unix.SIOCGIFFLAGS, request); failed != nil || change == nil {
			return
		}
		request.SetUint16(change(request.Uint16()))
		failed = unix.IoctlIfreq(int(fd), unix.SIOCSIFFLAGS, request)
	})
	if err := errors.Join(err, failed); err != nil {
		return 0, fmt.Errorf("set %q in network namespace %q: %w", link, path, err)
	}
	return request.Uint16(), nil
}
