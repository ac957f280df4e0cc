package topology_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// hostile are topologies with as many errors as fit, as the API server passes them on, or
// as a client sends them that reaches the webhook's port.
func hostile() map[string]*v1alpha1.NetworkTopology {
	return map[string]*v1alpha1.NetworkTopology{
		"65 kB of unknown dependencies":  unknownDependencies(16, 11),
		"679 kB of unknown dependencies": unknownDependencies(256, 8),
		"788 kB of names of 3 kB":        unknownDependencies(1, 3000),
		"names that are nearly alike":    unknownDependencies(256, 60),
		"references":                     oneConfig(`"k%05d": "{{ nobody%05d.mac }}"`, 50_000),
		"references without an end":      oneConfig(`"k%05d": "{{ x%05d"`, 50_000),
		"keys":                           oneConfig(`"vlanx%05d": %d`, 99_000),
		"text that is no reference":      oneConfig(`"k%d": "{{ `+strings.Repeat("x ", 500_000)+`%d"`, 2),
		"long keys":                      oneConfig(`"`+strings.Repeat("k", 10_000)+`%d": [%d]`, 100),
		"deep":                           oneConfig(`"k%d": `+strings.Repeat("[", 60)+"%d"+strings.Repeat("]", 60), 1),
		"values in all steps together":   many(v1alpha1.Step{Type: "sriov", Config: &k8sruntime.RawExtension{Raw: []byte(`{"a":[` + strings.Repeat("1,", 500) + `1]}`)}}),
		"types":                          many(v1alpha1.Step{Type: strings.Repeat("t", 63)}),
		"policies":                       many(v1alpha1.Step{Type: "sriov", DriftPolicy: v1alpha1.DriftPolicy(strings.Repeat("p", 10_000))}),
		"name":                           {ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("n", 1<<20)}, Spec: many(v1alpha1.Step{}).Spec},
		"every step on all":              complete(),
		"selectors":                      many(v1alpha1.Step{Type: "sriov", Selector: &v1alpha1.Selector{CEL: strings.Repeat("x", 10<<10)}}),
	}
}

func object(steps ...v1alpha1.Step) *v1alpha1.NetworkTopology {
	return &v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "t"}, Spec: v1alpha1.NetworkTopologySpec{Steps: steps}}
}

// many repeats a step 256 times.
func many(step v1alpha1.Step) *v1alpha1.NetworkTopology {
	steps := make([]v1alpha1.Step, 256)
	for i := range steps {
		steps[i] = step
		steps[i].Name = fmt.Sprintf("s%d", i)
	}
	return object(steps...)
}

// unknownDependencies is 256 steps with names of some length, each of which
// depends on some that do not exist.
func unknownDependencies(each, length int) *v1alpha1.NetworkTopology {
	o := many(v1alpha1.Step{Type: "sriov"})
	for i := range o.Spec.Steps {
		s := &o.Spec.Steps[i]
		s.Name = fmt.Sprintf("%0*d", length, i)
		for j := range each {
			s.DependOn = append(s.DependOn, fmt.Sprintf("%0*d", length, 1000*(i+1)+j))
		}
	}
	return o
}

// oneConfig is a step whose config has many entries.
func oneConfig(format string, n int) *v1alpha1.NetworkTopology {
	entries := make([]string, n)
	for i := range entries {
		entries[i] = fmt.Sprintf(format, i, i)
	}
	return object(v1alpha1.Step{Name: "s", Type: "sriov", Config: &k8sruntime.RawExtension{Raw: []byte("{" + strings.Join(entries, ",") + "}")}})
}

func complete() *v1alpha1.NetworkTopology {
	o := many(v1alpha1.Step{Type: "quad"})
	for i := range o.Spec.Steps {
		for j := range o.Spec.Steps {
			o.Spec.Steps[i].DependOn = append(o.Spec.Steps[i].DependOn, fmt.Sprintf("s%d", j))
		}
	}
	return o
}

func judge(t testing.TB, o *v1alpha1.NetworkTopology, set contract.Set) error {
	top, err := topology.FromObject(o)
	if err != nil {
		return err
	}
	return topology.Validate(t.Context(), top, set)
}

// TestBoundedRefusal holds that no topology causes an answer of more than 64 problems or
// 128 KiB, or costs more memory, including garbage, than a multiple of the request's size.
func TestBoundedRefusal(t *testing.T) {
	const answer, garbage = 128 << 10, 256 << 20
	set := testContracts(t)
	for name, o := range hostile() {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := judge(t, o, set)
			runtime.ReadMemStats(&after)
			invalid, ok := errors.AsType[*topology.Invalid](err)
			if !ok {
				t.Fatalf("want an *Invalid, got %.200v", err)
			}
			if n := len(invalid.Problems); n == 0 || n > topology.MaxProblems {
				t.Errorf("%d problems", n)
			}
			if n := len(err.Error()); n > answer {
				t.Errorf("the answer has %d bytes:\n%.2000s", n, err)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > garbage {
				t.Errorf("allocates %d bytes", n)
			}
		})
	}
}

// TestMoreProblems holds that an incomplete answer says so.
func TestMoreProblems(t *testing.T) {
	o := many(v1alpha1.Step{Type: "sriov", DependOn: []string{"nowhere-to-be-found"}})
	err := judge(t, o, testContracts(t))
	lines := strings.Split(errString(err), "\n")
	if want := `NetworkTopology "t": validation stopped after 64 problems: there may be more`; lines[len(lines)-1] != want {
		t.Errorf("got  %s\nwant %s", lines[len(lines)-1], want)
	}
	if want := `NetworkTopology "t", step "s0": dependOn[0]: no step is named "nowhere-to-be-found": the other steps are s1, s2, s3, s4, s5, s6 and 249 more`; lines[0] != want {
		t.Errorf("got  %s\nwant %s", lines[0], want)
	}
}

// BenchmarkRefuse measures the cost of the worst topologies.
func BenchmarkRefuse(b *testing.B) {
	set := testContracts(b)
	for name, o := range hostile() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if judge(b, o, set) == nil {
					b.Fatal("accepted")
				}
			}
		})
	}
}

// TestExpandBounded: a text of many lists of many steps, which is too large in any case, is refused before all of it is made.
func TestExpandBounded(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	for _, steps := range []int{64, 256} {
		top := &topology.Topology{Name: "t", Export: &v1alpha1.Export{Files: map[string]v1alpha1.ExportContent{}}}
		var results []topology.StepResult
		for i := range steps {
			name := fmt.Sprintf("a%d", i)
			top.Steps = append(top.Steps, topology.Step{Name: name, Type: "dummy"})
			results = append(results, topology.StepResult{Name: name, Result: topology.Result{Interfaces: []topology.Interface{{Name: "rail", MAC: "02:00:00:00:00:01", Sandbox: "/n"}}}})
		}
		for i := range 16 {
			top.Export.Files[fmt.Sprint("f", i)] = v1alpha1.ExportContent(strings.Repeat("{{a*.mac}}", 1638))
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := top.Files(reg, results, nil)
		runtime.ReadMemStats(&after)
		if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; err == nil || mib > 100 {
			t.Errorf("%d steps: %d MiB allocated: %.80v", steps, mib, err)
		}
	}
}
