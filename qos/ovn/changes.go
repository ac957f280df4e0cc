package ovn

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Rows of a database.
type (
	// Observed are the rows of an owner, and all switches.
	Observed struct {
		QoS  []ObservedQoS
		Sets []ObservedSet
		// Switches are the UUIDs of switches by name. A name is not unique in the schema: the
		// UUID is "" where several have it.
		Switches map[string]string
	}
	// ObservedQoS is a row of table QoS, and the switches that refer to it.
	ObservedQoS struct {
		QoS          // without Switch
		UUID         string
		Direction    string
		SwitchUUIDs  []string
		OtherActions bool // it does more than a row of ours
	}
	// ObservedSet is a row of table Address_Set.
	ObservedSet struct {
		AddressSet
		UUID string
	}
	// Desired is what an owner is to have.
	Desired struct {
		QoS  []QoS
		Sets []AddressSet
	}
)

// Changes lead from what is observed to what is desired, in one transaction.
type Changes struct {
	CreateSets []AddressSet
	UpdateSets []ObservedSet // with the new addresses
	DeleteSets []ObservedSet
	Create     []QoS
	Update     []QoSUpdate
	Delete     []ObservedQoS
}

// QoSUpdate changes a row in place.
type QoSUpdate struct {
	UUID string
	QoS
}

// Empty reports whether there is nothing to change.
func (c *Changes) Empty() bool {
	return len(c.CreateSets)+len(c.UpdateSets)+len(c.DeleteSets)+len(c.Create)+len(c.Update)+len(c.Delete) == 0
}

// Lines describe the changes, a line each, sorted: "+" creates, "~" changes and "-" deletes.
func (c *Changes) Lines() []string {
	var out []string
	for _, s := range c.CreateSets {
		out = append(out, fmt.Sprintf("+ address set %s: %s", s.Name, list(s.Addresses)))
	}
	for _, s := range c.UpdateSets {
		out = append(out, fmt.Sprintf("~ address set %s: %s", s.Name, list(s.Addresses)))
	}
	for _, s := range c.DeleteSets {
		out = append(out, fmt.Sprintf("- address set %s", s.Name))
	}
	for _, q := range c.Create {
		out = append(out, fmt.Sprintf("+ qos on switch %s: %s", q.Switch, q.describe()))
	}
	for _, q := range c.Update {
		out = append(out, fmt.Sprintf("~ qos on switch %s: %s", q.Switch, q.describe()))
	}
	for _, q := range c.Delete {
		out = append(out, "- qos: "+q.describe())
	}
	slices.SortFunc(out, func(a, b string) int { return cmp.Or(cmp.Compare(a[2:], b[2:]), cmp.Compare(a[0], b[0])) })
	return out
}

func list(of []string) string {
	if len(of) == 0 {
		return "(none)"
	}
	return strings.Join(of, ", ")
}

func (q *QoS) describe() string {
	out := fmt.Sprintf("%s, priority %d, match %s, dscp %d", q.Rule, q.Priority, q.Match, q.DSCP)
	switch q.RateKbit {
	case 0:
		return out
	case unlimited:
		return out + ", no limit"
	}
	out += fmt.Sprintf(", rate %d kbit/s", q.RateKbit)
	if q.BurstKbit > 0 {
		out += fmt.Sprintf(", burst %d kbit", q.BurstKbit)
	}
	return out
}

// MissingSwitch says that the database has no switch of a name, or several.
type MissingSwitch struct {
	Name    string
	Several bool
}

// Error implements error.
func (e *MissingSwitch) Error() string {
	if e.Several {
		return fmt.Sprintf("several logical switches are called %q: delete all but one", e.Name)
	}
	return fmt.Sprintf("there is no logical switch %q yet", e.Name)
}

// Diff returns the changes that lead to what is desired. A row for a switch that does not exist
// is left out, and what exists with its ID stays as it is, with an error for each such switch.
func Diff(have *Observed, want *Desired) (c Changes, missing []error) {
	sets := map[string]AddressSet{}
	for _, s := range want.Sets {
		sets[s.Name] = s
	}
	for _, s := range have.Sets {
		w, ok := sets[s.Name]
		delete(sets, s.Name)
		switch {
		case !ok:
			c.DeleteSets = append(c.DeleteSets, s)
		case !slices.Equal(s.Addresses, w.Addresses):
			c.UpdateSets = append(c.UpdateSets, ObservedSet{w, s.UUID})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		c.CreateSets = append(c.CreateSets, sets[name])
	}

	rows, waiting := map[string]QoS{}, map[string]bool{}
	absent := map[string]error{}
	for _, q := range want.QoS {
		uuid, known := have.Switches[q.Switch]
		if uuid == "" {
			absent[q.Switch] = &MissingSwitch{q.Switch, known}
			waiting[q.ID] = true
			continue
		}
		rows[q.ID] = q
	}
	for _, name := range slices.Sorted(maps.Keys(absent)) {
		missing = append(missing, absent[name])
	}
	for _, h := range have.QoS {
		if waiting[h.ID] {
			continue
		}
		w, ok := rows[h.ID]
		// A row that another switch refers to, or that does other things, is replaced.
		if !ok || h.Direction != Direction || h.OtherActions || !slices.Equal(h.SwitchUUIDs, []string{have.Switches[w.Switch]}) {
			c.Delete = append(c.Delete, h)
			continue
		}
		delete(rows, h.ID) // a second row with this ID is deleted
		h.Switch = w.Switch
		if h.QoS != w {
			c.Update = append(c.Update, QoSUpdate{h.UUID, w})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(rows)) {
		c.Create = append(c.Create, rows[id])
	}
	return c, missing
}
