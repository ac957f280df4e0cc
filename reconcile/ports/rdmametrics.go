package ports

import (
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/plumbline/plumbline/reconcile"
)

// RDMAMetrics are the counters of the RDMA devices that steps have given to pods.
type RDMAMetrics struct {
	Monitor *Monitor
	// Devices is the maximum number of RDMA devices with counters, the oldest pods first; 0 is none.
	Devices int
	// Sys is sysfs of the host.
	Sys fs.FS
	// Inside calls f with sysfs as a network namespace sees it, if RDMA devices belong to one namespace each: that of the host does
	// not show those of pods. It does not call f otherwise.
	Inside func(path string, id reconcile.NetnsID, f func(fs.FS)) error

	values background[map[string][]uint64] // by device, in the order of rdmaCounters; unknown without an entry
}

// rdmaDevice is an RDMA device that a step has given to a pod.
type rdmaDevice struct{ step, name string }

// rdmaOf returns the RDMA devices of a sandbox, by step; of two steps with one device the first has it.
func rdmaOf(rec *reconcile.Record) (out []rdmaDevice) {
	for _, r := range rec.Results {
		d := r.Result.Devices
		if d == nil || d.RDMADevice == "" || slices.ContainsFunc(out, func(o rdmaDevice) bool { return o.name == d.RDMADevice }) {
			continue
		}
		out = append(out, rdmaDevice{r.Name, d.RDMADevice})
	}
	return out
}

// rdmaCounter is a metric that is the sum of those of its files that a driver has, below ports/N of an RDMA device.
type rdmaCounter struct {
	desc  *prometheus.Desc
	files []string
	words bool // the files count words of four bytes (Documentation/ABI/stable/sysfs-class-infiniband)
}

func rdmaCounterOf(name, help string, files ...string) rdmaCounter {
	return rdmaCounter{desc: prometheus.NewDesc("plumbline_rdma_"+name+"_total", help+" the pod's RDMA device.",
		[]string{"namespace", "pod", "claim", "topology", "step", "device"}, nil), files: files}
}

// rdmaCounters: the files of counters are those of the port in the kernel's RDMA core, those of hw_counters the driver's:
// drivers/infiniband/hw/mlx5/counters.c, hw/bnxt_re/hw_counters.c, hw/efa/efa_verbs.c and sw/rxe/rxe_hw_counters.c.
var rdmaCounters = []rdmaCounter{
	{rdmaCounterOf("receive_bytes", "Bytes received by").desc, []string{"counters/port_rcv_data"}, true},
	{rdmaCounterOf("transmit_bytes", "Bytes sent by").desc, []string{"counters/port_xmit_data"}, true},
	rdmaCounterOf("retransmits", "Retransmissions by",
		"hw_counters/local_ack_timeout_err", "hw_counters/packet_seq_err", "hw_counters/implied_nak_seq_err", // mlx5
		"hw_counters/to_retransmits", "hw_counters/seq_err_naks_rcvd", // bnxt_re
		"hw_counters/retrans_pkts",                                     // efa
		"hw_counters/completer_retry_err", "hw_counters/rcvd_seq_err"), // rxe
	rdmaCounterOf("out_of_sequence_packets", "Packets received out of order by",
		"hw_counters/out_of_sequence", "hw_counters/oos_drop_count", "hw_counters/out_of_seq_request"),
	rdmaCounterOf("ecn_marked_packets", "Packets with an ECN congestion mark received by", "hw_counters/np_ecn_marked_roce_packets"),
	rdmaCounterOf("congestion_notifications",
		"Congestion notifications (CNP) that reduced the sending rate of", "hw_counters/rp_cnp_handled"),
}

// maxRDMAPorts bounds the ports of a device, maxCounter what is read of a file.
const (
	maxRDMAPorts = 8
	maxCounter   = 32
)

var rdmaOmittedDesc = prometheus.NewDesc("plumbline_rdma_devices_omitted",
	"RDMA devices of pods without metrics, beyond --interface-metrics.", nil, nil)

// Describe implements prometheus.Collector.
func (m *RDMAMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range rdmaCounters {
		ch <- c.desc
	}
	ch <- rdmaOmittedDesc
}

// Collect implements prometheus.Collector.
func (m *RDMAMetrics) Collect(ch chan<- prometheus.Metric) {
	if m.Devices <= 0 {
		return
	}
	boxes := m.Monitor.newestOfPods()
	all := 0
	for _, b := range boxes {
		all += len(b.rdma)
	}
	skip := max(0, all-m.Devices)
	ch <- prometheus.MustNewConstMetric(rdmaOmittedDesc, prometheus.GaugeValue, float64(skip))
	type series struct {
		of     box
		device rdmaDevice
	}
	var sent []series
	seen := map[string]bool{}
	for _, b := range boxes {
		for _, d := range b.rdma {
			if skip > 0 { // the newest
				skip--
				continue
			}
			if !seen[d.name] { // of two sandboxes, the newer one has it
				seen[d.name], sent = true, append(sent, series{b, d})
			}
		}
	}
	if len(sent) == 0 {
		return
	}
	values := m.values.current(m.Monitor.Now, cacheTime, func() map[string][]uint64 {
		out := map[string][]uint64{}
		for _, s := range sent {
			of := deviceCounters(m.Sys, s.device.name)
			if of == nil && m.Inside != nil {
				// A namespace that has ended meanwhile has no counters, as a device that has.
				_ = m.Inside(s.of.path, s.of.netns, func(sys fs.FS) { of = deviceCounters(sys, s.device.name) })
			}
			if of != nil {
				out[s.device.name] = of
			}
		}
		return out
	})
	for _, s := range sent {
		of, known := values[s.device.name]
		if !known {
			continue
		}
		for i, c := range rdmaCounters {
			ch <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(of[i]), s.of.pod.Namespace, s.of.pod.Name, s.of.pod.Claim,
				s.of.id.Origin().Topology, s.device.step, s.device.name)
		}
	}
}

// deviceCounters reads the counters of a device in sysfs; nil if there is none.
func deviceCounters(sys fs.FS, name string) []uint64 {
	dir := path.Join("class/infiniband", name, "ports")
	if path.Base(name) != name || !fs.ValidPath(dir) {
		return nil
	}
	ports, err := fs.ReadDir(sys, dir)
	if err != nil {
		return nil
	}
	out := make([]uint64, len(rdmaCounters))
	for _, p := range ports[:min(len(ports), maxRDMAPorts)] {
		for i, c := range rdmaCounters {
			for _, file := range c.files {
				n := countOf(sys, path.Join(dir, p.Name(), file))
				if c.words {
					n *= 4
				}
				out[i] += n
			}
		}
	}
	return out
}

// countOf is the content of a file, 0 if the driver has none.
func countOf(sys fs.FS, file string) uint64 {
	data, err := fs.ReadFile(sys, file)
	if err != nil || len(data) > maxCounter {
		return 0
	}
	n, _ := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	return n
}
