package netstate

import "slices"

// Masquerade says that packets of an address leave the host with an address of the host,
// but for those to some prefixes. It is in the host's namespace, in a table of nftables
// that is only ours. Source: nft(8), "MASQUERADE".
type Masquerade struct {
	Source string `json:"source" plan:"key"` // an address
	// Except are prefixes of the address's family, of which none contains another, sorted.
	Except []string `json:"except,omitempty" plan:"live"`
}

// Key is the address.
func (m Masquerade) Key() Key { return Key{KindMasquerade, m.Source} }

// LivesOn is nothing: it outlives the link over which the host reaches the address.
func (Masquerade) LivesOn() Key { return Key{} }

// SortedPrefixes is how the prefixes of a Masquerade are sorted.
func SortedPrefixes(prefixes []string) []string { return slices.Sorted(slices.Values(prefixes)) }

var masqueradeTraits = Traits{Phase: PhaseRules, Cost: 8}

// Traits returns the traits of masquerading.
func (Masquerade) Traits() *Traits { return &masqueradeTraits }
