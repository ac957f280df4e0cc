package kernel

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/reconcile"
)

// TestIgnoredRouters: a router of the network gives a pod nothing that did not ask for it, also when the topology has
// IPv4 only. One whose step accepts advertisements has addresses and a default route of it. The pod's changes are repaired.
func TestIgnoredRouters(t *testing.T) {
	l, w := newLane(t), &foreignWriter{t: t}
	up := newRouter(t, "uplink0")
	up.advertise(advertisement([]string{"2001:db8:bad::"}))
	r := l.engine(nil)
	for config, accepts := range map[string]bool{"": false, ", acceptRA: false": false, ", acceptRA: true": true} {
		path := newNetns(t)
		sb := box(path, parse(t, "t", "    - {name: a, type: macvlan, config: {master: uplink0, mode: bridge, addresses: [192.0.2.5/24]"+config+"}}\n"))
		if _, err := r.Ensure(ctxFor(t), sb); err != nil {
			t.Fatal(err)
		}
		in := func(command string) string {
			return w.run("ip netns exec " + filepath.Base(path) + " sh -c '" + command + "'")
		}
		hears := func(more int) {
			t.Helper()
			heard := func() int {
				n, err := strconv.Atoi(strings.TrimSpace(in(`set -- $(grep Icmp6InRouterAdvertisements /proc/net/dev_snmp6/net1) none 0; echo $2`)))
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			start := heard()
			eventually.Succeeds(t, patience, "the network is as wanted", func() error {
				if now := heard(); now < start+more {
					return fmt.Errorf("it has heard %d advertisements", now)
				}
				return nil
			})
		}
		hears(3)
		had := in("ip -6 route show proto ra; ip -6 -o address show scope global")
		if has := strings.Contains(had, "default via fe80::9") && strings.Contains(had, "2001:db8:bad"); has != accepts || !accepts && had != "" {
			t.Errorf("{%s}: it has of the router:\n%s", config, had)
		}
		in("echo 1 >/proc/sys/net/ipv6/conf/net1/accept_ra")
		if st, err := r.Check(ctxFor(t), sb.ID); err != nil || st.State != reconcile.Drifted || !strings.Contains(fmt.Sprint(st.Drift), "accept_ra") {
			t.Errorf("{%s}: disturbed: %v, %+v", config, err, st)
		}
		if _, err := r.Repair(ctxFor(t), sb.ID); err != nil {
			t.Errorf("{%s}: repair: %v", config, err)
		}
		if st, err := r.Check(ctxFor(t), sb.ID); err != nil || st.State != reconcile.InSync {
			t.Errorf("{%s}: after the repair: %v, %+v", config, err, st)
		}
		if _, err := r.Release(ctxFor(t), sb.ID); err != nil {
			t.Fatal(err)
		}
	}
}
