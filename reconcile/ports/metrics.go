package ports

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/plumbline/plumbline/reconcile"
)

const (
	// scrapeTimeout bounds the reading for one scrape. Interfaces that were not read in time
	// have the values of the last scrape.
	scrapeTimeout = 3 * time.Second
	// cacheTime is the time for which values are cached: frequent scrapes must not keep the
	// kernel busy.
	cacheTime = 5 * time.Second
)

// Metrics are the metrics of ports. They are the only ones with the names of pods.
type Metrics struct {
	Monitor *Monitor
	// Interfaces is the maximum number of interfaces with counters, the oldest first; 0 is
	// none.
	Interfaces int

	mu     sync.Mutex
	read   time.Time
	states map[reconcile.SandboxID][]State
}

// counter is a metric of an interface.
type counter struct {
	desc  *prometheus.Desc
	value func(*Counters) uint64
}

func counterOf(name, help string, value func(*Counters) uint64) counter {
	return counter{prometheus.NewDesc("plumbline_interface_"+name+"_total", help+" the pod's interface.",
		[]string{"namespace", "pod", "claim", "topology", "step", "interface"}, nil), value}
}

var (
	interfaceCounters = []counter{
		counterOf("receive_bytes", "Bytes received by", func(c *Counters) uint64 { return c.ReceivedBytes }),
		counterOf("transmit_bytes", "Bytes sent by", func(c *Counters) uint64 { return c.SentBytes }),
		counterOf("receive_packets", "Packets received by", func(c *Counters) uint64 { return c.ReceivedPackets }),
		counterOf("transmit_packets", "Packets sent by", func(c *Counters) uint64 { return c.SentPackets }),
		counterOf("receive_errors", "Receive errors of", func(c *Counters) uint64 { return c.ReceiveErrors }),
		counterOf("transmit_errors", "Transmit errors of", func(c *Counters) uint64 { return c.SendErrors }),
		counterOf("receive_dropped", "Received packets dropped by", func(c *Counters) uint64 { return c.ReceiveDropped }),
		counterOf("transmit_dropped", "Packets to send dropped by", func(c *Counters) uint64 { return c.SendDropped }),
	}
	omittedDesc = prometheus.NewDesc("plumbline_interfaces_omitted",
		"Pod interfaces without metrics, beyond --interface-metrics.", nil, nil)
	portsDesc = prometheus.NewDesc("plumbline_ports",
		"Ports of pods by status; Unknown: set down, or gone.", []string{"topology", "step", "status"}, nil)
	silentDesc = prometheus.NewDesc("plumbline_rdma_silent_namespaces",
		"Network namespaces whose RDMA drivers have not answered for ten seconds; their RDMA ports keep the last known state.", nil, nil)
	impairedDesc = prometheus.NewDesc("plumbline_impaired_pods",
		"Pods with ports that are down. Degraded: their networks work. Lost: a network is gone.", []string{"topology", "severity"}, nil)
)

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range interfaceCounters {
		ch <- c.desc
	}
	ch <- omittedDesc
	ch <- portsDesc
	ch <- impairedDesc
	ch <- silentDesc
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	boxes := slices.DeleteFunc(m.Monitor.list(), func(b box) bool { return b.gone || b.pod.Name == "" })
	type status struct{ topology, step, status string }
	statuses := map[status]int{}
	type impaired struct{ topology, severity string }
	pods := map[impaired]int{}
	for _, b := range boxes {
		if !b.reported {
			continue
		}
		name := b.report.Topology.Name
		for i, p := range b.report.Ports {
			if v := b.report.Verdicts[i]; v.Status != "" {
				statuses[status{name, p.Step, string(v.Status)}]++
			}
		}
		for _, s := range []Severity{Degraded, Lost} {
			pods[impaired{name, s.String()}] += 0
		}
		if b.report.Outcome.Topology != Fine {
			pods[impaired{name, b.report.Outcome.Topology.String()}]++
		}
	}
	for k, n := range statuses {
		ch <- prometheus.MustNewConstMetric(portsDesc, prometheus.GaugeValue, float64(n), k.topology, k.step, k.status)
	}
	for k, n := range pods {
		ch <- prometheus.MustNewConstMetric(impairedDesc, prometheus.GaugeValue, float64(n), k.topology, k.severity)
	}
	ch <- prometheus.MustNewConstMetric(silentDesc, prometheus.GaugeValue, float64(m.Monitor.SilentRDMA()))
	if m.Interfaces > 0 {
		m.counters(ch, boxes)
	}
}

// counters sends those of the interfaces.
func (m *Metrics) counters(ch chan<- prometheus.Metric, boxes []box) {
	states := m.current(boxes)
	type key [6]string
	sent := map[key]bool{} // of two sandboxes of a claim, the newer one has the name
	slices.Reverse(boxes)
	all := 0
	for _, b := range boxes {
		all += len(b.ports)
	}
	skip := max(0, all-m.Interfaces)
	ch <- prometheus.MustNewConstMetric(omittedDesc, prometheus.GaugeValue, float64(skip))
	for _, b := range boxes {
		for i, p := range b.ports {
			if skip > 0 { // the newest
				skip--
				continue
			}
			k := key{b.pod.Namespace, b.pod.Name, b.pod.Claim, b.id.Origin().Topology, p.Step, p.Name}
			of := states[b.id]
			if sent[k] || i >= len(of) || !of[i].Found {
				continue
			}
			sent[k] = true
			for _, c := range interfaceCounters {
				ch <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(c.value(&of[i].Counters)), k[:]...)
			}
		}
	}
}

// current reads the counters, as far as time permits.
func (m *Metrics) current(boxes []box) map[reconcile.SandboxID][]State {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.Monitor.Now()
	if !m.read.IsZero() && now.Sub(m.read) < cacheTime {
		return m.states
	}
	before := m.states
	m.states = map[reconcile.SandboxID][]State{}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	for _, b := range boxes {
		states, err := m.Monitor.Read(ctx, b.path, b.netns, b.ports)
		if err != nil {
			states = before[b.id]
		}
		if len(states) == len(b.ports) {
			m.states[b.id] = states
		}
	}
	m.read = m.Monitor.Now()
	return m.states
}
