package ports

import (
	"bytes"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"sync"
	"time"

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

	values  background[map[string][]driverTotal] // by device, in the order of rdmaCounters; unknown without an entry
	reading sync.Map                             // by the name of a device, the channel for the answer of its driver
}

// devicePatience is how long the counters of one device are waited for.
const devicePatience = time.Second

// read calls f, and waits for it for a short time, or not at all while an earlier call for the device has not returned: a driver that does
// not answer does not stop the counters of other devices. What comes late is returned by the next call.
func (m *RDMAMetrics) read(device string, f func() []driverTotal) []driverTotal {
	values := make(chan []driverTotal, 1)
	if earlier, busy := m.reading.LoadOrStore(device, values); busy {
		select {
		case of := <-earlier.(chan []driverTotal): // it came late
			m.reading.Delete(device)
			return of
		default:
			return nil
		}
	}
	go func() { values <- f() }()
	select {
	case of := <-values:
		m.reading.Delete(device)
		return of
	case <-time.After(devicePatience):
		return nil
	}
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
	words string // in place of these, if there: a file that counts words of four bytes (Documentation/ABI/stable/sysfs-class-infiniband)
}

func rdmaCounterOf(name, help string, files ...string) rdmaCounter {
	return rdmaCounter{desc: prometheus.NewDesc("plumbline_rdma_"+name+"_total", help+" the pod's RDMA device.",
		[]string{"namespace", "pod", "claim", "topology", "step", "device"}, nil), files: files}
}

func (c rdmaCounter) inWords(file string) rdmaCounter {
	c.words = file
	return c
}

// rdmaCounters: the files of counters are those of the port in the kernel's RDMA core, those of hw_counters the driver's:
// drivers/infiniband/hw/mlx5/counters.c, hw/bnxt_re/hw_counters.c, hw/efa/efa_verbs.c, hw/mana/counters.c, hw/irdma/verbs.c and
// sw/rxe/rxe_hw_counters.c. Each is of events that no other one of its metric counts: irdma has a cause of each retransmission,
// too (RTO, Nak Sequence Error), mana_ib a request that is given up after timeouts (requester_retries_exceeded).
var rdmaCounters = []rdmaCounter{
	// Only efa, mana_ib, and bnxt_re of earlier kernels have bytes, and no counters in words.
	rdmaCounterOf("receive_bytes", "Bytes received by", "hw_counters/rx_bytes").inWords("counters/port_rcv_data"),
	rdmaCounterOf("transmit_bytes", "Bytes sent by", "hw_counters/tx_bytes").inWords("counters/port_xmit_data"),
	rdmaCounterOf("retransmits", "Retransmissions by",
		"hw_counters/local_ack_timeout_err", "hw_counters/packet_seq_err", "hw_counters/implied_nak_seq_err", // mlx5
		"hw_counters/to_retransmits", "hw_counters/seq_err_naks_rcvd", // bnxt_re
		"hw_counters/retrans_pkts",                                                                             // efa
		"hw_counters/requester_timeout", "hw_counters/requester_oos_nak", "hw_counters/requester_implicit_nak", // mana_ib
		"hw_counters/tcpRetransSegs", "hw_counters/RetransSegs", // irdma, the latter since it has cards of generation 3
		"hw_counters/completer_retry_err", "hw_counters/rcvd_seq_err"), // rxe
	rdmaCounterOf("out_of_sequence_packets", "Packets received out of order by",
		"hw_counters/out_of_sequence", "hw_counters/oos_drop_count", "hw_counters/out_of_seq_request", // mlx5, bnxt_re, rxe
		"hw_counters/responder_oos", "hw_counters/Rcvd Out of order packets"), // mana_ib, irdma
	rdmaCounterOf("ecn_marked_packets", "Packets with an ECN congestion mark received by",
		"hw_counters/np_ecn_marked_roce_packets", "hw_counters/rx_ecn_marked_pkts", "hw_counters/RxECNMrkd"), // mlx5, bnxt_re, irdma
	rdmaCounterOf("congestion_notifications", "Congestion notifications (CNP), which reduce the sending rate, received by",
		"hw_counters/rp_cnp_handled", "hw_counters/rx_cnp_pkts", // mlx5, bnxt_re
		"hw_counters/received_cnps", "hw_counters/cnpHandled"), // mana_ib, irdma
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
	type key [6]string
	seen := map[key]bool{}
	for _, b := range boxes {
		for _, d := range b.rdma {
			if skip > 0 { // the newest
				skip--
				continue
			}
			k := key{b.pod.Namespace, b.pod.Name, b.pod.Claim, b.id.Origin().Topology, d.step, d.name}
			if !seen[k] { // of two sandboxes of a claim, the newer one has it
				seen[k], sent = true, append(sent, series{b, d})
			}
		}
	}
	if len(sent) == 0 {
		return
	}
	values := m.values.current(m.Monitor.Now, cacheTime, func() map[string][]driverTotal {
		out := map[string][]driverTotal{}
		for _, s := range sent {
			if out[s.device.name] != nil { // another pod shares it
				continue
			}
			of := m.read(s.device.name, func() []driverTotal {
				of := deviceCounters(m.Sys, s.device.name)
				if of == nil && m.Inside != nil {
					// A namespace that has ended meanwhile has no counters, as a device that has.
					_ = m.Inside(s.of.path, s.of.netns, func(sys fs.FS) { of = deviceCounters(sys, s.device.name) })
				}
				return of
			})
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
			of[i].send(ch, c.desc, s.of, s.device.step, s.device.name)
		}
	}
}

// deviceCounters reads the counters of a device in sysfs; nil if there is none.
func deviceCounters(sys fs.FS, name string) []driverTotal {
	dir := path.Join("class/infiniband", name, "ports")
	if path.Base(name) != name || !fs.ValidPath(dir) {
		return nil
	}
	ports, err := fs.ReadDir(sys, dir)
	if err != nil {
		return nil
	}
	out := make([]driverTotal, len(rdmaCounters))
	for _, p := range ports[:min(len(ports), maxRDMAPorts)] {
		for i, c := range rdmaCounters {
			if c.words != "" {
				if n, err := countOf(sys, path.Join(dir, p.Name(), c.words)); err == nil {
					out[i].add(4 * n)
					continue
				}
			}
			for _, file := range c.files {
				if n, err := countOf(sys, path.Join(dir, p.Name(), file)); err == nil {
					out[i].add(n)
				}
			}
		}
	}
	return out
}

// countOf is the content of a file. A driver may have none, and refuse to say it of a virtual function.
func countOf(sys fs.FS, file string) (uint64, error) {
	f, err := sys.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxCounter))
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(string(bytes.TrimSpace(data)), 10, 64)
}
