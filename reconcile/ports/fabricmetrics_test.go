package ports_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/metrics/metricstest"
	"github.com/plumbline/plumbline/reconcile/ports"
)

// fabricMetrics has the counters of interfaces by the names that they have in a record.
func (n *node) fabricMetrics(most int, read func(path string, interfaces []string) map[string]map[string]uint64) *ports.FabricMetrics {
	return &ports.FabricMetrics{Monitor: n.Monitor, Interfaces: most, Physical: func(string) string { return "" }, Read: func(path string, _ reconcile.NetnsID, indexes []int) map[int]map[string]uint64 {
		var interfaces []string
		for _, i := range indexes {
			interfaces = append(interfaces, map[int]string{3: "net1", 4: "net2"}[i])
		}
		out := map[int]map[string]uint64{}
		for name, counters := range read(path, interfaces) {
			out[indexes[slices.Index(interfaces, name)]] = counters
		}
		return out
	}}
}

// TestFabricCounters: the counters of each driver are those of one metric, none counted twice, with the pod and the step; links that are not hardware, and
// interfaces that cannot be read, have none.
func TestFabricCounters(t *testing.T) {
	for driver, c := range map[string]struct {
		counters map[string]uint64
		want     string // pauses received and sent, marked, discarded
	}{
		"mlx5": {map[string]uint64{
			"rx_pause_ctrl_phy": 1, "tx_pause_ctrl_phy": 2, "rx_prio3_pause": 10, "rx_prio4_pause": 20, "tx_prio3_pause": 30, "rx_prio3_pause_duration": 999, "rx_prio3_pause_transition": 999, "tx_prio3_pause_duration": 999,
			"rx_ecn_mark": 5, "rx_prio3_marked": 6, "rx_discards_phy": 7, "tx_discards_phy": 8, "rx_out_of_buffer": 9, "rx_prio3_buf_discard": 100, "rx_prio3_cong_discard": 200, "rx_packets_phy": 999,
		}, "30 30 6 317"},
		"bnxt_en":                  {map[string]uint64{"rx_pause_frames": 1, "rx_pfc_frames": 999, "rx_pfc_ena_frames_pri3": 2, "tx_pause_frames": 3, "tx_pfc_ena_frames_pri7": 4, "rx_total_discard_pkts": 5, "tx_total_discard_pkts": 6}, "2 4 - 11"},
		"ice":                      {map[string]uint64{"link_xoff_rx.nic": 1, "link_xon_rx.nic": 999, "rx_priority_3_xoff.nic": 2, "rx_priority_3_xon.nic": 999, "link_xoff_tx.nic": 3, "tx_priority_3_xoff.nic": 4, "rx_dropped.nic": 5}, "2 4 - 5"},
		"i40e":                     {map[string]uint64{"port.link_xoff_rx": 1, "port.rx_priority_3_xoff": 2, "port.rx_priority_4_xoff_rx": 3, "port.rx_priority_3_xon_2_xoff": 999, "port.link_xoff_tx": 4, "port.tx_priority_3_xoff_tx": 5, "port.rx_dropped": 6}, "5 5 - 6"},
		"igb":                      {map[string]uint64{"rx_flow_control_xoff": 1, "rx_flow_control_xon": 999, "tx_flow_control_xoff": 2, "rx_no_buffer_count": 3}, "1 2 - 3"},
		"mlx5, pauses of the link": {map[string]uint64{"rx_pause_ctrl_phy": 5, "rx_prio0_pause": 5, "tx_pause_ctrl_phy": 6, "tx_prio0_pause": 6}, "5 6 - -"},
		"igbvf":                    {map[string]uint64{"rx_packets": 999}, "- - - -"},
	} {
		t.Run(driver, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *node) {
				n.pod("ns1", "one")
				n.report(t)
				var asked []string
				got := metricstest.Exposition(t, n.fabricMetrics(10, func(path string, interfaces []string) map[string]map[string]uint64 {
					asked = append([]string{path}, interfaces...)
					return map[string]map[string]uint64{"net2": c.counters}
				}))
				if want := "ns1 net1 net2"; strings.Join(asked, " ") != want {
					t.Errorf("asked for %q, want %q", asked, want)
				}
				if strings.Contains(got, `interface="net1"`) {
					t.Errorf("counters of an interface that cannot be read:\n%s", got)
				}
				if have := fabricOf(got, "one", "net2", "right"); have != c.want {
					t.Errorf("have %q, want %q:\n%s", have, c.want, got)
				}
			})
		})
	}
}

// TestFabricCountersBounded: the number of series is bounded, drivers are not asked at each scrape, and one that does not answer delays a
// scrape and does not stop it.
func TestFabricCountersBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		for i := range 5 {
			n.pod(fmt.Sprint("ns", i), fmt.Sprint("claim", i))
			n.report(t)
		}
		var reads atomic.Int64
		all := func(_ string, interfaces []string) map[string]map[string]uint64 {
			reads.Add(1)
			out := map[string]map[string]uint64{}
			for _, name := range interfaces {
				out[name] = map[string]uint64{"rx_discards_phy": 1}
			}
			return out
		}
		for _, tt := range []struct{ most, want, omitted int }{{0, 0, 0}, {1, 1, 9}, {7, 7, 3}, {100, 10, 0}} {
			got := metricstest.Exposition(t, n.fabricMetrics(tt.most, all))
			if have := strings.Count(got, "\nplumbline_fabric_discards_total{"); have != tt.want {
				t.Errorf("at most %d: %d series, want %d", tt.most, have, tt.want)
			}
			if tt.most > 0 && !strings.Contains(got, fmt.Sprintf("plumbline_fabric_interfaces_omitted %d\n", tt.omitted)) {
				t.Errorf("at most %d: want %d omitted", tt.most, tt.omitted)
			}
		}

		release := make(chan struct{})
		var slow atomic.Bool
		m := n.fabricMetrics(100, func(path string, interfaces []string) map[string]map[string]uint64 {
			if slow.Load() {
				<-release
			}
			return all(path, interfaces)
		})
		reads.Store(0)
		for range 3 {
			metricstest.Exposition(t, m)
			time.Sleep(9 * time.Second)
		}
		if reads.Load() != 5 {
			t.Errorf("%d namespaces were read in half a minute, want 5", reads.Load())
		}
		time.Sleep(time.Minute)
		slow.Store(true)
		began := time.Now()
		if got := metricstest.Exposition(t, m); strings.Count(got, "\nplumbline_fabric_discards_total{") != 10 || time.Since(began) > 10*time.Second {
			t.Errorf("after %s, while a driver does not answer:\n%s", time.Since(began), got)
		}
		close(release)
	})
}

// TestFabricOfTwoSandboxes is a pod whose sandbox was recreated while the old one is still being stopped: a series that is sent twice
// would make the whole scrape fail.
func TestFabricOfTwoSandboxes(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.pod("old", "one")
		n.pod("new", "one")
		n.report(t)
		n.report(t)
		got := metricstest.Exposition(t, n.fabricMetrics(100, func(path string, _ []string) map[string]map[string]uint64 {
			return map[string]map[string]uint64{"net1": {"rx_discards_phy": map[string]uint64{"old": 3, "new": 7}[path]}}
		}))
		if want := `plumbline_fabric_discards_total{claim="one",interface="net1",namespace="default",pod="pod-one",step="left",topology="ai"} 7` + "\n"; !strings.Contains(got, want) {
			t.Errorf("not the new sandbox's:\n%s", got)
		}
	})
}

// TestFabricPausesOfPort: a virtual function has the pauses of its port as its physical function counts them, and only those, unless its own driver
// counts some; a physical function is read once for all, and of one that has no interface on the host nothing is said.
func TestFabricPausesOfPort(t *testing.T) {
	port := map[string]uint64{"rx_prio3_pause": 7, "tx_prio3_pause": 8, "rx_prio3_marked": 999, "rx_discards_phy": 999}
	for name, c := range map[string]struct {
		function, physical map[string]uint64
		want               string // pauses received and sent, marked, discarded
	}{
		"a driver that counts none":            {map[string]uint64{"rx_packets": 1}, port, "7 8 - -"},
		"mlx5, which lists zeros":              {map[string]uint64{"rx_pause_ctrl_phy": 0, "tx_pause_ctrl_phy": 0, "rx_ecn_mark": 3, "rx_discards_phy": 0, "rx_out_of_buffer": 4}, port, "7 8 3 4"},
		"a driver that counts":                 {map[string]uint64{"rx_pause_ctrl_phy": 5, "tx_pause_ctrl_phy": 6}, port, "5 6 - -"},
		"one direction":                        {map[string]uint64{"rx_pause_ctrl_phy": 5}, map[string]uint64{"tx_prio3_pause": 8}, "5 8 - -"},
		"no pauses yet":                        {map[string]uint64{"rx_pause_ctrl_phy": 0, "tx_pause_ctrl_phy": 0}, map[string]uint64{"rx_pause_ctrl_phy": 0, "tx_pause_ctrl_phy": 0}, "0 0 - -"},
		"a physical function that is gone":     {map[string]uint64{"rx_pause_ctrl_phy": 0, "tx_pause_ctrl_phy": 6, "rx_ecn_mark": 3}, nil, "- 6 3 -"},
		"an interface that cannot be read":     {nil, port, "- - - -"},
		"a physical function without pauses":   {map[string]uint64{"rx_packets": 1}, map[string]uint64{"rx_packets": 1}, "- - - -"},
		"pauses of the port and of a priority": {map[string]uint64{"rx_packets": 1}, map[string]uint64{"rx_pause_ctrl_phy": 5, "rx_prio0_pause": 5, "tx_prio3_pause": 8}, "5 8 - -"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *node) {
				for _, pod := range []string{"one", "two"} {
					n.pod("ns"+pod, pod)
					n.report(t)
				}
				m := n.fabricMetrics(10, func(string, []string) map[string]map[string]uint64 {
					if c.function == nil {
						return nil
					}
					return map[string]map[string]uint64{"net1": {"rx_discards_phy": 2}, "net2": c.function}
				})
				m.Physical = func(device string) string {
					return map[string]string{"0000:03:10.2": "0000:03:00.0"}[device] // net1 is a physical function itself
				}
				var asked []string
				m.ReadPhysical = func(functions []string) map[string]map[string]uint64 {
					asked = append(asked, functions...)
					if c.physical == nil {
						return nil
					}
					return map[string]map[string]uint64{"0000:03:00.0": c.physical}
				}
				var got string
				for range 3 {
					got = metricstest.Exposition(t, m)
					time.Sleep(9 * time.Second)
				}
				if want := c.function != nil; len(asked) > 1 || want && !slices.Equal(asked, []string{"0000:03:00.0"}) {
					t.Errorf("asked for the physical functions %v", asked)
				}
				for _, pod := range []string{"one", "two"} {
					if have := fabricOf(got, pod, "net2", "right"); have != c.want {
						t.Errorf("pod %s has %q, want %q:\n%s", pod, have, c.want, got)
					}
					if have := fabricOf(got, pod, "net1", "left"); c.function != nil && have != "- - - 2" {
						t.Errorf("the physical function of pod %s has %q", pod, have)
					}
				}
			})
		})
	}
}

// fabricOf returns the pauses received and sent, marks and discards of an interface; "-" is none.
func fabricOf(exposition, pod, name, step string) string {
	var have []string
	for _, metric := range []string{"pauses_received", "pauses_sent", "ecn_marked_packets", "discards"} {
		_, after, found := strings.Cut(exposition, "\nplumbline_fabric_"+metric+`_total{claim="`+pod+`",interface="`+name+`",namespace="default",pod="pod-`+pod+`",step="`+step+`",topology="ai"} `)
		value, _, _ := strings.Cut(after, "\n")
		if !found {
			value = "-"
		}
		have = append(have, value)
	}
	return strings.Join(have, " ")
}

// TestFabricCountersHung: a driver that never answers does not have the values of long ago shown as those of now.
func TestFabricCountersHung(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.pod("ns1", "one")
		n.report(t)
		var hang chan struct{}
		m := n.fabricMetrics(10, func(string, []string) map[string]map[string]uint64 {
			if hang != nil {
				<-hang
			}
			return map[string]map[string]uint64{"net2": {"rx_ecn_mark": 5}}
		})
		const series = "plumbline_fabric_ecn_marked_packets_total{"
		if got := metricstest.Exposition(t, m); !strings.Contains(got, series) {
			t.Fatal(got)
		}
		hang = make(chan struct{})
		defer close(hang)
		for range 3 {
			time.Sleep(30 * time.Second)
			metricstest.Exposition(t, m)
		}
		time.Sleep(time.Hour)
		if got := metricstest.Exposition(t, m); strings.Contains(got, series) {
			t.Errorf("the counters of an hour ago are shown as those of now:\n%s", got)
		}
	})
}
