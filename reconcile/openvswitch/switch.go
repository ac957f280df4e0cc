package openvswitch

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos/ovn/connection"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// Server says where a database is.
type Server struct {
	// Endpoints are addresses as OVN writes them: "unix:PATH", "tcp:HOST:PORT", "ssl:HOST:PORT".
	Endpoints []string
	TLS       func() (*tls.Config, error) // for endpoints of ssl, for each connection
	Timeout   time.Duration               // of each transaction. Default 5 s
}

func (s Server) open(database, title string, tables map[string]model.Model) (*connection.Connection, error) {
	s.Timeout = cmp.Or(s.Timeout, 5*time.Second)
	return connection.New(connection.Options{
		Database: database, Title: title, Tables: tables, Endpoints: s.Endpoints, TLS: s.TLS,
		Timeout: s.Timeout, Pause: time.Second,
	})
}

// The mark of what plumbline has made, in external_ids.
const (
	ownerKey   = "dra.networking/owner"
	owner      = "plumbline"
	sandboxKey = "dra.networking/sandbox" // whose it is, for people
)

func ours(row ovsdb.Row) bool {
	return connection.Text(connection.Pairs(row["external_ids"])[ownerKey]) == owner
}

// Switch is the Open vSwitch of the node. It is safe for concurrent use.
type Switch struct{ db *connection.Connection }

// Tables of Open vSwitch, and those of their columns that are used (vswitch.ovsschema).
type (
	openVSwitch struct {
		UUID        string            `ovsdb:"_uuid"`
		ExternalIDs map[string]string `ovsdb:"external_ids"`
	}
	bridge struct {
		UUID  string   `ovsdb:"_uuid"`
		Name  string   `ovsdb:"name"`
		Ports []string `ovsdb:"ports"`
	}
	port struct {
		UUID        string            `ovsdb:"_uuid"`
		Name        string            `ovsdb:"name"`
		Interfaces  []string          `ovsdb:"interfaces"`
		OtherConfig map[string]string `ovsdb:"other_config"`
		ExternalIDs map[string]string `ovsdb:"external_ids"`
	}
	iface struct {
		UUID        string            `ovsdb:"_uuid"`
		Name        string            `ovsdb:"name"`
		OFPort      *int              `ovsdb:"ofport"`
		Error       *string           `ovsdb:"error"`
		ExternalIDs map[string]string `ovsdb:"external_ids"`
	}
)

// NewSwitch returns the Open vSwitch behind a database, which is opened when it is first used.
func NewSwitch(at Server) (*Switch, error) {
	db, err := at.open("Open_vSwitch", "database of Open vSwitch", map[string]model.Model{
		"Open_vSwitch": &openVSwitch{}, "Bridge": &bridge{}, "Port": &port{}, "Interface": &iface{},
	})
	if err != nil {
		return nil, err
	}
	return &Switch{db}, nil
}

// Domain is the part of the engine's options that makes it keep ports. The database survives a
// reboot, and so do ports in it.
func (s *Switch) Domain() reconcile.ExternalDomain {
	return reconcile.ExternalDomain{
		Name: "Open vSwitch", Kinds: []netstate.Kind{netstate.KindChassis, netstate.KindOVSPort}, Durable: true,
		Open: func(context.Context, reconcile.Sandbox) (reconcile.External, error) { return view{s}, nil },
	}
}

// Close ends the connection.
func (s *Switch) Close() { s.db.Close() }

// view is a Switch for one pass.
type view struct{ *Switch }

// Close implements reconcile.External: the connection is that of all passes.
func (view) Close() error { return nil }

func selecting(table string, where []ovsdb.Condition, columns ...string) ovsdb.Operation {
	return ovsdb.Operation{Op: ovsdb.OperationSelect, Table: table, Where: where, Columns: columns}
}

// readRows reads the rows of one query.
func readRows(ctx context.Context, db *connection.Connection, query ovsdb.Operation) ([]ovsdb.Row, error) {
	results, err := db.Read(ctx, []ovsdb.Operation{query})
	if err != nil {
		return nil, err
	}
	return results[0].Rows, nil
}

// inserting inserts a row that other operations of the transaction name.
func inserting(table, name string, row ovsdb.Row) ovsdb.Operation {
	return ovsdb.Operation{Op: ovsdb.OperationInsert, Table: table, UUIDName: name, Row: row}
}

// updating sets columns of a row.
func updating(table, row string, columns ovsdb.Row) ovsdb.Operation {
	return ovsdb.Operation{Op: ovsdb.OperationUpdate, Table: table, Where: connection.Is(row), Row: columns}
}

// including selects rows that have all of a value in a column.
func including(column string, value any) []ovsdb.Condition {
	return []ovsdb.Condition{ovsdb.NewCondition(column, ovsdb.ConditionIncludes, value)}
}

// withPort selects switches or bridges that have a port.
func withPort(row string) []ovsdb.Condition { return including("ports", connection.References(row)) }

// Extend implements reconcile.External.
func (s *Switch) Extend(ctx context.Context, snapshot *netstate.Snapshot, queried []netstate.Object) error {
	for _, o := range queried {
		switch o := o.(type) {
		case netstate.Chassis:
			c, err := s.chassis(ctx)
			if err != nil {
				return err
			}
			snapshot.Put(c)
		case netstate.OVSPort:
			found, err := s.find(ctx, o.Link)
			if err != nil {
				return err
			}
			if found.port == "" || !found.ours {
				snapshot.PutAbsent(o.Key())
				continue
			}
			snapshot.Put(found.OVSPort)
		}
	}
	return nil
}

// managementPorts are the interface by which a node with ovn-kubernetes reaches its pods, and the representor of
// one that is a function of a card.
var managementPorts = []string{"ovn-k8s-mp0", "ovn-k8s-mp0_0"}

func (s *Switch) chassis(ctx context.Context) (netstate.Chassis, error) {
	reads := []ovsdb.Operation{selecting("Open_vSwitch", nil, "external_ids"), selecting("Bridge", nil, "name")}
	for _, name := range managementPorts {
		reads = append(reads, selecting("Interface", connection.Named(name), "name"))
	}
	results, err := s.db.Read(ctx, reads)
	out := netstate.ThisChassis
	if err != nil {
		return out, err
	}
	out.Name, out.Int, out.Networks = new(""), new(""), []string{}
	for _, r := range results[2:] {
		out.OVNKubernetes = out.OVNKubernetes || len(r.Rows) > 0
	}
	if len(results[0].Rows) == 0 {
		return out, nil
	}
	ids := connection.Pairs(results[0].Rows[0]["external_ids"])
	*out.Name = connection.Text(ids["system-id"])
	// A chassis may have settings of its own, see ovn-controller(8).
	setting := func(name string) string {
		if own := connection.Text(ids[name+"-"+*out.Name]); own != "" {
			return own
		}
		return connection.Text(ids[name])
	}
	var bridges []string
	for _, row := range results[1].Rows {
		bridges = append(bridges, connection.Text(row["name"]))
	}
	integration := cmp.Or(setting("ovn-bridge"), "br-int")
	if slices.Contains(bridges, integration) {
		*out.Int = integration
	}
	for mapping := range strings.SplitSeq(setting("ovn-bridge-mappings"), ",") {
		network, to, _ := strings.Cut(strings.TrimSpace(mapping), ":")
		if network != "" && slices.Contains(bridges, to) {
			out.Networks = append(out.Networks, network)
		}
	}
	slices.Sort(out.Networks)
	return out, nil
}

// found is a port as it is in the database.
type found struct {
	netstate.OVSPort
	port, iface string   // rows; "" for none
	bridges     []string // rows of bridges that have the port
	ours        bool
}

// Numbers reads the numbers in OpenFlow of links that are bound to these logical ports, by link.
func (s *Switch) Numbers(ctx context.Context, of []netstate.OVSPort) (map[string]uint32, error) {
	var reads []ovsdb.Operation
	for _, p := range of {
		reads = append(reads, selecting("Interface", connection.Named(netstate.BaseName(p.Link)), "ofport", "external_ids"))
	}
	results, err := s.db.Read(ctx, reads)
	if err != nil {
		return nil, err
	}
	out := map[string]uint32{}
	for i, p := range of {
		for _, row := range results[i].Rows {
			if n := number(row); n > 0 && connection.Text(connection.Pairs(row["external_ids"])["iface-id"]) == *p.LogicalPort {
				out[p.Link] = uint32(n)
			}
		}
	}
	return out, nil
}

// number is the OpenFlow port number of an interface, -1 if it has none.
func number(row ovsdb.Row) float64 {
	if numbers := connection.Set(row["ofport"]); len(numbers) == 1 {
		if n, ok := numbers[0].(float64); ok {
			return n
		}
	}
	return -1
}

// find reads the port of a link.
func (s *Switch) find(ctx context.Context, link string) (found, error) {
	name := netstate.BaseName(link)
	out := found{OVSPort: netstate.OVSPort{Link: link}}
	results, err := s.db.Read(ctx, []ovsdb.Operation{
		selecting("Port", connection.Named(name), "_uuid", "external_ids"),
		selecting("Interface", connection.Named(name), "_uuid", "ofport", "error", "external_ids"),
	})
	if err != nil || len(results[0].Rows) == 0 {
		return out, err
	}
	row := results[0].Rows[0]
	out.port, out.ours = connection.UUID(row["_uuid"]), ours(row)
	if rows := results[1].Rows; len(rows) > 0 {
		out.iface = connection.UUID(rows[0]["_uuid"])
		out.read(rows[0])
	}
	bridges, err := readRows(ctx, s.db, selecting("Bridge", withPort(out.port), "_uuid", "name"))
	if err != nil {
		return out, err
	}
	out.Bridge = new("")
	for _, row := range bridges {
		out.bridges = append(out.bridges, connection.UUID(row["_uuid"]))
		*out.Bridge = connection.Text(row["name"])
	}
	return out, nil
}

// read reads what an interface is bound to, and whether it works.
func (f *found) read(row ovsdb.Row) {
	ids := connection.Pairs(row["external_ids"])
	f.LogicalPort, f.Holder, f.MAC = new(connection.Text(ids["iface-id"])), new(connection.Text(ids["iface-id-ver"])),
		new(connection.Text(ids["attached_mac"]))
	f.Function = new(connection.Text(ids["vf-netdev-name"]))
	f.Addresses = []string{}
	if list := connection.Text(ids["ip_addresses"]); list != "" {
		f.Addresses = strings.Split(list, ",")
	}
	for _, e := range connection.Texts(row["error"]) {
		f.Failure = e
	}
	f.Installed = connection.Text(ids["ovn-installed"]) == "true" && number(row) > 0
}

// Apply implements reconcile.External.
func (s *Switch) Apply(ctx context.Context, c netstate.Change) error {
	for _, part := range c.Parts() {
		if err := s.apply(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

func (s *Switch) apply(ctx context.Context, c netstate.Change) error {
	o, ok := c.Object().(netstate.OVSPort)
	if !ok {
		return fault.New(fault.Invalid, errors.New("settings of Open vSwitch are not changed"))
	}
	have, err := s.find(ctx, o.Link)
	if err != nil {
		return err
	}
	switch {
	case c.After == nil && (have.port == "" || !have.ours):
		return nil
	case c.After == nil:
		return s.remove(ctx, have)
	case have.port != "" && !have.ours:
		return fault.New(fault.Conflict,
			fmt.Errorf("%w: port %q of bridge %q of Open vSwitch, which is not plumbline's: remove it with ovs-vsctl del-port", fs.ErrExist,
				netstate.BaseName(o.Link), *have.Bridge))
	case have.port == "":
		return s.add(ctx, o)
	}
	return s.update(ctx, have, o)
}

func (s *Switch) remove(ctx context.Context, have found) error {
	var all []ovsdb.Operation
	for _, bridge := range have.bridges { // a port that no bridge has is deleted by the database
		all = append(all, references("Bridge", bridge, "ports", ovsdb.MutateOperationDelete, have.port))
	}
	_, err := s.db.Transact(ctx, all)
	return err
}

// references adds a reference to a column of a row, or removes it.
func references(table, row, column string, how ovsdb.Mutator, to string) ovsdb.Operation {
	return ovsdb.Operation{
		Op: ovsdb.OperationMutate, Table: table, Where: connection.Is(row),
		Mutations: []ovsdb.Mutation{*ovsdb.NewMutation(column, how, connection.References(to))},
	}
}

// unchanged holds that a column of a row is as it was read.
func unchanged(table, row, column string, is any) ovsdb.Operation {
	return ovsdb.Operation{
		Op: ovsdb.OperationWait, Table: table, Where: connection.Is(row), Columns: []string{column}, Until: "==",
		Rows: []ovsdb.Row{{column: is}}, Timeout: new(int),
	}
}

// add adds a port to its bridge. The interfaces of earlier sandboxes that are bound to the same
// logical port are removed: OVN would bind either.
func (s *Switch) add(ctx context.Context, o netstate.OVSPort) error {
	bound := including("external_ids", connection.MapOf(map[string]string{"iface-id": *o.LogicalPort}))
	results, err := s.db.Read(ctx, []ovsdb.Operation{
		selecting("Bridge", connection.Named(*o.Bridge), "_uuid"),
		selecting("Interface", bound, "_uuid", "name"),
	})
	switch {
	case err != nil:
		return err
	case len(results[0].Rows) == 0:
		return fault.New(fault.NotReady, fmt.Errorf("bridge %q of Open vSwitch does not exist: ovn-controller creates it", *o.Bridge))
	}
	for _, row := range results[1].Rows {
		other, err := s.find(ctx, netstate.HostName(connection.Text(row["name"])))
		switch {
		case err != nil:
			return err
		case !other.ours:
			return fault.New(fault.Conflict, fmt.Errorf(
				"interface %q of Open vSwitch, which is not plumbline's, is bound to logical port %q: remove it with ovs-vsctl del-port",
				netstate.BaseName(other.Link), *o.LogicalPort))
		}
		if err := s.remove(ctx, other); err != nil {
			return err
		}
	}
	name, to := netstate.BaseName(o.Link), connection.UUID(results[0].Rows[0]["_uuid"])
	mark := connection.MapOf(map[string]string{ownerKey: owner})
	_, err = s.db.Transact(ctx, []ovsdb.Operation{
		unchanged("Bridge", to, "name", *o.Bridge), // it exists
		inserting("Interface", "iface", ovsdb.Row{"name": name, "external_ids": connection.MapOf(binding(o))}),
		inserting("Port", "port", ovsdb.Row{
			"name": name, "interfaces": connection.References("iface"), "external_ids": mark,
			// Scripts of Open vSwitch remove it at a boot, when there is no such link any more.
			"other_config": connection.MapOf(map[string]string{"transient": "true"}),
		}),
		references("Bridge", to, "ports", ovsdb.MutateOperationInsert, "port"),
	})
	return err
}

// binding returns the external IDs that ovn-controller reads. It has no key "sandbox": ovn-kubernetes
// deletes interfaces that have one and are not those of its pods.
func binding(o netstate.OVSPort) map[string]string {
	out := map[string]string{}
	for key, value := range map[string]*string{
		"iface-id": o.LogicalPort, "iface-id-ver": o.Holder, "attached_mac": o.MAC,
		"vf-netdev-name": o.Function,
	} {
		if value != nil {
			out[key] = *value
		}
	}
	if o.Addresses != nil {
		out["ip_addresses"] = strings.Join(o.Addresses, ",")
	}
	return out
}

// update changes keys of external_ids: what others have there stays.
func (s *Switch) update(ctx context.Context, have found, o netstate.OVSPort) error {
	changed := binding(o)
	keys := slices.Collect(maps.Keys(changed))
	_, err := s.db.Transact(ctx, []ovsdb.Operation{{
		Op: ovsdb.OperationMutate, Table: "Interface", Where: connection.Is(have.iface), Mutations: []ovsdb.Mutation{
			*ovsdb.NewMutation("external_ids", ovsdb.MutateOperationDelete, connection.SetOf(keys)),
			*ovsdb.NewMutation("external_ids", ovsdb.MutateOperationInsert, connection.MapOf(changed)),
		},
	}})
	return err
}

// Absent returns the domains of a process that has no databases, and says why.
func Absent(why error) []reconcile.ExternalDomain {
	open := func(context.Context, reconcile.Sandbox) (reconcile.External, error) {
		return nil, fault.New(fault.Unsupported, why)
	}
	vswitch, northbound := (*Switch)(nil).Domain(), (*Northbound)(nil).Domain()
	vswitch.Open, northbound.Open = open, open
	return []reconcile.ExternalDomain{northbound, vswitch}
}
