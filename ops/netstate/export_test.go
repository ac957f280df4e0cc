package netstate

// AddLinkKind adds a row to the table of kinds of links, until the test ends.
func AddLinkKind(t interface{ Cleanup(func()) }, kind string, traits LinkTraits) {
	linkKinds[kind] = traits
	t.Cleanup(func() { delete(linkKinds, kind) })
}
