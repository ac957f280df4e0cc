// Package vfio opens a function as a driver in user space does, for tests.
package vfio

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The requests of linux/vfio.h: _IO(';', 100 + n).
const (
	setIOMMU     = ';'<<8 | 102
	groupStatus  = ';'<<8 | 103
	setContainer = ';'<<8 | 104
	getDeviceFD  = ';'<<8 | 106

	viable     = 1 // VFIO_GROUP_FLAGS_VIABLE
	type1IOMMU = 1 // VFIO_TYPE1_IOMMU
)

// Device is a function that is open. While it is, its driver cannot be changed.
type Device struct{ files []*os.File }

// Open opens the function with that PCI address, whose group has that node.
func Open(node, address string) (d *Device, err error) {
	d = &Device{}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	container, err := d.open("/dev/vfio/vfio")
	if err != nil {
		return nil, err
	}
	group, err := d.open(node)
	if err != nil {
		return nil, err
	}
	status := struct{ size, flags uint32 }{size: 8}
	if _, err := ioctl(group, groupStatus, unsafe.Pointer(&status)); err != nil {
		return nil, fmt.Errorf("status of %s: %w", node, err)
	}
	if status.flags&viable == 0 {
		return nil, fmt.Errorf("%s is not viable: a function of the group has another driver", node)
	}
	fd := int32(container.Fd())
	if _, err := ioctl(group, setContainer, unsafe.Pointer(&fd)); err != nil {
		return nil, fmt.Errorf("add %s to a container: %w", node, err)
	}
	if err := unix.IoctlSetInt(int(container.Fd()), setIOMMU, type1IOMMU); err != nil {
		return nil, fmt.Errorf("set the IOMMU of %s: %w", node, err)
	}
	name, err := unix.BytePtrFromString(address)
	if err != nil {
		return nil, err
	}
	device, err := ioctl(group, getDeviceFD, unsafe.Pointer(name))
	if err != nil {
		return nil, fmt.Errorf("open %s by %s: %w", address, node, err)
	}
	d.files = append(d.files, os.NewFile(device, address))
	return d, nil
}

// Close closes the function.
func (d *Device) Close() error {
	var errs []error
	for _, f := range slices.Backward(d.files) {
		errs = append(errs, f.Close())
	}
	d.files = nil
	return errors.Join(errs...)
}

func (d *Device) open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		d.files = append(d.files, f)
	}
	return f, err
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) (uintptr, error) {
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg))
	if errno != 0 {
		return 0, errno
	}
	return r, nil
}
