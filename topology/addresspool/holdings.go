package addresspool

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Holdings are the blocks of all pools that a node holds, and the owners of their addresses. They are written
// to disk before an address from it is answered, and read again after a crash.
type Holdings struct {
	Blocks  []Held    `json:"blocks,omitempty"`
	Grants  []Grant   `json:"grants,omitempty"`
	Resting []Resting `json:"resting,omitempty"`
}

// Pools returns the pools of which the node has anything.
func (h *Holdings) Pools() []string {
	names := map[string]bool{}
	for _, b := range h.Blocks {
		names[b.Pool] = true
	}
	for _, g := range h.Grants {
		names[g.Pool] = true
	}
	for _, r := range h.Resting {
		names[r.Pool] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// Held is a block of which the node has the lease.
type Held struct {
	Pool  string       `json:"pool"`
	Block netip.Prefix `json:"block"`
	// Parts is all that the lease is for, if that is more than the block which names it.
	Parts []netip.Prefix `json:"parts,omitempty"`
	// Lease is the UID of the lease: one of the same name that was created later is
	// another.
	Lease string `json:"lease"`
	// Lost says that the node does not hold the lease any more, and that a sandbox still has
	// an address of the block. Nothing is given from it.
	Lost bool `json:"lost,omitempty"`
	// For is the identity for which the address of the block was kept, and which alone gets it.
	For string `json:"for,omitempty"`
	// Gained is when the block was taken over for it, in seconds since 1970.
	Gained int64 `json:"gained,omitempty"`
	// Kept says that the lease is to be kept for an identity, for any node. Nothing is given
	// from the block from then on.
	Kept *Kept `json:"kept,omitempty"`
}

// Kept is for whom an address is kept after its claim has ended.
type Kept struct {
	For   string `json:"for"`
	Until int64  `json:"until"` // seconds since 1970
}

func (b Held) contains(a netip.Addr) bool {
	return b.Block.Contains(a) || slices.ContainsFunc(b.Parts, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Owner identifies the holder of an address.
type Owner struct {
	Claim    string `json:"claim"` // UID
	Topology string `json:"topology"`
	Step     string `json:"step"`
}

// Grant holds the addresses that an owner was given.
type Grant struct {
	Owner
	// Of names the claim, NAMESPACE/NAME.
	Of string `json:"of,omitempty"`
	// Pod names the pod of the claim, if the addresses are literals.
	Pod string `json:"pod,omitempty"`
	// PodUID is that of the claim's pod; none in what earlier versions have written.
	PodUID    string         `json:"podUID,omitempty"`
	Pool      string         `json:"pool"`
	Addresses []netip.Prefix `json:"addresses"`
	// For is the identity for which the addresses are kept after the claim has ended, and Keep
	// for how many seconds.
	For  string `json:"for,omitempty"`
	Keep int64  `json:"keep,omitempty"`
}

// Resting is an address that was given back. What others remember of it, as in caches of
// neighbors and connections, is to be forgotten before it is given again.
type Resting struct {
	Pool    string     `json:"pool"`
	Address netip.Addr `json:"address"`
	Until   int64      `json:"until"` // seconds since 1970
	// For is the identity that gets the address meanwhile.
	For string `json:"for,omitempty"`
}

// Title is how messages name a pool, which may be that of a node.
func Title(pool string) string {
	switch pool {
	case topology.LocalPool:
		return "ipam of type " + topology.IPAMHostLocal
	case "":
		return "the " + v1alpha1.AddressPoolKind + " of its physical network"
	}
	return fmt.Sprintf("%s %q", v1alpha1.AddressPoolKind, pool)
}

// ErrNone says that the node has no address to give.
var ErrNone = errors.New("no address is free on this node")

// Short is an ErrNone for some families: the node has no address of them to give.
type Short struct {
	Pool string
	// Families are those without a free address: is it IPv4?
	Families []bool
}

func (e *Short) Error() string { return fmt.Sprintf("%s: %v", Title(e.Pool), ErrNone) }

// Unwrap returns ErrNone.
func (e *Short) Unwrap() error { return ErrNone }

// ErrLost says that the address may be another node's by now.
var ErrLost = errors.New("the node's lease has ended, and another node may have the address now")

// Lost is an error if a claim has an address of a lost block. A sandbox that runs has to
// keep it; no other may get it.
func (h *Holdings) Lost(claim string) error {
	for i := range h.Grants {
		for _, a := range h.Grants[i].Addresses {
			if g := &h.Grants[i]; g.Claim == claim &&
				slices.ContainsFunc(h.Blocks, func(b Held) bool { return b.Lost && b.Pool == g.Pool && b.contains(a.Addr()) }) {
				if g.Pool == topology.LiteralPool {
					return fmt.Errorf("%s: %w", LiteralText(a.Addr()), ErrLost)
				}
				return fmt.Errorf("address %q of AddressPool %q: %w", a, g.Pool, ErrLost)
			}
		}
	}
	return nil
}

// Clone returns a copy that shares nothing.
func (h *Holdings) Clone() *Holdings {
	out := &Holdings{Blocks: slices.Clone(h.Blocks), Grants: slices.Clone(h.Grants), Resting: slices.Clone(h.Resting)}
	for i := range out.Blocks {
		out.Blocks[i].Parts = slices.Clone(out.Blocks[i].Parts)
		if k := out.Blocks[i].Kept; k != nil {
			out.Blocks[i].Kept = new(*k)
		}
	}
	for i := range out.Grants {
		out.Grants[i].Addresses = slices.Clone(out.Grants[i].Addresses)
	}
	return out
}

// Take gives an owner one address of each family that the pool has. An owner that was
// given addresses gets the same once more.
func (h *Holdings) Take(l *Layout, owner Owner, iface int, now int64) ([]netip.Prefix, error) {
	return h.TakeKept(l, owner, iface, now, Keeping{})
}

// Keeping is for whom and for how many seconds addresses are kept after their claim has
// ended; the zero value is for nobody.
type Keeping struct {
	For  string
	Keep int64
}

// TakeKept is Take for an identity, which gets the addresses that are kept for it here.
func (h *Holdings) TakeKept(l *Layout, owner Owner, iface int, now int64, k Keeping) ([]netip.Prefix, error) {
	if i := slices.IndexFunc(h.Grants, func(g Grant) bool { return g.Owner == owner }); i >= 0 {
		if g := &h.Grants[i]; g.Pool != l.Name {
			return nil, fmt.Errorf("step %q has addresses of %s already", owner.Step, Title(g.Pool))
		}
		return slices.Clone(h.Grants[i].Addresses), h.Lost(owner.Claim)
	}
	if err := l.has(iface); err != nil {
		return nil, err
	}
	taken := h.taken(l.Name, now)
	var out []netip.Prefix
	var missing []bool
	for _, is4 := range l.Families() {
		a, ok := h.keptAddress(l, is4, iface, now, k.For)
		if !ok {
			a, ok = h.free(l, is4, iface, taken)
		}
		if !ok {
			missing = append(missing, is4)
		}
		out = append(out, a)
	}
	if len(missing) > 0 {
		return nil, &Short{l.Name, missing}
	}
	g := Grant{Owner: owner, Pool: l.Name, Addresses: out}
	if k.For != "" && k.Keep > 0 {
		g.For, g.Keep = k.For, k.Keep
	}
	h.Give(g)
	return slices.Clone(out), nil
}

// Give records a grant: its addresses do not rest any more.
func (h *Holdings) Give(g Grant) {
	h.Grants = append(h.Grants, g)
	h.Resting = slices.DeleteFunc(h.Resting, func(r Resting) bool {
		return r.Pool == g.Pool && slices.ContainsFunc(g.Addresses, func(a netip.Prefix) bool { return a.Addr() == r.Address })
	})
}

// keptAddress returns the address that is kept here for an identity, in a block that has not to be
// given to any node.
func (h *Holdings) keptAddress(l *Layout, is4 bool, iface int, now int64, identity string) (netip.Prefix, bool) {
	if identity == "" {
		return netip.Prefix{}, false
	}
	used := h.taken(l.Name, math.MaxInt64) // by claims
	for _, b := range h.Blocks {
		if b.Pool == l.Name && !b.Lost && b.Kept == nil && b.For == identity {
			if r, err := l.Range(b.Block, is4, iface); err == nil {
				if a := r.first(func(a netip.Addr) bool { return used[a] }); a.IsValid() {
					return netip.PrefixFrom(a, r.Bits), true
				}
			}
		}
	}
	for _, r := range h.Resting {
		if r.Pool != l.Name || r.For != identity || r.Until <= now || r.Address.Is4() != is4 || used[r.Address] {
			continue
		}
		if bits, free := h.gives(l, iface, r.Address); free {
			return netip.PrefixFrom(r.Address, bits), true
		}
	}
	return netip.Prefix{}, false
}

// Holds reports whether the node has a block of a pool.
func (h *Holdings) Holds(pool string) bool {
	return slices.ContainsFunc(h.Blocks, func(b Held) bool { return b.Pool == pool && !b.Lost })
}

// Has reports whether an owner was given addresses.
func (h *Holdings) Has(owner Owner) bool {
	return slices.ContainsFunc(h.Grants, func(g Grant) bool { return g.Owner == owner })
}

// HeldFor reports whether a claim of an earlier pod has the addresses of an identity. Two claims of one pod may have one
// identity, and do not wait for each other.
func (h *Holdings) HeldFor(pool, identity, claim, podUID string) bool {
	return slices.ContainsFunc(h.Grants, func(g Grant) bool {
		return g.Pool == pool && g.For == identity && g.Claim != claim && podUID != "" && g.PodUID != "" && g.PodUID != podUID
	})
}

// Example is Take of a pool of which h has as many blocks as needed.
func (h *Holdings) Example(l *Layout, owner Owner, iface int) ([]netip.Prefix, error) {
	for _, g := range l.Groups() {
		all := g.Usable()
		for i := range min(all.Len(), 1<<16) {
			got, err := h.Take(l, owner, iface, 0)
			if !errors.Is(err, ErrNone) {
				return got, err
			}
			if b, usable := g.At(all.At(i)); usable && h.index(l.Name, b) < 0 {
				h.Gain(l, b, "")
				if h.Count(l, g.is4, 0).Free > 0 {
					break
				}
			}
		}
	}
	return h.Take(l, owner, iface, 0)
}

func (h *Holdings) free(l *Layout, is4 bool, iface int, taken map[netip.Addr]bool) (netip.Prefix, bool) {
	for _, r := range h.ranges(l, is4, iface) {
		if a := r.first(func(a netip.Addr) bool { return taken[a] }); a.IsValid() {
			return netip.PrefixFrom(a, r.Bits), true
		}
	}
	a := h.longestRested(l, is4, iface)
	return a, a.IsValid()
}

// longestRested returns the address that was given back first, of ranges that are the node's own: there are no
// others, and pods that fail could keep all of them resting. Whoever is given addresses of an AddressPool waits for a
// lease instead.
func (h *Holdings) longestRested(l *Layout, is4 bool, iface int) (out netip.Prefix) {
	if !l.local {
		return out
	}
	used, until := h.taken(l.Name, math.MaxInt64), int64(math.MaxInt64)
	for _, r := range h.Resting {
		if r.Pool != l.Name || r.For != "" || r.Until >= until || r.Address.Is4() != is4 || used[r.Address] {
			continue
		}
		if bits, free := h.gives(l, iface, r.Address); free {
			out, until = netip.PrefixFrom(r.Address, bits), r.Until
		}
	}
	return out
}

// gives reports whether an address is one that the node may give, and its prefix length.
func (h *Holdings) gives(l *Layout, iface int, a netip.Addr) (bits int, ok bool) {
	for _, free := range h.ranges(l, a.Is4(), iface) {
		if free.Contains(a) && !slices.ContainsFunc(free.excludes, func(x Span) bool { return x.Contains(a) }) {
			return free.Bits, true
		}
	}
	return 0, false
}

// taken are the addresses of a pool that somebody has, or had just now.
func (h *Holdings) taken(pool string, now int64) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for i := range h.Grants {
		if g := &h.Grants[i]; g.Pool == pool {
			for _, a := range g.Addresses {
				out[a.Addr()] = true
			}
		}
	}
	for _, r := range h.Resting {
		if r.Pool == pool && r.Until > now {
			out[r.Address] = true
		}
	}
	return out
}

// GiveBack ends what a claim was given: its addresses rest for as long as their pool says.
// It reports whether it had any. A block of one address that is kept for an identity is to
// be kept for any node.
func (h *Holdings) GiveBack(claim string, now int64, rest func(pool string) int64) bool {
	n := len(h.Grants)
	h.Grants = slices.DeleteFunc(h.Grants, func(g Grant) bool {
		if g.Claim != claim {
			return false
		}
		until := now + max(rest(g.Pool), g.Keep)
		for _, a := range g.Addresses {
			if until > now {
				h.Resting = append(h.Resting, Resting{g.Pool, a.Addr(), until, g.For})
			}
			if i := h.index(g.Pool, single(a.Addr())); i >= 0 && g.For != "" && !h.Blocks[i].Lost {
				h.Blocks[i].Kept = &Kept{g.For, until}
			}
		}
		return true
	})
	return len(h.Grants) < n
}

// Discard ends what a claim was given and had on no link: it neither rests nor is kept. It reports whether there was any.
func (h *Holdings) Discard(claim string) bool {
	n := len(h.Grants)
	h.Grants = slices.DeleteFunc(h.Grants, func(g Grant) bool { return g.Claim == claim })
	return len(h.Grants) < n
}

// ToKeep returns the blocks of a pool whose lease is to be kept for an identity.
func (h *Holdings) ToKeep(pool string) []Held {
	var out []Held
	for _, b := range h.Blocks {
		if b.Pool == pool && b.Kept != nil && !b.Lost {
			out = append(out, b)
		}
	}
	return out
}

// Part forgets a block whose lease is kept for an identity now: this node, too, has to take it
// before it gives anything from it.
func (h *Holdings) Part(b Held) {
	if i := h.index(b.Pool, b.Block); i >= 0 && h.Blocks[i].Kept != nil && h.Blocks[i].Lease == b.Lease {
		h.Blocks = slices.Delete(h.Blocks, i, i+1)
		h.Resting = slices.DeleteFunc(h.Resting, func(r Resting) bool { return r.Pool == b.Pool && b.Block.Contains(r.Address) })
	}
}

// KeepHere ends that a block is to be kept for all nodes: this one holds it, and its address rests for whom it was kept.
func (h *Holdings) KeepHere(b Held) (changed bool) {
	i := h.index(b.Pool, b.Block)
	if i < 0 || h.Blocks[i].Kept == nil || h.Blocks[i].Lease != b.Lease {
		return false
	}
	h.Blocks[i].Kept, h.Blocks[i].For = nil, ""
	return true
}

// Abandon has blocks kept until a time that were taken for identities which do not want them any more. One that was
// taken over in the last seconds is left: another process may have taken it, and only that knows who waits.
func (h *Holdings) Abandon(pool string, now, until, last int64, wanted func(identity string) bool) (changed bool) {
	usage := h.Usage(now)
	for i := range h.Blocks {
		b := &h.Blocks[i]
		recent := b.Gained <= now && now-b.Gained < last
		if b.Pool == pool && b.For != "" && b.Kept == nil && !b.Lost && !recent && usage[i].Used == 0 && !wanted(b.For) {
			b.Kept, changed = &Kept{b.For, until}, true
		}
	}
	return changed
}

// KeepNothing ends what is kept of a pool, as when the pool ends: its addresses rest until a
// time at the latest.
func (h *Holdings) KeepNothing(pool string, until int64) (changed bool) {
	for i := range h.Blocks {
		if b := &h.Blocks[i]; b.Pool == pool && (b.Kept != nil || b.For != "") {
			b.Kept, b.For, changed = nil, "", true
		}
	}
	for i := range h.Resting {
		if r := &h.Resting[i]; r.Pool == pool && r.For != "" {
			r.For, r.Until, changed = "", min(r.Until, until), true
		}
	}
	return changed
}

// GainFor is Gain of a block whose address was kept for an identity.
func (h *Holdings) GainFor(l *Layout, block netip.Prefix, lease, identity string, now int64) {
	h.Gain(l, block, lease)
	b := &h.Blocks[h.index(l.Name, block)]
	b.For, b.Gained = identity, now
}

// Gain records that the node has the lease of a block.
func (h *Holdings) Gain(l *Layout, block netip.Prefix, lease string) {
	held := Held{Pool: l.Name, Block: block, Lease: lease, Parts: l.parts(block)}
	if i := h.index(l.Name, block); i >= 0 {
		h.Blocks[i] = held
		return
	}
	h.Blocks = append(h.Blocks, held)
}

func (h *Holdings) index(pool string, block netip.Prefix) int {
	return slices.IndexFunc(h.Blocks, func(b Held) bool { return b.Pool == pool && b.Block == block })
}

// Lose records that the node does not have the lease of a block any more. It is
// remembered while somebody has an address of it.
func (h *Holdings) Lose(pool string, block netip.Prefix) {
	if i := h.index(pool, block); i >= 0 {
		h.Blocks[i].Lost = true
		h.forget()
	}
}

// forget drops lost blocks of which nobody has an address.
func (h *Holdings) forget() {
	if !slices.ContainsFunc(h.Blocks, func(b Held) bool { return b.Lost }) {
		return
	}
	usage, i := h.Usage(0), -1
	h.Blocks = slices.DeleteFunc(h.Blocks, func(b Held) bool { i++; return b.Lost && usage[i].Used == 0 })
}

// Usage counts the addresses of a block by their use.
type Usage struct {
	Used, Resting int
	// For is for whom the address of a block of one address will be kept.
	For string
}

func (u Usage) idle() bool { return u.Used == 0 && u.Resting == 0 }

// Usage returns the usage of each block, in the order of Blocks. Its time is linear in the number of blocks and of used and
// resting addresses, as a node may have thousands of each.
func (h *Holdings) Usage(now int64) []Usage {
	type key struct {
		pool   string
		prefix netip.Prefix
	}
	at := map[key]int{}
	lengths := map[string][]int{} // of blocks, by pool
	for i, b := range h.Blocks {
		for _, p := range append([]netip.Prefix{b.Block}, b.Parts...) {
			at[key{b.Pool, p}] = i
			if n := lengths[b.Pool]; !slices.Contains(n, p.Bits()) {
				lengths[b.Pool] = append(n, p.Bits())
			}
		}
	}
	out := make([]Usage, len(h.Blocks))
	count := func(pool string, a netip.Addr, f func(u *Usage)) {
		for _, bits := range lengths[pool] {
			p, err := a.Prefix(bits)
			if i, ok := at[key{pool, p}]; err == nil && ok {
				f(&out[i])
				return
			}
		}
	}
	for i := range h.Grants {
		g := &h.Grants[i]
		for _, a := range g.Addresses {
			count(g.Pool, a.Addr(), func(u *Usage) { u.Used++; u.For = g.For })
		}
	}
	for _, r := range h.Resting {
		if r.Until > now {
			count(r.Pool, r.Address, func(u *Usage) { u.Resting++ })
		}
	}
	for i, b := range h.Blocks {
		if u := &out[i]; !b.Block.IsSingleIP() || u.For == "" {
			u.For = b.For
		}
	}
	return out
}

// Expire forgets what has rested long enough, and reports whether it has changed anything. Nothing rests, or is to be
// kept, for more seconds from now than most says for its pool, for an identity or for nobody: a time that is later is from
// a clock that was ahead.
func (h *Holdings) Expire(now int64, most func(pool string, kept bool) int64) (changed bool) {
	bound := func(until *int64, pool string, kept bool) {
		if last := now + most(pool, kept); *until > last {
			*until, changed = last, true
		}
	}
	for i := range h.Resting {
		r := &h.Resting[i]
		bound(&r.Until, r.Pool, r.For != "")
	}
	for i := range h.Blocks {
		if b := &h.Blocks[i]; b.Kept != nil {
			bound(&b.Kept.Until, b.Pool, true)
		}
	}
	changed = h.keepLess(now, most) || changed
	n := len(h.Resting)
	h.Resting = slices.DeleteFunc(h.Resting, func(r Resting) bool { return r.Until <= now })
	more := len(h.Resting) - maxResting // those that were given back first rest no longer
	h.Resting = slices.DeleteFunc(h.Resting, func(r Resting) bool {
		if r.For != "" || more <= 0 {
			return false
		}
		more--
		return true
	})
	blocks := len(h.Blocks)
	h.forget()
	return changed || len(h.Resting) < n || len(h.Blocks) < blocks
}

// Bounds of what a node remembers of claims that have ended. A tenant that creates pods with ever new names would
// otherwise have it lease and record without end, where the pool is as large as those of IPv6 are.
const (
	// MaxKept is how many addresses are kept for pods of one namespace in one pool, on one node, and of single addresses in
	// the cluster.
	MaxKept    = 256
	maxAllKept = 4096 // on one node
	maxResting = 16384
)

// Namespace is that of the pod for which something is kept.
func Namespace(identity string) string {
	namespace, _, _ := strings.Cut(identity, "/")
	return namespace
}

// keepLess ends that addresses are kept, beyond the bounds: those that were given back first rest as others do. Where
// all namespaces together keep too many, those that keep the most keep fewer.
func (h *Holdings) keepLess(now int64, most func(pool string, kept bool) int64) (changed bool) {
	type key struct{ pool, namespace string }
	kept := map[key]int{}
	for _, r := range h.Resting {
		if r.For != "" {
			kept[key{r.Pool, Namespace(r.For)}]++
		}
	}
	limit := MaxKept
	for ; limit > 1; limit /= 2 {
		all := 0
		for _, n := range kept {
			all += min(n, limit)
		}
		if all <= maxAllKept {
			break
		}
	}
	for i := range h.Resting {
		r := &h.Resting[i]
		k := key{r.Pool, Namespace(r.For)}
		if r.For == "" || kept[k] <= limit {
			continue
		}
		kept[k]--
		r.For, r.Until, changed = "", min(r.Until, now+most(r.Pool, false)), true
	}
	return changed
}

// Drop forgets a block that is to be returned: its lease is deleted next. A block that
// somebody has an address of is kept.
func (h *Holdings) Drop(pool string, block netip.Prefix, now int64) bool {
	i := h.index(pool, block)
	if i < 0 || h.Blocks[i].Kept != nil {
		return false
	}
	b := h.Blocks[i]
	if slices.ContainsFunc(h.Resting, func(r Resting) bool { return r.Pool == pool && r.Until > now && b.contains(r.Address) }) ||
		slices.ContainsFunc(h.Grants, func(g Grant) bool {
			return g.Pool == pool && slices.ContainsFunc(g.Addresses, func(a netip.Prefix) bool { return b.contains(a.Addr()) })
		}) {
		return false
	}
	h.Blocks = slices.Delete(h.Blocks, i, i+1)
	return true
}

// Idle returns the blocks of a pool that nobody has an address of, those that were taken
// last first: these are returned first.
func (h *Holdings) Idle(pool string, now int64) []Held {
	var out []Held
	usage := h.Usage(now)
	for i, b := range slices.Backward(h.Blocks) {
		if b.Pool == pool && !b.Lost && b.For == "" && b.Kept == nil && usage[i].idle() {
			out = append(out, b)
		}
	}
	return out
}

// Count counts the addresses of one family of a pool that a node has.
type Count struct {
	Held, Used, Resting uint64
	// Free is the number of addresses that any claim could be given now.
	Free uint64
}

// Count counts the addresses of one family.
func (h *Holdings) Count(l *Layout, is4 bool, now int64) (c Count) {
	usage := h.Usage(now)
	for i, b := range h.Blocks {
		if b.Pool != l.Name || b.Lost {
			continue
		}
		size := l.BlockSize(b.Block, is4)
		switch c.Held += size; {
		case b.For == "" && b.Kept == nil:
			c.Free += size
		case usage[i].idle():
			c.Resting += size // for whom it is kept
		}
	}
	taken := map[netip.Addr]bool{}
	for i := range h.Grants {
		for _, a := range h.Grants[i].Addresses {
			if h.Grants[i].Pool == l.Name && a.Addr().Is4() == is4 {
				c.Used++
				taken[a.Addr()] = true
			}
		}
	}
	for _, r := range h.Resting {
		if r.Pool == l.Name && r.Until > now && r.Address.Is4() == is4 {
			c.Resting++
			taken[r.Address] = true
		}
	}
	c.Free -= min(c.Free, h.within(l, taken))
	return c
}

// within counts the addresses that would be free if they were not taken: what was excluded since it was given, or is of
// a lost block, would not be.
func (h *Holdings) within(l *Layout, taken map[netip.Addr]bool) (n uint64) {
	open := &Holdings{}
	for _, b := range h.Blocks {
		if b.Pool == l.Name && !b.Lost && b.For == "" && b.Kept == nil {
			open.Blocks = append(open.Blocks, b)
		}
	}
	for a := range taken {
		if _, gives := l.Gives(single(a)); gives {
			open.Grants = append(open.Grants, Grant{Pool: l.Name, Addresses: []netip.Prefix{single(a)}})
		}
	}
	for _, u := range open.Usage(0) {
		n += uint64(u.Used)
	}
	return n
}
