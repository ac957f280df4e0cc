package netstate

import (
	"maps"
	"slices"
	"strings"
)

// Snapshot is the observed state of one sandbox and of the host objects that
// were asked for. The sandbox's links, addresses and routes are always whole;
// everything else (sysctls, ethtool settings, devices, VF settings, links on
// the host) is observed on demand, and Known tells which of it was.
type Snapshot struct {
	objects map[Key]Object
	known   map[Key]bool
	// fresh holds links that appeared through Apply: nothing observed on
	// demand exists for them yet.
	fresh map[string]bool
	// withheld holds why objects cannot be observed, a key without ID all of its kind.
	withheld map[Key]error
	// partial is whether the sandbox has links that are not in the snapshot.
	partial bool
}

// NewSnapshot returns a snapshot of the given objects, all of them known.
func NewSnapshot(objects ...Object) *Snapshot {
	s := &Snapshot{objects: map[Key]Object{}, known: map[Key]bool{}, fresh: map[string]bool{}, withheld: map[Key]error{}}
	for _, o := range objects {
		s.Put(o)
	}
	return s
}

// Clone returns an independent copy. Objects are values and are shared.
func (s *Snapshot) Clone() *Snapshot {
	return &Snapshot{maps.Clone(s.objects), maps.Clone(s.known), maps.Clone(s.fresh), maps.Clone(s.withheld), s.partial}
}

// Put records an observed object.
func (s *Snapshot) Put(o Object) {
	k := o.Key()
	s.objects[k] = o
	s.known[k] = true
}

// PutAbsent records that an object asked for does not exist.
func (s *Snapshot) PutAbsent(k Key) {
	delete(s.objects, k)
	s.known[k] = true
}

// PutPartial records that the sandbox has more links than were read.
func (s *Snapshot) PutPartial() { s.partial = true }

// Withhold records that an object cannot be observed, and why; a key without ID is for all of its kind. Wants for
// them wait, and the history keeps their changes.
func (s *Snapshot) Withhold(k Key, why error) { s.withheld[k] = why }

// Withheld is why the object cannot be observed, nil when it can.
func (s *Snapshot) Withheld(o Object) error {
	if why := s.withheld[o.Key()]; why != nil {
		return why
	}
	return s.withheld[Key{Kind: o.Key().Kind}]
}

// Get returns an object by key.
func (s *Snapshot) Get(k Key) (Object, bool) {
	o, ok := s.objects[k]
	return o, ok
}

// Known reports whether the snapshot can say if the object exists.
func (s *Snapshot) Known(o Object) bool {
	t := o.Traits()
	if s.known[o.Key()] || t.Whole && !OfHost(o) {
		return true
	}
	link := LinkOf(o)
	if link == "" || s.fresh[link] {
		return link != ""
	}
	// There is nothing on a link that the sandbox does not have.
	_, there := s.objects[LinkKey(link)]
	return !there && !s.partial && !OnHost(link) && !t.Elsewhere
}

// Lookup returns the object with o's key, typed.
func Lookup[T Object](s *Snapshot, o T) (T, bool) {
	got, ok := s.objects[o.Key()].(T)
	return got, ok
}

// Link returns the link of that name.
func (s *Snapshot) Link(name string) (Link, bool) { return Lookup(s, Link{Name: name}) }

// Device returns the device with that identity.
func (s *Snapshot) Device(id string) (Device, bool) { return Lookup(s, Device{ID: id}) }

// All returns every object of one type, in key order.
func All[T Object](s *Snapshot) []T {
	keys := make([]Key, 0, len(s.objects))
	for k, o := range s.objects {
		if _, ok := o.(T); ok {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b Key) int { return strings.Compare(a.ID, b.ID) }) // keys are small, objects are not
	out := make([]T, len(keys))
	for i, k := range keys {
		out[i] = s.objects[k].(T)
	}
	return out
}

// LinkUnder returns the link that an object is on, directly or through its carrier; "" for a link, and for an object
// on none.
func (s *Snapshot) LinkUnder(o Object) string {
	for o.Key().Kind != KindLink {
		if on := LinkOf(o); on != "" {
			return on
		}
		carrier, ok := s.objects[o.LivesOn()]
		if !ok {
			return ""
		}
		o = carrier
	}
	return ""
}

// LinksWhere returns the links that match, in key order. Those that do not are
// not copied.
func (s *Snapshot) LinksWhere(match func(Link) bool) []Link {
	var names []string
	for k, o := range s.objects {
		if k.Kind != KindLink {
			continue
		}
		if l, ok := o.(Link); ok && match(l) {
			names = append(names, l.Name)
		}
	}
	slices.Sort(names)
	out := make([]Link, len(names))
	for i, n := range names {
		out[i], _ = s.Link(n)
	}
	return out
}

// Fresh reports whether the link appeared through Apply.
func (s *Snapshot) Fresh(link string) bool { return s.fresh[link] }

// ForeseenIn reports whether have matches the forecast s: every object with its
// fields, what is absent absent, and nothing else but what the kernel makes by
// itself on a link.
func (s *Snapshot) ForeseenIn(have *Snapshot) bool {
	for k, o := range s.objects {
		got, ok := have.objects[k]
		if !ok && !have.Known(o) {
			continue // the kernel makes it, and nobody has asked for it: what is wanted is queried
		}
		if !ok || len(Diff(o, got)) > 0 {
			return false
		}
	}
	for k, o := range have.objects {
		if _, ok := s.objects[k]; !ok && !KernelMade(o) {
			return false
		}
	}
	return true
}
