package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/tc"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/node"
	"github.com/plumbline/plumbline/reconcile/ports"
)

func (a *app) quality() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "qos explain",
		Short: "Explain what NetworkQoS objects do with a packet",
		Long:  "Explains what the NetworkQoS objects that cover a pod do with a packet that it sends.",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var netns, to, format string
	var fragment bool
	explain := &cobra.Command{
		Use:   "explain --netns NAMESPACE --to PACKET",
		Short: "Name the rule that a packet meets",
		Long: `Names for each interface the NetworkQoS rule that decides about a packet to a
destination, with its mark and limit. It evaluates the recorded filters as the kernel
does; plumbline status shows whether they are in place. Routes of the pod decide which
interface it leaves by. Rules that OVN enforces are not evaluated.

A packet is ADDRESS:PORT/PROTOCOL, of tcp, udp or sctp, or for other protocols ADDRESS.`,
		Example: `  plumbline qos explain --netns blue --to 10.0.0.5:443/tcp
  plumbline qos explain --netns blue --to '[2001:db8::5]:53/udp' --fragment
  plumbline qos explain --netns blue --to 10.0.0.5:443/tcp -o json | jq '.sandboxes[].interfaces[].decides.dscp'`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			packet, err := tc.ParsePacket(to)
			if err != nil {
				return fmt.Errorf("--to: %w", err)
			}
			packet.Fragment = fragment
			ns, err := node.ParseNetns(netns)
			if err != nil {
				return fmt.Errorf("--netns: %w", err)
			}
			return a.explain(ns.Path, packet, format)
		},
	}
	netnsFlag(explain, &netns, "the `namespace` of the pod")
	explain.Flags().StringVar(&to, "to", "", "the `packet`, such as 10.0.0.5:443/tcp")
	explain.Flags().BoolVar(&fragment, "fragment", false, "the packet is a fragment: filters with ports do not match")
	outputFlag(explain, &format, formatText, formatJSON, formatYAML)
	for _, name := range []string{"netns", "to"} {
		_ = explain.MarkFlagRequired(name) // there is such a flag
	}
	cmd.AddCommand(explain)
	return cmd
}

// explanation is the output of qos explain.
type explanation struct {
	Sandboxes []sandboxExplanation `json:"sandboxes"`
}

type sandboxExplanation struct {
	Sandbox    reconcile.SandboxID    `json:"sandbox"`
	Interfaces []interfaceExplanation `json:"interfaces"` // those with filters
	// OVN says that OVN enforces rules too, which are not evaluated.
	OVN bool `json:"ovn"`
}

type interfaceExplanation struct {
	Interface string `json:"interface"`
	// Decides is the rule that the packet meets, nil if none matches it.
	Decides *ruleExplanation `json:"decides"`
	// Within are the rules whose limits a fragment is within before that.
	Within []ruleExplanation `json:"within"`
}

type ruleExplanation struct {
	Rule      string `json:"rule"`
	DSCP      *uint8 `json:"dscp,omitempty"`      // nil if the rule does not mark the packet
	LimitKbit uint64 `json:"limitKbit,omitempty"` // per second, 0 without a limit
}

// explain writes what the filters of each interface in a namespace do with a packet.
func (a *app) explain(netns string, packet qos.Packet, format string) error {
	e, err := a.engine("qos explain", false, nil)
	if err != nil {
		return err
	}
	defer e.Close()
	records, damaged := e.List()
	in := e.In(netns)
	doc := explanation{Sandboxes: []sandboxExplanation{}}
	for i := range records {
		if !in(records[i]) {
			continue
		}
		x, err := explainRecord(&records[i], packet)
		if err != nil {
			return fmt.Errorf("sandbox %s: %w", records[i].Sandbox.ID, err)
		}
		doc.Sandboxes = append(doc.Sandboxes, x)
	}
	if len(doc.Sandboxes) == 0 {
		return errors.Join(append(damaged, fmt.Errorf("no topology is applied to namespace %q", netnsName(netns)))...)
	}
	if format != formatText {
		err = a.document(format, doc)
	} else {
		for i := range doc.Sandboxes {
			for _, l := range doc.Sandboxes[i].lines() {
				a.text().line("%s", l)
			}
		}
	}
	return errors.Join(append(damaged, err)...)
}

// explainRecord evaluates a packet by the filters of a sandbox, for each of its interfaces.
func explainRecord(rec *reconcile.Record, packet qos.Packet) (sandboxExplanation, error) {
	// The record's changes have the names that rules had when their filters were set.
	given := ports.GivenFilters(rec)
	byLink := map[string][]netstate.Filter{}
	for _, c := range rec.History {
		if f, ok := c.After.(netstate.Filter); ok {
			if of := given(c.Step, &f); of != nil {
				f.Rule = cmp.Or(of.Rule, f.Rule)
			}
			byLink[f.Link] = append(byLink[f.Link], f)
		}
	}
	out := sandboxExplanation{Sandbox: rec.Sandbox.ID, Interfaces: []interfaceExplanation{}}
	for _, link := range slices.Sorted(maps.Keys(byLink)) {
		filters, err := tc.Read(byLink[link])
		if err != nil {
			return out, err
		}
		out.Interfaces = append(out.Interfaces, decision(link, filters, byLink[link], packet))
	}
	_, logical := rec.Sandbox.All()
	out.OVN = len(logical) > 0
	return out, nil
}

// decision evaluates a packet by the filters of an interface.
func decision(link string, filters *tc.Filters, objects []netstate.Filter, packet qos.Packet) interfaceExplanation {
	decides, limits := filters.Decide(packet)
	out := interfaceExplanation{Interface: link, Within: []ruleExplanation{}}
	if decides != nil {
		o := &objects[decides.Rule]
		out.Decides = &ruleExplanation{Rule: o.Rule, DSCP: &decides.DSCP}
		if decides.Policer != 0 {
			out.Decides.LimitKbit = *o.Rate / 125
		}
	}
	for _, number := range limits {
		i := slices.IndexFunc(objects, func(f netstate.Filter) bool { return f.Policer != nil && *f.Policer == number })
		out.Within = append(out.Within, ruleExplanation{Rule: objects[i].Rule, LimitKbit: *objects[i].Rate / 125})
	}
	return out
}

// lines are the explanation for people.
func (x *sandboxExplanation) lines() (out []string) {
	for i := range x.Interfaces {
		out = append(out, fmt.Sprintf("%s: %s: %s", x.Sandbox, x.Interfaces[i].Interface, x.Interfaces[i].line()))
	}
	switch {
	case x.OVN:
		out = append(out, fmt.Sprintf("%s: rules that OVN enforces are not evaluated", x.Sandbox))
	case len(out) == 0:
		out = append(out, fmt.Sprintf("%s: no rule covers it", x.Sandbox))
	}
	return out
}

func (x *interfaceExplanation) line() string {
	out := "no rule matches: neither marked nor limited"
	if d := x.Decides; d != nil {
		out = fmt.Sprintf("%s decides: dscp %d", d.Rule, *d.DSCP)
		if d.LimitKbit != 0 {
			out += fmt.Sprintf(", limit %d kbit/s", d.LimitKbit)
		}
	}
	for _, w := range x.Within {
		out += fmt.Sprintf("; as a fragment also within the limit of %s, %d kbit/s", w.Rule, w.LimitKbit)
	}
	return out
}
