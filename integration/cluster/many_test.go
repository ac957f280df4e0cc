//go:build cluster && soak

package cluster_test

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
)

// TestManyShares creates pods at once that have a link on one device, and as many without a
// claim, and logs the times to Ready. All get their network, and all return it.
// PLUMBLINE_PODS lists how many at once, as in "1 12 100".
func TestManyShares(t *testing.T) {
	b := newAgentBenchOf(t, cluster.NodeOptions{Memory: "6G"}, thisRelease)
	kubectl(t, b.Cluster, sharedMaster, "apply", "-f", "-")
	kubectl(t, b.Cluster, "", "wait", "--for=condition=Ready", "--timeout=60s", "networktopology/store", "deviceexposurepolicy/master")
	b.published(t, "with the shared one", 9)
	for _, template := range []string{"", "store"} { // the first of each kind fills caches
		b.atOnce(t, "first", template, 1)
	}
	for round, text := range strings.Fields(cmp.Or(os.Getenv("PLUMBLINE_PODS"), "1 1 1 12 12 12")) {
		count, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		var medians [2]time.Duration
		for i, template := range []string{"", "store"} {
			medians[i] = b.atOnce(t, fmt.Sprintf("round-%d", round), template, count)
		}
		t.Logf("%d at once: × without a claim %.2f", count, medians[1].Seconds()/medians[0].Seconds())
	}
}

// atOnce creates pods with a claim of a template, or without, deletes them when all are
// Ready, and returns the median of the times to Ready.
func (b *agentBench) atOnce(t *testing.T, name, template string, count int) time.Duration {
	t.Helper()
	var names []string
	var manifest strings.Builder
	for i := range count {
		pod := fmt.Sprintf("%s-%d", name, i)
		names = append(names, pod)
		manifest.WriteString("---\n")
		if template == "" {
			manifest.WriteString(askingPod(pod))
		} else {
			manifest.WriteString(claimingPod(pod, template))
		}
	}
	hooks, hooked := b.hooks(t)
	busy := b.processorTime(t)
	began := time.Now()
	b.create(t, manifest.String())
	kubectl(t, b.Cluster, "", append([]string{"wait", "--for=condition=Ready", "--timeout=2400s", "pod"}, names...)...)
	took := time.Since(began)
	said := kubectl(t, b.Cluster, "", "get", "pods", "-o", `jsonpath={range .items[*]}{.metadata.creationTimestamp} {.status.conditions[?(@.type=="PodScheduled")].lastTransitionTime} {.status.conditions[?(@.type=="Ready")].lastTransitionTime}{"\n"}{end}`)
	var scheduled, ready []time.Duration
	for line := range strings.Lines(said) {
		var at [3]time.Time // in whole seconds
		for i, f := range strings.Fields(line) {
			var err error
			if at[i], err = time.Parse(time.RFC3339, f); err != nil {
				t.Fatal(err)
			}
		}
		scheduled, ready = append(scheduled, at[1].Sub(at[0])), append(ready, at[2].Sub(at[0]))
	}
	if len(ready) != count {
		t.Fatalf("%d pods, want %d", len(ready), count)
	}
	slices.Sort(scheduled)
	slices.Sort(ready)
	n, sum := b.hooks(t)
	for program, now := range b.processorTime(t) {
		t.Logf("processor time for each pod: %s %.2f s", program, (now-busy[program])/float64(count))
	}
	t.Logf("%s, template %q: %d pods Ready after %s; each after %s in the median, %s at most; scheduled after %s and %s; %.0f hooks of %.0f ms in the mean", name, template, count, took.Round(10*time.Millisecond),
		ready[count/2], ready[count-1], scheduled[count/2], scheduled[count-1], n-hooks, 1000*(sum-hooked)/max(1, n-hooks))
	if template != "" {
		for _, pod := range names {
			b.has(t, pod, "store0")
		}
	}
	began = time.Now()
	kubectl(t, b.Cluster, "", append([]string{"delete", "pod", "--timeout=1200s"}, names...)...)
	t.Logf("deleted after %s", time.Since(began).Round(10*time.Millisecond))
	b.nothingLeft(t)
	if count == 1 {
		return took // as a second is too coarse
	}
	return ready[count/2]
}

// hooks returns how many sandboxes the agent has seen start, and how long it took for them.
func (b *agentBench) hooks(t *testing.T) (n, seconds float64) {
	t.Helper()
	for line := range strings.Lines(b.metrics(t)) {
		value, _ := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
		switch {
		case !strings.Contains(line, `hook="RunPodSandbox"`):
		case strings.HasPrefix(line, "plumbline_hook_duration_seconds_count{"):
			n += value
		case strings.HasPrefix(line, "plumbline_hook_duration_seconds_sum{"):
			seconds += value
		}
	}
	return n, seconds
}

// processorTime is that of the node, emulated, and of its programs that do not end, in seconds.
func (b *agentBench) processorTime(t *testing.T) map[string]float64 {
	t.Helper()
	of := map[string]float64{}
	for line := range strings.Lines(b.shell(t, `awk '/^cpu /{print "node", $2+$4+$7+$8}' /proc/stat; { cat /proc/[0-9]*/stat 2>/dev/null || true; } | awk '/^[0-9]+ .(kubelet|containerd|plumbline)\)/{print $2, $14+$15}'`)) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		ticks, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		of[strings.Trim(name, "()")] += ticks / 100
	}
	return of
}
