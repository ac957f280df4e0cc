package ports

import (
	"regexp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/plumbline/plumbline/reconcile"
)

// FabricMetricsOptions are the settings of FabricMetrics.
type FabricMetricsOptions struct {
	Monitor *Monitor
	// Interfaces is the maximum number of interfaces with counters, the oldest pods first; 0 is none.
	Interfaces int
	// Read returns the counters of the driver of each interface of a namespace with one of the indexes, as ethtool -S does; none of one
	// that it cannot read.
	Read func(path string, id reconcile.NetnsID, indexes []int) map[int]map[string]uint64
}

// FabricMetrics are the counters of drivers that say how the network treats the hardware of pods: pauses, marks and discards.
type FabricMetrics struct {
	FabricMetricsOptions

	values background[map[string]map[int][]uint64] // by path and index, in the order of fabricCounters
}

// NewFabricMetrics returns the counters of a Monitor's interfaces that are hardware.
func NewFabricMetrics(o FabricMetricsOptions) *FabricMetrics {
	return &FabricMetrics{FabricMetricsOptions: o}
}

// fabricFresh is how long values are used: a driver may write hundreds of counters, and holds the kernel's lock for links meanwhile.
const fabricFresh = 30 * time.Second

// fabricCounter is a metric that is the sum of the driver's counters with such names.
type fabricCounter struct {
	desc  *prometheus.Desc
	names *regexp.Regexp
}

func fabricCounterOf(name, help, names string) fabricCounter {
	return fabricCounter{prometheus.NewDesc("plumbline_fabric_"+name+"_total", help+" of a pod, as its driver counts them.",
		[]string{"namespace", "pod", "topology", "step", "interface"}, nil), regexp.MustCompile(`^(` + names + `)$`)}
}

// fabricCounters: pauses are those of a port and of a priority (PFC). Of the two frames of a pause the one that begins it counts. Names are
// those in the drivers mlx5 (en_stats.c), bnxt_en (bnxt_ethtool.c), ice (ice_ethtool.c), i40e (i40e_ethtool.c) and igb (igb_ethtool.c).
var fabricCounters = []fabricCounter{
	fabricCounterOf("pauses_received", "Pauses that the network asks of an interface",
		`rx_pause_ctrl_phy|rx_prio[0-7]_pause|rx_pause_frames|rx_pfc_ena_frames_pri[0-7]|link_xoff_rx\.nic|rx_priority_[0-7]_xoff\.nic|port\.link_xoff_rx|port\.rx_priority_[0-7]_xoff(_rx)?|rx_flow_control_xoff`),
	fabricCounterOf("pauses_sent", "Pauses that an interface asks of the network",
		`tx_pause_ctrl_phy|tx_prio[0-7]_pause|tx_pause_frames|tx_pfc_ena_frames_pri[0-7]|link_xoff_tx\.nic|tx_priority_[0-7]_xoff\.nic|port\.link_xoff_tx|port\.tx_priority_[0-7]_xoff(_tx)?|tx_flow_control_xoff`),
	fabricCounterOf("ecn_marked_packets", "Packets with a mark for congestion (ECN) at an interface",
		`rx_ecn_mark|rx_prio[0-7]_marked`),
	fabricCounterOf("discards", "Packets that an interface discards as it lacks buffers",
		`rx_discards_phy|tx_discards_phy|rx_out_of_buffer|rx_prio[0-7]_(buf|cong)_discard|rx_total_discard_pkts|tx_total_discard_pkts|rx_dropped\.nic|port\.rx_dropped|rx_no_buffer_count`),
}

var fabricOmittedDesc = prometheus.NewDesc("plumbline_fabric_interfaces_omitted",
	"Interfaces of hardware in pods without counters of their drivers here, as there are more than --interface-metrics.", nil, nil)

// Describe implements prometheus.Collector.
func (m *FabricMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range fabricCounters {
		ch <- c.desc
	}
	ch <- fabricOmittedDesc
}

// Collect implements prometheus.Collector.
func (m *FabricMetrics) Collect(ch chan<- prometheus.Metric) {
	if m.Interfaces <= 0 {
		return
	}
	boxes := slices.DeleteFunc(m.Monitor.list(), func(b box) bool { return b.gone || b.pod == "" })
	slices.SortFunc(boxes, func(a, b box) int { return int(b.seq) - int(a.seq) })
	type series struct {
		of   box
		port Port
	}
	var all []series
	type key [5]string
	taken := map[key]bool{}
	for _, b := range boxes {
		for _, p := range b.ports {
			k := key{b.namespace, b.pod, b.id.Origin().Topology, p.Step, p.Name}
			if p.Device == "" || taken[k] { // of two sandboxes of a pod, the newer one has the name
				continue
			}
			taken[k] = true
			all = append(all, series{b, p})
		}
	}
	skip := max(0, len(all)-m.Interfaces)
	ch <- prometheus.MustNewConstMetric(fabricOmittedDesc, prometheus.GaugeValue, float64(skip))
	all = all[skip:] // without the newest
	if len(all) == 0 {
		return
	}
	values := m.values.current(m.Monitor.Now, fabricFresh, func() map[string]map[int][]uint64 {
		indexes, ids := map[string][]int{}, map[string]reconcile.NetnsID{}
		for _, s := range all {
			indexes[s.of.path], ids[s.of.path] = append(indexes[s.of.path], s.port.Index), s.of.netns
		}
		out := map[string]map[int][]uint64{}
		for path, of := range indexes {
			out[path] = map[int][]uint64{}
			for index, counters := range m.Read(path, ids[path], of) {
				out[path][index] = sums(counters)
			}
		}
		return out
	})
	for _, s := range all {
		of, known := values[s.of.path][s.port.Index]
		if !known {
			continue
		}
		for i, c := range fabricCounters {
			ch <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(of[i]), s.of.namespace, s.of.pod, s.of.id.Origin().Topology, s.port.Step, s.port.Name)
		}
	}
}

// sums adds the counters of a driver up, in the order of fabricCounters.
func sums(counters map[string]uint64) []uint64 {
	out := make([]uint64, len(fabricCounters))
	for name, n := range counters {
		for i, c := range fabricCounters {
			if c.names.MatchString(name) {
				out[i] += n
			}
		}
	}
	return out
}
