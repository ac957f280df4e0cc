package ops

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
)

// RDMAConfig holds the keys by which a step gives containers the RDMA device of its device, and other device nodes.
type RDMAConfig struct {
	RDMA    *bool            `json:"rdma,omitempty"`
	Nodes   []string         `json:"deviceNodes,omitempty"`
	Require *RDMARequirement `json:"require,omitempty"`
}

// RDMAParams describes RDMAConfig. Whose says which RDMA device is given, and when.
func RDMAParams(whose string) []contract.Param {
	return []contract.Param{
		{
			Name: "rdma", Type: contract.Boolean, AtCreation: true,
			Description: "give containers `/dev/infiniband/uverbsN` and `rdma_cm` of the RDMA device" + whose,
		},
		RDMARequireParam(), NodesParam(),
	}
}

// NeedsRDMA is contract.Input.RDMA of a step with RDMAConfig that takes its device.
func NeedsRDMA(config map[string]any) (needed, stays bool) {
	rdma, set := config["rdma"].(bool)
	return rdma || !set && config["require"] != nil, false
}

// NeedsSharedRDMA is contract.Input.RDMA of a step with RDMAConfig that shares its device.
func NeedsSharedRDMA(config map[string]any) (needed, stays bool) {
	rdma, _ := config["rdma"].(bool)
	return rdma, rdma
}

// OfTaken is whose RDMA device a step gives that takes its device.
const OfTaken = ". Default: if there is one; true: a device that has none is refused"

// RDMAFields are the fields that a step with RDMAParams adds to its result.
func RDMAFields() []contract.Param {
	return []contract.Param{
		{Name: "rdmaDevice", Type: contract.String, Description: "name of the RDMA device, such as mlx5_2, if there is one"},
		{Name: "gidIndex", Type: contract.Integer, Description: "index of the GID that require.gid has chosen"},
		{
			Name: "deviceNodes", Type: contract.List,
			Items:       &contract.Param{Name: "deviceNode", Type: contract.String, Description: "path"},
			Description: "paths of its character devices, such as /dev/infiniband/uverbs2",
		},
	}
}

// RDMA adds the RDMA device of a device to the step's result, so that the containers get its device nodes. Wanted is the
// key rdma, nil where it is not given; required that the step has a key require.
func (p *Planner) RDMA(id string, wanted *bool, required bool) error {
	if wanted == nil && required {
		wanted = &required
	}
	if wanted != nil && !*wanted {
		return nil
	}
	d, ok, err := Lookup(p, netstate.Device{ID: id})
	if err != nil || !ok {
		return err
	}
	return ownRDMA{of: d, wanted: wanted != nil, otherwise: "set rdma: false"}.give(p)
}

// DerivedRDMA adds the RDMA device of the device that another step takes to the result of a derived step, with the interface of that
// device, and returns both. Types are those of such a step. Name chooses one of several RDMA devices.
func (p *Planner) DerivedRDMA(types []string, name string) (id, link string, err error) {
	var from *stepState
	for _, dep := range p.current.step.DependOn {
		if st := p.steps[dep]; st != nil && slices.Contains(types, st.step.Type) {
			from = st
		}
	}
	if from == nil { // validation refuses it
		return "", "", fault.New(fault.Invalid, fmt.Errorf("dependOn: no step of type %s", strings.Join(types, " or ")))
	}
	p.current.of, id = from.step.Name, from.device
	d, ok, err := Lookup(p, netstate.Device{ID: id})
	switch {
	case err != nil:
		return "", "", err
	case !ok:
		return "", "", fault.New(fault.Gone, fmt.Errorf("device %q does not exist", id))
	case d.At == nil && netstate.UserspaceDriver(d.Driver):
		return id, "", p.without("the RDMA device", fault.New(fault.Unsupported, fmt.Errorf(
			"the function of step %q is bound to a driver for programs, with which it has no RDMA device: "+
				"bind it to the driver of its card, or remove this step", p.current.of)))
	}
	for _, link = range from.made {
		p.Produce(link)
	}
	return id, link, ownRDMA{of: d, name: name, wanted: true, otherwise: "remove step " + p.stepName()}.give(p)
}

// give adds the RDMA device of a device that the step takes, and the device nodes that its config names, to the step's result.
func (c RDMAConfig) give(p *Planner, id string) error {
	if err := p.RDMA(id, c.RDMA, c.Require != nil); err != nil {
		return err
	}
	return p.DeviceNodes(id, c.Nodes)
}

// asks returns the first key that asks for something of a device, "" for none.
func (c RDMAConfig) asks() string {
	switch {
	case c.RDMA != nil && *c.RDMA:
		return "rdma"
	case c.Require != nil:
		return "require"
	case len(c.Nodes) > 0:
		return "deviceNodes"
	}
	return ""
}

// WithoutFunction is for a step that takes a virtual function if one is allocated to it, and has none: keys that ask for something of
// it are refused. On an imagined node, where it may have one, the link has what they ask for. Instead says what the step makes.
func (c RDMAConfig) WithoutFunction(p *Planner, link, instead string) error {
	key := c.asks()
	switch {
	case key == "":
		return nil
	case p.req.imagined == nil:
		return Invalid(key, "is for a virtual function, and none is allocated to the step, which makes %s: "+
			"have a selector of the step choose one by type or pfName, or remove the key", instead)
	}
	id, err := p.DeviceID()
	if err != nil {
		return err
	}
	if err := c.give(p, id); err != nil {
		return err
	}
	return p.RequireRDMA(link, c.Require)
}

// share adds the RDMA device of the device below a link on it, which stays on the host, and other device nodes of that device to
// the result of a root step, if its config says so.
func (c RDMAConfig) share(p *Planner, link, below string) error {
	wanted := c.RDMA != nil && *c.RDMA
	key := c.asks()
	if key == "" {
		return nil
	}
	if !netstate.OnHost(below) {
		return Invalid(key, "is for a root step on a device of the host, and the master %q is in the pod: "+
			"remove it here, and set it in the step that takes the device, of type sriov or host-device", below)
	}
	id, err := deviceAt(p, below)
	if err != nil {
		return err
	}
	var given topology.Devices
	if wanted {
		if given, err = hostRDMA(p, id, "", "that of a shared device stays on the host", "remove rdma: true"); err != nil {
			return err
		}
	}
	given.PCIAddress = "" // the pod shares the device, and has none
	p.ProduceDevices(given)
	if given.RDMADevice != "" {
		if err := keepNodes(p, netstate.Device{ID: id}.Key(), given.DeviceNodes); err != nil {
			return err
		}
	}
	for _, kind := range c.Nodes {
		if !wanted && (kind == netstate.NodeUMAD || kind == netstate.NodeISSM) {
			return nodeWithoutRDMA(kind)
		}
	}
	if err := p.DeviceNodes(id, c.Nodes); err != nil {
		return err
	}
	return p.RequireRDMA(link, c.Require)
}

// deviceAt returns the identity of the device with a link of the host, which is allocated to the step or not.
func deviceAt(p *Planner, link string) (string, error) {
	if id, ok := p.AssignedDevice(); ok {
		return id, nil
	}
	l, err := p.Link(link)
	if err != nil || l.DeviceID != "" {
		return l.DeviceID, err
	}
	return netstate.VirtualPrefix + netstate.BaseName(link), nil
}

// ownRDMA is the RDMA device of a device that a step takes.
type ownRDMA struct {
	of        netstate.Device
	given     netstate.RDMADevice
	name      string // chooses one of several, if not ""
	wanted    bool   // the step asks for it
	otherwise string // how to go without it
}

// give adds the RDMA device to the step's result, or says why not.
func (r ownRDMA) give(p *Planner) error {
	r.of.RDMA = hardwareRDMA(r.of)
	given, why := usableRDMA(r.of, r.otherwise)
	if r.name != "" && r.name != p.earlierRDMA(r.of.ID) && why == nil {
		given, why = namedRDMA(p, r.of, r.name, given)
	}
	r.given = given
	switch {
	case why == nil && r.of.RDMAExclusive && r.of.LinkKind == netstate.InfiniBandKind: // rdma_dev_change_netns removes and adds its clients
		return r.without(p, fault.New(fault.Unsupported, fmt.Errorf("on a node in exclusive mode (\"rdma system show\") "+
			"the kernel replaces the InfiniBand interface of device %q when its RDMA device moves: "+
			"run \"rdma system set netns shared\" before the first network namespace is made, or %s", r.of.ID, r.otherwise)))
	case why == nil && r.of.RDMAExclusive:
		return r.move(p)
	case why == nil:
		p.ProduceDevices(rdmaResult(r.of, given))
		return keepNodes(p, r.of.Key(), given.Nodes)
	case r.wanted || len(r.of.RDMA) > 0:
		return r.without(p, why)
	}
	return nil
}

// earlierRDMA is the name that the RDMA device of a device had before it was moved to the sandbox, "" if it was not: a pod can change it.
func (p *Planner) earlierRDMA(id string) string {
	for _, c := range p.req.Owned {
		if before, ok := c.Before.(netstate.RDMANetns); ok && before.ID == id && before.Name != nil {
			return *before.Name
		}
	}
	return ""
}

// without says why the containers get no RDMA device, or, if the step asks for one, is Planner.without.
func (r ownRDMA) without(p *Planner, why error) error {
	if r.wanted {
		return p.without("the RDMA device", why)
	}
	p.Note("the containers get no RDMA device: %v", why)
	return nil
}

// move wants the RDMA device in the sandbox, on a node in exclusive mode, and adds it to the step's result once it is there: the
// move gives it other device nodes. Containers get those when they are created, so that nothing is moved to a running sandbox that
// was attached without.
func (r ownRDMA) move(p *Planner) error {
	d, given := r.of, r.given
	at, ok, err := Lookup(p, netstate.RDMANetns{ID: d.ID})
	if err != nil {
		return err
	}
	if p.Wanted(at.Key()) { // by the step whose device it is: where it is now
		at, ok = netstate.Lookup(p.req.Have, at)
	}
	owned := slices.IndexFunc(p.req.Owned, func(c netstate.Change) bool { return c.Key() == at.Key() && c.Before != nil })
	if !ok || at.Netns == nil || at.Name == nil {
		return p.without("the RDMA device",
			fault.New(fault.Gone, fmt.Errorf("RDMA device %q of device %q does not exist any more", given.Name, d.ID)))
	}
	switch {
	case owned >= 0:
	case *at.Netns != netstate.RDMAOfHost:
		return r.without(p, fault.New(fault.Conflict, fmt.Errorf("RDMA device %q of device %q is in another network namespace, "+
			"and plumbline did not move it there (\"rdma dev\" does not show it on the host): "+
			"move it back to the host, or %s", *at.Name, d.ID, r.otherwise)))
	case slices.ContainsFunc(p.req.Owned, func(c netstate.Change) bool { return c.Key() == d.Key() }):
		return r.without(p, fault.New(fault.NotReady,
			fmt.Errorf("the pod was attached without RDMA device %q of device %q: create the pod again", *at.Name, d.ID)))
	}
	name := *at.Name
	if earlier := p.earlierRDMA(d.ID); earlier != "" {
		name = earlier
	}
	want := netstate.RDMANetns{ID: d.ID, Netns: new(netstate.RDMAOfSandbox), Name: &name}
	if err := p.Want(want); err != nil {
		return err
	}
	if *at.Netns != netstate.RDMAOfSandbox || *at.Name != name {
		p.Later("the RDMA device of " + d.ID + " in the sandbox")
		return nil
	}
	p.ProduceDevices(rdmaResult(d, given))
	return keepNodes(p, want.Key(), given.Nodes)
}

// hardwareRDMA are the RDMA devices of a device that stay when its interface moves.
func hardwareRDMA(d netstate.Device) []netstate.RDMADevice {
	return slices.DeleteFunc(slices.Clone(d.RDMA), func(r netstate.RDMADevice) bool { return r.Software })
}

// RDMADevice is RDMA for a step that is there for nothing else. Its interface, if it has one, is on the host.
func (p *Planner) RDMADevice(id, name string, require *RDMARequirement) error {
	given, err := hostRDMA(p, id, name, "a step of type rdma is applied before the pod has its own", "remove the step")
	if err != nil || given.RDMADevice == "" {
		return err
	}
	p.ProduceDevices(given)
	d, _, err := Lookup(p, netstate.Device{ID: id})
	if err == nil && p.current.prepared { // not of a preparation, which no container has
		err = keepNodes(p, d.Key(), given.DeviceNodes)
	}
	if err != nil {
		return err
	}
	return p.RequireRDMA(at(d), require)
}

// hostRDMA returns the RDMA device of a device that stays on the host, as a result; an empty one where a step that was applied before
// waits for it. Name chooses one of several; without a name it is the first that has device nodes. Stays says why it cannot move,
// without how to go without one.
func hostRDMA(p *Planner, id, name, stays, without string) (topology.Devices, error) {
	none := func(why error) (topology.Devices, error) {
		return topology.Devices{}, p.without("the RDMA device", why)
	}
	d, ok, err := Lookup(p, netstate.Device{ID: id})
	switch {
	case err != nil:
		return topology.Devices{}, err
	case !ok:
		return topology.Devices{}, fault.New(fault.Gone, fmt.Errorf("device %q does not exist", id))
	}
	if d.RDMAExclusive && len(d.RDMA) > 0 {
		return none(fault.New(fault.Unsupported, fmt.Errorf(
			"the node is in exclusive mode of RDMA (\"rdma system show\"), in which an RDMA device belongs to one network namespace, "+
				"and %s: take a function with type sriov or host-device, which moves its RDMA device too, "+
				"run \"rdma system set netns shared\" before the first network namespace is made, or %s", stays, without)))
	}
	if err := oneBelow(d, without); err != nil {
		return none(err)
	}
	given, err := usableRDMA(d, without)
	if err != nil {
		return none(err)
	}
	if name != "" {
		if given, err = namedRDMA(p, d, name, given); err != nil {
			return none(err)
		}
	}
	return rdmaResult(d, given), nil
}

// namedRDMA returns the RDMA device of a device with a name, or why containers cannot use it. Given is the first one.
func namedRDMA(p *Planner, d netstate.Device, name string, given netstate.RDMADevice) (netstate.RDMADevice, error) {
	named := slices.IndexFunc(d.RDMA, func(r netstate.RDMADevice) bool { return r.Name == name })
	switch {
	case p.req.imagined != nil: // a node may have one of that name
		given.Name = name
		return given, nil
	case named < 0:
		var have []string
		for _, r := range d.RDMA {
			have = append(have, r.Name)
		}
		return given, Invalid("rdmaDevice",
			"%q is not an RDMA device of device %q, which has %s: name one of them, or remove the key", name, d.ID,
			strings.Join(have, ", "))
	case len(d.RDMA[named].Nodes) == 0:
		return given, noRDMANodes(fmt.Sprintf("device %q", d.ID), name, "remove the key rdmaDevice")
	}
	return d.RDMA[named], nil
}

// oneBelow refuses a bond, a VLAN or another link without hardware of its own that has no RDMA device, or several: those of the cards below
// it, of which a program would use one while the bond sends by any.
func oneBelow(d netstate.Device, without string) error {
	if d.HasPCIAddress() || d.Parent != "" {
		return nil
	}
	link := strings.TrimPrefix(d.ID, netstate.VirtualPrefix)
	var names []string
	for _, r := range hardwareRDMA(d) {
		names = append(names, r.Name)
	}
	switch {
	case len(names) > 1:
		return fault.New(fault.Unsupported, fmt.Errorf("link %q is on several RDMA devices (%s), and its packets leave by any of them: "+
			"share one of the cards instead, or bond ports whose driver makes one RDMA device of both (mlx5: mlx5_bond_0), or %s",
			link, strings.Join(names, ", "), without))
	case len(d.RDMA) == 0:
		return fault.New(fault.Unsupported, fmt.Errorf("link %q has no RDMA device, nor has a card below it as the port of a bond or "+
			"below a VLAN: share a card with the attribute rdma instead, or %s", link, without))
	}
	return nil
}

// SoftRDMA wants an RDMA device in software on a link, and adds it to the step's result once its device nodes are known.
func (p *Planner) SoftRDMA(link, typ string) error {
	want := netstate.RDMALink{Link: link, Name: new(p.HostLinkName()), Type: &typ}
	if err := p.Want(want); err != nil {
		return err
	}
	have, there := netstate.Lookup(p.req.Have, want)
	if there && have.Netns != nil { // exclusive mode
		if err := p.Want(netstate.RDMALink{Link: link, Netns: new(netstate.RDMAOfSandbox)}); err != nil {
			return err
		}
	}
	switch {
	case p.req.imagined != nil:
		have.Nodes = p.req.imagined.rdmaNodes()
	case !there || have.Name == nil || *have.Name != *want.Name || have.Netns != nil && *have.Netns != netstate.RDMAOfSandbox:
		p.Later("the RDMA device of " + link)
		return nil
	case len(have.Nodes) == 0:
		return noRDMANodes(fmt.Sprintf("%q", link), *want.Name, "remove the step")
	}
	if have.HostOnly && !p.Kept() {
		p.Note(hostOnlyNote)
	}
	p.ProduceDevices(topology.Devices{RDMADevice: *want.Name, DeviceNodes: slices.Clone(have.Nodes)})
	if p.req.imagined != nil {
		return nil
	}
	return keepNodes(p, want.Key(), have.Nodes)
}

// hostOnlyNote says what soft RoCE lacks before Linux 7.1 ("RDMA/rxe: Add net namespace support for IPv4/IPv6 sockets"): its packets are
// sent by the routes of the host (rxe_find_route4), and received there.
const hostOnlyNote = "the kernel exchanges data over soft RoCE on the host only, and programs of the pod hang: " +
	"use a node with Linux 7.1 or later"

// noteSoftRDMA adds a note on the RDMA device in software that the host has on a device which is taken, and on others of all
// that the device has: a record keeps one for each link.
func noteSoftRDMA(p *Planner, home string, all []netstate.RDMADevice) {
	r, ok := netstate.Lookup(p.view, netstate.RDMALink{Link: home})
	for _, c := range p.req.Owned {
		if before, was := c.Before.(netstate.RDMALink); was && c.Foreign && before.Link == home {
			r, ok = before, true
		}
	}
	if ok && r.Name != nil {
		p.Note("the host has the software RDMA device %q on %q: the kernel deletes it when the interface moves to the pod; "+
			"it is created again when the device is released", *r.Name, netstate.BaseName(home))
		for _, other := range all {
			if other.Software && other.Name != *r.Name {
				p.Note("the host has another software RDMA device %q on %q: the kernel deletes it when the interface moves to the pod; "+
					"it is not created again", other.Name, netstate.BaseName(home))
			}
		}
	}
}

// keepNodes holds that the containers of a running sandbox have the device nodes of an object. A runtime gives them when it
// creates a container, and an RDMA device that was made again has others, while the earlier ones may be another pod's.
func keepNodes(p *Planner, of netstate.Key, nodes []string) error {
	field := p.fieldOf("deviceNodes")
	now := strings.Join(nodes, " ")
	given, err := p.Choose(of, field, func() (string, error) { return now, nil })
	switch {
	case err != nil || given == now:
		return err
	case !p.req.Kept:
		p.plan.Chosen[of.String()+" "+field] = now
		return nil
	}
	first := func(nodes string) string {
		node, _, _ := strings.Cut(nodes, " ")
		return path.Base(node)
	}
	p.current.await("the device nodes of containers", fault.New(fault.NotReady,
		fmt.Errorf("containers were given %s, the device is %s now: create the pod again", first(given), first(now))))
	return nil
}

// usableRDMA returns the first RDMA device of a device that containers can use, or why there is none. Without says what to do
// to go without one.
func usableRDMA(d netstate.Device, without string) (netstate.RDMADevice, error) {
	first := slices.IndexFunc(d.RDMA, func(r netstate.RDMADevice) bool { return len(r.Nodes) > 0 })
	switch {
	case len(d.RDMA) == 0:
		return netstate.RDMADevice{}, fault.New(fault.Unsupported,
			fmt.Errorf("device %q has no RDMA device: load the RDMA driver of the card on the node (such as mlx5_ib or irdma), "+
				"choose a device with the attribute rdma, or %s", d.ID, without))
	case d.RDMAExclusive && !d.HasPCIAddress():
		return netstate.RDMADevice{}, fault.New(fault.Unsupported, fmt.Errorf(
			"device %q has no PCI address, by which plumbline would find its RDMA device in a pod (\"rdma system show\" says exclusive): "+
				"choose a device with one, or %s", d.ID, without))
	case d.RDMAExclusive && len(d.RDMA) > 1:
		return netstate.RDMADevice{}, fault.New(fault.Unsupported,
			fmt.Errorf("device %q has %d RDMA devices, of which plumbline moves none to a pod (\"rdma system show\" says exclusive): "+
				"choose a device with one, or %s", d.ID, len(d.RDMA), without))
	case first < 0:
		return netstate.RDMADevice{}, noRDMANodes(fmt.Sprintf("device %q", d.ID), d.RDMA[0].Name, without)
	}
	return d.RDMA[first], nil
}

func noRDMANodes(of, name, without string) error {
	return fault.New(fault.Unsupported, fmt.Errorf(
		"RDMA device %q of %s has no device nodes: load the kernel modules ib_uverbs and rdma_ucm on the node, or %s", name, of, without))
}

// rdmaResult returns an RDMA device of a device as a result.
func rdmaResult(d netstate.Device, r netstate.RDMADevice) topology.Devices {
	out := topology.Devices{RDMADevice: r.Name, DeviceNodes: slices.Clone(r.Nodes)}
	if d.HasPCIAddress() {
		out.PCIAddress = d.ID
	}
	return out
}
