package netstate

import "strconv"

// Clsact is the queueing discipline of a link that has no queue, only a hook for filters
// on what is received and one for what is sent. A link has at most one.
// Source: net/sched/sch_ingress.c, tc(8).
type Clsact struct {
	Link string `json:"link" plan:"key"`
}

// ClsactKey is the key of a link's clsact.
func ClsactKey(link string) Key { return Key{KindClsact, link} }

// Key is the link.
func (c Clsact) Key() Key { return ClsactKey(c.Link) }

// LivesOn is the link.
func (c Clsact) LivesOn() Key { return LinkKey(c.Link) }

// A link that changes its namespace loses it (dev_shutdown in __dev_change_net_namespace, net/core/dev.c), so a
// device that returns has none.
var clsactTraits = Traits{Phase: PhaseAddresses, Cost: 8, effects: (*model).clsact}

// Traits returns the traits of clsact.
func (Clsact) Traits() *Traits { return &clsactTraits }

// Filter is a filter of class flower on what a link sends, with the actions of a rule of
// a NetworkQoS: mark, then limit, then accept. All fields of a filter of ours are set, as
// a filter with another match is another filter; one with a match or an action that this
// cannot represent has none.
// Source: net/sched/cls_flower.c, act_pedit.c, act_csum.c, act_police.c.
type Filter struct {
	Link string `json:"link,omitempty" plan:"key"`
	// Rule names the rule of a NetworkQoS, for people: the kernel does not have it.
	Rule string `json:"rule,omitempty" plan:"-"`
	// Place orders rules, from 1 for the one that decides first. Filters of earlier versions have none: their
	// preferences are in that order.
	Place int `json:"place,omitempty" plan:"-"`
	// Chain is 0, but for filters to which another one leads.
	Chain uint32 `json:"chain,omitempty" plan:"key"`
	// Pref is the preference: lower ones decide first. Handle numbers the filters of one
	// preference.
	Pref   uint16 `json:"pref" plan:"key"`
	Handle uint32 `json:"handle" plan:"key"`

	// Its match cannot change: filters of one preference have one family, and cls_flower
	// refuses another mask.
	Family   *string `json:"family,omitempty" plan:"replace"`
	To       *string `json:"to,omitempty" plan:"replace"`       // prefix; "" is any
	Protocol *string `json:"protocol,omitempty" plan:"replace"` // tcp, udp, sctp; "" is any
	Port     *uint16 `json:"port,omitempty" plan:"replace"`     // of the destination; 0 is any
	// Fragment says that it matches fragments alone, the first one too: they have no port for the kernel. Such a filter limits,
	// marks nothing, and decides nothing: the filters after it do.
	Fragment *bool `json:"fragment,omitempty" plan:"replace"`
	// Goto is the chain whose filters decide, 0 if this one does. It does nothing else then.
	Goto *uint32 `json:"goto,omitempty" plan:"live"`

	DSCP *uint8 `json:"dscp,omitempty" plan:"live"`
	// Policer numbers the token buckets of the link, from 1: filters with one number share
	// one. 0 is none.
	Policer *uint16 `json:"policer,omitempty" plan:"live"`
	Rate    *uint64 `json:"rateBytes,omitempty" plan:"live"` // per second; 0 is no limit
	// BurstNanos is how long the bucket takes to fill: the kernel keeps the burst as
	// time, in units of BurstUnit.
	BurstNanos *uint64 `json:"burstNanos,omitempty" plan:"live"`
}

// BurstUnit is the resolution of bursts in nanoseconds (PSCHED_SHIFT, net/pkt_sched.h),
// and MaxBurstNanos the longest.
const (
	BurstUnit     = 64
	MaxBurstNanos = (1<<32 - 1) * BurstUnit
)

// MaxPolicers bounds the policers of a link, see Filter.Policer.
const MaxPolicers = 1<<12 - 1

// Key identifies a filter by link, chain, preference and handle.
func (f Filter) Key() Key {
	// Not by fmt: a sandbox may have thousands.
	chain := ""
	if f.Chain != 0 {
		chain = " chain " + strconv.Itoa(int(f.Chain))
	}
	return Key{KindFilter, f.Link + " egress" + chain + " pref " + strconv.Itoa(int(f.Pref)) + " handle " + strconv.Itoa(int(f.Handle))}
}

// LivesOn is the clsact of the link.
func (f Filter) LivesOn() Key { return ClsactKey(f.Link) }

// A pod may have any number of filters on its links, so they are read by key.
var filterTraits = Traits{
	Phase: PhaseRoutes, Cost: 2, label: func(o Object) string { return o.(Filter).Rule },
	unsaid: []string{"to", "protocol", "port", "fragment", "goto", "policer", "rateBytes", "burstNanos"}, // any, and no limit
}

// Traits returns the traits of filters.
func (Filter) Traits() *Traits { return &filterTraits }

// clsact applies a change of a clsact, with which its filters go.
func (m *model) clsact(c Change) {
	m.store(c)
	if c.After != nil {
		return
	}
	link := c.Before.(Clsact).Link
	for _, f := range All[Filter](m.Snapshot) {
		if f.Link == link {
			m.imply(f, nil)
			delete(m.objects, f.Key())
		}
	}
}
