package openvswitch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos/ovn/connection"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// Northbound is an OVN Northbound database: the node's own, or that of all nodes. It is safe for
// concurrent use.
type Northbound struct {
	db *connection.Connection

	mu sync.Mutex
	// uuids are those of the rows of names, as they were found last: a server finds a row by its UUID at once, and by
	// its name only by a comparison with all rows of the table, of which all nodes have some.
	uuids map[string]string
	// absences counts how often a name that no row has was queried since the last change.
	absences map[string]int
	changes  int
	// rules are the rows of rules by port, ruleCount how many they are.
	rules     map[string]*knownRules
	ruleCount int
}

// Tables of the database, and those of their columns that are used (ovn-nb.ovsschema).
type (
	logicalSwitch struct {
		UUID        string            `ovsdb:"_uuid"`
		Name        string            `ovsdb:"name"`
		Ports       []string          `ovsdb:"ports"`
		QOSRules    []string          `ovsdb:"qos_rules"`
		ExternalIDs map[string]string `ovsdb:"external_ids"`
	}
	logicalPort struct {
		UUID         string            `ovsdb:"_uuid"`
		Name         string            `ovsdb:"name"`
		Type         string            `ovsdb:"type"`
		Options      map[string]string `ovsdb:"options"`
		Addresses    []string          `ovsdb:"addresses"`
		PortSecurity []string          `ovsdb:"port_security"`
		Tag          *int              `ovsdb:"tag"`
		TagRequest   *int              `ovsdb:"tag_request"`
		ExternalIDs  map[string]string `ovsdb:"external_ids"`
	}
	logicalRouter struct {
		UUID        string            `ovsdb:"_uuid"`
		ExternalIDs map[string]string `ovsdb:"external_ids"`
	}
)

const (
	tableSwitch = "Logical_Switch"
	tablePort   = "Logical_Switch_Port"
	tableRouter = "Logical_Router"
)

// NewNorthbound returns a database, which is opened when it is first used.
func NewNorthbound(at Server) (*Northbound, error) {
	db, err := at.open("OVN_Northbound", "OVN Northbound database", map[string]model.Model{
		tableSwitch: &logicalSwitch{}, tablePort: &logicalPort{}, tableRouter: &logicalRouter{}, tableQoS: &qosRow{},
	})
	if err != nil {
		return nil, err
	}
	return &Northbound{db: db, uuids: map[string]string{}, absences: map[string]int{}, rules: map[string]*knownRules{}}, nil
}

// Domain is the part of the engine's options that makes it keep logical ports and their rules. They
// survive a reboot of the node.
func (n *Northbound) Domain() reconcile.ExternalDomain {
	return reconcile.ExternalDomain{
		Name: "the OVN Northbound database", Kinds: []netstate.Kind{netstate.KindLogicalPort, netstate.KindLogicalRule}, Durable: true,
		Open: func(context.Context, reconcile.Sandbox) (reconcile.External, error) { return logicalView{n}, nil },
	}
}

// Close ends the connection.
func (n *Northbound) Close() { n.db.Close() }

type logicalView struct{ *Northbound }

// Close implements reconcile.External: the connection is that of all passes.
func (logicalView) Close() error { return nil }

// switchKey names the switch of a port, whose name that of the localnet port follows from.
const switchKey = "dra.networking/switch"

// localnetName is the name of a switch's port to its physical network.
func localnetName(of string) string { return of + ":localnet" }

// logical is a port as it is in the database.
type logical struct {
	netstate.LogicalPort
	row      string // "" for none
	ours     bool
	switches []string // rows of switches that have the port
	localnet string   // row of the switch's localnet port, "" for none
	taken    bool     // a foreign port has the name of that
}

// Extend implements reconcile.External.
func (n *Northbound) Extend(ctx context.Context, snapshot *netstate.Snapshot, queried []netstate.Object) error {
	rules := map[string][]netstate.LogicalRule{}
	for _, o := range queried {
		if r, ok := o.(netstate.LogicalRule); ok {
			rules[r.Port] = append(rules[r.Port], r)
			continue
		}
		have, err := n.find(ctx, o.Key().ID, false)
		if err != nil {
			return err
		}
		if have.row == "" || !have.ours {
			snapshot.PutAbsent(o.Key())
			continue
		}
		snapshot.Put(have.LogicalPort)
		if rules[have.Name] == nil {
			rules[have.Name] = nil // its rules are read, also if none is queried
		}
	}
	for port, of := range rules {
		if err := n.extendRules(ctx, snapshot, port, of); err != nil {
			return err
		}
	}
	return nil
}

var portColumns = []string{"_uuid", "name", "type", "options", "addresses", "port_security", "tag", "tag_request", "external_ids"}

const (
	// maxNames bounds the names whose rows are known. A node has fewer ports.
	maxNames = 4096
	// searchEvery: when ports are only checked, a name that no row had is searched for again in one of so many passes.
	searchEvery = 16
)

// named reads the row of a port by its name, nil if there is none. Unless that has to be certain, because of a
// change, one that was absent is searched for rarely.
func (n *Northbound) named(ctx context.Context, name string, certain bool) (ovsdb.Row, error) {
	n.mu.Lock()
	uuid, absences, changes := n.uuids[name], n.absences[name], n.changes
	if absences > 0 {
		n.absences[name] = (absences + 1) % searchEvery
	}
	n.mu.Unlock()
	if uuid != "" {
		rows, err := readRows(ctx, n.db, selecting(tablePort, connection.Is(uuid), portColumns...))
		if err != nil {
			return nil, err
		}
		if len(rows) > 0 && connection.Text(rows[0]["name"]) == name {
			return rows[0], nil
		}
	} else if absences > 0 && !certain {
		return nil, nil
	}
	rows, err := readRows(ctx, n.db, selecting(tablePort, connection.Named(name), portColumns...))
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.uuids, name)
	delete(n.absences, name)
	if len(n.uuids)+len(n.absences) >= maxNames {
		clear(n.uuids)
		clear(n.absences)
	}
	if len(rows) == 0 {
		if !certain && changes == n.changes {
			n.absences[name] = 1
		}
		return nil, nil
	}
	n.uuids[name] = connection.UUID(rows[0]["_uuid"])
	return rows[0], nil
}

// find reads a port, the switch that has it, and that switch's localnet port.
func (n *Northbound) find(ctx context.Context, name string, certain bool) (logical, error) {
	out := logical{LogicalPort: netstate.LogicalPort{Name: name}}
	row, err := n.named(ctx, name, true)
	if err != nil || row == nil {
		return out, err
	}
	options := connection.Pairs(row["options"])
	out.row, out.ours = connection.UUID(row["_uuid"]), ours(row)
	out.Addresses, out.PortSecurity = connection.Texts(row["addresses"]), connection.Texts(row["port_security"])
	out.Holder, out.Chassis = new(connection.Text(options["iface-id-ver"])), new(connection.Text(options["requested-chassis"]))
	made := connection.Text(connection.Pairs(row["external_ids"])[switchKey])
	switches, err := readRows(ctx, n.db, selecting(tableSwitch, withPort(out.row), "_uuid", "name"))
	if err != nil {
		return out, err
	}
	localnet, err := n.named(ctx, localnetName(made), certain)
	if err != nil {
		return out, err
	}
	if localnet != nil && !ours(localnet) {
		// One that somebody has added to our switch is drift. Elsewhere it is not ours to change.
		at, err := readRows(ctx, n.db, selecting(tableSwitch, withPort(connection.UUID(localnet["_uuid"])), "_uuid"))
		if err != nil {
			return out, err
		}
		if !slices.ContainsFunc(at, func(row ovsdb.Row) bool {
			return slices.ContainsFunc(switches,
				func(of ovsdb.Row) bool { return connection.UUID(of["_uuid"]) == connection.UUID(row["_uuid"]) })
		}) {
			localnet, out.taken = nil, true
		}
	}
	out.Switch, out.PhysicalNetwork, out.VLAN = new(""), new(""), new(uint16(0))
	for _, row := range switches {
		out.switches = append(out.switches, connection.UUID(row["_uuid"]))
		*out.Switch = connection.Text(row["name"])
	}
	if localnet != nil {
		out.localnet = connection.UUID(localnet["_uuid"])
		*out.VLAN = tag(localnet)
		if connection.Text(localnet["type"]) == "localnet" {
			*out.PhysicalNetwork = connection.Text(connection.Pairs(localnet["options"])["network_name"])
		}
	}
	return out, nil
}

// tag is the VLAN of a localnet port. northd copies tag_request to tag.
func tag(row ovsdb.Row) uint16 {
	for _, column := range []string{"tag", "tag_request"} {
		for _, v := range connection.Set(row[column]) {
			return uint16(connection.Number(v))
		}
	}
	return 0
}

// attempts of a change whose rows others change at the same time.
const attempts = 16

// Apply implements reconcile.External.
func (n *Northbound) Apply(ctx context.Context, c netstate.Change) error {
	defer n.changed()
	for _, part := range c.Parts() {
		var err error
		apply := n.apply
		if part.Key().Kind == netstate.KindLogicalRule {
			apply = n.applyRule
		}
		for i := range attempts {
			if err = apply(ctx, part); !errors.Is(err, connection.ErrWait) && (i > 0 || !errors.Is(err, connection.ErrTaken)) {
				break
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// changed has absent names searched for again.
func (n *Northbound) changed() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changes++
	clear(n.absences)
}

func (n *Northbound) apply(ctx context.Context, c netstate.Change) error {
	have, err := n.find(ctx, c.Key().ID, true)
	if err != nil {
		return err
	}
	want, wanted := c.After.(netstate.LogicalPort)
	switch {
	case !wanted && (have.row == "" || !have.ours):
		return nil
	case !wanted:
		return n.remove(ctx, have)
	case have.row != "" && !have.ours:
		return fault.New(fault.Conflict,
			fmt.Errorf("%w: logical switch port %q, which is not plumbline's: remove it with ovn-nbctl lsp-del", fs.ErrExist, want.Name))
	case have.row == "":
		return n.add(ctx, want)
	}
	return n.update(ctx, have, want)
}

// ovnKubernetesKey returns the key of a row of ovn-kubernetes, "" if there is none.
func ovnKubernetesKey(switches, routers []ovsdb.Row) string {
	for _, row := range slices.Concat(switches, routers) {
		for key := range connection.Pairs(row["external_ids"]) {
			if key := connection.Text(key); strings.HasPrefix(key, "k8s.ovn.org/") || key == "k8s-cluster-router" {
				return key
			}
		}
	}
	return ""
}

// add creates a port, and its switch if there is none.
func (n *Northbound) add(ctx context.Context, want netstate.LogicalPort) error {
	results, err := n.db.Read(ctx, []ovsdb.Operation{
		selecting(tableSwitch, connection.Named(*want.Switch), "_uuid", "external_ids"),
		selecting(tablePort, connection.Named(localnetName(*want.Switch)), "_uuid", "external_ids"),
		selecting(tableSwitch, nil, "external_ids"),
		selecting(tableRouter, nil, "external_ids"),
	})
	if err != nil {
		return err
	}
	if key := ovnKubernetesKey(results[2].Rows, results[3].Rows); key != "" {
		return fault.New(fault.Unsupported, fmt.Errorf("the OVN Northbound database belongs to ovn-kubernetes, "+
			"whose rows have the key %q, and which deletes rows of others: on its nodes, "+
			"which have a port \"ovn-k8s-mp0\", use its ports (docs/ovn.md); on other nodes use another database", key))
	}
	if rows := results[1].Rows; *want.PhysicalNetwork != "" && len(rows) > 0 && !ours(rows[0]) {
		return localnetTaken(want)
	}
	port := portRow(want)
	port["name"] = want.Name
	port["external_ids"] = connection.MapOf(map[string]string{ownerKey: owner, switchKey: *want.Switch, sandboxKey: *want.Holder})
	all := []ovsdb.Operation{inserting(tablePort, "port", port)}
	switch rows := results[0].Rows; {
	case len(rows) > 1:
		return fault.New(fault.Conflict, fmt.Errorf(
			"%d logical switches are called %q: delete those that are not plumbline's, by ovn-nbctl --id", len(rows), *want.Switch))
	case len(rows) == 1 && !ours(rows[0]):
		return fault.New(fault.Conflict, fmt.Errorf(
			"logical switch %q exists and is not plumbline's: delete it with ovn-nbctl ls-del, or rename the network", *want.Switch))
	case len(rows) == 1:
		to := connection.UUID(rows[0]["_uuid"])
		all = append(all, unchanged(tableSwitch, to, "name", *want.Switch),
			references(tableSwitch, to, "ports", ovsdb.MutateOperationInsert, "port"))
		if *want.PhysicalNetwork != "" && len(results[1].Rows) == 0 {
			all = append(all, localnetPort(want), references(tableSwitch, to, "ports", ovsdb.MutateOperationInsert, "localnet"))
		}
	default:
		ports := []string{"port"}
		if *want.PhysicalNetwork != "" {
			all, ports = append(all, localnetPort(want)), append(ports, "localnet")
		}
		// The schema lets two switches have one name.
		all = append(all, ovsdb.Operation{
			Op: ovsdb.OperationWait, Table: tableSwitch, Where: connection.Named(*want.Switch), Columns: []string{"name"}, Until: "!=",
			Rows: []ovsdb.Row{{"name": *want.Switch}}, Timeout: new(int),
		}, inserting(tableSwitch, "switch", ovsdb.Row{
			"name": *want.Switch, "ports": connection.References(ports...),
			"external_ids": connection.MapOf(map[string]string{ownerKey: owner}),
		}))
	}
	_, err = n.db.Transact(ctx, all)
	return err
}

func localnetTaken(want netstate.LogicalPort) error {
	return fault.New(fault.Conflict, fmt.Errorf("%w: logical switch port %q, which is not plumbline's: remove it with ovn-nbctl lsp-del",
		fs.ErrExist, localnetName(*want.Switch)))
}

// localnetPort creates the port of a switch to its physical network.
func localnetPort(want netstate.LogicalPort) ovsdb.Operation {
	row := localnetRow(want)
	row["name"] = localnetName(*want.Switch)
	row["external_ids"] = connection.MapOf(map[string]string{ownerKey: owner, switchKey: *want.Switch})
	return inserting(tablePort, "localnet", row)
}

func localnetRow(want netstate.LogicalPort) ovsdb.Row {
	tags := ovsdb.OvsSet{GoSet: []any{}}
	if want.VLAN != nil && *want.VLAN != 0 {
		tags.GoSet = append(tags.GoSet, int(*want.VLAN))
	}
	return ovsdb.Row{
		"type": "localnet", "addresses": connection.SetOf([]string{"unknown"}), "tag": tags, "tag_request": tags,
		"options": connection.MapOf(map[string]string{"network_name": *want.PhysicalNetwork}),
	}
}

// portRow are the columns of a port that are wanted as a whole.
func portRow(want netstate.LogicalPort) ovsdb.Row {
	return ovsdb.Row{
		"addresses": connection.SetOf(want.Addresses), "port_security": connection.SetOf(want.PortSecurity), "type": "",
		"options": connection.MapOf(map[string]string{"iface-id-ver": *want.Holder, "requested-chassis": *want.Chassis}),
	}
}

// update changes what a change names: the rest of it is as it was observed.
func (n *Northbound) update(ctx context.Context, have logical, change netstate.LogicalPort) error {
	want := netstate.Merge(have.LogicalPort, change)
	all := []ovsdb.Operation{updating(tablePort, have.row, portRow(want))}
	switch {
	case change.PhysicalNetwork == nil && change.VLAN == nil || len(have.switches) == 0:
	case *want.PhysicalNetwork == "" && have.localnet != "":
		for _, of := range have.switches {
			all = append(all, references(tableSwitch, of, "ports", ovsdb.MutateOperationDelete, have.localnet))
		}
	case *want.PhysicalNetwork == "":
	case have.taken:
		return localnetTaken(want)
	case have.localnet == "":
		all = append(all, localnetPort(want),
			references(tableSwitch, have.switches[0], "ports", ovsdb.MutateOperationInsert, "localnet"))
	default:
		all = append(all, updating(tablePort, have.localnet, localnetRow(want)))
	}
	_, err := n.db.Transact(ctx, all)
	return err
}

// guarded is up to how many ports of a switch the removal of one holds that no other port was
// added or removed meanwhile. So many would have to leave at the same time for an empty switch to
// remain.
const guarded = 64

// remove removes a port from its switch. The switch is deleted with its last port, if it is ours.
func (n *Northbound) remove(ctx context.Context, have logical) error {
	var all []ovsdb.Operation
	for _, of := range have.switches {
		rows, err := readRows(ctx, n.db, selecting(tableSwitch, connection.Is(of), "name", "ports", "external_ids"))
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			continue
		}
		row := rows[0]
		ports := connection.UUIDs(row["ports"])
		left := slices.DeleteFunc(slices.Clone(ports), func(p string) bool { return p == have.row || p == have.localnet })
		if len(ports) <= guarded {
			all = append(all, unchanged(tableSwitch, of, "ports", connection.References(ports...)))
		}
		if len(left) == 0 && ours(row) {
			all = append(all, ovsdb.Operation{Op: ovsdb.OperationDelete, Table: tableSwitch, Where: connection.Is(of)})
			continue
		}
		all = append(all, references(tableSwitch, of, "ports", ovsdb.MutateOperationDelete, have.row))
	}
	if len(all) == 0 {
		return nil
	}
	_, err := n.db.Transact(ctx, all)
	return err
}
