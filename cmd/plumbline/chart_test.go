package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
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
		"leader-elect-lease-duration": "nothing of the leader is urgent for pods; controller.extraArgs sets it",
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

// leftOff has the values that are off and turn on no feature of the product, with the reason.
var leftOff = map[string]string{
	"networkPolicy.enabled":  "it needs the addresses of the API server",
	"serviceMonitor.enabled": "it needs the Prometheus operator",
	"prometheusRule.enabled": "it needs the Prometheus operator",
	"dashboard.enabled":      "it needs Grafana",
}

// TestEverything holds that values-everything.yaml turns on each feature that is off by default, and names no other value.
func TestEverything(t *testing.T) {
	off, on := map[string]bool{}, map[string]bool{}
	for file, of := range map[string]map[string]bool{"values.yaml": off, "values-everything.yaml": on} {
		var values map[string]any
		if err := yaml.Unmarshal([]byte(fileOf(t, "chart/plumbline/"+file)), &values); err != nil {
			t.Fatal(err)
		}
		switches(of, "", values)
	}
	for name, value := range off {
		switch turned, named := on[name]; {
		case value && named, !value && leftOff[name] != "" && named:
			t.Errorf("values-everything.yaml has %s, which is on by default, or is left off: %s", name, leftOff[name])
		case !value && leftOff[name] == "" && !turned:
			t.Errorf("values-everything.yaml does not turn on %s", name)
		}
	}
	for name := range on {
		if _, ok := off[name]; !ok {
			t.Errorf("values-everything.yaml has %s, which is no value", name)
		}
	}
}

// switches collects the values that are on or off.
func switches(out map[string]bool, prefix string, values map[string]any) {
	for name, value := range values {
		switch v := value.(type) {
		case bool:
			out[prefix+name] = v
		case map[string]any:
			switches(out, prefix+name+".", v)
		}
	}
}

// TestControllerRules holds that the ClusterRole of the controller has what the comments say that each part needs, and no more.
func TestControllerRules(t *testing.T) {
	needed := map[string][]string{ // and what comments of other forms say
		" events": {"create", "patch"}, // of the election of a leader
		"admissionregistration.k8s.io validatingwebhookconfigurations": {"get", "list", "watch", "update", "patch"},
	}
	row := regexp.MustCompile(`(?m)^//\t([a-z0-9-]+\.[a-z0-9.-]+)? *([a-z][^\s,]*(?:, \S+)*) +([a-z ]+?)(?: \(finalizers\))?$`)
	for _, file := range []string{"topology/controller/controller.go", "topology/controller/networkstatus.go", "topology/controller/pools.go", "topology/controller/policies.go", "qos/controller/controller.go"} {
		rows := row.FindAllStringSubmatch(fileOf(t, file), -1)
		if len(rows) == 0 {
			t.Errorf("%s lists no permissions", file)
		}
		for _, m := range rows {
			for resource := range strings.SplitSeq(m[2], ", ") {
				needed[m[1]+" "+resource] = append(needed[m[1]+" "+resource], strings.Fields(m[3])...)
			}
		}
	}
	grantsOnly(t, "controller-rbac.yaml", needed)
}

// TestAgentRules holds that the ClusterRole of the agents has what their parts need, and no more.
func TestAgentRules(t *testing.T) {
	grantsOnly(t, "agent-rbac.yaml", map[string][]string{
		"networking.dra.io networktopologies":      {"get", "list", "watch"},
		"networking.dra.io deviceexposurepolicies": {"list", "watch"},
		"networking.dra.io addresspools":           {"list", "watch"},
		"networking.dra.io addressleases":          {"get", "list", "watch", "create", "update", "delete"},
		"networking.dra.io deviceexposurereports":  {"create", "patch"}, // applied
		"networking.dra.io networkqosreports":      {"create", "patch"}, // applied
		"networking.dra.io networkqosdestinations": {"list", "watch"},
		"k8s.ovn.org networkqoses":                 {"list", "watch"},
		"resource.k8s.io resourceclaims":           {"get"},
		"resource.k8s.io resourceclaims/status":    {"patch", "update"},
		"resource.k8s.io resourceclaims/driver":    {"associated-node:patch", "associated-node:update"},
		// What package resourceslice of dynamic-resource-allocation sends, and list and watch of other drivers' slices.
		"resource.k8s.io resourceslices": {"list", "watch", "create", "update", "delete"},
		" nodes":                         {"get", "list", "watch"},
		" pods":                          {"list", "watch", "get"},
		// Those of client-go's tools/record, which are of the core group.
		" events": {"create", "patch"},
	})
}

// grantsOnly holds that the first role of a template of the chart grants these verbs, by group and resource, and no others.
func grantsOnly(t *testing.T, template string, needed map[string][]string) {
	t.Helper()
	role, _, _ := strings.Cut(fileOf(t, "chart/plumbline/templates/"+template), "\n---")
	rule := regexp.MustCompile(`apiGroups: \[(.*)\]\n +resources: \[(.*)\]\n(?: +resourceNames: .*\n)? +verbs: \[(.*)\]`)
	granted := map[string][]string{}
	for _, m := range rule.FindAllStringSubmatch(strings.ReplaceAll(role, `"`, ""), -1) {
		for group := range strings.SplitSeq(m[1], ", ") {
			for resource := range strings.SplitSeq(m[2], ", ") {
				granted[group+" "+resource] = append(granted[group+" "+resource], strings.Split(m[3], ", ")...)
			}
		}
	}
	for of, verbs := range granted {
		for _, verb := range verbs {
			if !slices.Contains(needed[of], verb) {
				t.Errorf("the chart grants %s on %q, which nothing needs", verb, of)
			}
		}
	}
	for of, verbs := range needed {
		for _, verb := range verbs {
			if !slices.Contains(granted[of], verb) {
				t.Errorf("the chart does not grant %s on %q", verb, of)
			}
		}
	}
}

func fileOf(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(file)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
