package all_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/optest"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
)

// FuzzLaws holds the laws on random topologies and random drift.
func FuzzLaws(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed, seed*7919)
	}
	reg, err := all.Registry()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, a, b uint64) {
		g := &generator{Rand: rand.New(rand.NewPCG(a, b))}
		c := g.build(t)
		contracts, err := contract.NewSet(contractsOf(reg)...)
		if err != nil {
			t.Fatal(err)
		}
		if err := topology.Validate(t.Context(), c.Topology, contracts); err != nil {
			t.Fatalf("generated an invalid topology: %v", err)
		}
		refused := reg.Vet(t.Context(), c.Topology)
		if err := optest.Hold(t.Context(), t, reg, c, func(w *optest.World, history []netstate.Change) { g.drift(w, history) }); err != nil {
			// A contradiction between random steps is a fine answer; a planner
			// that cannot stop is not.
			if strings.Contains(err.Error(), "no end") || strings.Contains(err.Error(), "stuck") {
				t.Fatalf("%v\n%s", err, g.text.String())
			}
		} else if refused != nil {
			t.Errorf("refused, though this node takes it: %v", refused)
		}
		if t.Failed() {
			t.Log(g.text.String())
		}
	})
}

func contractsOf(reg *ops.Registry) []contract.Contract {
	var out []contract.Contract
	for _, typ := range reg.Types() {
		c, _ := reg.Contract(typ)
		out = append(out, c)
	}
	return out
}

// generator draws a topology and drift.
type generator struct {
	*rand.Rand
	text  strings.Builder
	ports []string // steps with one interface that nothing has stacked on yet
	n     int
}

func (g *generator) step(typ string, deps []string, config string) string {
	g.n++
	name := fmt.Sprintf("s%d", g.n)
	fmt.Fprintf(&g.text, "    - name: %s\n      type: %s\n", name, typ)
	if len(deps) > 0 {
		fmt.Fprintf(&g.text, "      dependOn: [%s]\n", strings.Join(deps, ", "))
	}
	fmt.Fprintf(&g.text, "      config: {%s}\n", config)
	return name
}

func (g *generator) take() (string, bool) {
	if len(g.ports) == 0 {
		return "", false
	}
	i := g.IntN(len(g.ports))
	p := g.ports[i]
	g.ports = append(g.ports[:i], g.ports[i+1:]...)
	return p, true
}

func (g *generator) maybe(format string, args ...any) string {
	if g.IntN(2) == 0 {
		return ""
	}
	return ", " + fmt.Sprintf(format, args...)
}

func (g *generator) build(t *testing.T) *optest.Case {
	g.text.WriteString("apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n")
	c := &optest.Case{Name: "random", Devices: map[string]string{}}
	c.Have = append(c.Have, netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), Master: new(""), MAC: new("00:00:00:00:00:00")})
	for i := range 1 + g.IntN(4) {
		if g.IntN(2) == 0 {
			g.ports = append(g.ports, g.step("dummy", nil, fmt.Sprintf("name: d%d%s", i, g.maybe("mac: \"02:00:00:00:01:%02x\"", i))))
			continue
		}
		id := fmt.Sprintf("0000:%02x:10.0", i+1)
		s := g.step("sriov", nil, "ifName: v"+fmt.Sprint(i)+g.maybe("trust: on")+g.maybe("vlan: %d", g.IntN(100)))
		c.Devices[s] = id
		host := netstate.HostName(fmt.Sprintf("eth%d", i))
		mac, up := fmt.Sprintf("02:00:00:00:00:%02x", i), g.IntN(2) == 0
		c.Have = append(c.Have,
			netstate.Device{ID: id, At: &host, MAC: &mac, MTU: new(uint32(1500)), Up: &up},
			netstate.Link{Name: host, LinkKind: "device", DeviceID: id, MAC: &mac, MTU: new(uint32(1500)), Up: &up, Master: new(""), TxQueueLen: new(uint32(1000))},
			netstate.VF{ID: id, MAC: &mac, VLAN: new(uint16(0)), QoS: new(uint8(0)), Protocol: new("802.1q"), SpoofCheck: new(true), Trust: new(g.IntN(2) == 0)})
		g.ports = append(g.ports, s)
	}
	for range g.IntN(6) {
		g.stack()
	}
	top, err := topology.Decode([]byte(g.text.String()))
	if err != nil {
		t.Fatalf("%v\n%s", err, g.text.String())
	}
	c.Topology = top
	return c
}

// stack adds one derived step.
func (g *generator) stack() {
	switch g.IntN(6) {
	case 0, 1: // bond
		a, ok := g.take()
		b, ok2 := g.take()
		if !ok || !ok2 {
			if ok {
				g.ports = append(g.ports, a)
			}
			return
		}
		s := g.step("bond", []string{a, b}, fmt.Sprintf("name: bond%d, mode: %s%s%s", g.n, []string{"active-backup", "balance-rr", "802.3ad"}[g.IntN(3)],
			g.maybe("miimon: 100"), g.maybe("mtu: 4000")))
		g.ports = append(g.ports, s)
	case 2: // vlan
		if p, ok := g.take(); ok {
			s := g.step("vlan", []string{p}, fmt.Sprintf("id: %d, name: vl%d%s%s", 1+g.IntN(4000), g.n, g.maybe("mtu: 2000"), g.maybe("addresses: [192.0.2.%d/24]", g.n+1)))
			g.ports = append(g.ports, s)
			if g.IntN(2) == 0 {
				g.ports = append(g.ports, g.step("vlan", []string{p}, fmt.Sprintf("id: 4001, name: vl%d", g.n)))
			}
		}
	case 3: // vrf
		if p, ok := g.take(); ok {
			g.step("vrf", []string{p}, fmt.Sprintf("vrfname: vrf%d", g.IntN(2)))
		}
	case 4: // macvlan
		if p, ok := g.take(); ok {
			g.ports = append(g.ports, g.step("macvlan", []string{p}, fmt.Sprintf("name: mv%d%s", g.n, g.maybe("mac: \"02:00:00:00:02:%02x\"", g.n))))
		}
	case 5: // tuning
		if p, ok := g.take(); ok {
			g.step("tuning", []string{p}, fmt.Sprintf("addresses: [\"2001:db8:%d::1/64\", 198.51.%d.1/24], routes: [{dst: 203.0.%d.0/24, gw: 198.51.%d.2}]%s%s%s",
				g.n, g.n, g.n, g.n, g.maybe("mtu: %d", 1300+g.IntN(3)*1000), g.maybe("txQLen: 9"), g.maybe("sysctl: {net.ipv4.conf.IFNAME.rp_filter: 2}")))
		}
	}
}

// drift changes a few of our objects behind our back.
func (g *generator) drift(w *optest.World, history []netstate.Change) {
	for range g.IntN(4) {
		if len(history) == 0 {
			return
		}
		o := history[g.IntN(len(history))].Object()
		have, ok := w.Get(o.Key())
		if !ok {
			continue
		}
		switch have := have.(type) {
		case netstate.Link:
			switch {
			case netstate.OnHost(have.Name):
			case g.IntN(3) == 0 && have.DeviceID == "":
				w.Apply(netstate.Change{Before: have})
			case g.IntN(2) == 0:
				w.Apply(netstate.Change{Before: netstate.Link{Name: have.Name, Up: have.Up}, After: netstate.Link{Name: have.Name, Up: new(false)}})
			default:
				w.Apply(netstate.Change{Before: netstate.Link{Name: have.Name, MTU: have.MTU}, After: netstate.Link{Name: have.Name, MTU: new(uint32(1280))}})
			}
		case netstate.Addr, netstate.Route:
			w.Apply(netstate.Change{Before: have})
		case netstate.VF:
			if wanted := o.(netstate.VF); wanted.Trust != nil {
				w.Apply(netstate.Change{Before: netstate.VF{ID: have.ID, Trust: have.Trust}, After: netstate.VF{ID: have.ID, Trust: new(!*have.Trust)}})
			}
		}
	}
}
