package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/ref"
	"github.com/plumbline/plumbline/topology/suggest"
)

// Vet plans a valid topology on an imagined node and returns what is wrong with it on
// any node: steps that contradict each other or want one name, an unreachable gateway.
// The error is a *topology.Invalid with the planner's messages, or that of a context
// that has ended.
//
// A topology that some node would accept is not refused. The imagined node has everything
// that is queried: a device with generous limits per root step, every link that a config
// names, every sysctl and setting. A refusal counts only if a second node, with other values
// and with links of other kinds, refuses with the same message; the same holds for notes. A
// VF is assumed to have an interface. Steps of unknown type, and those that depend on them,
// are skipped. A topology that is too expensive to plan is not planned; a note says so.
func (r *Registry) Vet(ctx context.Context, t *topology.Topology) (notes []string, err error) {
	return r.vetGiven(ctx, t, nil)
}

// vetGiven is Vet of a topology whose steps are given addresses.
func (r *Registry) vetGiven(ctx context.Context, t *topology.Topology, given Givens) (notes []string, err error) {
	if !affordable(t) {
		return []string{notPlanned}, nil
	}
	notes, first := r.vet(ctx, t, given, imaginedNodes()[0])
	if first == nil && len(notes) == 0 {
		return nil, nil
	}
	again, second := r.vet(ctx, t, given, imaginedNodes()[1])
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(first, errUnaffordable) || errors.Is(second, errUnaffordable):
		return []string{notPlanned}, nil
	case first == nil:
		return bounded(slices.DeleteFunc(notes, func(n string) bool { return !slices.Contains(again, n) })), nil
	}
	inv := &topology.Invalid{Topology: t.Name}
	agreed := problemsOf(second)
	for _, p := range problemsOf(first) {
		if slices.Contains(agreed, p) {
			inv.Add(p)
		}
	}
	if len(inv.Problems) == 0 {
		return nil, nil
	}
	return nil, inv
}

// notPlanned is the note on a topology of which Vet says nothing.
const notPlanned = "the topology is too large to be planned in advance: " +
	"steps that contradict each other are not found by validation, only by a node, as with plumbline plan"

// maxNotes bounds the number of notes on one topology.
const maxNotes = 16

func bounded(notes []string) []string {
	if more := len(notes) - maxNotes; more > 0 {
		notes = append(notes[:maxNotes:maxNotes], fmt.Sprintf("and %d notes more", more))
	}
	return notes
}

// refusals are the errors that one planning found.
func refusals(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// imaginedNodes are two that differ in all that a plan may depend on.
func imaginedNodes() [2]imagination {
	return [2]imagination{{mtu: 65535, domain: "ffff", uplink: true}, {mtu: 65534, domain: "fffe", occupied: true}}
}

// Interfaces implements topology.Maker. A value on which two imagined nodes agree holds on any node.
func (r *Registry) Interfaces(ctx context.Context, t *topology.Topology) (map[string]string, error) {
	if !affordable(t) {
		return nil, nil
	}
	var made []map[string]string
	for _, im := range imaginedNodes() {
		im.made = map[string]string{}
		_, _ = r.vet(ctx, t, nil, im) // Vet says what is wrong
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		made = append(made, im.made)
	}
	maps.DeleteFunc(made[0], func(name, step string) bool { return netstate.OnHost(name) || made[1][name] != step })
	return made[0], nil
}

func (r *Registry) vet(ctx context.Context, t *topology.Topology, given Givens, im imagination) (notes []string, err error) {
	p, err := r.Plan(ctx, r.imaginedRequest(t, given, &im))
	if err != nil {
		return im.unmade(), err // links of other kinds may be refused
	}
	if problems := t.ExportProblems(r, p.Results); len(problems) > 0 {
		return nil, &topology.Invalid{Topology: t.Name, Problems: problems}
	}
	return slices.Concat(p.Notes, im.notes(p)), nil
}

// notes are those on a topology that was planned.
func (im *imagination) notes(p *Plan) []string {
	return slices.Concat(im.unmade(), emptyTables(p), im.withoutGID(p))
}

// imaginedRequest is that of a plan on an imagined node.
func (r *Registry) imaginedRequest(t *topology.Topology, given Givens, im *imagination) Request {
	if im.made == nil {
		im.made = map[string]string{}
	}
	im.devices, im.ib, im.links, im.pooled = map[string]string{}, map[string]bool{}, map[string]error{}, map[string]bool{}
	im.sources = map[string]byte{}
	req := Request{Topology: t, Netns: "/run/netns/pod", Given: Givens{}, Have: netstate.NewSnapshot(), imagined: im}
	for step, g := range given {
		req.Given[step] = g.Network()
	}
	for i, s := range t.Roots() {
		id := fmt.Sprintf("%s:%02x:10.0", im.domain, i)
		im.devices[s.Name], im.ib[id] = id, ofInfiniBand(s.Selector)
		if c, ok := r.Contract(s.Type); ok && !c.Input.Device && (s.Selector != "" || im.occupied) {
			g := req.Given[s.Name]
			g.Device = id // the step may use a device, but does not have to
			req.Given[s.Name] = g
		}
	}
	req.Have.Put(netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), Master: new("")})
	if im.uplink {
		req.Have.Put(im.link(podUplink))
		for _, dst := range []string{"0.0.0.0/0", "::/0"} {
			req.Have.Put(netstate.Route{Link: podUplink, Dst: dst, Table: netstate.TableMain})
		}
	}
	return req
}

// PlanImagined plans a valid topology for a sandbox of a node that nobody has: it has each link and setting that the topology
// refers to, MTUs of 1500 (or more, if the topology needs that), a device for each root step that is given none, and the pod's
// own interface with its default routes, unless the topology makes that (spec.role). It returns beside the plan what
// the steps are given there. The rules are those of the pod's NetworkQoS, as in Request.
func (r *Registry) PlanImagined(ctx context.Context, t *topology.Topology, given Givens, rules Rules) (*Plan, Givens, error) {
	err := errUnaffordable
	if affordable(t) {
		for _, mtu := range []uint32{1500, imaginedNodes()[0].mtu} {
			im := imagination{mtu: mtu, domain: "0000", uplink: t.Role == ""}
			req := r.imaginedRequest(t, given, &im)
			req.Rules = rules
			for _, s := range t.Roots() {
				g := req.Given[s.Name]
				c, _ := r.Contract(s.Type)
				switch asked := given[s.Name].Device; {
				case asked != "":
					g.Device = asked
				case c.Input.Device:
					g.Device = cmp.Or(namedDevice(c, s), im.devices[s.Name])
				}
				if g.Device != "" {
					req.Given[s.Name] = g
				}
			}
			var p *Plan
			if p, err = r.Plan(ctx, req); err == nil {
				p.Notes = slices.Concat(p.Notes, im.notes(p))
				return p, req.Given, nil
			}
		}
	}
	if errors.Is(err, errUnaffordable) {
		err = fault.New(fault.Invalid,
			errors.New("the topology is too large to be planned on an imagined node: plan it on a real one, with --netns"))
	}
	return nil, nil, err
}

// namedDevice is the PCI address that the config of a step names, "" if it names none.
func namedDevice(c contract.Contract, s *topology.Step) string {
	config, _ := c.Decode(s.Config, contract.Options{Unresolved: true})
	runtime, _ := config["runtimeConfig"].(map[string]any)
	id, _ := config["deviceID"].(string)
	other, _ := runtime["deviceID"].(string)
	return cmp.Or(id, other)
}

// unmade are notes on links that a step names and none makes.
func (im *imagination) unmade() (notes []string) {
	var made []string
	for name := range im.made {
		if !netstate.OnHost(name) {
			made = append(made, name)
		}
	}
	slices.Sort(made)
	for _, name := range slices.Sorted(maps.Keys(im.links)) {
		step, ok := errors.AsType[*StepError](im.links[name])
		if ok && name != topology.PodInterface && name != "lo" && im.made[name] == "" {
			notes = append(notes, fmt.Sprintf("step %q: no step makes an interface %q, so that the pod must have it from elsewhere%s",
				step.Step, name, suggest.Hint(name, made)))
		}
	}
	return notes
}

// emptyTables are notes on rules that lead to a table in which the topology has no route: the kernel goes on with
// the next rule.
func emptyTables(p *Plan) (notes []string) {
	filled := map[uint32]bool{netstate.TableMain: true, 253: true, 255: true} // default and local, which the kernel has rules for
	for _, c := range p.Changes {
		switch o := c.After.(type) {
		case netstate.Route:
			filled[o.Table] = true
		case netstate.Link:
			if o.VRF != nil && o.VRF.Table != nil {
				filled[*o.VRF.Table] = true
			}
		}
	}
	for _, c := range p.Changes {
		if rule, ok := c.After.(netstate.Rule); ok && !filled[rule.Table] {
			filled[rule.Table] = true // one note for a table
			notes = append(notes,
				fmt.Sprintf("step %q: rules: no step has a route in table %d, so that the rule of priority %d leads nowhere: "+
					"add routes with table: %d, or change the table", c.Step, rule.Table, rule.Priority, rule.Table))
		}
	}
	return notes
}

// imaginedGID is a GID that a step requires for an address of a link in the sandbox.
type imaginedGID struct{ step, link, family string }

// withoutGID are notes on GIDs for addresses that no step gives.
func (im *imagination) withoutGID(p *Plan) (notes []string) {
	for _, g := range im.gids {
		fits := func(ip topology.IP, of *topology.Result) bool {
			prefix, err := netip.ParsePrefix(ip.Address)
			return err == nil && ip.Interface != nil && of.Interfaces[*ip.Interface].Name == g.link &&
				(g.family == "" || prefix.Addr().Is4() == (g.family == "IPv4"))
		}
		given := slices.ContainsFunc(p.Results, func(s topology.StepResult) bool {
			on := slices.ContainsFunc(s.Result.Interfaces, func(i topology.Interface) bool { return i.Name == g.link })
			return on && s.Result.Learns || slices.ContainsFunc(s.Result.IPs, func(ip topology.IP) bool { return fits(ip, &s.Result) })
		})
		advertised := slices.ContainsFunc(p.Changes, func(c netstate.Change) bool {
			s, ok := c.After.(netstate.Sysctl)
			return ok && s.Path == "net/ipv6/conf/"+g.link+"/accept_ra" && *s.Value != "0"
		})
		maker := cmp.Or(im.made[g.link], g.step)
		if given || advertised && g.family != "IPv4" || p.by != nil && p.by.req.claimsAddress(maker) {
			continue
		}
		kind := "an address"
		if g.family != "" {
			kind = "an " + g.family + " address"
		}
		notes = append(notes, fmt.Sprintf(
			"step %q: require.gid: no step gives %q %s, so that it has no such GID and containers do not start: add addresses or ipam",
			g.step, g.link, kind))
	}
	return notes
}

// addresses returns examples of addresses for a step, of a subnet of their source: a pool, or what gives a link its addresses. Two
// imagined nodes get different ones, so that no value of an address decides about validity. There are at most 256 steps.
func (im *imagination) addresses(source string, step int) []netip.Prefix {
	other := byte(18)
	if im.occupied {
		other = 19
	}
	subnet, known := im.sources[source]
	if !known {
		subnet = byte(len(im.sources))
		im.sources[source] = subnet
	}
	v6 := netip.MustParseAddr("2001:2::").As16() // networks for benchmarks: RFC 5180, RFC 2544
	v6[5], v6[7], v6[15] = other, subnet, byte(step)
	return []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{198, other, subnet, byte(step)}), 24),
		netip.PrefixFrom(netip.AddrFrom16(v6), 64),
	}
}

// givesAddresses reports whether an imagined node has given the addresses of a link.
func (im *imagination) givesAddresses(link string) bool {
	return im != nil && im.pooled[link]
}

// claimsAddress reports whether, on an imagined node, a step may get an address of a claim.
func (r *Request) claimsAddress(step string) bool {
	return r.imagined != nil && r.Topology.ClaimSetsAddresses(step)
}

// poolAddress is an address that an imagined node gives, or a gateway of it.
var poolAddress = regexp.MustCompile(`\b(198\.1[89]\.[0-9]+\.[0-9]+(/24)?|2001:2:1[23]:[0-9a-f:]*(/64)?)`)

// ofPool returns a message without the addresses that an imagined node gives.
func ofPool(message string) string {
	return poolAddress.ReplaceAllString(message, "(of the pool)")
}

// podUplink is the pod's own interface; no config can name it.
const podUplink = "pod's own"

// problemsOf returns the problems of one planning, with their step and field if known, and without the
// addresses that an imagined node gives.
func problemsOf(err error) (out []topology.Problem) {
	for _, refusal := range refusals(err) {
		if step, ok := errors.AsType[*StepError](refusal); ok {
			out = append(out, problemsOfStep(step)...)
		} else if inv, ok := errors.AsType[*topology.Invalid](refusal); ok {
			out = append(out, inv.Problems...)
		} else {
			out = append(out, topology.Problem{Message: refusal.Error()})
		}
	}
	for i := range out {
		out[i].Message = ofPool(out[i].Message)
	}
	return out
}

func problemsOfStep(step *StepError) (out []topology.Problem) {
	for _, err := range each(step.Err) {
		p := topology.Problem{Step: step.Step, Message: err.Error()}
		if f, ok := fault.As[contract.FieldError](err); ok && f.Field != "" {
			p.Field, p.Message, p.Complete = "config."+f.Field, f.Message, f.Complete
		}
		if at, ok := fault.As[*ref.Error](err); ok && at.Path != "" {
			p.Field, p.Message = "config."+at.Path, at.Message()
		}
		out = append(out, p)
	}
	return out
}

// each splits an error that joins several problems of a step's config.
func each(err error) []error {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if joined, ok := e.(interface{ Unwrap() []error }); ok {
			return joined.Unwrap()
		}
	}
	return []error{err}
}

// imagination is an imagined sandbox with its host. It is filled with what the planner
// queries.
type imagination struct {
	have, view *netstate.Snapshot // the plan's: as observed, and with all wants so far applied

	mtu    uint32 // of every device and link, in bytes
	domain string // of PCI addresses
	uplink bool   // the sandbox has a default route
	// occupied says that links of the host are bridges and those of the sandbox
	// VRFs; otherwise they are devices, and a bridge that a step may make is not
	// there.
	occupied bool
	devices  map[string]string // of root steps that name none themselves
	ib       map[string]bool   // those of InfiniBand
	links    map[string]error  // taken to be in the sandbox, with what is wrong when a step makes them
	pooled   map[string]bool   // links with addresses of a pool
	sources  map[string]byte   // of these addresses, with a number for each
	made     map[string]string // links to the steps that make them; may be nil
	macs     uint16            // given out
	rdma     int               // RDMA devices given out
	gids     []imaginedGID
	cost     int
}

// The costs of planning, limited because of hostile topologies. The cost of an object is
// in netstate.Traits, since objects of some kinds are compared with each other.
const (
	costBudget = 20_000
	maxValues  = 4096 // in all configs together
)

var errUnaffordable = errors.New("too much to imagine")

// affordable reports whether the configs have few enough values.
func affordable(t *topology.Topology) bool {
	n := 0
	var count func(v any)
	count = func(v any) {
		n++
		switch v := v.(type) {
		case map[string]any:
			for _, e := range v {
				count(e)
			}
		case []any:
			for _, e := range v {
				count(e)
			}
		}
	}
	for i := range t.Steps {
		count(t.Steps[i].Config)
	}
	return n <= maxValues
}

// spend counts what planning costs; on a real node nothing is counted.
func (im *imagination) spend(cost int) error {
	if im == nil {
		return nil
	}
	if im.cost += cost; im.cost > costBudget {
		return errUnaffordable
	}
	return nil
}

func (im *imagination) spendWant(o netstate.Object) error {
	return im.spend(o.Traits().Cost)
}

// spendMerge is for the entries of results, which are compared pair by pair.
func (im *imagination) spendMerge(results []topology.Result) error {
	n := 0
	for _, r := range results {
		n += len(r.Interfaces) + len(r.IPs) + len(r.Routes)
	}
	return im.spend(n * n / 256)
}

func (im *imagination) link(name string) netstate.Link {
	l := netstate.Link{
		Name: name, LinkKind: "device", MTU: &im.mtu, MAC: new(im.mac()), Up: new(true), Master: new(""),
		Promisc: new(false), AllMulti: new(false), TxQueueLen: new(uint32(1000)),
	}
	switch {
	case im.occupied && netstate.OnHost(name):
		l.LinkKind, l.Bridge = "bridge", &netstate.Bridge{VLANFiltering: new(true)}
	case im.occupied:
		l.LinkKind, l.VRF = "vrf", &netstate.VRF{Table: new(uint32(1<<32 - 1))}
	}
	return l
}

// mac returns another address every time, locally administered.
func (im *imagination) mac() string {
	im.macs++
	return fmt.Sprintf("02:%s:%s:00:%02x:%02x", im.domain[:2], im.domain[2:], im.macs>>8, im.macs&0xff)
}

// rdmaNodes are the device nodes of an RDMA device, others every time.
func (im *imagination) rdmaNodes() []string {
	im.rdma++
	return []string{fmt.Sprintf("/dev/infiniband/uverbs%d", im.rdma-1), "/dev/infiniband/rdma_cm"}
}

// value is a field of a result whose real value is known only after applying.
func (im *imagination) value(r ref.Ref) (any, bool) {
	field := r.Field
	if r.Index != nil {
		field = r.Sub
	}
	switch {
	case im == nil:
		return nil, false
	case field == "mac":
		return im.mac(), true
	case field == "mtu":
		return int64(im.mtu), true
	default:
		return nil, false
	}
}

// ofInfiniBand reports whether a selector shows, without being evaluated, that it chooses functions of InfiniBand alone: one of the
// terms that it joins says so.
func ofInfiniBand(selector string) bool {
	found := false
	for term := range strings.SplitSeq(selector, "&&") {
		term = strings.TrimSpace(term)
		if strings.Contains(term, "||") || strings.Contains(term, " ? ") || strings.Count(term, "(") != strings.Count(term, ")") {
			return false
		}
		found = found || slices.Contains(linkTypeInfiniBand, term)
	}
	return found
}

var linkTypeInfiniBand = []string{
	`device.attributes["dra.networking"].linkType == "infiniband"`,
	`device.attributes["dra.networking"].?linkType.orValue("") == "infiniband"`,
}

// add adds an object that has to be observed on a real node. Links of the sandbox are
// always known; see addLink.
func (im *imagination) add(o netstate.Object) {
	if im == nil || im.view.Known(o) {
		return
	}
	switch o := o.(type) {
	case netstate.Device:
		at := netstate.HostName(o.ID)
		l := im.link(at)
		l.LinkKind, l.Bridge, l.DeviceID, l.Up = "device", nil, o.ID, new(false)
		d := netstate.Device{
			ID: o.ID, At: &at, MAC: l.MAC, MTU: l.MTU, Up: l.Up,
			RDMA: []netstate.RDMADevice{{Name: fmt.Sprintf("rdma%d", im.rdma), Nodes: im.rdmaNodes()}},
		}
		if im.ib[o.ID] {
			d.MAC, d.LinkKind, d.PortGUID = nil, netstate.InfiniBandKind, "00:00:"+*l.MAC
			l.LinkKind, l.MAC = d.LinkKind, new("00:00:00:01:fe:80:00:00:00:00:00:00:"+d.PortGUID)
		}
		im.put(d)
		im.put(l)
	case netstate.Link:
		if im.occupied {
			im.put(im.link(o.Name))
			return
		}
		im.putAbsent(o.Key())
	default:
		if setting, ok := netstate.Imagine(o, netstate.Imagined{MAC: im.mac, Domain: im.domain}); ok {
			im.put(setting)
			return
		}
		im.putAbsent(o.Key())
	}
}

func (im *imagination) put(o netstate.Object) {
	im.have.Put(o)
	im.view.Put(o)
}

func (im *imagination) putAbsent(k netstate.Key) {
	im.have.PutAbsent(k)
	im.view.PutAbsent(k)
}

// addLink adds a link that a step builds on and no step before has made: one of the pod
// or of the host. If a later step makes that link, the error is that it is missing, as on a
// real node.
func (im *imagination) addLink(name string, missing error) (netstate.Link, error) {
	if err := im.spend(netstate.Link{}.Traits().Cost); err != nil {
		return netstate.Link{}, err
	}
	if !netstate.OnHost(name) {
		im.links[name] = missing
	}
	l := im.link(name)
	if base := netstate.BaseName(name); len(base) > 15 { // an alternative name
		l.AltNames = []string{base}
		own := l
		if own.Name = fmt.Sprintf("own%d", im.macs); netstate.OnHost(name) {
			own.Name = netstate.HostName(own.Name)
		}
		im.put(own)
	}
	im.put(l)
	return l, nil
}

// addEthtool gives a link the setting that is queried. A device that has moved already
// had the setting on the host.
func (im *imagination) addEthtool(want netstate.Ethtool) {
	if im == nil {
		return
	}
	if _, known := netstate.Lookup(im.view, want); known {
		return
	}
	l, ok := im.view.Link(want.Link)
	if !ok || im.view.Fresh(want.Link) && l.DeviceID == "" {
		return // queried again once the link exists
	}
	want.Value = new("as it is")
	im.view.Put(want)
	if d, ok := im.have.Device(l.DeviceID); ok && d.At != nil {
		want.Link = *d.At
	}
	im.have.Put(want)
}

// makers are the steps that make links, by link.
type makers map[string]string

// addLink records that a step makes a link, or both links of a pair.
func (m makers) addLink(step string, l netstate.Link, im *imagination) error {
	if l.Veth != nil && l.Veth.Peer != nil {
		if err := m.add(step, *l.Veth.Peer, im); err != nil {
			return err
		}
	}
	return m.add(step, l.Name, im)
}

// add records that a step makes a link; each name may be used once.
func (m makers) add(step, name string, im *imagination) error {
	if im != nil && im.links[name] != nil {
		return im.links[name]
	}
	if other, taken := m[name]; taken && other != step {
		return fault.New(fault.Invalid,
			fmt.Errorf("makes an interface %q, as step %q does already: give one of them another name", netstate.BaseName(name), other))
	}
	m[name] = step
	if im != nil && im.made != nil {
		im.made[name] = step
	}
	return nil
}
