package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/suggest"
)

// Assignment makes a sandbox of a topology and a namespace: it chooses the device of
// each root step, where no scheduler does.
type Assignment struct {
	ID       reconcile.SandboxID
	Netns    Netns
	Topology *topology.Topology
	// Requested are the user's choices: a PCI address or an interface name for a root
	// step.
	Requested map[string]string
	// Given holds further values for the steps, such as addresses.
	Given ops.Givens
	// Rules mark and limit what the sandbox's interfaces send.
	Rules     ops.Rules
	Contracts contract.Set
	// Own is the record of this sandbox, nil when there is none: it keeps its
	// devices.
	Own *reconcile.Record
	// Records lists all sandboxes: the devices of the others are not free. It is
	// called at most once, and not at all when nothing has to be chosen.
	Records func() []reconcile.Record
	// OtherVersions lists the records of other versions: the devices they mention
	// are not free. It is called after Records.
	OtherVersions func() []*frame.OtherVersion
	// Alive reports whether the namespace of a record still exists; without it the
	// record holds no device.
	Alive func(reconcile.Record) bool
	// Discover lists the devices of the host. It is called at most once, and not at all
	// if no device has to be found.
	Discover func() ([]inventory.Device, error)
	// Sys is a sysfs tree; a step may name its device by a path in it.
	Sys fs.FS
	// Note, unless it is nil, is called with remarks on the choice for the user.
	Note func(string)
}

// Sandbox returns the sandbox, with a device for each root step that takes one: the
// requested device, or the one its config names, or the one the sandbox has already, or
// else the first free one its selector matches.
//
// The error is of kind Invalid for a request that cannot be met, Conflict for another
// device or namespace than the sandbox was applied with, NotReady if no device is free.
func (a Assignment) Sandbox(ctx context.Context) (reconcile.Sandbox, error) {
	a.Records = sync.OnceValue(a.Records)
	r := &assigner{Assignment: a, out: map[string]string{}, holder: map[string]string{}}
	if a.Own != nil {
		r.alive = a.Own.Phase != reconcile.Releasing && a.Alive(*a.Own)
	}
	if r.alive && a.Own.Sandbox.Netns != a.Netns.Path {
		return reconcile.Sandbox{}, fault.New(fault.Conflict,
			fmt.Errorf("sandbox %q is in network namespace %q, which has the same name: delete it first", a.ID, a.Own.Sandbox.Netns))
	}
	if err := r.assign(ctx); err != nil {
		return reconcile.Sandbox{}, err
	}
	r.noteOnePF()
	return reconcile.Sandbox{
		ID: a.ID, Netns: a.Netns.Path, Topology: a.Topology, Given: a.Given.WithoutDevices().WithDevices(r.out),
		Rules: a.Rules,
	}, nil
}

// assigner is one run of an Assignment.
type assigner struct {
	Assignment
	alive  bool // there is a record of this sandbox, and its namespace exists
	out    map[string]string
	holder map[string]string // by device: the step that has it exclusively

	listed  bool
	devices []inventory.Device
}

func (r *assigner) assign(ctx context.Context) error {
	if err := r.checkRequested(); err != nil {
		return err
	}
	roots := r.Topology.Roots()
	// Devices chosen by name go first, so that no other step is given one of them.
	for _, s := range roots {
		if err := r.chosen(ctx, s); err != nil {
			return r.stepError(s.Name, err)
		}
	}
	for _, s := range roots {
		if err := r.pick(ctx, s); err != nil {
			return r.stepError(s.Name, err)
		}
	}
	return nil
}

// noteOnePF remarks on the devices of a bond that fail together, if devices were chosen
// now.
func (r *assigner) noteOnePF() {
	if r.Note == nil || !r.listed {
		return
	}
	pf := map[string]string{}
	for step, id := range r.out {
		i := slices.IndexFunc(r.devices, func(d inventory.Device) bool { return d.ID == id })
		if i >= 0 && r.devices[i].PF != nil {
			pf[step] = r.devices[i].PF.PCIAddress
		}
	}
	for _, text := range claim.OnePF(r.Topology, r.Contracts, pf) {
		r.Note(text)
	}
}

func (r *assigner) stepError(step string, err error) error {
	return &ops.StepError{Topology: r.Topology.Name, Step: step, Err: err}
}

func invalid(format string, args ...any) error {
	return fault.New(fault.Invalid, fmt.Errorf(format, args...))
}

// need is whether a step takes a device.
type need int

const (
	takesNone need = iota
	mayShare       // it may use one that stays on the host
	takesOne       // it takes one exclusively
)

func (r *assigner) need(s *topology.Step) need {
	c, _ := r.Contracts.Contract(s.Type)
	switch {
	case !s.Root():
		return takesNone
	case c.Input.Device:
		return takesOne
	case c.Input.Shares:
		return mayShare
	}
	return takesNone
}

func (r *assigner) checkRequested() error {
	var takers []string
	for _, s := range r.Topology.Roots() {
		if r.need(s) != takesNone {
			takers = append(takers, s.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Requested)) {
		s, ok := r.Topology.Step(name)
		switch {
		case !ok && len(takers) > 0:
			hint := cmp.Or(suggest.Hint(name, takers), ": steps that take a device are "+strings.Join(takers, ", "))
			return r.stepError(name, invalid("device %q is given to a step that does not exist%s", r.Requested[name], hint))
		case !ok:
			return r.stepError(name,
				invalid("device %q is given to a step that does not exist, and no step of this topology takes one", r.Requested[name]))
		case !s.Root():
			return r.stepError(name,
				invalid("device %q is given to a derived step: only root steps take a device, and this one depends on %s",
					r.Requested[name], strings.Join(s.DependOn, ", ")))
		case r.need(s) == takesNone:
			return r.stepError(name, invalid("device %q is given to a step of type %q, which takes none", r.Requested[name], s.Type))
		}
	}
	return nil
}

// chosen assigns the device that the user, the step's config or an earlier apply has
// chosen.
func (r *assigner) chosen(ctx context.Context, s *topology.Step) error {
	need := r.need(s)
	if need == takesNone {
		return nil
	}
	kept := ""
	if r.Own != nil {
		kept = r.Own.Sandbox.Given[s.Name].Device
	}
	id := ""
	if word, ok := r.Requested[s.Name]; ok {
		var err error
		if id, err = r.find(word); err != nil {
			return err
		}
	}
	named, err := r.named(s, kept)
	if err != nil {
		return err
	}
	switch {
	case id == "":
		id = named
	case named != "" && named != id:
		return invalid("device %q is requested, but the step's config names %q: drop one of them", id, named)
	}
	if r.alive && kept != "" && id != "" && id != kept {
		return fault.New(fault.Conflict,
			fmt.Errorf("device %q is requested, but sandbox %q has %q: delete the sandbox first", id, r.ID, kept))
	}
	if id == "" && kept != "" && (r.alive || !r.taken(s, need)[kept]) {
		id = kept // unless its namespace ended and another sandbox has taken it since
	}
	if id == "" {
		return nil
	}
	r.noteSelector(ctx, s, id)
	return r.give(s, need, id)
}

// noteSelector remarks on a device that was chosen by name and does not match the
// step's selector. The name takes precedence; in a cluster the scheduler chooses, and
// there are no names.
func (r *assigner) noteSelector(ctx context.Context, s *topology.Step, id string) {
	if s.Selector == "" || r.Note == nil || !r.listed {
		return
	}
	i := slices.IndexFunc(r.devices, func(d inventory.Device) bool { return d.ID == id })
	selector, err := inventory.Compile(s.Selector)
	if i < 0 || err != nil {
		return
	}
	switch matches, err := selector.Match(ctx, r.devices[i]); {
	case err != nil:
		r.Note(fmt.Sprintf("step %q: uses the named device %q, although its selector cannot be evaluated: %v", s.Name, id, err))
	case !matches:
		r.Note(fmt.Sprintf("step %q: uses the named device %q, although its selector does not match", s.Name, id))
	}
}

func (r *assigner) give(s *topology.Step, need need, id string) error {
	for _, other := range slices.Sorted(maps.Keys(r.out)) {
		if r.out[other] == id && (need == takesOne || r.holder[id] != "") {
			return invalid("device %q is the device of step %q already", id, other)
		}
	}
	r.out[s.Name] = id
	if need == takesOne || r.takesFunction(s, id) {
		r.holder[id] = s.Name
	}
	return nil
}

// pick chooses a device for a step that has none yet.
func (r *assigner) pick(ctx context.Context, s *topology.Step) error {
	need := r.need(s)
	if _, done := r.out[s.Name]; done || need == takesNone {
		return nil
	}
	if need == mayShare {
		c, _ := r.Contracts.Contract(s.Type)
		if below, inside := claim.Below(s, c); s.Selector == "" || below != "" || inside || claim.MasterNet(s, c) != "" {
			return nil // it finds its master itself, such as by the default route
		}
	}
	selector := inventory.Selector{}
	if s.Selector != "" {
		var err error
		if selector, err = inventory.Compile(s.Selector); err != nil {
			return fault.New(fault.Invalid, err)
		}
	}
	if err := r.list(); err != nil {
		return err
	}
	devices := r.devices
	if c, _ := r.Contracts.Contract(s.Type); !c.WithoutInterface() {
		devices = slices.DeleteFunc(slices.Clone(devices), func(d inventory.Device) bool { return d.RDMAOnly })
	}
	d, err := inventory.First(ctx, devices, selector, r.taken(s, need))
	if errors.Is(err, inventory.ErrNoDevice) {
		return fault.New(fault.NotReady, err)
	}
	if err != nil {
		return err
	}
	return r.give(s, need, d.ID)
}

// takesFunction reports whether a step that may share a device takes this one as a whole.
func (r *assigner) takesFunction(s *topology.Step, id string) bool {
	c, _ := r.Contracts.Contract(s.Type)
	// A device that cannot be listed is found by no step that chooses one.
	return c.Input.Functions && r.list() == nil &&
		slices.ContainsFunc(r.devices, func(d inventory.Device) bool { return d.ID == id && d.Kind == inventory.KindVF })
}

// taken are the devices that are not free for a step of this need.
func (r *assigner) taken(by *topology.Step, need need) map[string]bool {
	exclusive := func(id string) bool { return need == takesOne || r.takesFunction(by, id) }
	out := map[string]bool{}
	for _, id := range r.out {
		if exclusive(id) || r.holder[id] != "" {
			out[id] = true
		}
	}
	for _, rec := range r.Records() {
		if rec.Sandbox.ID == r.ID || !r.Alive(rec) {
			continue
		}
		for step, id := range rec.Sandbox.Given.Devices() {
			s, ok := rec.Sandbox.Topology.Step(step)
			if exclusive(id) || ok && r.need(s) == takesOne {
				out[id] = true
			}
		}
		for _, c := range rec.History {
			if d, ok := c.Object().(netstate.Device); ok {
				out[d.ID] = true
			}
		}
	}
	if c, _ := r.Contracts.Contract(by.Type); need == takesOne || c.Input.Functions {
		for _, other := range r.OtherVersions() {
			for id, mentioned := range other.Mentions {
				out[id] = out[id] || mentioned && exclusive(id)
			}
		}
	}
	return out
}

// list discovers the host's devices. A device with unreadable files is listed too; the
// error is returned where the missing value is needed.
func (r *assigner) list() error {
	if r.listed {
		return nil
	}
	devices, err := r.Discover()
	if err != nil && len(devices) == 0 {
		return err
	}
	r.listed, r.devices = true, devices
	return nil
}

// find returns the ID of the device with a PCI address or an interface name.
func (r *assigner) find(word string) (string, error) {
	if address, err := contract.PCIAddress.Canonical(word); err == nil {
		if r.moved(func(d netstate.Device) bool { return d.ID == address }) != "" {
			return address, nil
		}
		return r.lookup(fmt.Sprintf("device %q", word), func(d inventory.Device) bool { return d.ID == address })
	}
	name := strings.TrimPrefix(word, netstate.VirtualPrefix)
	if _, err := contract.LinkName.Canonical(name); err != nil {
		return "", invalid("device %q is neither a PCI address nor an interface name", word)
	}
	// An interface that is already in the sandbox is found by the name it had on the
	// host: the same command works twice.
	if id := r.moved(func(d netstate.Device) bool {
		return d.At != nil && *d.At == netstate.HostName(name) || slices.Contains(d.AltNames, name)
	}); id != "" {
		return id, nil
	}
	return r.lookup(fmt.Sprintf("interface %q", name), func(d inventory.Device) bool {
		return d.IfName == name || slices.Contains(d.OtherIfNames, name)
	})
}

// moved returns the device this sandbox has taken whose earlier state matches.
func (r *assigner) moved(match func(before netstate.Device) bool) string {
	if !r.alive {
		return ""
	}
	for _, c := range r.Own.History {
		if d, ok := c.Before.(netstate.Device); ok && match(d) {
			return d.ID
		}
	}
	return ""
}

func (r *assigner) lookup(what string, match func(inventory.Device) bool) (string, error) {
	if err := r.list(); err != nil {
		return "", err
	}
	if i := slices.IndexFunc(r.devices, match); i >= 0 {
		return r.devices[i].ID, nil
	}
	return "", fault.New(fault.NotReady, fmt.Errorf("%s is not on this host: `plumbline devices` lists what is", what))
}

// named returns the device a step's config names, "" when it names none. The
// keys are those of the contract; ops (DeviceParams) documents their meaning
// and in the type host-device.
func (r *assigner) named(s *topology.Step, kept string) (string, error) {
	c, _ := r.Contracts.Contract(s.Type)
	config, problems := c.Decode(s.Config, contract.Options{Unresolved: true})
	if len(problems) > 0 {
		return "", fault.New(fault.Invalid, contract.Errors(problems))
	}
	text := func(key string) string { v, _ := config[key].(string); return v }
	address := text("deviceID")
	if runtime, ok := config["runtimeConfig"].(map[string]any); ok && address == "" {
		address, _ = runtime["deviceID"].(string)
	}
	name, mac, sysPath := text("device"), text("hwaddr"), text("kernelpath")
	if address == "" && name == "" && mac == "" && sysPath == "" {
		return "", nil
	}
	if kept != "" && r.alive {
		// The device is in the sandbox, where none of these finds it.
		if before, ok := r.Own.Sandbox.Topology.Step(s.Name); ok && reflect.DeepEqual(before.Config, s.Config) {
			return kept, nil
		}
	}
	id, err := "", error(nil)
	switch {
	case address != "":
		id, err = r.find(address)
	case name != "":
		id, err = r.find(name)
	case mac != "":
		id, err = r.lookup(fmt.Sprintf("an interface with MAC %q", mac), func(d inventory.Device) bool { return d.MAC == mac })
	default:
		id, err = r.byPath(sysPath)
	}
	if err != nil {
		return "", fmt.Errorf("config: %w", err)
	}
	return id, nil
}

// byPath finds the device of a path below /sys/devices, as the host-device
// plugin does: by the interface in its folder "net", else by the PCI function.
func (r *assigner) byPath(sysPath string) (string, error) {
	below, ok := strings.CutPrefix(path.Clean(sysPath), "/sys/")
	if !ok || !strings.HasPrefix(below, "devices/") {
		return "", invalid("kernelpath %q is not below /sys/devices/", sysPath)
	}
	if entries, err := fs.ReadDir(r.Sys, path.Join(below, "net")); err == nil && len(entries) == 1 {
		return r.find(entries[0].Name())
	}
	if address, err := contract.PCIAddress.Canonical(path.Base(below)); err == nil {
		return r.find(address)
	}
	return "", fault.New(fault.NotReady, fmt.Errorf("kernelpath %q has no network interface", sysPath))
}
