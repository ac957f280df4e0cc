package kernel

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
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
	for _, have := range tables {
		out.there = out.there || have.Name == t.Name
	}
	if !out.there {
		return out, nil
	}
	sets, err := c.GetSets(t.Table)
	if err != nil {
		return out, err
	}
	for _, have := range sets {
		known := have.Anonymous
		for _, want := range t.sets {
			if have.Name == want.Name {
				known = true
				if sameSet(have, want) {
					out.sets[have.Name] = have
				}
			}
		}
		if !known {
			out.foreign = fmt.Sprintf("set %q", have.Name)
		}
	}
	chains, err := c.ListChainsOfTableFamily(t.Family)
	if err != nil {
		return out, err
	}
	out.intact = len(out.sets) == len(t.sets)
	found := 0
	for _, have := range chains {
		if have.Table.Name != t.Name {
			continue
		}
		known := false
		for _, want := range t.chains {
			if have.Name != want.Name {
				continue
			}
			known = true
			found++
			same, err := want.same(c, have)
			if err != nil {
				return out, err
			}
			out.intact = out.intact && same
		}
		if !known {
			out.foreign = fmt.Sprintf("chain %q", have.Name)
		}
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
	if have.Type != want.Type || have.Hooknum == nil || *have.Hooknum != *want.Hooknum || have.Priority == nil || *have.Priority != *want.Priority {
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
