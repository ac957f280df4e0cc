package ops

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// Planner is the view of a step type while it plans: the sandbox as it will be
// with all wants so far applied.
type Planner struct {
	ctx       context.Context // of this one plan, see ended
	req       Request
	view      *netstate.Snapshot // as observed, with all wants so far applied
	claims    claims
	wants     wants
	missing   map[netstate.Key]netstate.Object
	steps     stepStates
	current   *stepState
	results   map[string]topology.Result
	plan      Plan // as far as steps have said what it has
	routes    routes
	rules     rules
	guards    guards
	renames   renames
	ownership ownership
	mtus      mtus
	leases    leases
	leftovers leftovers
	makers    makers
	ipv6      ipv6Addrs
	// unsettledLinks are to come up in a later stage, which knows their settings.
	unsettledLinks map[string]bool
	tables         map[string]string // see NamedTables
	gidLinks       []gidLink
	// settling are the objects that have to be ready for use, see unsettled.
	settling []netstate.Object
}

// claims are the fields that steps want, by object and path.
type claims map[netstate.Key]map[string]claim

// claim is one field's wanted value and the step that wants it.
type claim struct {
	step  string
	value any
	// derived claims follow from another step's claim and yield to it.
	derived bool
}

// wants are what steps asked for, in that order.
type wants []want

// want is one object a step asked for.
type want struct {
	step  string
	obj   netstate.Object
	adopt bool
	none  bool // it is not to be there, see WantNone
	// choseMAC says that the MAC of the link is not the step's, and yields to another.
	choseMAC bool
}

// stepStates are those of the steps planned so far, by name.
type stepStates map[string]*stepState

// stepState is the state of a step while planning.
type stepState struct {
	step    *topology.Step
	config  map[string]any // with references replaced by their values
	inputs  topology.Result
	made    []string // links this step adds to its result
	addrs   []netstate.Addr
	gateway map[netstate.Key]string // of addresses
	// advertised are the links with addresses of router advertisements.
	advertised []string
	// leased are the links with an address of a DHCP server.
	leased []string
	// routerless is why a lease gives no gateway that the step may use, nil if it does.
	routerless error
	routes     []netstate.Route
	devices    *topology.Devices
	device     string // that the root step takes
	// of is the root step whose device a derived step is about: its result has the interface of that alone.
	of string
	// userspace steps make no interface: a process has the device.
	userspace bool
	// prepared steps are applied elsewhere, and only verified here.
	prepared bool
	// addressed says that the step has an interface for the addresses it is given.
	addressed bool
	pending   string // what the step waits for, "" when planned
	later     string // what a part of the step waits for; the rest is planned
	// withheld is the reason why an object that the step waits for cannot be observed.
	withheld error
	complete bool // pending is a whole sentence
	// rule is the rule whose rate the physical function of the step's device enforces, nil for none.
	rule     *PFRule
	portGUID string // of the step's virtual function of InfiniBand
	// ungated are the step's addresses that have no gateway yet, by their network;
	// nil until fillGateway needs it.
	ungated map[netip.Prefix][]netstate.Key
}

// errMissing stops a step whose plan depends on something not yet observed.
var errMissing = errors.New("not observed yet")

// ended returns the error of the context once that has ended. It is checked for every
// object that is wanted or planned, so that even a large topology does not delay a
// signal or a deadline.
func ended(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return fault.New(fault.NotReady, &cutShort{context.Cause(ctx)})
}

// cutShort is the error of planning that was not finished; no step caused it.
type cutShort struct{ err error }

func (c *cutShort) Error() string { return "plan: " + c.err.Error() }
func (c *cutShort) Unwrap() error { return c.err }

// stepName returns the name of the step being planned.
func (p *Planner) stepName() string { return p.current.step.Name }

// Root reports whether the step is a root step.
func (p *Planner) Root() bool { return p.current.step.Root() }

// LastInput returns the last interface of the dependencies that is in the
// sandbox, to which "{{ step.interfaceName }}" refers.
func (p *Planner) LastInput() (string, error) {
	if i, ok := p.current.inputs.Last(); ok {
		if names := p.LastInputs(); len(names) > 1 {
			p.Note("uses %q, the interface of the last step in dependOn %v: name the interface in the config", i.Name,
				p.current.step.DependOn)
		}
		return i.Name, nil
	}
	return "", fault.New(fault.Invalid, errors.New("no dependency provides an interface"))
}

// LastInputs returns, for each dependency, its last interface in the sandbox,
// each once, in dependOn order.
func (p *Planner) LastInputs() []string {
	var out []string
	for _, dep := range p.current.step.DependOn {
		if i, ok := p.results[dep].Last(); ok && !slices.Contains(out, i.Name) {
			out = append(out, i.Name)
		}
	}
	return out
}

// Owned reports whether the record says that we made the object.
func (p *Planner) Owned(k netstate.Key) bool { return p.ownership.made(k) }

// Kept reports whether all of the topology was applied before in this sandbox, or in
// the one that the pod had before a reboot. A kept topology is not refused for anything
// that the kernel accepts: after an upgrade to a version with stricter checks, a running
// pod would otherwise not be repaired any more, and could not start again.
func (p *Planner) Kept() bool { return p.req.Kept || p.req.AppliedBefore }

// Foreign reports whether the object is observed and the record does not say
// that we made it.
func (p *Planner) Foreign(k netstate.Key) bool {
	_, there := p.req.Have.Get(k)
	return there && !p.Owned(k)
}

// Wanted reports whether an earlier step wants the object.
func (p *Planner) Wanted(k netstate.Key) bool {
	_, ok := p.claims[k]
	return ok
}

// Leaves reports whether we made the object and no earlier step wants it: unless a later
// step wants it, it is deleted before anything is created.
func (p *Planner) Leaves(k netstate.Key) bool { return p.Owned(k) && !p.Wanted(k) }

// Ethtool returns an ethtool setting of a link as observed, false for a link that does not
// exist yet: the step is planned again once it does. A setting that the link does not have
// is an error of kind Unsupported.
func (p *Planner) Ethtool(link, class, name string) (netstate.Ethtool, bool, error) {
	want := netstate.Ethtool{Link: link, Class: class, Name: name}
	p.req.imagined.addEthtool(want)
	if got, ok := netstate.Lookup(p.view, want); ok {
		return got, true, nil
	}
	if p.view.Fresh(link) {
		// A device that is still on the host is queried there; the settings stay the
		// same when it moves.
		if l, ok := p.view.Link(link); ok && l.DeviceID != "" {
			if d, ok := p.req.Have.Device(l.DeviceID); ok && d.At != nil && *d.At != link {
				there := want
				there.Link = *d.At
				if !p.req.Have.Known(there) {
					p.need(there)
					return want, false, errMissing
				}
				return want, false, fault.New(fault.Unsupported, fmt.Errorf("link %q has no ethtool %s %q", link, class, name))
			}
		}
		p.current.later = "link " + link
		p.unsettledLinks[link] = true
		return want, false, nil
	}
	if !p.view.Known(want) {
		p.need(want)
		return want, false, errMissing
	}
	return want, false, fault.New(fault.Unsupported, fmt.Errorf("link %q has no ethtool %s %q", link, class, name))
}

// DefaultName returns configured, or the name an interface of a root step gets:
// "net" and the position of the step among the root steps, from 1. A derived
// step without a configured name gets its own step name.
func (p *Planner) DefaultName(configured string) (string, error) {
	if configured != "" {
		return configured, nil
	}
	if p.Root() {
		n := 0
		for i := range p.req.Topology.Steps {
			s := &p.req.Topology.Steps[i]
			if s.Root() {
				n++
			}
			if s.Name == p.stepName() {
				return fmt.Sprintf("net%d", n), nil
			}
		}
	}
	if len(p.stepName()) > 15 {
		return "", Invalid("name", "is needed: the step's own name %q is longer than the 15 bytes an interface name can have", p.stepName())
	}
	return p.stepName(), nil
}

// HostLinkName is a name for the host's end of a pair this step makes: the same
// for the same sandbox and step, different from all others.
func (p *Planner) HostLinkName() string {
	sum := sha256.Sum256([]byte(p.req.Netns + "\x00" + p.req.Topology.Name + "\x00" + p.stepName()))
	return "pl" + hex.EncodeToString(sum[:6])
}

// Link returns a link as it will be; a link that will not be there is an error
// of kind NotReady naming it.
func (p *Planner) Link(name string) (netstate.Link, error) {
	l, ok := p.view.Link(name)
	if ok {
		return l, nil
	}
	if !p.view.Known(netstate.Link{Name: name}) && p.req.imagined == nil {
		p.need(netstate.Link{Name: name})
		return netstate.Link{}, errMissing
	}
	where := "in the sandbox"
	if netstate.OnHost(name) {
		where = "on the host"
	}
	missing := fault.New(fault.NotReady, fmt.Errorf("no link %q %s", netstate.BaseName(name), where))
	if im := p.req.imagined; im != nil {
		return im.addLink(name, p.req.stepError(p.stepName(), missing))
	}
	return netstate.Link{}, missing
}

// OwnName returns the name of a link that a config may call by an alternative name of it. The
// kernel takes either, and shows the own one where other links refer to it.
func (p *Planner) OwnName(name string) string {
	called := p.view.LinksWhere(func(l netstate.Link) bool {
		return l.Name != name && netstate.OnHost(l.Name) == netstate.OnHost(name) && slices.Contains(l.AltNames, netstate.BaseName(name))
	})
	if len(called) != 1 {
		return name
	}
	return called[0].Name
}

// Links returns all links of the sandbox as they will be.
func (p *Planner) Links() []netstate.Link {
	return p.view.LinksWhere(func(l netstate.Link) bool { return !netstate.OnHost(l.Name) })
}

// Routes returns all routes of the sandbox as they will be.
func (p *Planner) Routes() []netstate.Route { return netstate.All[netstate.Route](p.view) }

// Rules returns all rules of the sandbox as they will be.
func (p *Planner) Rules() []netstate.Rule { return netstate.All[netstate.Rule](p.view) }

// SameType returns the configs of the topology's steps that have the type of this one, as they are written.
func (p *Planner) SameType() (out []map[string]any) {
	for i := range p.req.Topology.Steps {
		if s := &p.req.Topology.Steps[i]; s.Type == p.current.step.Type {
			out = append(out, s.Config)
		}
	}
	return out
}

// NamedTables are the routing tables that steps of the topology name, in decimal, each with the first field that does.
func (p *Planner) NamedTables() map[string]string {
	if p.tables != nil {
		return p.tables
	}
	p.tables = map[string]string{}
	for i := range p.req.Topology.Steps {
		s := &p.req.Topology.Steps[i]
		ipam, _ := s.Config["ipam"].(map[string]any)
		for _, l := range []struct {
			field string
			in    any
		}{
			{"", []any{s.Config}},
			{"routes[%d].", s.Config["routes"]},
			{"rules[%d].", s.Config["rules"]},
			{"ipam.routes[%d].", ipam["routes"]},
		} {
			entries, _ := l.in.([]any)
			for j, e := range entries {
				entry, _ := e.(map[string]any)
				table, has := entry["table"]
				if name := fmt.Sprint(table); has && p.tables[name] == "" {
					p.tables[name] = fmt.Sprintf("step %q: config.%stable", s.Name, strings.Replace(l.field, "%d", strconv.Itoa(j), 1))
				}
			}
		}
	}
	return p.tables
}

// Addrs returns the addresses of a link as they will be.
func (p *Planner) Addrs(link string) []netstate.Addr {
	return slices.DeleteFunc(netstate.All[netstate.Addr](p.view), func(a netstate.Addr) bool { return a.Link != link })
}

// Lookup returns an object as it will be, observing it first when needed.
func Lookup[T netstate.Object](p *Planner, o T) (T, bool, error) {
	p.req.imagined.add(o)
	if err := p.view.Withheld(o); err != nil {
		return o, false, &withheld{err}
	}
	got, ok := netstate.Lookup(p.view, o)
	if !ok && !p.view.Known(o) {
		p.need(o)
		return got, false, errMissing
	}
	return got, ok, nil
}

// DeviceID returns the identity of the device assigned to this root step.
func (p *Planner) DeviceID() (string, error) {
	id, ok := p.AssignedDevice()
	if im := p.req.imagined; im != nil && !ok {
		id, ok = im.devices[p.stepName()]
	}
	if !ok {
		return "", fault.New(fault.Invalid, fmt.Errorf("no device is assigned to root step %q", p.stepName()))
	}
	return id, nil
}

// AssignedDevice returns the device assigned to this root step, if any.
func (p *Planner) AssignedDevice() (string, bool) {
	id := p.req.Given[p.stepName()].Device
	return id, id != ""
}

// Assigned reports whether a root step of the topology has the device.
func (p *Planner) Assigned(id string) bool {
	for _, g := range p.req.Given {
		if g.Device == id {
			return true
		}
	}
	return false
}

// Free returns an error unless the device can be taken: it exists, no other sandbox has
// it, and the host does not use it. It may have no interface.
func (p *Planner) Free(id string) error {
	d, ok, err := Lookup(p, netstate.Device{ID: id})
	switch {
	case err != nil:
		return err
	case !ok:
		return fault.New(fault.Gone, fmt.Errorf("device %q does not exist", id))
	case d.At == nil && d.Driver != "" && !netstate.UserspaceDriver(d.Driver):
		return fault.New(fault.NotReady,
			fmt.Errorf("device %q has no network interface here, though driver %q makes one: it is in another namespace", id, d.Driver))
	case d.At != nil && !netstate.OnHost(*d.At):
		return fault.New(fault.Conflict, fmt.Errorf("device %q is in the sandbox as %q already, and not by us", id, *d.At))
	}
	return usedByHost(d)
}

func usedByHost(d netstate.Device) error {
	if d.Use == "" || d.At == nil || !netstate.OnHost(*d.At) {
		return nil
	}
	return fault.New(fault.Conflict, fmt.Errorf("device %q (%s) is used by the host: %s", d.ID, netstate.BaseName(*d.At), d.Use))
}

// Device returns a device as it will be. One that is neither on the host nor
// in the sandbox is an error of kind Gone.
func (p *Planner) Device(id string) (netstate.Device, error) {
	d, ok, err := Lookup(p, netstate.Device{ID: id})
	if err != nil {
		return d, err
	}
	if !ok {
		return d, fault.New(fault.Gone, fmt.Errorf("device %q does not exist", id))
	}
	if d.At == nil {
		if d.Driver != "" {
			return d, fault.New(fault.NotReady,
				fmt.Errorf("device %q has no network interface here: it is bound to driver %q or sits in another namespace", id, d.Driver))
		}
		return d, fault.New(fault.NotReady,
			fmt.Errorf("device %q has no network interface here: it has no driver or sits in another namespace", id))
	}
	return d, nil
}

// Attach wants the device of this root step in the sandbox, up, under the name
// its config says or DefaultName gives, with its addresses and routes, and adds
// the interface to the step's result.
func (p *Planner) Attach(id, configured string, link netstate.Link, cfg AddressConfig) error {
	name, err := p.DefaultName(configured)
	if err != nil {
		return err
	}
	d, err := p.Device(id)
	if err != nil {
		return err
	}
	if err := usedByHost(d); err != nil {
		return err
	}
	if err := p.makers.add(p.stepName(), name, p.req.imagined); err != nil {
		return err
	}
	if link.MAC != nil && d.LinkKind == netstate.InfiniBandKind {
		return Invalid("mac",
			"the interface of device %q is one of InfiniBand, whose hardware address has the GUID of its port: remove the key", id)
	}
	p.noteBelongings(d)
	if err := p.Want(netstate.Device{ID: id, At: &name}); err != nil {
		return err
	}
	link.Name, link.Up = name, new(true)
	if err := p.Want(link); err != nil {
		return err
	}
	p.Produce(name)
	return p.Address(name, cfg)
}

// noteBelongings adds a note on the addresses that the host has on a device which is taken.
func (p *Planner) noteBelongings(d netstate.Device) {
	home := *d.At
	var has []string
	for _, c := range p.req.Owned {
		if before, ok := c.Before.(netstate.Device); ok && before.ID == d.ID && before.At != nil {
			home = *before.At
		}
	}
	for _, c := range p.req.Owned {
		if a, ok := c.Before.(netstate.Addr); ok && c.Foreign && a.Link == home {
			has = append(has, a.Address)
		}
	}
	if !netstate.OnHost(home) {
		return
	}
	noteSoftRDMA(p, home, d.RDMA)
	for _, a := range p.Addrs(home) {
		has = append(has, a.Address)
	}
	slices.Sort(has)
	if has = slices.Compact(has); len(has) > 0 {
		p.Note("the host has %s on %q: they are removed with the routes over the device, and restored when the device is released",
			strings.Join(has, ", "), netstate.BaseName(home))
	}
}

// Produce adds a link to the step's result.
func (p *Planner) Produce(link string) {
	if !slices.Contains(p.current.made, link) {
		p.current.made = append(p.current.made, link)
	}
}

// Later marks a part of the step as waiting for a value that is known only after a change;
// the step is planned again then.
func (p *Planner) Later(what string) { p.current.later = what }

// ProduceDevices sets the device-node part of the step's result.
func (p *Planner) ProduceDevices(d topology.Devices) { p.current.devices = &d }

// Note adds a note for the user to the plan.
func (p *Planner) Note(format string, args ...any) {
	p.plan.Notes = append(p.plan.Notes, fmt.Sprintf("step %q: ", p.stepName())+fmt.Sprintf(format, args...))
}

// Want declares an object as desired. Fields that are not set are not managed.
// If two steps want different values for a field of an object, the error names both.
func (p *Planner) Want(o netstate.Object) error { return p.want(o, false) }

// Adopt is Want for an object that may exist without being ours, such as a
// bridge on the host: it is then used unchanged if its fields agree with ours,
// and not deleted on release.
func (p *Planner) Adopt(o netstate.Object) error { return p.want(o, true) }

func (p *Planner) want(o netstate.Object, adopt bool) error {
	if err := ended(p.ctx); err != nil {
		return err
	}
	if err := p.req.imagined.spendWant(o); err != nil {
		return err
	}
	if p.current.prepared {
		return p.prepared(o)
	}
	l, isLink := o.(netstate.Link)
	if isLink && l.LinkKind != "" && !adopt {
		if err := p.makers.addLink(p.stepName(), l, p.req.imagined); err != nil {
			return err
		}
	}
	if err := p.guard(o); err != nil {
		return err
	}
	if err := p.claims.add(p.stepName(), o); err != nil {
		return err
	}
	if !adopt {
		if err := p.refuseContradiction(o); err != nil {
			return err
		}
	}
	chosen := false
	if isLink {
		mac, err := p.chosenMAC(l)
		if err != nil {
			return err
		}
		if mac != nil {
			l.MAC, chosen = mac, true
			o = l
		}
	}
	if err := p.view.Withheld(o); err != nil {
		p.current.await(err.Error(), err)
		return nil
	}
	p.wants = append(p.wants, want{step: p.stepName(), obj: o, adopt: adopt, choseMAC: chosen})
	switch o := o.(type) {
	case netstate.Addr:
		if !netstate.OnHost(o.Link) { // a result has what the sandbox has
			p.current.addrs = append(p.current.addrs, o)
		}
	case netstate.Route:
		if !netstate.OnHost(o.Link) {
			p.current.routes = append(p.current.routes, o)
		}
	}
	builtOn := isLink && l.LinkKind == ""
	if !builtOn {
		p.req.imagined.add(o)
	} else if _, err := p.Link(l.Name); err != nil && !errors.Is(err, errMissing) {
		return err
	}
	have, ok := p.view.Get(o.Key())
	if !ok {
		if !p.view.Known(o) {
			p.need(o)
		}
		p.view.Apply(netstate.Change{After: o})
		return nil
	}
	if c, differs := netstate.NewUpdate(p.stepName(), have, o); differs {
		p.view.Apply(c)
	}
	return nil
}

// WantNone declares that an object that the kernel makes by itself is not to be there, such as the VLAN that each
// port of a bridge is in.
func (p *Planner) WantNone(o netstate.Object) error {
	if err := ended(p.ctx); err != nil {
		return err
	}
	if err := p.req.imagined.spendWant(o); err != nil {
		return err
	}
	if p.claims[o.Key()] == nil {
		p.claims[o.Key()] = map[string]claim{} // nobody restores it
	}
	p.wants = append(p.wants, want{step: p.stepName(), obj: o, none: true})
	if !p.view.Known(o) {
		p.need(o)
	}
	if have, there := p.view.Get(o.Key()); there {
		p.view.Apply(netstate.Change{Before: have})
	}
	return nil
}

// prepared verifies an object that was applied elsewhere. In a sandbox that has been
// applied, whoever made the object checks and repairs it.
func (p *Planner) prepared(o netstate.Object) error {
	if p.req.Kept {
		return nil
	}
	have, ok := p.view.Get(o.Key())
	switch {
	case !p.view.Known(o):
		p.need(o)
		return errMissing
	case !ok:
		return netstate.Absent(o)
	}
	for _, d := range netstate.Diff(o, have) {
		return fault.New(fault.NotReady, fmt.Errorf("is not prepared: %s: %s is %s, not %s",
			o.Key(), d.Path, netstate.FormatValue(d.Before), netstate.FormatValue(d.After)))
	}
	return nil
}

// add records each field of o for a step.
func (c claims) add(step string, o netstate.Object) error {
	k := o.Key()
	if c[k] == nil {
		c[k] = map[string]claim{}
	}
	for _, f := range netstate.Fields(o) {
		prev, taken := c[k][f.Path]
		if taken && netstate.FormatValue(prev.value) != netstate.FormatValue(f.Value) {
			if prev.step == step {
				return fault.New(fault.Invalid, fmt.Errorf("wants %s %s = %s and also %s: remove one of them",
					k, f.Path, netstate.FormatValue(prev.value), netstate.FormatValue(f.Value)))
			}
			return fault.New(fault.Invalid, fmt.Errorf("wants %s %s = %s, but step %q wants %s: remove one of them",
				k, f.Path, netstate.FormatValue(f.Value), prev.step, netstate.FormatValue(prev.value)))
		}
		c[k][f.Path] = claim{step: step, value: f.Value}
	}
	return nil
}

func (r *Request) stepError(step string, err error) error {
	if already, ok := errors.AsType[*StepError](err); ok {
		return already
	}
	if errors.As(err, new(*cutShort)) {
		return err
	}
	return &StepError{r.Topology.Name, step, err}
}

func (p *Planner) need(o netstate.Object) { p.missing[o.Key()] = o }

// result builds the step's result from a snapshot: what the dependencies had,
// then the links this step made, then its addresses and routes.
func (st *stepState) result(netns string, s *netstate.Snapshot, deps []topology.Result) topology.Result {
	if st.of != "" {
		deps = nil
	}
	res := topology.Merge(deps...)
	index := map[string]int{}
	for i := range res.Interfaces {
		index[res.Interfaces[i].Name] = i
	}
	for _, name := range st.made {
		if _, ok := index[name]; ok {
			continue
		}
		i := topology.Interface{Name: netstate.BaseName(name)}
		if !netstate.OnHost(name) {
			i.Sandbox = netns
		}
		index[name] = len(res.Interfaces)
		res.Interfaces = append(res.Interfaces, i)
	}
	for i := range res.Interfaces {
		name := res.Interfaces[i].Name
		if res.Interfaces[i].Sandbox == "" {
			name = netstate.HostName(name)
		}
		fillInterface(&res.Interfaces[i], s, name)
	}
	for _, a := range st.addrs {
		ip := topology.IP{Address: a.Address, Gateway: st.gateway[a.Key()]}
		if i, ok := index[a.Link]; ok {
			ip.Interface = new(i)
		}
		if !slices.ContainsFunc(res.IPs,
			func(o topology.IP) bool { return o.Address == ip.Address && equalIndex(o.Interface, ip.Interface) }) {
			res.IPs = append(res.IPs, ip)
		}
	}
	res.Learns = res.Learns || len(st.leased) > 0
	for _, link := range st.advertised {
		res.Learns = true
		for _, a := range advertisedOn(s, link) {
			ip := topology.IP{Address: a.Address}
			if i, ok := index[link]; ok {
				ip.Interface = new(i)
			}
			res.IPs = append(res.IPs, ip)
		}
	}
	for _, r := range st.routes {
		res.Routes = append(res.Routes, resultRoute(r))
	}
	if st.devices != nil {
		res.Devices = st.devices
	}
	return res
}

func equalIndex(a, b *int) bool { return a == nil && b == nil || a != nil && b != nil && *a == *b }

func fillInterface(i *topology.Interface, s *netstate.Snapshot, name string) {
	l, ok := s.Link(name)
	if !ok {
		return
	}
	i.MAC, i.PCIID = "", l.DeviceID
	if l.MAC != nil {
		i.MAC = *l.MAC
	}
	if l.MTU != nil {
		i.MTU = int(*l.MTU)
	}
}

func resultRoute(r netstate.Route) topology.Route {
	out := topology.Route{Dst: r.Dst, GW: r.Gateway}
	if r.Table != netstate.TableMain {
		out.Table = new(int(r.Table))
	}
	if r.Metric != 0 && (!r.IPv6() || r.Metric != ipv6DefaultMetric) {
		out.Priority = int(r.Metric)
	}
	if r.MTU != nil {
		out.MTU = int(*r.MTU)
	}
	if r.AdvMSS != nil {
		out.AdvMSS = int(*r.AdvMSS)
	}
	if r.Scope != nil {
		if n, ok := map[string]int{"global": 0, "link": 253, "host": 254}[*r.Scope]; ok && n != 0 {
			out.Scope = &n
		}
	}
	return out
}

// ipv6DefaultMetric is the kernel's metric of an IPv6 route without one
// (IP6_RT_PRIO_USER).
const ipv6DefaultMetric = 1024
