package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/plumbline/plumbline/inventory"
)

// Slices writes ResourceSlices: a kubeletplugin.Helper.
type Slices interface {
	PublishResources(ctx context.Context, resources resourceslice.DriverResources) error
}

// Options configures a Publisher.
type Options struct {
	// NodeName is the name of the pool.
	NodeName string
	// Sysfs is os.DirFS("/sys").
	Sysfs fs.FS
	// Uplinks returns the devices that carry a default route. It is called on every scan;
	// while it fails, no further devices are published.
	Uplinks func(ctx context.Context, devices []inventory.Device) (inventory.Uplinks, error)
	// InUse lists the names of the devices that are prepared for a claim, as
	// the claim's allocation has them.
	InUse func() []string
	// Chosen lists by device ID the functions that claims have as shares of their PF; nil
	// is none.
	Chosen func() map[string]bool
	// Dirty says by device ID why a device that returned from a pod could not be
	// restored; nil is none.
	Dirty func() map[string]string
	// Failing says by device name what is down in pods; nil is nothing.
	Failing func() map[string]Failing
	// Failed is called once, with what an earlier agent has published as failing and evicted
	// pods for, or kept from them; nil is not called.
	Failed func(map[string]Failing)
	// PhysicalNetworks names the network a device is wired to, by interface
	// name or PCI address.
	PhysicalNetworks map[string]string
	// UplinkOf is inventory.LookupUplink; nil leaves it to port names.
	UplinkOf func(pciAddress string) (ifName string, err error)
	// RDMANetdevs is that of inventory.Options.
	RDMANetdevs func(names []string) (ifNames map[string]string, err error)
	// Policies are those of the cluster for the devices; nil: none.
	Policies Policies
	// Neighbours are the switch ports that ports of the node are connected to; nil: unknown.
	Neighbours Neighbours
	// StateFile is where what was published is kept, below the state directory.
	StateFile string
	Log       *slog.Logger

	// Wake requests a scan because something may have changed: a link, a claim, or what else the
	// functions above return.
	Wake <-chan struct{}
	// Resync is how long after a scan the next one begins without notice, give
	// or take a tenth. Default one minute.
	Resync time.Duration
	// Settle is how long a scan waits for further requests. Default 300 ms: a PF that gets
	// 64 virtual functions causes a notification for each.
	Settle time.Duration
	// LinkDownAfter is how long a link must have had no carrier to be tainted;
	// it is untainted at once. Default 10 s: a link that is set up, or whose
	// driver resets, has none for some seconds.
	LinkDownAfter time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Policies are the policies of the cluster, applied to the devices of a node.
type Policies interface {
	// Decide sets what policies decide, and returns the attributes that each device of the
	// cluster has. As long as it fails nothing is published that was not before.
	Decide(ctx context.Context, devices []inventory.Device) (decided []inventory.Device, attributes []string, err error)
	// Others says by device ID which other driver publishes a device on this node.
	Others(devices []inventory.Device) map[string]string
	// Offered is called with the names of the devices that are offered in the end.
	Offered(devices []inventory.Device, offered map[string]bool)
}

// Neighbours listens on the ports of a node.
type Neighbours interface {
	// Seed remembers what was known of a port when it was published last.
	Seed(port string, n inventory.Neighbour)
	// Follow listens on the ports among the devices.
	Follow(devices []inventory.Device) error
	// Mark sets what is known of each device's neighbour.
	Mark(devices []inventory.Device)
}

// maxSettle bounds the wait for quiet.
const maxSettle = 5 // times Settle

// A scan reads files of each interface of the host, of which every pod may have one, and starting pods
// notify of theirs. The next scan begins idleFactor times later than the last one took, so that
// scans take at most a tenth of a processor, but at most maxIdle later.
const (
	idleFactor = 9
	maxIdle    = 5 * time.Second
)

// Publisher keeps the ResourceSlices of one node up to date.
type Publisher struct {
	opts  Options
	poked chan struct{}

	mu       sync.Mutex
	lacks    Explanation // what the API server does not know
	withheld []Withheld
	// withdrawn are the shared devices that no policy shares any more, by name.
	withdrawn map[string]bool
	unsaved   error // why the state file does not hold what is published; Run alone writes it

	// Used only by Run.
	took      time.Duration    // by the last scan
	before    map[string]entry // by device name: how it was published last, see remember
	last      []entry          // what is published, once published is true
	published bool
	since     map[string]time.Time // by device name: when its carrier was missed
	said      string               // what was logged of the last scan
	// saidTainted are the reasons that were logged, by taint and device ID.
	saidTainted map[string]map[string]string
}

// New returns a Publisher that does nothing until Run.
func New(o Options) *Publisher {
	o.Resync = cmp.Or(o.Resync, time.Minute)
	o.Settle = cmp.Or(o.Settle, 300*time.Millisecond)
	o.LinkDownAfter = cmp.Or(o.LinkDownAfter, 10*time.Second)
	if o.Now == nil {
		o.Now = time.Now //nolint:forbidigo // the default of the value that callers give
	}
	return &Publisher{opts: o, poked: make(chan struct{}, 1), since: map[string]time.Time{}, saidTainted: map[string]map[string]string{}}
}

// Handle explains an error from the helper. If the API server lacks a feature, devices that
// need it are withheld from then on.
func (p *Publisher) Handle(err error) Explanation {
	e := Explain(err)
	p.mu.Lock()
	had := p.lacks
	p.lacks.NoTaints = had.NoTaints || e.NoTaints
	p.lacks.NoSharing = had.NoSharing || e.NoSharing
	p.lacks.NoCounters = had.NoCounters || e.NoCounters
	changed := p.lacks != had
	p.mu.Unlock()
	if changed {
		p.rescan()
	}
	return e
}

// rescan requests a scan. It does not block.
func (p *Publisher) rescan() {
	select {
	case p.poked <- struct{}{}:
	default: // a scan that has not begun will see it
	}
}

// Withdrawn reports whether a shared device is published with the taint withdrawn, since no policy shares it any more.
func (p *Publisher) Withdrawn(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.withdrawn[name]
}

func (p *Publisher) noteWithdrawn(published []entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.withdrawn = map[string]bool{}
	for _, e := range published {
		if e.has(TaintWithdrawn) {
			p.withdrawn[e.Device.Name] = true
		}
	}
}

// Withheld returns the devices that are not offered, as of the last scan.
func (p *Publisher) Withheld() []Withheld {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.withheld)
}

// Run publishes until ctx ends. The slices stay then: the kubelet removes them if no agent
// returns.
func (p *Publisher) Run(ctx context.Context, to Slices) error {
	if p.opts.NodeName == "" {
		return errors.New("publish devices: the name of the node is missing")
	}
	before, err := load(p.opts.StateFile)
	if err != nil {
		// Attributes of devices in use may change once; better than no offer.
		p.opts.Log.Error(
			"cannot read published.json: devices in use are published with their current attributes, which may differ from those allocated",
			"error", err)
		p.setUnsaved(err)
	}
	p.before = before
	p.noteWithdrawn(slices.Collect(maps.Values(before)))
	if p.opts.Failed != nil {
		failed := map[string]Failing{}
		for name, e := range before {
			if f, ok := e.failing(); ok {
				failed[name] = f
			}
		}
		p.opts.Failed(failed)
	}
	p.seed()
	failures := 0
	for {
		wait, err := p.pass(ctx, to)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			p.opts.Log.Error("cannot publish devices", "error", err)
			wait = min(wait, time.Second<<min(failures, 6))
			failures++
		} else {
			failures = 0
		}
		if !p.wait(ctx, wait) {
			return nil
		}
	}
}

// wait returns when it is time for the next scan, false when there is none.
func (p *Publisher) wait(ctx context.Context, at time.Duration) bool {
	resting := time.NewTimer(min(idleFactor*p.took, maxIdle))
	defer resting.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-resting.C:
	}
	timer := time.NewTimer(at)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	case <-p.poked:
	case <-p.opts.Wake:
	}
	last := time.NewTimer(maxSettle * p.opts.Settle)
	defer last.Stop()
	for {
		timer.Reset(p.opts.Settle)
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-last.C:
			return true
		case <-p.poked:
		case <-p.opts.Wake:
		}
	}
}

// pass scans and publishes changes. It returns the time of the next scan.
func (p *Publisher) pass(ctx context.Context, to Slices) (time.Duration, error) {
	next := p.opts.Resync + time.Duration((rand.Float64()-0.5)/5*float64(p.opts.Resync))
	began := p.opts.Now()
	devices, partial := inventory.Discover(p.opts.Sysfs,
		inventory.Options{PhysicalNetworks: p.opts.PhysicalNetworks, UplinkOf: p.opts.UplinkOf, RDMANetdevs: p.opts.RDMANetdevs})
	if partial != nil && len(devices) == 0 {
		return next, partial
	}
	var unheard error
	if p.opts.Neighbours != nil {
		unheard = p.opts.Neighbours.Follow(devices)
		p.opts.Neighbours.Mark(devices)
	}
	uplinks, err := p.opts.Uplinks(ctx, devices)
	if err != nil {
		// Otherwise the uplink of the host could be given to a pod.
		return next, fmt.Errorf("default routes: %w", err)
	}
	k := known{
		devices: inventory.GuardUplinks(devices, uplinks),
		inUse:   set(p.opts.InUse()), dirty: asked(p.opts.Dirty), failing: asked(p.opts.Failing), chosen: asked(p.opts.Chosen),
		before: p.before,
	}
	if err := p.rule(ctx, &k); err != nil {
		return next, fmt.Errorf("policies: %w", err)
	}
	var untilTaint time.Duration
	k.down, untilTaint = p.lasting(down(k.devices))
	p.mu.Lock()
	k.plain, k.noSharing, k.noCounters = p.lacks.NoTaints, p.lacks.NoSharing, p.lacks.NoCounters
	p.mu.Unlock()
	offered, withheld := k.offer()
	p.took = p.opts.Now().Sub(began)
	p.mu.Lock()
	p.withheld = withheld
	p.mu.Unlock()
	p.noteWithdrawn(offered)
	if p.opts.Policies != nil {
		p.opts.Policies.Offered(k.devices, namesOf(offered))
	}
	p.say(withheld, errors.Join(partial, uplinks.Problem(), unheard))
	p.sayTainted(TaintDirty, k.devices, func(d inventory.Device) string { return k.dirty[d.ID] })
	p.sayTainted(TaintMiswired, k.devices, whyMiswired)
	if untilTaint > 0 {
		next = min(next, untilTaint)
	}
	// Write to disk first: the scheduler may allocate what it has seen, so the next agent
	// must find that there.
	if err := p.save(k.remember(offered)); err != nil {
		if recorded := p.recorded(offered); len(recorded) > 0 {
			err = errors.Join(err, p.publish(ctx, to, recorded))
		}
		return next, err
	}
	return next, p.publish(ctx, to, offered)
}

// recorded returns the devices that are offered as they are on disk, with their taints of now: a full disk must not keep pods on a
// device that fails. It returns none if it is not known what is on disk.
func (p *Publisher) recorded(offered []entry) (out []entry) {
	for _, e := range offered {
		if before, ok := p.before[e.Device.Name]; ok && before.ID == e.ID && p.unsaved == nil {
			before.Device.Taints = e.Device.Taints
			out = append(out, before)
		}
	}
	return out
}

// rule adds the decisions of policies. Policies see a device in use as it was published,
// since its interface is in a pod.
func (p *Publisher) rule(ctx context.Context, k *known) error {
	if p.opts.Policies == nil {
		return nil
	}
	seen := slices.Clone(k.devices)
	for i, d := range seen {
		if e, ok := k.before[d.Name]; ok && k.inUse[d.Name] {
			seen[i] = e.asPublished(d)
		}
	}
	decided, attributes, err := p.opts.Policies.Decide(ctx, seen)
	if err != nil {
		return err
	}
	k.others, k.attributes = p.opts.Policies.Others(seen), attributes
	for i, d := range decided {
		now := k.devices[i]
		now.Exposure, now.PhysicalNetwork, now.PhysicalNetworks, now.Additional = d.Exposure, d.PhysicalNetwork, d.PhysicalNetworks,
			d.Additional
		now.Rail = d.Rail
		k.devices[i] = now
	}
	return nil
}

func namesOf(offered []entry) map[string]bool {
	out := make(map[string]bool, len(offered))
	for _, e := range offered {
		out[e.Device.Name] = true
	}
	return out
}

// save stores how devices were published. If another version wrote the file, they are kept
// in memory only, until this agent ends.
func (p *Publisher) save(known map[string]entry) error {
	if p.unsaved == nil && equality.Semantic.DeepEqual(known, p.before) {
		return nil
	}
	err := save(p.opts.StateFile, known)
	if err != nil && !isOtherVersion(err) {
		return err
	}
	if err != nil && p.unsaved == nil {
		p.opts.Log.Warn("cannot record the published devices", "error", err)
	}
	p.before = known
	p.setUnsaved(err)
	return nil
}

func (p *Publisher) setUnsaved(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unsaved = err
}

// OtherVersion returns what this version does not know in the state file if another version had written it at the last scan, else nil.
func (p *Publisher) OtherVersion() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return unknownTo(p.unsaved)
}

// sayTainted logs the devices with a taint, once for each device and reason. why returns "" for a device without it.
func (p *Publisher) sayTainted(taint string, devices []inventory.Device, why func(inventory.Device) string) {
	said := map[string]string{}
	for _, d := range devices {
		reason := why(d)
		if reason == "" {
			continue
		}
		if p.saidTainted[taint][d.ID] != reason {
			p.opts.Log.Warn("device is tainted", "device", d.ID, "taint", taint, "reason", reason)
		}
		said[d.ID] = reason
	}
	p.saidTainted[taint] = said
}

// whyMiswired says why the port of a device is not connected to what a policy expects. That of a virtual function is its PF's.
func whyMiswired(d inventory.Device) string {
	if d.PF != nil || d.Exposure.Miswired == "" {
		return ""
	}
	return fmt.Sprintf("%s (policy %q)", d.Exposure.Miswired, d.Exposure.Policy)
}

// seed passes on the published neighbours, which stay valid until LLDP is heard again.
func (p *Publisher) seed() {
	if p.opts.Neighbours == nil {
		return
	}
	for _, e := range p.before {
		read := func(name resourceapi.QualifiedName) string {
			return ptr.Deref(e.Device.Attributes[name].StringValue, "")
		}
		n := inventory.Neighbour{Switch: read(inventory.AttrSwitch), Port: read(inventory.AttrSwitchPort)}
		if port := cmp.Or(read(inventory.AttrPFName), read(inventory.AttrIfName)); port != "" && n != (inventory.Neighbour{}) {
			p.opts.Neighbours.Seed(port, n)
		}
	}
}

func (p *Publisher) publish(ctx context.Context, to Slices, offered []entry) error {
	if p.published && equality.Semantic.DeepEqual(offered, p.last) {
		return nil
	}
	p.published = false // until publishing succeeds
	if err := to.PublishResources(ctx, pools(p.opts.NodeName, offered)); err != nil {
		return err
	}
	p.last, p.published = offered, true
	p.opts.Log.Info("published devices", "devices", len(offered))
	return nil
}

// lasting returns which of the dead links have been so for long enough, and
// when the next one will.
func (p *Publisher) lasting(dead map[string]bool) (map[string]bool, time.Duration) {
	now, out, untilTaint := p.opts.Now(), map[string]bool{}, time.Duration(0)
	maps.DeleteFunc(p.since, func(name string, _ time.Time) bool { return !dead[name] })
	for name := range dead {
		began, ok := p.since[name]
		if !ok {
			began = now
			// A device that was tainted before a restart of the agent stays tainted.
			if e := p.before[name]; e.has(TaintLinkDown) {
				began = now.Add(-p.opts.LinkDownAfter)
			}
			p.since[name] = began
		}
		left := p.opts.LinkDownAfter - now.Sub(began)
		switch {
		case left <= 0:
			out[name] = true
		case untilTaint == 0 || left < untilTaint:
			untilTaint = left
		}
	}
	return out, untilTaint
}

// say logs what is withheld, and what could not be read, when that has changed.
func (p *Publisher) say(withheld []Withheld, partial error) {
	said := fmt.Sprint(withheld, partial)
	if said == p.said {
		return
	}
	p.said = said
	if partial != nil {
		p.opts.Log.Warn("some devices could not be read in full", "error", partial)
	}
	for _, w := range withheld {
		p.opts.Log.Debug("device is not offered", "device", w.Name, "reason", w.Reason)
	}
}

// asked returns what a function says that may be nil.
func asked[T any](f func() map[string]T) map[string]T {
	if f == nil {
		return nil
	}
	return f()
}

func set(names []string) map[string]bool {
	out := make(map[string]bool, len(names))
	for _, name := range names {
		out[name] = true
	}
	return out
}
