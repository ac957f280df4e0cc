package ports_test

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/metrics/metricstest"
	"github.com/plumbline/plumbline/reconcile/ports"
	"github.com/plumbline/plumbline/topology"
)

func (n *node) rdmaMetrics(most int, sys fs.FS) *ports.RDMAMetrics {
	return &ports.RDMAMetrics{Monitor: n.Monitor, Devices: most, Sys: sys}
}

func counted(device string, files map[string]string) fstest.MapFS {
	out := fstest.MapFS{}
	for name, value := range files {
		out["class/infiniband/"+device+"/ports/"+name] = &fstest.MapFile{Data: []byte(value + "\n")}
	}
	return out
}

// rdmaFiles are counters as a driver of mlx5 writes them.
var rdmaFiles = counted("mlx5_3", map[string]string{
	"1/counters/port_rcv_data": "250", "1/counters/port_xmit_data": "500",
	"1/hw_counters/local_ack_timeout_err": "1", "1/hw_counters/packet_seq_err": "2", "1/hw_counters/implied_nak_seq_err": "4", "1/hw_counters/rnr_nak_retry_err": "99",
	"1/hw_counters/out_of_sequence": "8", "1/hw_counters/np_ecn_marked_roce_packets": "16", "1/hw_counters/rp_cnp_handled": "32", "1/hw_counters/np_cnp_sent": "99",
})

// gives gives steps of a pod RDMA devices.
func (n *node) gives(t *testing.T, id reconcile.SandboxID, devices map[string]string) {
	t.Helper()
	n.mu.Lock()
	rec := n.records[id]
	for _, step := range []string{"left", "right"} {
		if devices[step] != "" {
			rec.Results = append(rec.Results, topology.StepResult{Name: step, Result: topology.Result{Devices: &topology.Devices{RDMADevice: devices[step]}}})
		}
	}
	n.records[id] = rec
	n.mu.Unlock()
	n.Pass(reconcile.Pass{Sandbox: id, Trigger: reconcile.TriggerCheck})
	time.Sleep(time.Minute) // of the bubble: the Monitor has read it
}

// TestRDMACounters: the counters of each driver are those of one metric, with the pod, and nothing is said of a device that is not there or whose
// name leads elsewhere.
func TestRDMACounters(t *testing.T) {
	for name, c := range map[string]struct {
		files fs.FS
		want  string // receive and transmit bytes, retransmits, out of sequence, marked, notified
	}{
		"mlx5_3": {rdmaFiles, "1000 2000 7 8 16 32"},
		"mlx5_4": {counted("mlx5_4", map[string]string{"1/counters/port_rcv_data": "0", "1/counters/port_xmit_data": ""}), "0 - - - - -"},
		"bnxt_re0": {counted("bnxt_re0", map[string]string{
			"1/hw_counters/to_retransmits": "3", "1/hw_counters/seq_err_naks_rcvd": "4", "1/hw_counters/oos_drop_count": "5",
			"1/hw_counters/rx_ecn_marked_pkts": "6", "1/hw_counters/rx_cnp_pkts": "8", "1/hw_counters/tx_cnp_pkts": "99",
		}), "- - 7 5 6 8"},
		"efa_0": {counted("efa_0", map[string]string{
			"1/hw_counters/rx_bytes": "3", "1/hw_counters/tx_bytes": "5", "1/hw_counters/retrans_pkts": "7", "1/hw_counters/rdma_read_bytes": "99",
		}), "3 5 7 - - -"},
		"mana_0": {counted("mana_0", map[string]string{ // counters.c; requests that end with an error have timed out before
			"1/hw_counters/requester_timeout": "1", "1/hw_counters/requester_oos_nak": "2", "1/hw_counters/requester_implicit_nak": "4", "1/hw_counters/requester_rnr_nak": "99", "1/hw_counters/requester_retries_exceeded": "99",
			"1/hw_counters/responder_oos": "8", "1/hw_counters/received_cnps": "16", "1/hw_counters/num_qps_congested": "99", "1/hw_counters/rx_bytes": "32", "1/hw_counters/tx_bytes": "64",
		}), "32 64 7 8 - 16"},
		"irdma0": {counted("irdma0", map[string]string{ // verbs.c before it had cards of generation 3
			"1/hw_counters/tcpRetransSegs": "3", "1/hw_counters/RxECNMrkd": "5", "1/hw_counters/cnpHandled": "7", "1/hw_counters/cnpIgnored": "99", "1/hw_counters/cnpSent": "99", "1/hw_counters/ip4InOctets": "99",
		}), "- - 3 - 5 7"},
		"irdma1": {counted("irdma1", map[string]string{ // since it has cards of generation 3
			"1/hw_counters/RetransSegs": "3", "1/hw_counters/RTO": "99", "1/hw_counters/Nak Sequence Error": "99", "1/hw_counters/Nak Sequence Error Implied": "99", "1/hw_counters/Rcvd Out of order packets": "9",
			"1/hw_counters/RxECNMrkd": "5", "1/hw_counters/cnpHandled": "7",
		}), "- - 3 9 5 7"},
		"of words": {counted("of words", map[string]string{
			"1/counters/port_rcv_data": "1", "1/hw_counters/rx_bytes": "99", "1/hw_counters/tx_bytes": "5",
		}), "4 5 - - - -"},
		"rxe0": {counted("rxe0", map[string]string{
			"1/hw_counters/completer_retry_err": "3", "1/hw_counters/rcvd_seq_err": "1", "1/hw_counters/out_of_seq_request": "6", "1/hw_counters/sent_pkts": "77",
		}), "- - 4 6 - -"},
		"two": {counted("two", map[string]string{
			"1/counters/port_rcv_data": "1", "2/counters/port_rcv_data": "2", "2/counters/port_xmit_data": "many",
		}), "12 - - - - -"},
		"gone":          {rdmaFiles, "- - - - - -"},
		"../infiniband": {rdmaFiles, "- - - - - -"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *node) {
				id := n.pod("ns1", "one")
				n.report(t)
				n.gives(t, id, map[string]string{"right": name})
				got := metricstest.Exposition(t, n.rdmaMetrics(10, c.files))
				var have []string
				for _, metric := range []string{"receive_bytes", "transmit_bytes", "retransmits", "out_of_sequence_packets", "ecn_marked_packets", "congestion_notifications"} {
					_, after, found := strings.Cut(got, "\nplumbline_rdma_"+metric+`_total{claim="one",device="`+name+`",namespace="default",pod="pod-one",step="right",topology="ai"} `)
					value, _, _ := strings.Cut(after, "\n")
					if !found {
						value = "-"
					}
					have = append(have, value)
				}
				if strings.Join(have, " ") != c.want {
					t.Errorf("have %q, want %q:\n%s", have, c.want, got)
				}
			})
		})
	}
}

// TestRDMACountersBounded: the number of series is bounded, and a driver that does not answer delays a scrape and does not stop it.
func TestRDMACountersBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		all := fstest.MapFS{}
		for i := range 5 {
			id := n.pod(fmt.Sprint("ns", i), fmt.Sprint("claim", i))
			n.report(t)
			n.gives(t, id, map[string]string{"left": fmt.Sprint("a", i), "right": fmt.Sprint("b", i)})
			for _, d := range []string{"a", "b"} {
				maps.Copy(all, counted(fmt.Sprint(d, i), map[string]string{"1/counters/port_rcv_data": "1"}))
			}
		}
		for _, tt := range []struct{ most, want, omitted int }{{0, 0, 0}, {1, 1, 9}, {7, 7, 3}, {100, 10, 0}} {
			got := metricstest.Exposition(t, n.rdmaMetrics(tt.most, all))
			if have := strings.Count(got, "\nplumbline_rdma_receive_bytes_total{"); have != tt.want {
				t.Errorf("at most %d: %d series, want %d", tt.most, have, tt.want)
			}
			if tt.most > 0 && !strings.Contains(got, fmt.Sprintf("plumbline_rdma_devices_omitted %d\n", tt.omitted)) {
				t.Errorf("at most %d: want %d omitted", tt.most, tt.omitted)
			}
			if tt.most == 0 && strings.Contains(got, "default") {
				t.Error("switched off, and a namespace is named")
			}
		}

		slow := &silent{FS: all, release: make(chan struct{})}
		m := n.rdmaMetrics(100, slow)
		begun := time.Now()
		for range 3 {
			if got := metricstest.Exposition(t, m); strings.Contains(got, "plumbline_rdma_receive_bytes_total{") {
				t.Error("values, although the driver is silent")
			}
		}
		took := time.Since(begun)
		synctest.Wait() // the last device is asked when the third scrape ends
		if took > 10*time.Second || slow.opened.Load() != 10 {
			t.Errorf("three scrapes took %s, and asked the driver %d times", took, slow.opened.Load())
		}
		close(slow.release)
		time.Sleep(10 * time.Second)
		if got := metricstest.Exposition(t, m); strings.Count(got, "\nplumbline_rdma_receive_bytes_total{") != 10 {
			t.Errorf("after the driver has answered:\n%s", got)
		}
	})
}

// TestRDMACountersExclusive: on a node in exclusive mode a device is read where its pod is, and nowhere else.
func TestRDMACountersExclusive(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		inside := map[string]fs.FS{}
		for i, pod := range []string{"one", "two", "three"} {
			id := n.pod("ns"+pod, pod)
			n.report(t)
			n.gives(t, id, map[string]string{"left": fmt.Sprint("mlx5_", i)})
			inside["ns"+pod] = counted(fmt.Sprint("mlx5_", i), map[string]string{"1/counters/port_rcv_data": fmt.Sprint(i + 1)})
		}
		delete(inside, "nsthree") // it has ended
		var asked []string
		m := &ports.RDMAMetrics{
			Monitor: n.Monitor, Devices: 10, Sys: counted("mlx5_1", map[string]string{"1/counters/port_rcv_data": "9"}),
			Inside: func(path string, _ reconcile.NetnsID, f func(fs.FS)) error {
				asked = append(asked, path)
				sys, there := inside[path]
				if !there {
					return fs.ErrNotExist
				}
				f(sys)
				return nil
			},
		}
		got := metricstest.Exposition(t, m)
		for pod, want := range map[string]string{"one": `claim="one",device="mlx5_0",namespace="default",pod="pod-one",step="left",topology="ai"} 4`, "two": `claim="two",device="mlx5_1",namespace="default",pod="pod-two",step="left",topology="ai"} 36`, "three": ""} {
			series := "\nplumbline_rdma_receive_bytes_total{"
			if _, line, found := strings.Cut(got, `pod="pod-`+pod); want == "" && found || want != "" && !strings.Contains(got, series+want+"\n") {
				t.Errorf("pod %s: %s, want %s", pod, line, want)
			}
		}
		if slices.Sort(asked); !slices.Equal(asked, []string{"nsone", "nsthree"}) {
			t.Errorf("asked in %v, want those whose devices the host does not show", asked)
		}
	})
}

// TestRDMACountersShared: each pod that shares an RDMA device has its counters, which are read once; of two sandboxes of a claim one has them.
func TestRDMACountersShared(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		for _, sandbox := range []struct{ netns, claim string }{{"ns1", "one"}, {"ns2", "two"}, {"ns3", "two"}, {"ns4", "two+second"}} {
			id := n.pod(sandbox.netns, sandbox.claim)
			n.report(t)
			n.gives(t, id, map[string]string{"right": "mlx5_3"})
		}
		sys := &counting{FS: rdmaFiles, opened: map[string]int{}}
		got := metricstest.Exposition(t, n.rdmaMetrics(10, sys))
		for _, labels := range []string{
			`claim="one",device="mlx5_3",namespace="default",pod="pod-one"`, `claim="two",device="mlx5_3",namespace="default",pod="pod-two"`,
			`claim="two+second",device="mlx5_3",namespace="default",pod="pod-two"`,
		} {
			if !strings.Contains(got, "\nplumbline_rdma_receive_bytes_total{"+labels+`,step="right",topology="ai"} 1000`+"\n") {
				t.Errorf("no series with %s:\n%s", labels, got)
			}
		}
		if have := strings.Count(got, "\nplumbline_rdma_receive_bytes_total{"); have != 3 {
			t.Errorf("%d series, want 3", have)
		}
		if have := sys.opened["class/infiniband/mlx5_3/ports/1/counters/port_rcv_data"]; have != 1 {
			t.Errorf("a counter of the device was read %d times", have)
		}
	})
}

// counting counts how often each file is opened.
type counting struct {
	fs.FS
	opened map[string]int
}

func (c *counting) Open(name string) (fs.File, error) {
	c.opened[name]++
	return c.FS.Open(name)
}

// silent is sysfs of a driver that answers late.
type silent struct {
	fs.FS
	opened  atomic.Int32
	release chan struct{}
}

func (s *silent) Open(name string) (fs.File, error) {
	select {
	case <-s.release:
	default:
		s.opened.Add(1)
		<-s.release
	}
	return s.FS.Open(name)
}

// TestRDMACountersHung: a driver that never answers stops its own counters, and neither those of the other devices of the node nor, with a value
// of long ago, says that nothing happens on them.
func TestRDMACountersHung(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		id := n.pod("ns1", "one")
		n.report(t)
		n.gives(t, id, map[string]string{"left": "mlx5_3", "right": "mlx5_4"})
		files := func(value string) fstest.MapFS {
			out := counted("mlx5_3", map[string]string{"1/counters/port_rcv_data": "1"})
			maps.Copy(out, counted("mlx5_4", map[string]string{"1/counters/port_rcv_data": value}))
			return out
		}
		sys := &hanging{FS: files("1")}
		m := &ports.RDMAMetrics{Monitor: n.Monitor, Devices: 10, Sys: sys}
		series := func() (out []string) {
			for line := range strings.Lines(metricstest.Exposition(t, m)) {
				if strings.HasPrefix(line, "plumbline_rdma_receive_bytes_total{") {
					out = append(out, strings.TrimSpace(line[strings.Index(line, "device="):]))
				}
			}
			return out
		}
		if got := series(); len(got) != 2 {
			t.Fatalf("%q", got)
		}
		sys.set(files("500"), "class/infiniband/mlx5_3/")
		defer close(sys.release)
		time.Sleep(time.Hour)
		got := strings.Join(series(), "\n")
		if !strings.Contains(got, `"mlx5_4"`) || !strings.Contains(got, "} 2000") {
			t.Errorf("after an hour, the counters of the device whose driver answers:\n%s", got)
		}
		if strings.Contains(got, `"mlx5_3"`) {
			t.Errorf("the counters of an hour ago are shown as those of now:\n%s", got)
		}
	})
}

// hanging is sysfs in which files never answer.
type hanging struct {
	fs.FS
	hung    string // the beginning of their names
	release chan struct{}
}

func (h *hanging) set(files fs.FS, hung string) {
	h.FS, h.hung, h.release = files, hung, make(chan struct{})
}

func (h *hanging) Open(name string) (fs.File, error) {
	if h.hung != "" && strings.HasPrefix(name, h.hung) {
		<-h.release
	}
	return h.FS.Open(name)
}

// endless is a file of sysfs that does not end.
type endless struct {
	fs.FS
	read int
}

func (e *endless) Open(name string) (fs.File, error) {
	f, err := e.FS.Open(name)
	if err != nil || !strings.HasSuffix(name, "port_rcv_data") {
		return f, err
	}
	return &endlessFile{f, e}, nil
}

type endlessFile struct {
	fs.File
	of *endless
}

func (f *endlessFile) Read(b []byte) (int, error) {
	if f.of.read += len(b); f.of.read > 64<<20 {
		return 0, fs.ErrInvalid
	}
	for i := range b {
		b[i] = '1'
	}
	return len(b), nil
}

// TestRDMACountersLarge: of a file only what a counter can have is read.
func TestRDMACountersLarge(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		id := n.pod("ns1", "one")
		n.report(t)
		n.gives(t, id, map[string]string{"left": "mlx5_3"})
		sys := &endless{FS: rdmaFiles}
		metricstest.Exposition(t, &ports.RDMAMetrics{Monitor: n.Monitor, Devices: 10, Sys: sys})
		if sys.read > 4096 {
			t.Errorf("%d bytes were read of a counter", sys.read)
		}
	})
}
