package kernel

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/topology/fault"
)

// ownTable is a table of nftables in the host's namespace which only plumbline writes: sets that
// have an element for each pod, and chains whose rules are the same for all.
type ownTable struct {
	*nftables.Table
	sets   []*nftables.Set
	chains []ownChain
}

type ownChain struct {
	*nftables.Chain
	rules [][]expr.Any
}

// chain adds a chain.
func (t *ownTable) chain(name string, typ nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority,
	rules ...[]expr.Any,
) {
	t.chains = append(t.chains, ownChain{
		&nftables.Chain{Name: name, Table: t.Table, Type: typ, Hooknum: hook, Priority: priority}, rules,
	})
}

// payload is the expression that loads a part of a header.
func payload(base expr.PayloadBase, offset, length, register uint32) expr.Any {
	return &expr.Payload{OperationType: expr.PayloadLoad, DestRegister: register, Base: base, Offset: offset, Len: length}
}

// tableState is a table as it is.
type tableState struct {
	there bool // there is a table of that name
	// intact: its sets, its chains and the rules are as we write them.
	intact bool
	sets   map[string]*nftables.Set // those that are as we write them
	// foreign is a chain or a set of the table that we have not written, "" for none.
	foreign string
}

// read reads all but the elements of sets.
func (t ownTable) read(c *nftables.Conn) (tableState, error) {
	out := tableState{sets: map[string]*nftables.Set{}}
	tables, err := c.ListTablesOfFamily(t.Family)
	if err != nil {
		return out, err
	}
	i := slices.IndexFunc(tables, func(have *nftables.Table) bool { return have.Name == t.Name })
	if i < 0 {
		return out, nil
	}
	out.there = true
	dormant := tables[i].Flags != 0 // which has no effect
	sets, err := c.GetSets(t.Table)
	if err != nil {
		return out, err
	}
	for _, have := range sets {
		i := slices.IndexFunc(t.sets, func(want *nftables.Set) bool { return have.Name == want.Name })
		switch {
		case i < 0 && !have.Anonymous:
			out.foreign = fmt.Sprintf("set %q", have.Name)
		case i >= 0 && sameSet(have, t.sets[i]):
			out.sets[have.Name] = have
		}
	}
	chains, err := c.ListChainsOfTableFamily(t.Family)
	if err != nil {
		return out, err
	}
	out.intact = len(out.sets) == len(t.sets) && !dormant
	found := 0
	for _, have := range chains {
		if have.Table.Name != t.Name {
			continue
		}
		i := slices.IndexFunc(t.chains, func(want ownChain) bool { return have.Name == want.Name })
		if i < 0 {
			out.foreign = fmt.Sprintf("chain %q", have.Name)
			continue
		}
		found++
		same, err := t.chains[i].same(c, have)
		if err != nil {
			return out, err
		}
		out.intact = out.intact && same
	}
	out.intact = out.intact && found == len(t.chains)
	return out, nil
}

func sameSet(have, want *nftables.Set) bool {
	return have.KeyType.Bytes == want.KeyType.Bytes && have.Interval == want.Interval && have.Concatenation == want.Concatenation &&
		have.IsMap == want.IsMap && (!want.IsMap || have.DataType.Bytes == want.DataType.Bytes)
}

// same reports whether the chain is where we create it, and has our rules only.
func (want ownChain) same(c *nftables.Conn, have *nftables.Chain) (bool, error) {
	if have.Type != want.Type || !sameNumber(have.Hooknum, want.Hooknum) || !sameNumber(have.Priority, want.Priority) {
		return false, nil
	}
	rules, err := c.GetRules(want.Table, have)
	if err != nil {
		return false, err
	}
	if len(rules) != len(want.rules) {
		return false, nil
	}
	for i, r := range rules {
		for _, e := range r.Exprs {
			if l, ok := e.(*expr.Lookup); ok {
				l.SetID = 0 // of a batch only
			}
		}
		if !reflect.DeepEqual(r.Exprs, want.rules[i]) {
			return false, nil
		}
	}
	return true, nil
}

func sameNumber[T comparable](a, b *T) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

// familyName is how nft calls a family.
func familyName(f nftables.TableFamily) string {
	if f == nftables.TableFamilyBridge {
		return "bridge"
	}
	return "inet"
}

// create adds the creation of the table to a transaction.
func (t ownTable) create(c *nftables.Conn) error {
	c.AddTable(t.Table)
	var errs []error
	for _, s := range t.sets {
		errs = append(errs, c.AddSet(s, nil))
	}
	for _, chain := range t.chains {
		added := c.AddChain(chain.Chain)
		for _, exprs := range chain.rules {
			c.AddRule(&nftables.Rule{Table: t.Table, Chain: added, Exprs: exprs})
		}
	}
	return errors.Join(errs...)
}

// nftGeneration returns the number of the rules of nftables in the host's namespace, which each transaction
// increases; false if it is not known. The package has no function for it.
func (h *Host) nftGeneration() (uint32, bool) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(h.socket.ns.Fd())})
	if err != nil {
		return 0, false
	}
	defer c.Close()
	if setNATDeadline(c) != nil {
		return 0, false
	}
	answers, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   make([]byte, 4),
	})
	if err != nil || len(answers) != 1 || len(answers[0].Data) < 4 {
		return 0, false
	}
	id := attribute(answers[0].Data[4:], unix.NFTA_GEN_ID)
	return be32(id), len(id) == 4
}

// tableCache is the state of a table after a read or a change. It is valid while the generation of the rule set stays the same,
// which each transaction of any program increases. It saves each start of a pod a read of all elements, which takes milliseconds.
type tableCache[S any] struct {
	state      *S
	generation uint32
}

// read returns the table, and whether it is that of a generation. The caller has the lock, and changes
// the state only as the table: it is that of the next caller.
func (t *tableCache[S]) read(h *Host, c *nftables.Conn, read func(*nftables.Conn) (*S, error),
) (state *S, generation uint32, known bool, err error) {
	generation, known = h.nftGeneration()
	if known && t.state != nil && t.generation == generation {
		return t.state, generation, true, nil
	}
	*t = tableCache[S]{}
	if state, err = read(c); err != nil || !known {
		return state, 0, false, err
	}
	if again, ok := h.nftGeneration(); !ok || again != generation {
		return state, 0, false, nil
	}
	*t = tableCache[S]{state, generation}
	return state, generation, true, nil
}

// setElements are some elements of a set or map.
type setElements struct {
	set      *nftables.Set
	elements []nftables.SetElement
}

// tableChange is a change of what a table has for one pod.
type tableChange struct {
	deleting bool
	there    bool // the table has it
	empty    bool // the table has nothing for any pod afterwards
	// all are the elements that the table has afterwards.
	all         func() []setElements
	gone, added []setElements
}

// none reports whether there is nothing to write.
func (w tableChange) none(have tableState) bool {
	return w.empty && !have.there || w.deleting && !w.there && (have.intact || have.foreign != "")
}

// write makes a change in one transaction: the kernel has all of it or nothing. The first pod
// creates the table, and the last one deletes it. One that is not as we write it is created again.
func (t ownTable) write(c *nftables.Conn, have tableState, w tableChange) error {
	switch {
	case w.none(have):
		return nil
	case !w.deleting && !have.intact && have.foreign != "":
		return fault.New(fault.Conflict,
			fmt.Errorf("table \"%s %s\" of nftables is not plumbline's alone, and would be created again: remove its %s, or the table",
				familyName(t.Family), t.Name, have.foreign))
	case w.empty && have.foreign == "":
		c.DelTable(t.Table)
		return c.Flush()
	case !have.intact && have.foreign == "":
		if have.there {
			c.DelTable(t.Table)
		}
		if err := errors.Join(t.create(c), eachChunk(w.all(), c.SetAddElements)); err != nil {
			return err
		}
		return c.Flush()
	}
	if err := errors.Join(eachChunk(w.gone, c.SetDeleteElements), eachChunk(w.added, c.SetAddElements)); err != nil {
		return err
	}
	return c.Flush()
}

// maxElements bounds those of one message: an attribute has at most 64 KB, and a pair of
// IPv6 takes less than 100 bytes.
const maxElements = 256

func eachChunk(of []setElements, f func(*nftables.Set, []nftables.SetElement) error) error {
	for _, s := range of {
		for some := range slices.Chunk(s.elements, maxElements) {
			if err := f(s.set, some); err != nil {
				return err
			}
		}
	}
	return nil
}
