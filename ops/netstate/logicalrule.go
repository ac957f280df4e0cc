package netstate

// LogicalRule is a rule of a NetworkQoS on a port of a logical switch: a row of table QoS in
// an OVN Northbound database. It does not live on its port: if others delete that, the row
// remains, and no packet matches it.
// Source: ovn-nb(5).
type LogicalRule struct {
	Port string `json:"port,omitempty" plan:"key"` // of a LogicalPort
	Rule string `json:"rule" plan:"key"`           // NAMESPACE/NAME[INDEX] of a NetworkQoS
	// Link is the interface of the sandbox behind the port, for people.
	Link string `json:"link,omitempty" plan:"-"`

	// Switch is the one that evaluates the row. "" is none, and several names are several rows
	// or switches.
	Switch *string `json:"switch,omitempty" plan:"replace"`
	// Direction is FromPort, of a row of ours.
	Direction *string `json:"direction,omitempty" plan:"live"`
	Priority  *uint16 `json:"priority,omitempty" plan:"live"` // the highest that matches decides
	Match     *string `json:"match,omitempty" plan:"live"`
	// DSCP is not set of a row that does something else, or more.
	DSCP  *uint8  `json:"dscp,omitempty" plan:"live"`
	Rate  *uint32 `json:"rateKbit,omitempty" plan:"live"`  // per second; 0 is no limit
	Burst *uint32 `json:"burstKbit,omitempty" plan:"live"` // 0 leaves it to Open vSwitch
}

// FromPort is the direction of rows about what ports send.
const FromPort = "from-lport"

// inPort is the match of all packets that a logical port sends.
func inPort(port string) string { return `inport == "` + port + `"` }

// Of is the rule on a port: as it is given, it has none, and matches packets of any port.
func (r LogicalRule) Of(port LogicalPort, link string) LogicalRule {
	r.Port, r.Switch, r.Link = port.Name, port.Switch, link
	r.Match = new(inPort(port.Name) + " && " + *r.Match)
	return r
}

// Key is the port and the rule.
func (r LogicalRule) Key() Key { return Key{KindLogicalRule, r.Port + " " + r.Rule} }

// LivesOn is none, see LogicalRule.
func (LogicalRule) LivesOn() Key { return Key{} }

// Rows are written after the port and deleted before it, so that the database has them while an
// interface is bound.
var logicalRuleTraits = Traits{
	Phase: PhasePrepare, Cost: 8, unsaid: []string{"rateKbit", "burstKbit"},
}

// Traits returns the traits of rules of logical ports.
func (LogicalRule) Traits() *Traits { return &logicalRuleTraits }
