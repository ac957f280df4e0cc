package northbound

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/plumbline/plumbline/qos/ovn"
)

// Tables, and those of their columns that are used: the connection is refused by a server
// without them (ovn-nb.ovsschema).
const (
	tableSwitch = "Logical_Switch"
	tableQoS    = "QoS"
	tableSet    = "Address_Set"
)

type logicalSwitch struct {
	UUID     string   `ovsdb:"_uuid"`
	Name     string   `ovsdb:"name"`
	QOSRules []string `ovsdb:"qos_rules"`
}

type qosRow struct {
	UUID        string            `ovsdb:"_uuid"`
	Direction   string            `ovsdb:"direction"`
	Priority    int               `ovsdb:"priority"`
	Match       string            `ovsdb:"match"`
	Action      map[string]int    `ovsdb:"action"`
	Bandwidth   map[string]int    `ovsdb:"bandwidth"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

type addressSet struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	Addresses   []string          `ovsdb:"addresses"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// observe reads what the owner has, and all switches, in one transaction.
func (c *Client) observe(ctx context.Context) (*ovn.Observed, error) {
	own := []ovsdb.Condition{ovsdb.NewCondition("external_ids", ovsdb.ConditionIncludes, mapOf(map[string]string{ovn.OwnerKey: c.Owner}))}
	queries := []ovsdb.Operation{
		{Op: ovsdb.OperationSelect, Table: tableSwitch, Columns: []string{"_uuid", "name", "qos_rules"}},
		{Op: ovsdb.OperationSelect, Table: tableQoS, Where: own, Columns: []string{"_uuid", "direction", "priority", "match", "action", "bandwidth", "external_ids"}},
		{Op: ovsdb.OperationSelect, Table: tableSet, Where: own, Columns: []string{"_uuid", "name", "addresses"}},
	}
	results, err := c.transact(ctx, queries)
	if errors.Is(err, client.ErrNotConnected) { // it was lost since the last pass
		results, err = c.transact(ctx, queries)
	}
	if err != nil {
		return nil, err
	}
	out := &ovn.Observed{Switches: map[string]string{}}
	referring := map[string][]string{} // switches by row
	for _, r := range results[0].Rows {
		id, name := uuid(r["_uuid"]), text(r["name"])
		if _, twice := out.Switches[name]; twice {
			out.Switches[name] = ""
		} else {
			out.Switches[name] = id
		}
		for _, rule := range set(r["qos_rules"]) {
			referring[uuid(rule)] = append(referring[uuid(rule)], id)
		}
	}
	for _, r := range results[1].Rows {
		ids, action, bandwidth := pairs(r["external_ids"]), pairs(r["action"]), pairs(r["bandwidth"])
		q := ovn.ObservedQoS{
			UUID: uuid(r["_uuid"]), Direction: text(r["direction"]), SwitchUUIDs: referring[uuid(r["_uuid"])],
			QoS: ovn.QoS{
				ID: text(ids[ovn.IDKey]), Rule: text(ids[ovn.RuleKey]), Priority: int(number(r["priority"])), Match: text(r["match"]),
				DSCP: uint8(number(action["dscp"])), RateKbit: uint32(number(bandwidth["rate"])), BurstKbit: uint32(number(bandwidth["burst"])),
			},
		}
		_, marks := action["dscp"]
		q.OtherActions = !marks || len(action) > 1
		slices.Sort(q.SwitchUUIDs)
		out.QoS = append(out.QoS, q)
	}
	for _, r := range results[2].Rows {
		s := ovn.ObservedSet{UUID: uuid(r["_uuid"]), AddressSet: ovn.AddressSet{Name: text(r["name"])}}
		for _, a := range set(r["addresses"]) {
			s.Addresses = append(s.Addresses, text(a))
		}
		slices.Sort(s.Addresses)
		out.Sets = append(out.Sets, s)
	}
	// Of two rows with one ID the same one stays each time.
	slices.SortFunc(out.QoS, func(a, b ovn.ObservedQoS) int { return cmp.Compare(a.UUID, b.UUID) })
	return out, nil
}

// operations are those of one transaction. A row that no switch refers to is deleted by the
// database itself.
func (c *Client) operations(changes *ovn.Changes) []ovsdb.Operation {
	var out []ovsdb.Operation
	is := func(uuid string) []ovsdb.Condition {
		return []ovsdb.Condition{ovsdb.NewCondition("_uuid", ovsdb.ConditionEqual, ovsdb.UUID{GoUUID: uuid})}
	}
	for _, s := range changes.CreateSets {
		out = append(out, ovsdb.Operation{Op: ovsdb.OperationInsert, Table: tableSet, Row: ovsdb.Row{
			"name": s.Name, "addresses": setOf(s.Addresses), "external_ids": mapOf(map[string]string{ovn.OwnerKey: c.Owner}),
		}})
	}
	for _, s := range changes.UpdateSets {
		out = append(out, ovsdb.Operation{Op: ovsdb.OperationUpdate, Table: tableSet, Where: is(s.UUID), Row: ovsdb.Row{"addresses": setOf(s.Addresses)}})
	}
	refer := func(how ovsdb.Mutator, row string, where []ovsdb.Condition) {
		out = append(out, ovsdb.Operation{Op: ovsdb.OperationMutate, Table: tableSwitch, Where: where, Mutations: []ovsdb.Mutation{
			*ovsdb.NewMutation("qos_rules", how, ovsdb.OvsSet{GoSet: []any{ovsdb.UUID{GoUUID: row}}}),
		}})
	}
	for _, q := range changes.Delete {
		for _, of := range q.SwitchUUIDs {
			refer(ovsdb.MutateOperationDelete, q.UUID, is(of))
		}
	}
	for i := range changes.Update {
		u := &changes.Update[i]
		out = append(out, ovsdb.Operation{Op: ovsdb.OperationUpdate, Table: tableQoS, Where: is(u.UUID), Row: c.row(&u.QoS)})
	}
	for i := range changes.Create {
		q, name := &changes.Create[i], "row"+strconv.Itoa(i)
		row := c.row(q)
		row["direction"] = ovn.Direction
		out = append(out, ovsdb.Operation{Op: ovsdb.OperationInsert, Table: tableQoS, UUIDName: name, Row: row})
		refer(ovsdb.MutateOperationInsert, name, []ovsdb.Condition{ovsdb.NewCondition("name", ovsdb.ConditionEqual, q.Switch)})
	}
	for _, s := range changes.DeleteSets {
		out = append(out, ovsdb.Operation{Op: ovsdb.OperationDelete, Table: tableSet, Where: is(s.UUID)})
	}
	return out
}

func (c *Client) row(q *ovn.QoS) ovsdb.Row {
	bandwidth := map[string]int{}
	if q.RateKbit > 0 {
		bandwidth["rate"] = int(q.RateKbit)
	}
	if q.BurstKbit > 0 {
		bandwidth["burst"] = int(q.BurstKbit)
	}
	return ovsdb.Row{
		"priority": q.Priority, "match": q.Match, "action": mapOf(map[string]int{"dscp": int(q.DSCP)}), "bandwidth": mapOf(bandwidth),
		"external_ids": mapOf(map[string]string{ovn.OwnerKey: c.Owner, ovn.IDKey: q.ID, ovn.RuleKey: q.Rule}),
	}
}

// What the database says is read for what it is: a value of another shape is the empty one,
// which differs from what is wanted, so that it is written again.

func text(v any) string {
	s, _ := v.(string)
	return s
}

func number(v any) float64 {
	n, _ := v.(float64)
	return max(0, min(n, 1<<32-1))
}

func uuid(v any) string {
	u, _ := v.(ovsdb.UUID)
	return u.GoUUID
}

// set returns the members of a set: one of a single member is that member (RFC 7047, 5.1).
func set(v any) []any {
	switch v := v.(type) {
	case nil:
		return nil
	case ovsdb.OvsSet:
		return v.GoSet
	default:
		return []any{v}
	}
}

func pairs(v any) map[any]any {
	m, _ := v.(ovsdb.OvsMap)
	return m.GoMap
}

func setOf(of []string) ovsdb.OvsSet {
	out := ovsdb.OvsSet{GoSet: []any{}}
	for _, s := range of {
		out.GoSet = append(out.GoSet, s)
	}
	return out
}

func mapOf[V any](of map[string]V) ovsdb.OvsMap {
	out := ovsdb.OvsMap{GoMap: map[any]any{}}
	for k, v := range of {
		out.GoMap[k] = v
	}
	return out
}
