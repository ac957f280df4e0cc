package inventory_test

import (
	"context"
	"fmt"
	"os"
	"testing/fstest"

	"github.com/plumbline/plumbline/inventory"
)

func Example() {
	sys := os.DirFS("/sys")
	found, err := inventory.Discover(sys, inventory.Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err) // the list is good nevertheless
	}
	found = inventory.GuardUplinks(found, inventory.Uplinks{Routes: []string{"eth0"}})
	if err := inventory.Table(os.Stderr, inventory.List(found, nil)); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

func ExampleFirst() {
	devices := []inventory.Device{
		{ID: "0000:03:00.0", Name: "pci-0000-03-00-0", Kind: inventory.KindPF, IfName: "enp3s0f0"},
		{ID: "0000:03:00.2", Name: "pci-0000-03-00-2", Kind: inventory.KindVF, PF: &inventory.PF{IfName: "enp3s0f0"}},
		{ID: "0000:03:00.3", Name: "pci-0000-03-00-3", Kind: inventory.KindVF, PF: &inventory.PF{IfName: "enp3s0f0"}},
	}
	selector, err := inventory.Compile(`device.attributes["dra.networking"].pfName == "enp3s0f0"`)
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := inventory.First(context.Background(), devices, selector, map[string]bool{"0000:03:00.2": true})
	fmt.Println(d.Name, err)
	// Output: pci-0000-03-00-3 <nil>
}

func ExampleCompile() {
	_, err := inventory.Compile(`device.attribute["dra.networking"].rdma = true`)
	fmt.Println(err)
	// Output: selector.cel: 1:41: "=" is not an operator, did you mean "=="?
}

func ExampleDiscover() {
	// Any fs.FS will do that can read links.
	sys := fstest.MapFS{
		"class/net/dummy0":                    {Data: []byte("../../devices/virtual/net/dummy0"), Mode: os.ModeSymlink},
		"devices/virtual/net/dummy0/type":     {Data: []byte("1\n")},
		"devices/virtual/net/dummy0/mtu":      {Data: []byte("1500\n")},
		"devices/virtual/net/dummy0/flags":    {Data: []byte("0x83\n")},
		"devices/virtual/net/dummy0/address":  {Data: []byte("62:f9:2d:00:f0:27\n")},
		"devices/virtual/net/dummy0/carrier":  {Data: []byte("1\n")},
		"devices/virtual/net/dummy0/upper_br": {Data: []byte("../br"), Mode: os.ModeSymlink},
	}
	found, err := inventory.Discover(sys, inventory.Options{})
	for _, d := range found {
		fmt.Println(d.Name, d.Kind, d.MTU, d.State(), d.Uppers, err)
	}
	// Output: net-dummy0 virtual 1500 up [br] <nil>
}
