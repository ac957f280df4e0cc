package addresses_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/controller"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

// shape draws a pool.
type shape func(rng *rand.Rand, name, first string) v1alpha1.AddressPool

func flat(bits int, block int32, reclaim string, more ...string) shape {
	return func(rng *rand.Rand, name, first string) v1alpha1.AddressPool {
		p := v1alpha1.AddressPool{Spec: v1alpha1.AddressPoolSpec{
			Subnets: []v1alpha1.AddressSubnet{{Prefix: fmt.Sprint(first, "/", bits-rng.IntN(2))}}, ReclaimAfter: reclaim,
			QuarantineSeconds: new(int32(rng.IntN(2) * 5)), BlockSize: &block,
		}}
		if block == 0 {
			p.Spec.BlockSize = nil
		}
		for _, m := range more {
			p.Spec.Subnets = append(p.Spec.Subnets, v1alpha1.AddressSubnet{Prefix: m})
		}
		if rng.IntN(2) == 0 {
			p.Spec.Exclude = []string{netip.MustParseAddr(first).Next().Next().String()}
		}
		p.Name, p.Finalizers = name, []string{v1alpha1.AddressPoolFinalizer}
		return p
	}
}

func divided(host, ifaces int32, reclaim string) shape {
	return func(_ *rand.Rand, name, first string) v1alpha1.AddressPool {
		p := v1alpha1.AddressPool{Spec: v1alpha1.AddressPoolSpec{
			Subnets:   []v1alpha1.AddressSubnet{{Prefix: fmt.Sprint(first, "/", 29-host-ifaces)}},
			HostBlock: &host, InterfaceBlock: &ifaces, QuarantineSeconds: new(int32(0)), ReclaimAfter: reclaim,
		}}
		p.Name, p.Finalizers = name, []string{v1alpha1.AddressPoolFinalizer}
		return p
	}
}

// TestLiveness holds the law of liveness for addresses: a claim for which there is room, in what its node may take,
// has its addresses after a bounded number of tries, and no address is two pods' at once. Pools are small and nearly full,
// and one that no node could ever have is refused at once; claims have several steps, pods end and are created again on any node, and agents are restarted.
func TestLiveness(t *testing.T) {
	v6, v6s := "2001:db8::/124", "2001:db8:1::/124"
	cases := map[string][]shape{
		"single addresses":                  {flat(29, 0, "")},
		"blocks":                            {flat(27, 4, "")},
		"both families":                     {flat(27, 4, "", v6)},
		"both families of single addresses": {flat(28, 1, "", v6s)},
		"blocks of nodes":                   {divided(2, 1, "")},
		"kept single addresses":             {flat(28, 0, "30s")},
		"kept blocks":                       {flat(27, 4, "30s")},
		"kept blocks of nodes":              {divided(2, 0, "30s")},
		"several pools":                     {flat(29, 0, ""), flat(28, 2, ""), flat(29, 1, "20s"), divided(1, 0, "")},
	}
	types, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	seed := effort.Seed(t)
	worlds := 1
	if effort.Long() {
		worlds = 200
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			var broken []string
			for i := range worlds {
				w := newWorld(t, rand.New(rand.NewPCG(seed, uint64(i))), cases[name])
				w.types = types
				w.run()
				broken = append(broken, w.broken...)
			}
			if len(broken) > 0 {
				t.Errorf("%d claims:\n%s", len(broken), strings.Join(broken[:min(len(broken), 5)], "\n"))
			}
		})
	}
}

// TestTries holds how many tries a claim of several steps needs while its pools have enough: one that begins it, one after
// what is kept for it was looked up, and one with what was leased then. Pods of one step that start all the time delay it
// by no more.
func TestTries(t *testing.T) {
	for name, s := range map[string]shape{
		"single addresses": flat(24, 0, ""), "kept single addresses": flat(24, 0, "1h"), "blocks": flat(24, 4, ""), "kept blocks": flat(24, 4, "1h"), "both families": flat(24, 2, "1h", "2001:db8::/120"),
	} {
		for steps := range 8 {
			w := newWorld(t, rand.New(rand.NewPCG(1, uint64(steps))), []shape{s})
			p := &livePod{name: "large", node: w.nodes[0], uid: "large"}
			for i := range steps + 1 {
				p.wants = append(p.wants, addresses.Want{Topology: "t", Step: fmt.Sprint("s", i), Pool: "pool-0"})
			}
			w.agents[p.node].pass()
			for p.given == nil && p.tries < 10 {
				w.try(p)
				small := &livePod{name: fmt.Sprint("small-", p.tries), node: p.node, uid: types.UID(fmt.Sprint("small-", p.tries)), wants: p.wants[:1]}
				w.agents[p.node].pass()
				w.try(small)
			}
			if p.given == nil || p.tries > 3 {
				t.Errorf("%s: a claim of %d steps has %v after %d tries", name, steps+1, p.given, p.tries)
			}
		}
	}
}

// world is a cluster of a few nodes with pools, in which pods start and end.
type world struct {
	*testing.T
	rng     *rand.Rand
	types   contract.Set
	server  *server
	layouts map[string]*addresspool.Layout
	now     time.Time
	nodes   []string
	agents  map[string]*agent
	files   map[string]string
	pods    []*livePod
	ended   []*livePod
	keeps   map[string]keep // by pool and address
	serial  int
	broken  []string
}

// livePod is a pod that has its addresses, or waits for them.
type livePod struct {
	name, node string
	uid        types.UID
	wants      []addresses.Want
	gateways   []netip.Addr // of its routes
	given      map[addresses.Want][]netip.Prefix
	tries      int
}

// keep is for whom an address is kept.
type keep struct {
	identity, node string
	until          time.Time
}

func newWorld(t *testing.T, rng *rand.Rand, shapes []shape) *world {
	w := &world{T: t, rng: rng, server: newServer(), layouts: map[string]*addresspool.Layout{}, now: time.Unix(1e9, 0), agents: map[string]*agent{}, files: map[string]string{}, keeps: map[string]keep{}}
	w.server.random = rng.Uint64N
	for i, s := range shapes {
		p := s(rng, fmt.Sprint("pool-", i), fmt.Sprintf("10.%d.0.0", i))
		l, err := addresspool.Of(&p)
		if err != nil {
			t.Fatal(err)
		}
		w.server.pools = append(w.server.pools, p)
		w.layouts[p.Name] = l
	}
	for range 1 + rng.IntN(3) {
		w.addNode()
	}
	return w
}

func (w *world) addNode() {
	node := fmt.Sprint("node-", len(w.nodes))
	w.nodes = append(w.nodes, node)
	w.files[node] = fileOf(w.T)
	w.start(node)
}

// start starts the agent of a node, or another one in its place.
func (w *world) start(node string) {
	a := w.server.agent(w.T, node, w.files[node], &w.now)
	a.recorded = func() (out []addresspool.Grant) {
		for _, p := range w.pods {
			for want, given := range p.given {
				if p.node == node {
					out = append(out, addresspool.Grant{Owner: addresspool.Owner{Claim: string(p.uid), Topology: want.Topology, Step: want.Step}, Pool: want.Pool, Addresses: given})
				}
			}
		}
		return out
	}
	w.agents[node] = a
}

// pod starts a pod whose topology validation accepts.
func (w *world) pod(name string) {
	w.serial++
	var steps strings.Builder
	for i := range 1 + w.rng.IntN(4) {
		l := w.layouts[w.server.pools[w.rng.IntN(len(w.server.pools))].Name]
		fmt.Fprintf(&steps, "  - {name: s%d, type: dummy, config: {ipam: {type: pool, pool: %s, interface: %d}}}\n", i, l.Name, w.rng.IntN(l.Interfaces()))
	}
	f, err := topology.Parse("", []byte("apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n"+steps.String()))
	if err != nil {
		w.Fatal(err)
	}
	topo, _, err := validity.Topology(w.Context(), f, w.types)
	if err != nil {
		w.Fatal(err)
	}
	wants, err := addresses.Wants(topo)
	if err != nil {
		w.Fatal(err)
	}
	p := &livePod{name: name, node: w.nodes[w.rng.IntN(len(w.nodes))], uid: types.UID(fmt.Sprint("claim-", w.serial)), wants: wants}
	for _, want := range wants {
		if w.rng.IntN(3) == 0 {
			groups := w.layouts[want.Pool].Groups()
			g := groups[w.rng.IntN(len(groups))]
			block, _ := g.At(w.rng.Uint64N(g.Len()))
			p.gateways = append(p.gateways, block.Addr(), block.Addr().Next())
		}
	}
	w.pods = append(w.pods, p)
}

func (p *livePod) claim() addresses.Claim {
	return addresses.Claim{UID: p.uid, Namespace: "ns", Name: string(p.uid), Pod: p.name, PodUID: p.uid, InPod: "net", Gateways: p.gateways}
}

// end ends a pod; the next one of its name may be on another node.
func (w *world) end(i int) {
	p := w.pods[i]
	w.pods = slices.Delete(w.pods, i, i+1)
	w.agents[p.node].giveBack(p.uid)
	for want, given := range p.given {
		for _, pool := range w.server.pools {
			if seconds := addresspool.Reclaim(&pool); pool.Name == want.Pool && seconds > 0 {
				for _, a := range given {
					w.keeps[pool.Name+" "+a.Addr().String()] = keep{p.name + "/" + want.Step, p.node, w.now.Add(time.Duration(seconds) * time.Second)}
				}
			}
		}
	}
}

// second passes a second: the controller counts, each agent makes a pass, pods that wait try once.
func (w *world) second() {
	w.now = w.now.Add(time.Second)
	byPool := map[string][]*v1alpha1.AddressLease{}
	for name, l := range w.server.leases {
		if l.Spec.KeptUntil != nil && !l.Spec.KeptUntil.After(w.now) {
			delete(w.server.leases, name) // by the controller
			continue
		}
		byPool[l.Spec.Pool] = append(byPool[l.Spec.Pool], l)
	}
	if w.now.Unix()%5 == 0 {
		for i := range w.server.pools {
			w.server.pools[i].Status = controller.PoolStatus(&w.server.pools[i], w.layouts[w.server.pools[i].Name], addresspool.Shared{}, byPool[w.server.pools[i].Name], nil)
		}
	}
	for _, i := range w.rng.Perm(len(w.nodes)) {
		_ = w.agents[w.nodes[i]].Pass(w.Context()) // a pool may be full
	}
	for _, i := range w.rng.Perm(len(w.pods)) {
		w.try(w.pods[i])
	}
	w.checkDistinct()
}

func (w *world) try(p *livePod) {
	if p.given != nil {
		return
	}
	p.tries++
	never := false
	for name, l := range w.layouts {
		var ifaces []int
		for _, want := range p.wants {
			if want.Pool == name {
				ifaces = append(ifaces, want.Interface)
			}
		}
		never = never || l.Enough(ifaces) != nil
	}
	got, err := w.agents[p.node].Take(p.claim(), p.wants)
	if fault.Of(err) == fault.Invalid != never {
		w.Errorf("pod %s with addresses of %v, never enough: %v: %v", p.name, p.wants, never, err)
	}
	if err != nil {
		return
	}
	p.given = map[addresses.Want][]netip.Prefix{}
	for want, given := range got {
		p.given[want] = given.Addresses
		for _, a := range given.Addresses {
			if slices.Contains(p.gateways, a.Addr()) {
				w.Errorf("pod %s has the address %s, the gateway of its route", p.name, a)
			}
		}
	}
}

// checkDistinct fails the test if two pods have one address.
func (w *world) checkDistinct() {
	has := map[string]string{}
	for _, p := range w.pods {
		for want, given := range p.given {
			for _, a := range given {
				key := want.Pool + " " + a.Addr().String()
				if other, both := has[key]; both {
					w.Fatalf("pods %s and %s have %s", other, p.name, key)
				}
				if k, kept := w.keeps[key]; kept && k.until.After(w.now) && k.identity != p.name+"/"+want.Step {
					w.Fatalf("pod %s has %s, which is kept for %s", p.name, key, k.identity)
				}
				has[key] = p.name
			}
		}
	}
}

const settleSeconds = 120 // seconds without an event; every claim that has room has its addresses after them

func (w *world) run() {
	for range 4 {
		for range 12 {
			switch w.rng.IntN(8) {
			case 0, 1, 2:
				if len(w.ended) > 0 && w.rng.IntN(2) == 0 {
					w.pod(w.ended[0].name)
					w.ended = w.ended[1:]
				} else {
					w.pod(fmt.Sprint("web-", w.serial))
				}
			case 3, 4:
				if len(w.pods) > 0 {
					i := w.rng.IntN(len(w.pods))
					w.ended = append(w.ended, w.pods[i])
					w.end(i)
				}
			case 5:
				w.start(w.nodes[w.rng.IntN(len(w.nodes))])
			}
			w.second()
		}
		for range settleSeconds {
			if !slices.ContainsFunc(w.pods, func(p *livePod) bool { return p.given == nil }) {
				break
			}
			w.second()
		}
		w.check()
	}
}

// check reports the claims that wait although there is room.
func (w *world) check() {
	for _, p := range w.pods {
		if p.given == nil && w.room(p) {
			var text []string
			for _, want := range p.wants {
				text = append(text, fmt.Sprint(want.Pool, "/", want.Interface))
			}
			_, err := w.agents[p.node].Take(p.claim(), p.wants)
			w.broken = append(w.broken, fmt.Sprintf("pod %s on %s of %d with addresses of %s after %d tries: %v", p.name, p.node, len(w.nodes), strings.Join(text, ", "), p.tries, err))
		}
	}
}

// room reports whether a pod could have its addresses of what its node holds, what nobody has leased, and of blocks that
// other nodes hold and do not use.
func (w *world) room(p *livePod) bool {
	used := w.used()
	for _, want := range p.wants {
		for _, is4 := range w.layouts[want.Pool].Families() {
			need := 0
			for _, o := range p.wants {
				if o.Pool == want.Pool && o.Interface == want.Interface {
					need++
				}
			}
			if w.free(want, is4, p, used) < need {
				return false
			}
		}
	}
	return true
}

// used are the addresses that pods have.
func (w *world) used() map[string]bool {
	used := map[string]bool{}
	for _, o := range w.pods {
		for want, given := range o.given {
			for _, a := range given {
				used[want.Pool+" "+a.Addr().String()] = true
			}
		}
	}
	return used
}

// free counts the addresses that a pod could have of a pool.
func (w *world) free(want addresses.Want, is4 bool, p *livePod, used map[string]bool) (n int) {
	l := w.layouts[want.Pool]
	holds := false
	for _, lease := range w.server.leases {
		holds = holds || lease.Spec.Pool == want.Pool && lease.Spec.Node == p.node
	}
	largest := 0
	for _, g := range l.Groups() {
		for i := range g.Len() {
			block, usable := g.At(i)
			if !usable {
				continue
			}
			r, err := l.Range(block, is4, want.Interface)
			if err != nil {
				continue
			}
			lease := w.server.leases[addresspool.LeaseName(l.Name, block)]
			if lease != nil && slices.ContainsFunc(w.pods, func(o *livePod) bool {
				return o != p && o.given == nil && strings.HasPrefix(lease.Spec.For, "ns/"+o.name+"/")
			}) {
				continue // it was kept for another pod that waits, and is that one's
			}
			size, idle := 0, true
			for a := r.First; a.Compare(r.Last) <= 0; a = a.Next() {
				if _, gives := l.Gives(netip.PrefixFrom(a, a.BitLen())); !gives {
					continue
				}
				key := want.Pool + " " + a.String()
				k, kept := w.keeps[key]
				kept = kept && k.until.After(w.now)
				mine := kept && slices.ContainsFunc(p.wants, func(o addresses.Want) bool { return k.identity == p.name+"/"+o.Step }) && (l.Single() || k.node == p.node)
				if used[key] || kept && !mine {
					idle = idle && !used[key] && !kept
					continue
				}
				if !slices.Contains(p.gateways, a) {
					size++
				}
			}
			switch {
			case lease == nil && !l.Flat():
				largest = max(largest, size)
			case lease == nil, lease.Spec.Node == p.node, lease.Spec.Node == v1alpha1.KeptNode:
				n += size
			case l.Flat() && idle:
				n += size
			}
		}
	}
	if !l.Flat() && !holds {
		return largest
	}
	return n
}
