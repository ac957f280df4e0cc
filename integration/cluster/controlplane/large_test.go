//go:build cluster && soak

package controlplane_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/publish"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

const manyPFs, manyVFs = 4, 64

// cards is a sysfs with physical functions of many virtual ones.
func cards(t *testing.T) string {
	t.Helper()
	sys := t.TempDir()
	function := func(address, ifName string, files map[string]string, links map[string]string) {
		dir := filepath.Join(sys, "devices/pci0000:00", address)
		maps.Copy(files, map[string]string{
			"class": "0x020000", "vendor": "0x8086", "device": "0x1889", "numa_node": "0",
			"net/" + ifName + "/type": "1", "net/" + ifName + "/mtu": "1500", "net/" + ifName + "/address": "02:00:00:00:00:01",
			"net/" + ifName + "/flags": "0x1003", "net/" + ifName + "/carrier": "1",
		})
		for file, text := range files {
			put(t, filepath.Join(dir, file), text)
		}
		links[filepath.Join(sys, "bus/pci/devices", address)] = "../../../devices/pci0000:00/" + address
		links[filepath.Join(sys, "class/net", ifName)] = "../../devices/pci0000:00/" + address + "/net/" + ifName
		for link, target := range links {
			if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(target, link); err != nil {
				t.Fatal(err)
			}
		}
	}
	for pf := range manyPFs {
		address := fmt.Sprintf("0000:%02x:00.0", 3+pf)
		links := map[string]string{}
		for vf := range manyVFs {
			of := fmt.Sprintf("0000:%02x:%02x.%d", 3+pf, 2+vf/8, vf%8)
			links[filepath.Join(sys, "devices/pci0000:00", address, "virtfn"+strconv.Itoa(vf))] = "../" + of
			function(of, fmt.Sprintf("pf%dv%d", pf, vf), map[string]string{}, map[string]string{
				filepath.Join(sys, "devices/pci0000:00", of, "physfn"): "../" + address,
			})
		}
		function(address, fmt.Sprintf("pf%d", pf), map[string]string{"sriov_totalvfs": strconv.Itoa(manyVFs), "sriov_numvfs": strconv.Itoa(manyVFs)}, links)
	}
	return sys
}

func put(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestManyFunctions measures the slices of a node with 4 PFs of 64 functions: their size,
// what is written when something changes, and what the scheduler needs for each pod.
func TestManyFunctions(t *testing.T) {
	b := startOf(t, cluster.Options{})
	b.run(t)
	if err := b.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}); err != nil {
		t.Fatal(err)
	}
	b.speakFor(t)
	sys := cards(t)
	began := time.Now()
	if found, err := inventory.Discover(os.DirFS(sys), inventory.Options{}); err != nil || len(found) != manyPFs*(manyVFs+1) {
		t.Fatal(len(found), err)
	}
	t.Logf("a scan takes %s", time.Since(began).Round(time.Millisecond))
	m := &machine{bench: b, name: "n1", state: t.TempDir(), tree: os.DirFS(sys)}
	m.start(t)
	defer func() { m.stop() }()

	var all resourceapi.ResourceSliceList
	// tainted waits until that many devices of all have a taint, or a network.
	changed := func(when string, want int, has func(resourceapi.Device) bool) {
		t.Helper()
		b.eventually(t, when, func() error {
			if err := b.List(t.Context(), &all); err != nil {
				return err
			}
			n := 0
			for _, s := range all.Items {
				if s.Spec.Pool.ResourceSliceCount != int64(len(all.Items)) || s.Spec.Pool.Generation != all.Items[0].Spec.Pool.Generation {
					return fmt.Errorf("the pool is being written")
				}
				for _, d := range s.Spec.Devices {
					if has(d) {
						n++
					}
				}
			}
			if n != want {
				return fmt.Errorf("%d devices, want %d", n, want)
			}
			return nil
		})
	}
	step := func(what string, most int64, do func()) {
		t.Helper()
		requests, bytes, since := m.written.requests.Load(), m.written.bytes.Load(), time.Now()
		do()
		requests, bytes = m.written.requests.Load()-requests, m.written.bytes.Load()-bytes
		t.Logf("%s: %d requests, %d bytes, %s", what, requests, bytes, time.Since(since).Round(time.Millisecond))
		if requests > most {
			t.Errorf("%s: %d requests, want %d at most", what, requests, most)
		}
	}
	slicesOfAll := int64((manyPFs*manyVFs + publishedPerSlice - 1) / publishedPerSlice)
	step("published at first", slicesOfAll, func() {
		changed("all devices are published", manyPFs*manyVFs, func(resourceapi.Device) bool { return true })
	})
	size, largest := 0, 0
	for _, s := range all.Items {
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		size, largest = size+len(text), max(largest, len(text))
	}
	t.Logf("%d slices, %d bytes, the largest %d", len(all.Items), size, largest)
	step("a device is prepared for a claim, and released", 0, func() {
		for _, names := range [][]string{{"pci-0000-03-02-0"}, nil} {
			m.use(names...)
			m.scanned(t)
		}
	})
	carrier := filepath.Join(sys, "devices/pci0000:00/0000:03:00.0/net/pf0/carrier")
	isDown := func(d resourceapi.Device) bool {
		return slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == publish.TaintLinkDown })
	}
	step("a PF has no carrier", slicesOfAll, func() {
		put(t, carrier, "0")
		m.changed.Changed()
		changed("its functions are tainted", manyVFs, isDown)
	})
	step("it has one again", slicesOfAll, func() {
		put(t, carrier, "1")
		m.changed.Changed()
		changed("no function is tainted", 0, isDown)
	})
	step("a policy names the network of a PF", slicesOfAll, func() {
		b.mustKubectl(t, policy("physnet2", `{selector: {cel: 'device.attributes["dra.networking"].ifName == "pf3"'}, physicalNetworks: [{name: physnet2, vlan: 102}]}`), "create", "-f", "-")
		changed("its functions have the network", manyVFs, func(d resourceapi.Device) bool {
			a := d.Attributes[inventory.AttrPhysicalNetwork]
			return a.StringValue != nil && *a.StringValue == "physnet2"
		})
	})

	b.mustKubectl(t, choosing("first", "vf=pf0"), "create", "-f", "-")
	b.mustKubectl(t, choosing("last", "vf=pf3"), "create", "-f", "-")
	b.ready(t, "first", metav1.ConditionTrue)
	b.ready(t, "last", metav1.ConditionTrue)
	for _, c := range []struct{ what, limit string }{
		{"without a device", ""},
		{"with a function of the first PF", "deviceclass.resource.kubernetes.io/first-vf"},
		{"with a function of the last PF", "deviceclass.resource.kubernetes.io/last-vf"},
	} {
		b.scheduled(t, c.what, c.limit)
	}
}

// publishedPerSlice is how many devices one slice has.
const publishedPerSlice = 64

// scheduled creates pods at once, and logs what the scheduler needed for each.
func (b *bench) scheduled(t *testing.T, what, limit string) {
	t.Helper()
	const pods = 40
	b.speakFor(t)
	scheduler := b.processOf(t, "kube-scheduler")
	used, began := processorTime(t, scheduler), time.Now()
	config := b.Config()
	config.QPS, config.Burst = 200, 200
	fast, err := client.New(config, client.Options{Scheme: b.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	each := func(do func(*corev1.Pod) error) {
		var wg sync.WaitGroup
		for i := range pods {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("p%d", i)}}
			pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
			pod.Spec.Containers = []corev1.Container{{Name: "c", Image: cluster.PodImage}}
			if limit != "" {
				pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceName(limit): resource.MustParse("1")}
			}
			wg.Go(func() {
				if err := do(pod); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	each(func(p *corev1.Pod) error { return fast.Create(t.Context(), p) })
	b.eventually(t, "all pods have a node", func() error {
		var list corev1.PodList
		if err := b.List(t.Context(), &list, client.InNamespace("default")); err != nil {
			return err
		}
		n := 0
		for _, p := range list.Items {
			if p.Spec.NodeName != "" {
				n++
			}
		}
		if n < pods {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
	took := time.Since(began)
	t.Logf("%d pods %s: %s until all have a node, %s of the scheduler's processor time for each", pods, what, took.Round(time.Millisecond), ((processorTime(t, scheduler) - used) / pods).Round(100*time.Microsecond))
	each(func(p *corev1.Pod) error {
		return fast.Delete(context.WithoutCancel(t.Context()), p, client.GracePeriodSeconds(0))
	})
	b.eventually(t, "no claim is left", func() error {
		var claims resourceapi.ResourceClaimList
		if err := b.List(t.Context(), &claims, client.InNamespace("default")); err != nil || len(claims.Items) > 0 {
			return fmt.Errorf("%d claims: %w", len(claims.Items), err)
		}
		return nil
	})
}

// processOf finds a program of this control plane.
func (b *bench) processOf(t *testing.T, program string) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(line), b.Dir()) && strings.Contains(string(line), program) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err == nil {
				return pid
			}
		}
	}
	t.Fatalf("%s does not run", program)
	return 0
}

// processorTime is that of a process, in user mode and in the kernel.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	ticks := 0
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond // USER_HZ is 100 on all architectures of ours
}

// TestReportsOfManyNodes measures what the reports of 5,000 nodes cost, at rest and when
// each of them is written once as after an edit of a policy.
func TestReportsOfManyNodes(t *testing.T) {
	const nodes = 5000
	b := start(t)
	b.mustKubectl(t, policy("all", "{}"), "create", "-f", "-")
	config := b.Config()
	config.QPS, config.Burst = 2000, 2000
	fast, err := client.New(config, client.Options{Scheme: b.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	report := func(i int, generation int64) *v1alpha1.DeviceExposureReport {
		r := &v1alpha1.DeviceExposureReport{Devices: 260, Offered: 256}
		r.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.ReportKind}
		r.Name = fmt.Sprintf("node-%04d.example.com", i)
		r.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: r.Name, UID: types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i))}}
		r.Policies = []v1alpha1.PolicyReport{{Name: "all", Generation: generation, Devices: 260, Offered: 256}}
		return r
	}
	text, err := json.Marshal(report(0, 1))
	if err != nil {
		t.Fatal(err)
	}
	write := func(generation int64) time.Duration {
		began := time.Now()
		var wg sync.WaitGroup
		for worker := range 20 {
			wg.Go(func() {
				for i := worker; i < nodes; i += 20 {
					if err := fast.Patch(t.Context(), report(i, generation), client.Apply, client.FieldOwner("plumbline-agent"), client.ForceOwnership); err != nil { //nolint:staticcheck // the types have no apply configurations
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		return time.Since(began)
	}
	t.Logf("%d reports of %d bytes written in %s", nodes, len(text), write(1).Round(time.Millisecond))
	apiserver := b.processOf(t, "kube-apiserver")

	began := time.Now()
	b.run(t, "--status-interval", "10s") // its default
	pid := b.process.Process.Pid
	o := b.verdict(t, "all", "Succeeded", fmt.Sprintf("decides for %d devices on %d nodes", 260*nodes, nodes))
	t.Logf("the controller has the status after %s, with %s of processor time, and is %s", time.Since(began).Round(time.Millisecond), processorTime(t, pid), resident(t, pid))

	b.mustKubectl(t, "", "patch", "devpol", "all", "--type=merge", "-p", `{"spec":{"priority":1}}`)
	first := o.ResourceVersion
	ours, theirs := processorTime(t, pid), processorTime(t, apiserver)
	versions := map[string]bool{}
	done := make(chan time.Duration, 1)
	go func() { done <- write(2) }()
	var took time.Duration
	for took == 0 {
		select {
		case took = <-done:
		case <-time.After(50 * time.Millisecond):
		}
		if err := b.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatal(err)
		}
		versions[o.ResourceVersion] = true
	}
	b.eventually(t, "the status is of all nodes", func() error {
		if err := b.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		versions[o.ResourceVersion] = true
		if want := fmt.Sprintf("%d/%d", nodes, nodes); o.Status.Reported != want || o.Status.ObservedGeneration != 2 {
			return fmt.Errorf("status %+v", o.Status)
		}
		return nil
	})
	delete(versions, first)
	t.Logf("each report written once more in %s: %d writes of the policy, one of them the edit; %s of the controller's processor time, %s of the API server's; the controller is %s",
		took.Round(time.Millisecond), len(versions), processorTime(t, pid)-ours, processorTime(t, apiserver)-theirs, resident(t, pid))
	if limit := int(took/(10*time.Second)) + 5; len(versions) > limit {
		t.Errorf("%d writes of the policy for %d reports, want %d at most", len(versions), nodes, limit)
	}
}

// resident is the memory of a process.
func resident(t *testing.T, pid int) string {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return strings.TrimSpace(rest)
		}
	}
	t.Fatal("no VmRSS")
	return ""
}
