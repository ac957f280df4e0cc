package ports

import (
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/plumbline/plumbline/reconcile"
)

// FabricMetrics are the counters of drivers that say how the network treats the hardware of pods: pauses, marks and discards.
type FabricMetrics struct {
	Monitor *Monitor
	// Interfaces is the maximum number of interfaces with counters, the oldest pods first; 0 is none.
	Interfaces int
	// Read returns the counters of the driver of each interface of a namespace with one of the indexes, as ethtool -S does; none of one
	// that it cannot read.
	Read func(path string, id reconcile.NetnsID, indexes []int) map[int]map[string]uint64
	// Physical returns the physical function of a virtual one, "" for another device.
	Physical func(device string) string
	// ReadPhysical returns the counters of the drivers of physical functions, none of one without an interface on the host.
	ReadPhysical func(functions []string) map[string]map[string]uint64

	values background[map[string]map[int][]driverTotal] // by path and index, in the order of fabricCounters
}

// fabricFresh is how long values are used: a driver may write hundreds of counters, and holds the kernel's lock for links meanwhile.
const fabricFresh = 30 * time.Second

// fabricCounter is a metric that is the sum of parts, each the largest of its sources: a source is the sum of the
// driver's counters with such names, and two sources of a part count the same, of a port and by priority.
type fabricCounter struct {
	desc   *prometheus.Desc
	parts  [][]*regexp.Regexp
	ofPort bool // all functions of a port share it
}

func fabricCounterOf(name, help string, parts ...[]string) fabricCounter {
	out := fabricCounter{desc: prometheus.NewDesc("plumbline_fabric_"+name+"_total", help,
		[]string{"namespace", "pod", "claim", "topology", "step", "interface"}, nil)}
	for _, sources := range parts {
		var part []*regexp.Regexp
		for _, names := range sources {
			part = append(part, regexp.MustCompile(`^(`+names+`)$`))
		}
		out.parts = append(out.parts, part)
	}
	return out
}

func (c fabricCounter) perPort() fabricCounter {
	c.ofPort = true
	return c
}

// fabricCounters: a port has either pauses of the whole link or of priorities (PFC), and mlx5 counts those of the link
// as of priority 0, too. Where a driver tells the frames that begin a pause (XOFF) from those that end one (XON), the
// former count; mlx5 (pause_ctrl_phy) and bnxt_en (pause_frames) count both of the link's alike. Names are those in the
// drivers mlx5 (en_stats.c), bnxt_en (bnxt_ethtool.c), ice (ice_ethtool.c), i40e (i40e_ethtool.c) and igb
// (igb_ethtool.c).
//
// A network pauses a port, so a virtual function's pauses are those of its port. Marks and discards are not: the physical
// function counts the packets of all pods, or only of the host (rx_ecn_mark, rx_out_of_buffer).
var fabricCounters = []fabricCounter{
	fabricCounterOf("pauses_received", "Pauses (802.3x or PFC) that the network requested from the port of the pod's interface; "+
		"functions of a port share them.", []string{
		`rx_pause_ctrl_phy|rx_pause_frames|link_xoff_rx\.nic|port\.link_xoff_rx|rx_flow_control_xoff`,
		`rx_prio[0-7]_pause|rx_pfc_ena_frames_pri[0-7]|rx_priority_[0-7]_xoff\.nic|port\.rx_priority_[0-7]_xoff(_rx)?`,
	}).perPort(),
	fabricCounterOf("pauses_sent", "Pauses (802.3x or PFC) that the port of the pod's interface requested from the network; "+
		"functions of a port share them.", []string{
		`tx_pause_ctrl_phy|tx_pause_frames|link_xoff_tx\.nic|port\.link_xoff_tx|tx_flow_control_xoff`,
		`tx_prio[0-7]_pause|tx_pfc_ena_frames_pri[0-7]|tx_priority_[0-7]_xoff\.nic|port\.tx_priority_[0-7]_xoff(_tx)?`,
	}).perPort(),
	fabricCounterOf("ecn_marked_packets", "Packets with an ECN congestion mark seen by the pod's interface, by its driver.",
		[]string{`rx_ecn_mark`, `rx_prio[0-7]_marked`}),
	fabricCounterOf("discards", "Packets discarded for lack of buffers by the pod's interface, by its driver.",
		[]string{
			`rx_discards_phy|rx_total_discard_pkts|rx_dropped\.nic|port\.rx_dropped|rx_no_buffer_count`,
			`rx_prio[0-7]_(buf|cong)_discard`,
		},
		[]string{`rx_out_of_buffer`}, // of the queues, behind the port
		[]string{`tx_discards_phy|tx_total_discard_pkts`}),
}

var fabricOmittedDesc = prometheus.NewDesc("plumbline_fabric_interfaces_omitted",
	"Hardware interfaces of pods without metrics, beyond --interface-metrics.", nil, nil)

// Describe implements prometheus.Collector.
func (m *FabricMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range fabricCounters {
		ch <- c.desc
	}
	ch <- fabricOmittedDesc
}

// fabricSeries are those of an interface.
type fabricSeries struct {
	of   box
	port Port
}

// Collect implements prometheus.Collector.
func (m *FabricMetrics) Collect(ch chan<- prometheus.Metric) {
	if m.Interfaces <= 0 {
		return
	}
	boxes := m.Monitor.newestOfPods()
	var all []fabricSeries
	type key [6]string
	taken := map[key]bool{}
	for _, b := range boxes {
		for _, p := range b.ports {
			k := key{b.pod.Namespace, b.pod.Name, b.pod.Claim, b.id.Origin().Topology, p.Step, p.Name}
			if p.Device == "" || taken[k] { // of two sandboxes of a claim, the newer one has the name
				continue
			}
			taken[k] = true
			all = append(all, fabricSeries{b, p})
		}
	}
	skip := max(0, len(all)-m.Interfaces)
	ch <- prometheus.MustNewConstMetric(fabricOmittedDesc, prometheus.GaugeValue, float64(skip))
	all = all[skip:] // without the newest
	if len(all) == 0 {
		return
	}
	values := m.values.current(m.Monitor.Now, fabricFresh, func() map[string]map[int][]driverTotal { return m.read(all) })
	for _, s := range all {
		of, known := values[s.of.path][s.port.Index]
		if !known {
			continue
		}
		for i, c := range fabricCounters {
			of[i].send(ch, c.desc, s.of, s.port.Step, s.port.Name)
		}
	}
}

// read returns the metrics of interfaces.
func (m *FabricMetrics) read(all []fabricSeries) map[string]map[int][]driverTotal {
	indexes, ids := map[string][]int{}, map[string]reconcile.NetnsID{}
	for _, s := range all {
		indexes[s.of.path], ids[s.of.path] = append(indexes[s.of.path], s.port.Index), s.of.netns
	}
	out := map[string]map[int][]driverTotal{}
	for path, of := range indexes {
		out[path] = map[int][]driverTotal{}
		for index, counters := range m.Read(path, ids[path], of) {
			out[path][index] = sums(counters)
		}
	}
	m.readPorts(all, out)
	return out
}

// readPorts gives virtual functions what the drivers of their physical functions count of the port. A virtual function's own
// counters say nothing while they are zero: mlx5 lists those of the port there too, and the card does not tell them a virtual
// function (en_stats.c, which ignores the error).
func (m *FabricMetrics) readPorts(all []fabricSeries, values map[string]map[int][]driverTotal) {
	functions := map[string][][]driverTotal{} // the virtual ones, by the physical one
	for _, s := range all {
		if totals, known := values[s.of.path][s.port.Index]; known {
			if physical := m.Physical(s.port.Device); physical != "" {
				functions[physical] = append(functions[physical], totals)
			}
		}
	}
	if len(functions) == 0 {
		return
	}
	counters := m.ReadPhysical(slices.Sorted(maps.Keys(functions)))
	for physical, virtual := range functions {
		port := sums(counters[physical])
		for _, totals := range virtual {
			for i, c := range fabricCounters {
				if c.ofPort && totals[i].value == 0 {
					totals[i] = port[i]
				}
			}
		}
	}
}

// sums returns the metrics of a driver's counters, in the order of fabricCounters.
func sums(counters map[string]uint64) []driverTotal {
	out := make([]driverTotal, len(fabricCounters))
	for i, c := range fabricCounters {
		for _, sources := range c.parts {
			var most driverTotal
			for _, names := range sources {
				if of := sum(counters, names); of.known && of.value >= most.value {
					most = of
				}
			}
			if most.known {
				out[i].add(most.value)
			}
		}
	}
	return out
}

func sum(counters map[string]uint64, names *regexp.Regexp) (out driverTotal) {
	for name, n := range counters {
		if names.MatchString(name) {
			out.add(n)
		}
	}
	return out
}
