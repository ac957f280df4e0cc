package hostroutes_test

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"

	"github.com/plumbline/plumbline/reconcile/pod/hostroutes"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestExposition holds the names, labels and help of the metrics.
func TestExposition(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(hostroutes.New(hostroutes.Options{})); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("against Prometheus' conventions: %v, %v", problems, err)
	}
	var got bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&got, f); err != nil {
			t.Fatal(err)
		}
	}
	const file = "testdata/exposition.txt"
	if *update {
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("exposition (-want +got; -update rewrites %s):\n%s", file, diff)
	}
}
