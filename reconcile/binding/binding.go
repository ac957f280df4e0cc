package binding

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/topology/fault"
)

// Options say where the machine is found. The zero value is this one.
type Options struct {
	// Sysfs is where sysfs is mounted; /sys when empty.
	Sysfs string
	// Writable is where bus/pci and devices of sysfs can be written; Sysfs when empty. A
	// container's own is read-only.
	Writable string
	// Patience bounds the wait for a driver to release a function. Default 2 s.
	Patience time.Duration
}

// Host is the PCI functions of this machine. It is safe for concurrent use.
type Host struct {
	root     string
	writable string
	patience time.Duration

	mu sync.Mutex
	// unbinding are the functions whose driver was requested to unbind and has
	// not done so yet.
	unbinding map[string]chan error
}

// Open returns the functions of the machine.
func Open(o Options) *Host {
	o.Sysfs = cmp.Or(o.Sysfs, "/sys")
	o.Writable = cmp.Or(o.Writable, o.Sysfs)
	o.Patience = cmp.Or(o.Patience, 2*time.Second)
	return &Host{root: o.Sysfs, writable: o.Writable, patience: o.Patience, unbinding: map[string]chan error{}}
}

// Domain is the part of the engine's options that makes it keep bindings. Their
// history ends with the boot: it is the kernel that forgets them.
func (h *Host) Domain() reconcile.ExternalDomain {
	return reconcile.ExternalDomain{
		Name: "the PCI bus", Kinds: []netstate.Kind{netstate.KindBinding},
		Open: func(context.Context, reconcile.Sandbox) (reconcile.External, error) { return h, nil },
	}
}

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)

// Extend implements reconcile.External.
func (h *Host) Extend(_ context.Context, s *netstate.Snapshot, queried []netstate.Object) error {
	for _, o := range queried {
		b, there, err := h.read(o.Key().ID)
		switch {
		case err != nil:
			return fmt.Errorf("read %s: %w", o.Key(), err)
		case there:
			s.Put(b)
		default:
			s.PutAbsent(o.Key())
		}
	}
	return nil
}

// Close implements reconcile.External: nothing is held open.
func (h *Host) Close() error { return nil }

func (h *Host) function(id string) string { return filepath.Join(h.root, "bus/pci/devices", id) }

// read reads one function, false when there is none.
func (h *Host) read(id string) (b netstate.Binding, there bool, err error) {
	if !pciAddress.MatchString(id) {
		return b, false, nil
	}
	dir := h.function(id)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return b, false, nil
	}
	b = netstate.Binding{ID: id, Driver: new(target(dir, "driver")), PF: target(dir, "physfn"), Group: target(dir, "iommu_group")}
	override, err := text(dir, "driver_override")
	if err != nil {
		return b, false, err
	}
	if override == "(null)" { // lib/vsprintf.c writes that for none
		override = ""
	}
	b.Override = &override
	if b.Group != "" {
		if err := h.readGroup(&b); err != nil {
			return b, false, err
		}
	}
	b.Nodes = nodes(dir, b)
	b.NodeGUID, b.PortGUID = guids(dir)
	return b, true, nil
}

// noIOMMU is the name of the groups that VFIO makes where there is no IOMMU
// (drivers/vfio/group.c, vfio_noiommu_group_alloc).
const noIOMMU = "vfio-noiommu"

// readGroup reads which devices share the IOMMU group.
func (h *Host) readGroup(b *netstate.Binding) error {
	group := filepath.Join(h.root, "kernel/iommu_groups", b.Group)
	name, _ := text(group, "name") // most have none
	b.NoIOMMU = name == noIOMMU
	members, err := os.ReadDir(filepath.Join(group, "devices"))
	if err != nil {
		return err
	}
	for _, m := range members {
		class, _ := text(h.function(m.Name()), "class")
		bridge := strings.HasPrefix(class, "0x06") // it routes what others send, and VFIO lets it have its driver
		if m.Name() != b.ID && !bridge {
			b.Shared = append(b.Shared, m.Name())
		}
	}
	slices.Sort(b.Shared)
	return nil
}

// nodes are the character devices that the driver of a function has made.
func nodes(dir string, b netstate.Binding) []string {
	switch {
	case isVFIO(*b.Driver) && b.NoIOMMU:
		return []string{"/dev/vfio/noiommu-" + b.Group, "/dev/vfio/vfio"}
	case isVFIO(*b.Driver) && b.Group != "":
		return []string{"/dev/vfio/" + b.Group, "/dev/vfio/vfio"}
	}
	made, _ := filepath.Glob(filepath.Join(dir, "uio", "uio[0-9]*"))
	var out []string
	for _, m := range made {
		out = append(out, "/dev/"+filepath.Base(m))
	}
	return out
}

// guids are those of the RDMA device of a function of InfiniBand: the port's GUID is the end of its first GID, which has the interface
// of the function, too (ipoib_parent_init in drivers/infiniband/ulp/ipoib/ipoib_main.c). They are nil without one such device.
func guids(dir string) (node, port *string) {
	devices, _ := filepath.Glob(filepath.Join(dir, "infiniband", "*"))
	if len(devices) != 1 {
		return nil, nil
	}
	if layer, _ := text(devices[0], "ports/1/link_layer"); layer != "InfiniBand" {
		return nil, nil
	}
	nodeGUID, err := text(devices[0], "node_guid")
	gid, noGID := text(devices[0], "ports/1/gids/0")
	if err != nil || noGID != nil {
		return nil, nil
	}
	return new(guidText(nodeGUID)), new(guidText(gid))
}

// guidText returns the last eight bytes of what sysfs writes as 0002:c903:0021:6e70, "" for those that mean none.
func guidText(sysfs string) string {
	b, err := hex.DecodeString(strings.ReplaceAll(sysfs, ":", ""))
	if err != nil || len(b) < 8 {
		return ""
	}
	guid := net.HardwareAddr(b[len(b)-8:])
	if n := bytes.Count(guid, guid[:1]); n == len(guid) && (guid[0] == 0 || guid[0] == 0xff) {
		return ""
	}
	return guid.String()
}

func isVFIO(driver string) bool { return strings.Contains(driver, "vfio") }

// inUse reports whether a process has the function open. A driver of VFIO enables it
// for that time only (drivers/vfio/pci/vfio_pci_core.c, vfio_pci_core_enable).
func (h *Host) inUse(id, driver string) bool {
	enabled, err := text(h.function(id), "enable")
	return isVFIO(driver) && (err != nil || enabled != "0")
}

// Apply implements reconcile.External.
func (h *Host) Apply(ctx context.Context, c netstate.Change) error {
	want, ok := c.After.(netstate.Binding)
	if !ok {
		return fault.New(fault.Invalid, errors.New("a binding is not deleted, it is changed"))
	}
	have, there, err := h.read(want.ID)
	switch {
	case err != nil:
		return err
	case !there:
		return netstate.Absent(want)
	}
	switch {
	case want.Driver != nil && *want.Driver != *have.Driver:
		if err := h.rebind(ctx, want.ID, *have.Driver, *want.Driver); err != nil {
			return errors.Join(err, h.override(want.ID, *have.Override))
		}
	case want.NodeGUID != nil || want.PortGUID != nil:
		if err := h.readGUIDs(ctx, want, *have.Driver); err != nil {
			return err
		}
	}
	want.Override = cmp.Or(want.Override, have.Override)
	return h.override(want.ID, *want.Override)
}

// rebind gives a function another driver, "" for none, or the one that it had.
func (h *Host) rebind(ctx context.Context, id, from, to string) error {
	if to != "" {
		if _, err := os.Stat(filepath.Join(h.root, "bus/pci/drivers", to)); err != nil {
			return fault.New(fault.Unsupported,
				fmt.Errorf("driver %q is not loaded: run modprobe %s on the node, and name it in /etc/modules-load.d", to, to))
		}
		// From here on nothing else takes the function, also after a crash.
		if err := h.override(id, to); err != nil {
			return err
		}
	}
	if from != "" {
		if err := h.unbind(ctx, id, from); err != nil {
			return err
		}
	}
	if to == "" {
		return nil
	}
	err := h.bind(id, to)
	if err == nil || from == "" {
		return err
	}
	if back := errors.Join(h.override(id, from), h.bind(id, from)); back != nil {
		return fmt.Errorf("%w; and driver %q does not take it back: %w", err, from, back)
	}
	return err
}

// readGUIDs has the driver of a function read its GUIDs, by binding it again. A function without a driver is one whose agent was killed
// meanwhile: it gets the one that its IDs choose.
func (h *Host) readGUIDs(ctx context.Context, want netstate.Binding, driver string) error {
	want = netstate.Binding{ID: want.ID, NodeGUID: want.NodeGUID, PortGUID: want.PortGUID}
	have, _, err := h.read(want.ID)
	if err != nil || driver != "" && len(netstate.Diff(want, have)) == 0 {
		return err
	}
	if driver != "" {
		if err := h.unbind(ctx, want.ID, driver); err != nil {
			return err
		}
		err = h.bind(want.ID, driver)
	} else if err = h.write("drivers_probe", want.ID); err == nil && target(h.function(want.ID), "driver") == "" {
		err = fault.New(fault.NotReady, errors.New("no driver takes it: bind it to the driver of its card"))
	}
	if err != nil {
		return because(err, "bind it again for its GUIDs")
	}
	within, cancel := context.WithTimeout(ctx, h.patience)
	defer cancel()
	for { // the RDMA device may appear later
		have, _, err := h.read(want.ID)
		diff := netstate.Diff(want, have)
		if err != nil || len(diff) == 0 {
			return err
		}
		if loop.Wait(within, 10*time.Millisecond, nil) {
			continue
		}
		return cmp.Or(ctx.Err(), fault.New(fault.NotReady,
			fmt.Errorf("its driver has read the %s %s, and %s was set: look for the driver's messages in the kernel's log (dmesg)",
				diff[0].Path, netstate.FormatValue(diff[0].Before), netstate.FormatValue(diff[0].After))))
	}
}

// bind binds a function that has no driver. It is no error if another process was faster.
func (h *Host) bind(id, driver string) error {
	err := h.write(filepath.Join("drivers", driver, "bind"), id)
	if target(h.function(id), "driver") == driver {
		return nil
	}
	switch {
	case err == nil:
		err = errors.New("it has another driver by now, or none")
	case errors.Is(err, syscall.EINVAL) && isVFIO(driver) && target(h.function(id), "iommu_group") == "":
		return fault.New(fault.Unsupported, fmt.Errorf(
			"driver %q does not take it without an IOMMU: turn the IOMMU on, "+
				"load vfio with enable_unsafe_noiommu_mode=1 if the kernel has that (CONFIG_VFIO_NOIOMMU), or use uio_pci_generic: %w",
			driver, err))
	}
	return because(err, "driver %q does not take it", driver)
}

// unbind takes its driver from a function. A driver of VFIO waits in the kernel,
// where no signal ends it, until every process has closed the function: that is not
// begun while one has it open, and not waited for when one was faster.
func (h *Host) unbind(ctx context.Context, id, driver string) error {
	if h.inUse(id, driver) {
		return fault.New(fault.NotReady, fmt.Errorf("a process has it open by driver %q: end the process", driver))
	}
	h.mu.Lock()
	done, under := h.unbinding[id]
	if !under {
		done = make(chan error, 1)
		h.unbinding[id] = done
		go func() {
			done <- h.write(filepath.Join("drivers", driver, "unbind"), id)
			h.mu.Lock()
			defer h.mu.Unlock()
			delete(h.unbinding, id)
		}()
	}
	h.mu.Unlock()
	within, cancel := context.WithTimeout(ctx, h.patience)
	defer cancel()
	select {
	case err := <-done:
		if err != nil && target(h.function(id), "driver") == driver {
			return because(err, "driver %q does not release it", driver)
		}
		return nil
	case <-within.Done():
		return fault.New(fault.NotReady, fmt.Errorf("driver %q has not released it yet: a process has it open", driver))
	}
}

// override sets the only driver that the kernel binds to a function by itself, ""
// for the one its IDs choose.
func (h *Host) override(id, driver string) error {
	have, err := text(h.function(id), "driver_override")
	if err == nil && have == driver || have == "(null)" && driver == "" {
		return nil
	}
	if err := h.write(filepath.Join("devices", id, "driver_override"), driver+"\n"); err != nil {
		return because(err, "driver_override %q", driver)
	}
	return nil
}

// because names what was refused. A sysfs that cannot be written is the way the agent
// was installed.
func because(err error, format string, args ...any) error {
	what := fmt.Errorf(format+": %w", append(args, err)...)
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fault.New(fault.Unsupported,
			fmt.Errorf("%w: the agent may not write to sysfs: set agent.driverBinding in the chart's values", what))
	case errors.Is(err, fs.ErrNotExist):
		return fault.New(fault.Gone, what)
	}
	return what
}

// write writes a file of the PCI bus.
func (h *Host) write(file, text string) error {
	f, err := os.OpenFile(filepath.Join(h.writable, "bus/pci", file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// target returns the last component of what a link points to, "" without one.
func target(dir, link string) string {
	to, err := os.Readlink(filepath.Join(dir, link))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

func text(dir, file string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, file))
	return strings.TrimSpace(string(b)), err
}
