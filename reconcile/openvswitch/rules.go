package openvswitch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos/ovn/connection"
	"github.com/plumbline/plumbline/topology/fault"
)

// qosRow is table QoS, with those of its columns that are used.
type qosRow struct {
	UUID        string            `ovsdb:"_uuid"`
	Direction   string            `ovsdb:"direction"`
	Priority    int               `ovsdb:"priority"`
	Match       string            `ovsdb:"match"`
	Action      map[string]int    `ovsdb:"action"`
	Bandwidth   map[string]int    `ovsdb:"bandwidth"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

const tableQoS = "QoS"

// Keys of external_ids, beside ownerKey.
const (
	// idKey tells the rows of all ports apart.
	idKey = "dra.networking/id"
	// ruleKey names the object and the index of the rule, for those who read the database.
	ruleKey = "dra.networking/rule"
	// rulePortKey names the port of a row, by which the rows of a port are found.
	rulePortKey = "dra.networking/port"
)

// logicalRow is a row of ours, with the switches that refer to it.
type logicalRow struct {
	ovsdb.Row
	uuid, id string
	switches []ruleSwitch
}

type ruleSwitch struct{ uuid, name string }

func switchesOf(rows []ovsdb.Row) (out []ruleSwitch) {
	for _, row := range rows {
		out = append(out, ruleSwitch{connection.UUID(row["_uuid"]), connection.Text(row["name"])})
	}
	return out
}

var ruleColumns = []string{"_uuid", "direction", "priority", "match", "action", "bandwidth", "external_ids"}

// knownRules are the rows of a port's rules as they were found last: a search for them by their
// keys compares all rows of the table, of which all nodes have some.
type knownRules struct {
	uuids []string // not nil
	reads int      // since then
}

// size counts towards maxRules.
func (k *knownRules) size() int { return max(1, len(k.uuids)) }

// maxRules bounds the rows that are known, and ports without any. A sandbox has 4096 at most.
const maxRules = 1 << 16

// remember keeps which rows a port has, if they are as they should be: one for each rule, all on one
// switch. Else they are searched for until they are.
func (n *Northbound) remember(port string, rows []logicalRow) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forgetLocked(port)
	ids := map[string]bool{}
	known := &knownRules{uuids: []string{}, reads: rand.IntN(searchEvery)} // not all ports are searched for at the same time
	for _, r := range rows {
		if ids[r.id] || len(r.switches) != 1 || r.switches[0] != rows[0].switches[0] {
			return
		}
		ids[r.id] = true
		known.uuids = append(known.uuids, r.uuid)
	}
	if known.size() > maxRules { // others may write rows with the keys of ours
		return
	}
	if n.ruleCount+known.size() > maxRules {
		clear(n.rules)
		n.ruleCount = 0
	}
	n.rules[port], n.ruleCount = known, n.ruleCount+known.size()
}

// forget has the rows of a port searched for again, since they change.
func (n *Northbound) forget(port string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forgetLocked(port)
}

func (n *Northbound) forgetLocked(port string) {
	if known := n.rules[port]; known != nil {
		n.ruleCount -= known.size()
		delete(n.rules, port)
	}
}

// knownRows reads the rows that are known of a port. It reports false if they have to be searched for:
// one is gone, has other keys, or is not on one switch with the others; a rule has none; or they were read
// so often that another row may have been added, or one to another switch.
func (n *Northbound) knownRows(ctx context.Context, port string, queried []netstate.LogicalRule) ([]logicalRow, bool, error) {
	n.mu.Lock()
	var uuids []string
	if known := n.rules[port]; known != nil {
		if known.reads++; known.reads < searchEvery {
			uuids = known.uuids
		}
	}
	n.mu.Unlock()
	if len(uuids) == 0 {
		return nil, uuids != nil && len(queried) == 0, nil
	}
	queries := []ovsdb.Operation{selecting(tableSwitch, including("qos_rules", connection.References(uuids...)), "_uuid", "name")}
	for _, uuid := range uuids {
		queries = append(queries, selecting(tableQoS, connection.Is(uuid), ruleColumns...))
	}
	results, err := n.db.Read(ctx, queries)
	if err != nil || len(results[0].Rows) == 0 {
		return nil, false, err
	}
	on := switchesOf(results[0].Rows)
	found := map[string]bool{}
	var out []logicalRow
	for _, r := range results[1:] {
		if len(r.Rows) == 0 {
			return nil, false, nil
		}
		keys := connection.Pairs(r.Rows[0]["external_ids"])
		if connection.Text(keys[ownerKey]) != owner || connection.Text(keys[rulePortKey]) != port {
			return nil, false, nil
		}
		row := logicalRow{Row: r.Rows[0], uuid: connection.UUID(r.Rows[0]["_uuid"]), id: connection.Text(keys[idKey]), switches: on}
		out, found[row.id] = append(out, row), true
	}
	missing := slices.ContainsFunc(queried, func(o netstate.LogicalRule) bool { return !found[o.Key().ID] })
	return out, !missing, nil
}

// rows reads the rows of ours that have a key with a value: those of a port, or one of them.
func (n *Northbound) rows(ctx context.Context, key, value string) ([]logicalRow, error) {
	found, err := readRows(ctx, n.db, selecting(tableQoS,
		including("external_ids", connection.MapOf(map[string]string{ownerKey: owner, key: value})), ruleColumns...))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	var out []logicalRow
	var queries []ovsdb.Operation
	for _, row := range found {
		r := logicalRow{Row: row, uuid: connection.UUID(row["_uuid"]), id: connection.Text(connection.Pairs(row["external_ids"])[idKey])}
		out = append(out, r)
		queries = append(queries, selecting(tableSwitch, including("qos_rules", connection.References(r.uuid)), "_uuid", "name"))
	}
	results, err := n.db.Read(ctx, queries)
	if err != nil {
		return nil, err
	}
	for i := range out {
		out[i].switches = switchesOf(results[i].Rows)
	}
	return out, nil
}

// extendRules reads rules of a port, and those that nothing queries: who restores the database from an older copy
// brings back rules that were deleted.
func (n *Northbound) extendRules(ctx context.Context, snapshot *netstate.Snapshot, port string, queried []netstate.LogicalRule) error {
	rows, known, err := n.knownRows(ctx, port, queried)
	if err == nil && !known {
		if rows, err = n.rows(ctx, rulePortKey, port); err == nil {
			n.remember(port, rows)
		}
	}
	if err != nil {
		return err
	}
	byID := map[string][]logicalRow{}
	for _, r := range rows {
		byID[r.id] = append(byID[r.id], r)
	}
	for _, o := range queried {
		if found := byID[o.Key().ID]; len(found) > 0 {
			snapshot.Put(ruleOf(o, found))
			delete(byID, o.Key().ID)
		} else {
			snapshot.PutAbsent(o.Key())
		}
	}
	for id, found := range byID {
		o := netstate.LogicalRule{Port: port, Rule: connection.Text(connection.Pairs(found[0].Row["external_ids"])[ruleKey])}
		if o.Key().ID == id {
			snapshot.Put(ruleOf(o, found))
		}
	}
	return nil
}

// ruleOf is a rule as its rows are, of which there should be one, on one switch.
func ruleOf(o netstate.LogicalRule, rows []logicalRow) netstate.LogicalRule {
	var switches []string
	for _, r := range rows {
		for _, s := range r.switches {
			switches = append(switches, s.name)
		}
	}
	slices.Sort(switches)
	row := rows[0]
	action, bandwidth := connection.Pairs(row.Row["action"]), connection.Pairs(row.Row["bandwidth"])
	out := netstate.LogicalRule{
		Port: o.Port, Rule: o.Rule, Link: o.Link,
		Switch: new(strings.Join(switches, ", ")), Direction: new(connection.Text(row.Row["direction"])),
		Match:    new(connection.Text(row.Row["match"])),
		Priority: new(uint16(connection.Number(row.Row["priority"]))),
		Rate:     new(uint32(connection.Number(bandwidth["rate"]))), Burst: new(uint32(connection.Number(bandwidth["burst"]))),
	}
	if _, marks := action["dscp"]; marks && len(action) == 1 {
		out.DSCP = new(uint8(connection.Number(action["dscp"])))
	}
	return out
}

// applyRule makes a change of a rule, in one transaction. A row that is not as it has to be for
// an update is replaced.
func (n *Northbound) applyRule(ctx context.Context, c netstate.Change) error {
	o := c.Object().(netstate.LogicalRule)
	defer n.forget(o.Port)
	rows, err := n.rows(ctx, idKey, o.Key().ID)
	if err != nil {
		return err
	}
	want, wanted := c.After.(netstate.LogicalRule)
	if !wanted {
		return n.removeRules(ctx, rows)
	}
	if len(rows) > 0 {
		want = netstate.Merge(ruleOf(o, rows), want)
	}
	for name, missing := range map[string]bool{
		"switch": want.Switch == nil, "direction": want.Direction == nil,
		"priority": want.Priority == nil, "match": want.Match == nil, "dscp": want.DSCP == nil,
	} {
		if missing {
			return fault.New(fault.Internal, fmt.Errorf("%s: its %s is not known", want.Key(), name))
		}
	}
	if len(rows) == 1 && len(rows[0].switches) == 1 && rows[0].switches[0].name == *want.Switch {
		_, err = n.db.Transact(ctx, []ovsdb.Operation{
			unchanged(tableQoS, rows[0].uuid, "match", rows[0].Row["match"]),
			updating(tableQoS, rows[0].uuid, ruleRow(want)),
		})
		return err
	}
	on, err := readRows(ctx, n.db, selecting(tableSwitch, connection.Named(*want.Switch), "_uuid", "external_ids"))
	switch {
	case err != nil:
		return err
	case len(on) == 0:
		return fault.New(fault.NotReady, fmt.Errorf("there is no logical switch %q: another node has deleted it meanwhile", *want.Switch))
	case len(on) > 1 || !ours(on[0]):
		return fault.New(fault.Conflict, fmt.Errorf(
			"logical switch %q exists and is not plumbline's: delete it with ovn-nbctl ls-del, or rename the network", *want.Switch))
	}
	to := connection.UUID(on[0]["_uuid"])
	all := removing(rows)
	if len(rows) == 0 {
		all = append(all, connection.Absent(tableQoS, map[string]string{ownerKey: owner, idKey: want.Key().ID}, "direction",
			netstate.FromPort))
	}
	all = append(all, unchanged(tableSwitch, to, "name", *want.Switch),
		inserting(tableQoS, "rule", ruleRow(want)), references(tableSwitch, to, "qos_rules", ovsdb.MutateOperationInsert, "rule"))
	_, err = n.db.Transact(ctx, all)
	return err
}

// ruleRow are the columns of a row, all of them ours.
func ruleRow(want netstate.LogicalRule) ovsdb.Row {
	bandwidth := map[string]int{}
	for key, value := range map[string]*uint32{"rate": want.Rate, "burst": want.Burst} {
		if value != nil && *value > 0 {
			bandwidth[key] = int(*value)
		}
	}
	return ovsdb.Row{
		"direction": *want.Direction, "priority": int(*want.Priority), "match": *want.Match,
		"action": connection.MapOf(map[string]int{"dscp": int(*want.DSCP)}), "bandwidth": connection.MapOf(bandwidth),
		"external_ids": connection.MapOf(map[string]string{
			ownerKey: owner, idKey: want.Key().ID, ruleKey: want.Rule,
			rulePortKey: want.Port,
		}),
	}
}

// removeRules deletes rows: the database does that when no switch refers to them.
func (n *Northbound) removeRules(ctx context.Context, rows []logicalRow) error {
	all := removing(rows)
	if len(all) == 0 {
		return nil
	}
	_, err := n.db.Transact(ctx, all)
	return err
}

func removing(rows []logicalRow) []ovsdb.Operation {
	var out []ovsdb.Operation
	for _, r := range rows {
		for _, s := range r.switches {
			out = append(out, references(tableSwitch, s.uuid, "qos_rules", ovsdb.MutateOperationDelete, r.uuid))
		}
	}
	return out
}

// Adopt implements reconcile.Adopter: rules of the sandbox's ports without a record are those of a database that was restored
// from an older copy.
func (n *Northbound) Adopt(s *netstate.Snapshot, history []netstate.Change) (adopted []netstate.Change) {
	steps, recorded := map[string]string{}, map[netstate.Key]bool{} // steps by port
	for _, c := range history {
		recorded[c.Key()] = true
		if port, ok := c.After.(netstate.LogicalPort); ok && c.Before == nil {
			steps[port.Name] = c.Step
		}
	}
	for _, rule := range netstate.All[netstate.LogicalRule](s) {
		if step, ours := steps[rule.Port]; ours && !recorded[rule.Key()] {
			adopted = append(adopted, netstate.Change{Step: step, After: rule})
		}
	}
	return adopted
}
