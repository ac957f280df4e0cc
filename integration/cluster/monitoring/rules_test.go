//go:build cluster

package monitoring_test

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/integration/prometheus"
)

const (
	checkout  = "../../.."
	rulesFile = checkout + "/chart/plumbline/rules/plumbline.yaml"
)

func programs(t *testing.T) string {
	t.Helper()
	folder, err := prometheus.Programs(t.Context(), checkout+"/.cache", t.Output())
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// TestRules lets promtool play out what each alert is for, and what is not yet one.
func TestRules(t *testing.T) {
	said, err := prometheus.Promtool(t.Context(), programs(t), "testdata", "test", "rules", "rules.yaml")
	if err != nil {
		t.Error(err)
	}
	if !strings.Contains(said, "SUCCESS") {
		t.Errorf("promtool said %q", said)
	}
	rules, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile("testdata/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range alerts(t, rules) {
		if !strings.Contains(string(tests), "alertname: "+name+"\n") {
			t.Errorf("no test of alert %s", name)
		}
	}
}

type ruleFile struct {
	Groups []struct {
		Rules []struct{ Alert, Record, Expr string }
	}
}

func alerts(t *testing.T, rules []byte) []string {
	t.Helper()
	var file ruleFile
	if err := yaml.Unmarshal(rules, &file); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Alert != "" {
				out = append(out, r.Alert)
			}
		}
	}
	return out
}
