// Package nested has maps of maps, of which no inner one is empty: what comes and goes leaves nothing.
package nested

// Map is a map of maps. Its zero value is empty. It is read as any map.
type Map[A, B comparable, V any] map[A]map[B]V

// Set adds or replaces a value.
func (m *Map[A, B, V]) Set(a A, b B, v V) {
	if *m == nil {
		*m = Map[A, B, V]{}
	}
	if (*m)[a] == nil {
		(*m)[a] = map[B]V{}
	}
	(*m)[a][b] = v
}

// Delete removes a value, if it is there.
func (m Map[A, B, V]) Delete(a A, b B) {
	if delete(m[a], b); len(m[a]) == 0 {
		delete(m, a)
	}
}
