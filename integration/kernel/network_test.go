package kernel

import (
	"path/filepath"
	"regexp"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
)

// TestNetworkOfFunction: the PF tags a virtual function with the VLAN of its physical
// network while a sandbox has it, drift is repaired from the record alone, and release
// restores the VLAN that an administrator has set before. A VLAN in the config comes
// first, also 0. The output of ip is compared: netstate may be wrong in both directions.
func TestNetworkOfFunction(t *testing.T) {
	if !hasCards() {
		return // no PCI there
	}
	l := newLane(t)
	device := functions(t, map[string]string{"vf0": "enp3s0f0/1"})
	l.devices = []string{device["vf0"]}
	host := &foreignWriter{t: t}
	host.run("modprobe vfio-pci; ip link set enp3s0f0 vf 1 vlan 55 qos 3")
	t.Cleanup(func() { host.run("ip link set enp3s0f0 vf 1 vlan 0") })
	line := regexp.MustCompile(`(?m)^ +vf 1 .*$`)
	tag := regexp.MustCompile(`vlan \d+(, qos \d+)?`)
	const before = "vlan 55, qos 3"

	for name, c := range map[string]struct {
		step  string
		given uint16
		want  string // "" is untagged
	}{
		"sriov":                {"type: sriov", 102, "vlan 102"},
		"vfio-pci":             {"type: vfio-pci", 102, "vlan 102"},
		"its last VLAN":        {"type: sriov", 4094, "vlan 4094"},
		"other settings":       {"type: sriov, config: {trust: on, vlanProto: 802.1q}", 102, "vlan 102"},
		"config says another":  {"type: sriov, config: {vlan: 78}", 102, "vlan 78"},
		"config says untagged": {"type: sriov, config: {vlan: 0}", 102, ""},
		"network without VLAN": {"type: sriov", 0, before},
	} {
		t.Run(name, func(t *testing.T) {
			l := &lane{t: t, host: l.host, dir: l.dir, devices: l.devices}
			path := newNetns(t)
			s := &foreignWriter{t, filepath.Base(path), ""}
			is := func(when, want string) {
				t.Helper()
				vf := line.FindString(s.run("ip link show dev enp3s0f0"))
				if have := tag.FindString(vf); vf == "" || have != want {
					t.Fatalf("%s: the function has %q, want %q: %s", when, have, want, vf)
				}
			}
			give := func(vlan uint16) reconcile.Sandbox {
				sb := box(path, parse(t, "t", "    - {name: vf0, "+c.step+"}\n"))
				sb.Given = ops.Givens{"vf0": {Device: device["vf0"], VLAN: vlan}}
				return sb
			}
			home := l.state("")
			is("before", before)
			sb := give(c.given)
			if _, err := l.engine(nil).Ensure(ctxFor(t), sb); err != nil {
				t.Fatal(err)
			}
			is("attached", c.want)

			r := l.engine(nil) // which has the record alone
			if c.want == before {
				// No step wants it, so it is the administrator's.
				s.run("ip link set enp3s0f0 vf 1 vlan 99")
				l.inSync(r, sb.ID)
				s.run("ip link set enp3s0f0 vf 1 vlan 55 qos 3")
			} else {
				s.run("ip link set enp3s0f0 vf 1 vlan 99")
				st, err := r.Check(ctxFor(t), sb.ID)
				if found := summary(st.Drift); err != nil || st.State != reconcile.Drifted || found != "vf0 ~vf.vlan" {
					t.Errorf("drift: %v, %s %q", err, st.State, found)
				}
				if _, err := r.Repair(ctxFor(t), sb.ID); err != nil {
					t.Fatal(err)
				}
				is("repaired", c.want)
			}
			l.inSync(r, sb.ID)
			if rep, err := r.Ensure(ctxFor(t), sb); err != nil || !rep.Unchanged {
				t.Errorf("applied again: %v, %v", err, rep.Changes)
			}

			if c.step == "type: sriov" { // an update gives another, or none any more
				for _, u := range []struct {
					vlan uint16
					want string
				}{{103, "vlan 103"}, {0, before}, {c.given, c.want}} {
					if _, err := r.Ensure(ctxFor(t), give(u.vlan)); err != nil {
						t.Fatal(err)
					}
					is("updated", u.want)
				}
			}

			if _, err := r.AwaitRelease(ctxFor(t), sb.ID); err != nil {
				t.Fatal(err)
			}
			is("released", before)
			l.mustEqual(home, "", "released")
		})
	}
}
