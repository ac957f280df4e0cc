// Package metricstest reads what collectors of Prometheus expose, for tests.
package metricstest

import (
	"bytes"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// Gather returns the metrics of collectors, which must be as they describe themselves and have names and
// help by the conventions of Prometheus.
func Gather(t testing.TB, of ...prometheus.Collector) []*dto.MetricFamily {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	for _, c := range of {
		if err := reg.Register(c); err != nil {
			t.Fatal(err)
		}
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("against Prometheus' conventions: %v, %v", problems, err)
	}
	return families
}

// Exposition returns them as text.
func Exposition(t testing.TB, of ...prometheus.Collector) string {
	t.Helper()
	var out bytes.Buffer
	for _, f := range Gather(t, of...) {
		if _, err := expfmt.MetricFamilyToText(&out, f); err != nil {
			t.Fatal(err)
		}
	}
	return out.String()
}

// Golden compares the text with testdata/exposition.txt, or writes that file.
func Golden(t testing.TB, update bool, of ...prometheus.Collector) {
	t.Helper()
	const file = "testdata/exposition.txt"
	got := Exposition(t, of...)
	if update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("exposition (-want +got; -update rewrites %s):\n%s", file, diff)
	}
}
