package connection

import "github.com/ovn-kubernetes/libovsdb/ovsdb"

// A value of an unexpected type is read as the empty one, which differs from the wanted
// one, so that it is written again.

// Text reads a string.
func Text(v any) string {
	s, _ := v.(string)
	return s
}

// Number reads a number of 32 bits.
func Number(v any) float64 {
	n, _ := v.(float64)
	return max(0, min(n, 1<<32-1))
}

// UUID reads a reference to a row.
func UUID(v any) string {
	u, _ := v.(ovsdb.UUID)
	return u.GoUUID
}

// Set returns the members of a set: one of a single member is that member (RFC 7047, 5.1).
func Set(v any) []any {
	switch v := v.(type) {
	case nil:
		return nil
	case ovsdb.OvsSet:
		return v.GoSet
	default:
		return []any{v}
	}
}

// Texts reads a set of strings.
func Texts(v any) []string { return each(v, Text) }

// UUIDs reads a set of references.
func UUIDs(v any) []string { return each(v, UUID) }

func each(set any, read func(any) string) []string {
	out := []string{}
	for _, v := range Set(set) {
		out = append(out, read(v))
	}
	return out
}

// Pairs reads a map.
func Pairs(v any) map[any]any {
	m, _ := v.(ovsdb.OvsMap)
	return m.GoMap
}

// SetOf writes a set of strings.
func SetOf(of []string) ovsdb.OvsSet { return setOf(of, func(s string) any { return s }) }

// References writes a set of references, to rows and to those that the transaction creates.
func References(of ...string) ovsdb.OvsSet {
	return setOf(of, func(u string) any { return ovsdb.UUID{GoUUID: u} })
}

func setOf(of []string, write func(string) any) ovsdb.OvsSet {
	out := ovsdb.OvsSet{GoSet: []any{}}
	for _, s := range of {
		out.GoSet = append(out.GoSet, write(s))
	}
	return out
}

// MapOf writes a map.
func MapOf[V any](of map[string]V) ovsdb.OvsMap {
	out := ovsdb.OvsMap{GoMap: map[any]any{}}
	for k, v := range of {
		out.GoMap[k] = v
	}
	return out
}

// Is is the condition that a row is the one with this UUID.
func Is(uuid string) []ovsdb.Condition {
	return []ovsdb.Condition{ovsdb.NewCondition("_uuid", ovsdb.ConditionEqual, ovsdb.UUID{GoUUID: uuid})}
}

// Named is the condition that a row has this name.
func Named(name string) []ovsdb.Condition {
	return []ovsdb.Condition{ovsdb.NewCondition("name", ovsdb.ConditionEqual, name)}
}

// Absent holds that no row of a table has these external_ids, where every such row has the value in the column: many
// tables let two rows have the same. A server of a cluster may plan from what is old, and repeats a transaction on what is new.
func Absent(table string, externalIDs map[string]string, column, value string) ovsdb.Operation {
	return ovsdb.Operation{
		Op: ovsdb.OperationWait, Table: table, Columns: []string{column}, Until: "!=", Rows: []ovsdb.Row{{column: value}},
		Timeout: new(int),
		Where:   []ovsdb.Condition{ovsdb.NewCondition("external_ids", ovsdb.ConditionIncludes, MapOf(externalIDs))},
	}
}
