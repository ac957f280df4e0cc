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
	var netns, to string
	var fragment bool
	explain := &cobra.Command{
		Use:   "explain --netns NAMESPACE --to PACKET",
		Short: "Name the rule that a packet meets",
		Long: `Names the rule of a NetworkQoS that decides about a packet to a destination, for each
interface on which there are filters, with its mark and limit. The packet is evaluated as the kernel
does, by the filters that the record of the sandbox has; "plumbline status" says whether they are in
place. Which interface the packet leaves by is decided by the routes of the pod. Rules that OVN
enforces are not evaluated.

A packet is ADDRESS:PORT/PROTOCOL, of tcp, udp or sctp, or an ADDRESS alone, for other protocols.`,
		Example: `  plumbline qos explain --netns blue --to 10.0.0.5:443/tcp
  plumbline qos explain --netns blue --to '[2001:db8::5]:53/udp' --fragment`,
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
			return a.explain(ns.Path, packet)
		},
	}
	netnsFlag(explain, &netns, "the `namespace` of the pod")
	explain.Flags().StringVar(&to, "to", "", "the `packet`, such as 10.0.0.5:443/tcp")
	explain.Flags().BoolVar(&fragment, "fragment", false, "the packet is a fragment without ports: filters that match ports do not match it")
	for _, name := range []string{"netns", "to"} {
		_ = explain.MarkFlagRequired(name) // there is such a flag
	}
	cmd.AddCommand(explain)
	return cmd
}

// explain writes what the filters of each interface in a namespace do with a packet.
func (a *app) explain(netns string, packet qos.Packet) error {
	e, err := a.engine("qos explain", false, nil)
	if err != nil {
		return err
	}
	defer e.Close()
	records, damaged := e.List()
	found := false
	for i := range records {
		if records[i].Sandbox.Netns != netns {
			continue
		}
		found = true
		lines, err := explained(&records[i], packet)
		if err != nil {
			return fmt.Errorf("sandbox %s: %w", records[i].Sandbox.ID, err)
		}
		for _, l := range lines {
			a.text().line("%s", l)
		}
	}
	if !found {
		return errors.Join(append(damaged, fmt.Errorf("no topology is applied to namespace %q", netnsName(netns)))...)
	}
	return errors.Join(damaged...)
}

// explained says what the filters of a sandbox do with a packet, for each of its interfaces.
func explained(rec *reconcile.Record, packet qos.Packet) ([]string, error) {
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
	var out []string
	for _, link := range slices.Sorted(maps.Keys(byLink)) {
		filters, err := tc.Read(byLink[link])
		if err != nil {
			return nil, err
		}
		out = append(out, fmt.Sprintf("%s: %s: %s", rec.Sandbox.ID, link, decision(filters, byLink[link], packet)))
	}
	_, logical := rec.Sandbox.Rules.All()
	switch {
	case len(logical) > 0:
		out = append(out, fmt.Sprintf("%s: rules that OVN enforces are not evaluated", rec.Sandbox.ID))
	case len(out) == 0:
		out = append(out, fmt.Sprintf("%s: no rule covers it", rec.Sandbox.ID))
	}
	return out, nil
}

// decision says what the filters of an interface do with a packet.
func decision(filters *tc.Filters, objects []netstate.Filter, packet qos.Packet) string {
	decides, limits := filters.Decide(packet)
	out := "no rule matches: neither marked nor limited"
	if decides != nil {
		o := &objects[decides.Rule]
		out = fmt.Sprintf("%s decides: dscp %d", o.Rule, decides.DSCP)
		if decides.Policer != 0 {
			out += fmt.Sprintf(", limit %d kbit/s", *o.Rate/125)
		}
	}
	for _, number := range limits {
		i := slices.IndexFunc(objects, func(f netstate.Filter) bool { return f.Policer != nil && *f.Policer == number })
		out += fmt.Sprintf("; as a fragment also within the limit of %s, %d kbit/s", objects[i].Rule, *objects[i].Rate/125)
	}
	return out
}
