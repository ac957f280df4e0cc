package northbound

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/plumbline/plumbline/qos/ovn"
	"github.com/plumbline/plumbline/qos/ovn/connection"
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
	own := []ovsdb.Condition{ovsdb.NewCondition("external_ids", ovsdb.ConditionIncludes, connection.MapOf(map[string]string{ovn.OwnerKey: c.owner}))}
	queries := []ovsdb.Operation{
		{Op: ovsdb.OperationSelect, Table: tableSwitch, Columns: []string{"_uuid", "name", "qos_rules"}},
		{Op: ovsdb.OperationSelect, Table: tableQoS, Where: own, Columns: []string{"_uuid", "direction", "priority", "match", "action", "bandwidth", "external_ids"}},
		{Op: ovsdb.OperationSelect, Table: tableSet, Where: own, Columns: []string{"_uuid", "name", "addresses"}},
	}
	results, err := c.to.Read(ctx, queries)
	if err != nil {
		return nil, err
	}
	out := &ovn.Observed{Switches: map[string]string{}}
	referring := map[string][]string{} // switches by row
	for _, r := range results[0].Rows {
		id, name := connection.UUID(r["_uuid"]), connection.Text(r["name"])
		if _, twice := out.Switches[name]; twice {
			out.Switches[name] = ""
		} else {
			out.Switches[name] = id
		}
		for _, rule := range connection.Set(r["qos_rules"]) {
			referring[connection.UUID(rule)] = append(referring[connection.UUID(rule)], id)
		}
	}
	for _, r := range results[1].Rows {
		ids, action, bandwidth := connection.Pairs(r["external_ids"]), connection.Pairs(r["action"]), connection.Pairs(r["bandwidth"])
		q := ovn.ObservedQoS{
			UUID: connection.UUID(r["_uuid"]), Direction: connection.Text(r["direction"]), SwitchUUIDs: referring[connection.UUID(r["_uuid"])],
			QoS: ovn.QoS{
				ID: connection.Text(ids[ovn.IDKey]), Rule: connection.Text(ids[ovn.RuleKey]), Priority: int(connection.Number(r["priority"])), Match: connection.Text(r["match"]),
				DSCP: uint8(connection.Number(action["dscp"])), RateKbit: uint32(connection.Number(bandwidth["rate"])), BurstKbit: uint32(connection.Number(bandwidth["burst"])),
			},
		}
		_, marks := action["dscp"]
		q.OtherActions = !marks || len(action) > 1
		slices.Sort(q.SwitchUUIDs)
		out.QoS = append(out.QoS, q)
	}
	for _, r := range results[2].Rows {
		s := ovn.ObservedSet{UUID: connection.UUID(r["_uuid"]), AddressSet: ovn.AddressSet{Name: connection.Text(r["name"])}}
		for _, a := range connection.Set(r["addresses"]) {
			s.Addresses = append(s.Addresses, connection.Text(a))
		}
		slices.Sort(s.Addresses)
		out.Sets = append(out.Sets, s)
	}
	// Of two rows with one ID the same one stays each time.
	slices.SortFunc(out.QoS, func(a, b ovn.ObservedQoS) int { return cmp.Compare(a.UUID, b.UUID) })
	return out, nil
}

// guarded is of up to how many rows a transaction holds that they do not exist yet: the server compares
// each with all rows.
const guarded = 64

// absent holds that rows that are created do not exist yet, see connection.Absent. Rows that replace others are left out.
func (c *Client) absent(changes *ovn.Changes) (out []ovsdb.Operation) {
	replaced := map[string]bool{}
	for i := range changes.Delete {
		replaced[changes.Delete[i].ID] = true
	}
	for i := range changes.Create[:min(len(changes.Create), guarded)] {
		if id := changes.Create[i].ID; !replaced[id] {
			out = append(out, connection.Absent(tableQoS, map[string]string{ovn.OwnerKey: c.owner, ovn.IDKey: id}, "direction", ovn.Direction))
		}
	}
	return out
}

// operations are those of one transaction. A row that no switch refers to is deleted by the
// database itself.
func (c *Client) operations(changes *ovn.Changes) []ovsdb.Operation {
	var out []ovsdb.Operation
	out = append(out, c.absent(changes)...)
	for _, s := range changes.CreateSets {
		out = append(out, ovsdb.Operation{Op: ovsdb.OperationInsert, Table: tableSet, Row: ovsdb.Row{
			"name": s.Name, "addresses": connection.SetOf(s.Addresses), "external_ids": connection.MapOf(map[string]string{ovn.OwnerKey: c.owner}),
		}})
	}
	for _, s := range changes.UpdateSets {
		out = append(out, ovsdb.Operation{Op: ovsdb.OperationUpdate, Table: tableSet, Where: connection.Is(s.UUID), Row: ovsdb.Row{"addresses": connection.SetOf(s.Addresses)}})
	}
	refer := func(how ovsdb.Mutator, row string, where []ovsdb.Condition) {
		out = append(out, ovsdb.Operation{Op: ovsdb.OperationMutate, Table: tableSwitch, Where: where, Mutations: []ovsdb.Mutation{
			*ovsdb.NewMutation("qos_rules", how, connection.References(row)),
		}})
	}
	for _, q := range changes.Delete {
		for _, of := range q.SwitchUUIDs {
			refer(ovsdb.MutateOperationDelete, q.UUID, connection.Is(of))
		}
	}
	for i := range changes.Update {
		u := &changes.Update[i]
		out = append(out, ovsdb.Operation{Op: ovsdb.OperationUpdate, Table: tableQoS, Where: connection.Is(u.UUID), Row: c.row(&u.QoS)})
	}
	for i := range changes.Create {
		q, name := &changes.Create[i], "row"+strconv.Itoa(i)
		row := c.row(q)
		row["direction"] = ovn.Direction
		out = append(out, ovsdb.Operation{Op: ovsdb.OperationInsert, Table: tableQoS, UUIDName: name, Row: row})
		refer(ovsdb.MutateOperationInsert, name, connection.Named(q.Switch))
	}
	for _, s := range changes.DeleteSets {
		out = append(out, ovsdb.Operation{Op: ovsdb.OperationDelete, Table: tableSet, Where: connection.Is(s.UUID)})
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
		"priority": q.Priority, "match": q.Match, "action": connection.MapOf(map[string]int{"dscp": int(q.DSCP)}), "bandwidth": connection.MapOf(bandwidth),
		"external_ids": connection.MapOf(map[string]string{ovn.OwnerKey: c.owner, ovn.IDKey: q.ID, ovn.RuleKey: q.Rule}),
	}
}
