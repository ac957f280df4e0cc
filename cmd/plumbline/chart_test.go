package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/spf13/pflag"
)

// withoutValue has the flags that no value of the chart sets, with the reason. Whoever needs one has extraArgs.
var withoutValue = map[string]map[string]string{
	"agent": {
		"node-name":  "the pod's variable NODE_NAME has it",
		"kubeconfig": "the pod has a service account",
		"cni-plugin": "the image has it at the default",
		"cni-socket": "the plugin on the host knows no other than the default",
		"timeout":    "a limit within --attach-timeout",
		"graph":      "it runs no agent",

		"pprof-address": "for the moment of a measurement",
	},
	"controller": {
		"kubeconfig":                  "the pod has a service account",
		"webhook-host":                "the chart has a Service",
		"webhook-certificate-life":    "nobody sees these certificates but the API server",
		"webhook-certificate-renewal": "nobody sees these certificates but the API server",
		"tls-dir":                     "the controller makes certificates, and writes their authority into the chart's webhooks",

		"pprof-address": "for the moment of a measurement",
	},
}

// TestChartHasFlags holds that each flag of the programs in the cluster is set by a template of the chart, or has a
// reason not to be; and that the templates set no other.
func TestChartHasFlags(t *testing.T) {
	set := regexp.MustCompile(`(?m)^ +- --([a-z-]+)`)
	root := newRoot(stdio{})
	for name, file := range map[string]string{"agent": "agent-daemonset.yaml", "controller": "controller-deployment.yaml"} {
		command, _, err := root.Find([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join("..", "..", "chart", "plumbline", "templates", file))
		if err != nil {
			t.Fatal(err)
		}
		chart := map[string]bool{}
		for _, m := range set.FindAllSubmatch(text, -1) {
			chart[string(m[1])] = true
		}
		// Of the inherited flags, those that the program uses.
		for _, inherited := range []string{"state-dir", "timeout"} {
			if chart[inherited] && command.InheritedFlags().Lookup(inherited) != nil {
				delete(chart, inherited)
			}
		}
		command.LocalFlags().VisitAll(func(f *pflag.Flag) {
			reason := withoutValue[name][f.Name]
			switch {
			case f.Name == "help":
			case chart[f.Name] && reason != "":
				t.Errorf("%s: --%s is in the chart, and has a reason not to be", name, f.Name)
			case !chart[f.Name] && reason == "":
				t.Errorf("%s: --%s has neither a value in the chart nor a reason", name, f.Name)
			}
			delete(chart, f.Name)
		})
		for flag := range chart {
			t.Errorf("%s: the chart sets --%s, which is no flag", name, flag)
		}
		for flag := range withoutValue[name] {
			if command.Flag(flag) == nil && root.PersistentFlags().Lookup(flag) == nil {
				t.Errorf("%s: --%s has a reason, and is no flag", name, flag)
			}
		}
	}
}
