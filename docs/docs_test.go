// Package docs tests the pages: generated ones are up to date, examples are valid,
// and links lead to a file and a heading.
package docs

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/integration/source"
	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	qosv1alpha1 "github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/exposure"
	"github.com/plumbline/plumbline/topology/graph"
	"github.com/plumbline/plumbline/topology/objectfile"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

var update = flag.Bool("update", false, "write the generated pages and pictures")

const generated = "<!-- Written by make generate. -->\n\n"

func registry(t *testing.T) *ops.Registry {
	t.Helper()
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	return reg
}

// read returns the content of a file.
func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// generates compares a file with its expected content, or writes it.
func generates(t *testing.T, file, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: run make generate", err)
	}
	if diff := cmp.Diff(string(have), want); diff != "" {
		t.Errorf("%s is stale, run make generate (-have +want):\n%s", file, diff)
	}
}

// TestStepPages writes a page per step type, and their list.
func TestStepPages(t *testing.T) {
	reg := registry(t)
	var list strings.Builder
	list.WriteString(generated + "# Step types\n\n")
	var contracts []contract.Contract
	for _, typ := range reg.Types() {
		c, _ := reg.Contract(typ)
		contracts = append(contracts, c)
	}
	common := ops.AddressParams()
	const link = "addressing.md"
	addresses := sharedPage{Title: "addresses and routes", Link: link, Params: common, Whole: true}
	others := sharedPage{Title: "shared keys", Link: link, Params: sharedParams(contracts, common), Results: sharedResults(contracts)}
	page := sharedPage{Title: "Shared keys", Params: append(slices.Clone(common), others.Params...), Results: others.Results}
	generates(t, filepath.Join("steps", link), generated+page.markdown("Keys of addresses and routes, from `addresses` to `sourceRouting`, and others that several types have."))
	pages := map[string]bool{"README.md": true, link: true}
	for _, typ := range reg.Types() {
		c, _ := reg.Contract(typ)
		page := typ + ".md"
		pages[page] = true
		fmt.Fprintf(&list, "- [%s](%s): %s\n", typ, page, c.Summary)
		generates(t, filepath.Join("steps", page), generated+stepPage(c, addresses, others, described(t, reg, typ)))
	}
	list.WriteString("\nOther spellings of a key follow its name. A step passes the interfaces, addresses and routes of its dependencies on.\n\n" +
		"[Shared keys](" + link + "): addresses, routes and others.\n")
	generates(t, filepath.Join("steps", "README.md"), list.String())

	files, err := filepath.Glob("steps/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if pages[filepath.Base(f)] {
			continue
		}
		if !*update {
			t.Errorf("%s belongs to no step type, run make generate", f)
		} else if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
}

// similar names for a step type the type on whose page many of its keys are described.
var similar = map[string]string{"vfio-pci": "sriov", "macvlan": "ipvlan", "host-device": "sriov", "ptp": "bridge"}

// described returns the keys that the page of a similar type describes.
func described(t *testing.T, reg *ops.Registry, typ string) sharedPage {
	t.Helper()
	other, found := similar[typ]
	c, known := reg.Contract(other)
	if found && !known {
		t.Fatalf("%q is no step type", other)
	}
	effective := slices.DeleteFunc(slices.Clone(c.Params), func(p contract.Param) bool { return p.Ignored != "" })
	return sharedPage{Title: other, Link: other + ".md", Params: effective}
}

// valid reads a topology from a file.
func valid(t *testing.T, file string) *topology.Topology {
	t.Helper()
	data := read(t, file)
	top, err := topology.Decode([]byte(data))
	if err != nil {
		t.Fatal(err)
	}
	if err := topology.Validate(t.Context(), top, registry(t)); err != nil {
		t.Fatal(err)
	}
	return top
}

// TestFlagship draws the README's picture of the topology that the demo applies.
func TestFlagship(t *testing.T) {
	top := valid(t, "../docs/flagship.yaml")
	plan, given, err := registry(t).PlanImagined(t.Context(), top, nil, ops.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]graph.Status{}
	for step, facts := range plan.Facts(top, given) {
		of[step] = graph.Status{Notes: facts}
	}
	svg, err := graph.Render(top, graph.SVG, of)
	if err != nil {
		t.Fatal(err)
	}
	generates(t, "flagship.svg", svg)
}

// TestStatus holds that what the status page and the comparison name as a test is one.
func TestStatus(t *testing.T) {
	tests := map[string]bool{}
	for path, content := range source.Files(t, "..") {
		if source.IsTest(path) {
			for _, m := range testFunction.FindAllStringSubmatch(content, -1) {
				tests[m[1]] = true
			}
		}
	}
	for page, least := range map[string]int{"status.md": 30, "comparison.md": 20, "import.md": 0, "start.md": 1} {
		named := testName.FindAllStringSubmatch(read(t, page), -1)
		if len(named) < least {
			t.Errorf("%s: %d tests are named, want at least %d", page, len(named), least)
		}
		for _, m := range named {
			if !tests[m[1]] {
				t.Errorf("%s names %s, which is no test", page, m[1])
			}
		}
	}
}

var (
	testFunction = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	testName     = regexp.MustCompile("`(Test\\w+)(?:/[^`]*)?`")
)

func TestQuickstart(t *testing.T) { valid(t, "quickstart.yaml") }

var (
	metricHead   = regexp.MustCompile(`^# (HELP|TYPE) (\S+) (.*)\n`)
	metricLabels = regexp.MustCompile(`^\w+\{(.*)\} `)
	metricLabel  = regexp.MustCompile(`(\w+)="`)
)

// kinds lists the kinds of objects.
func kinds(separator string) string {
	var out []string
	for _, k := range netstate.Kinds() {
		out = append(out, string(k))
	}
	return strings.Join(out, separator)
}

// boundOf is the set of values of each label; a label that is missing here fails the
// test.
var boundOf = map[string]string{
	"action":     "`create`, `update`, `replace`, `delete`",
	"backend":    "`tc`, `PF`, `OVN`",
	"claim":      "the ResourceClaims of pods, at most `--interface-metrics`",
	"device":     "RDMA devices that steps have given to pods",
	"family":     "`ipv4`, `ipv6`",
	"field":      "managed fields, and `missing`, `unwanted`, `pending`",
	"goversion":  "one per process",
	"hook":       "`Synchronize`, `RunPodSandbox`, `CreateContainer`, `StopPodSandbox`, `RemovePodSandbox`; `BehindGate`: an attachment after its hook",
	"interface":  "the names that topologies give",
	"kind":       "`dump`, `get`, `write`",
	"namespace":  "of pods, at most `--interface-metrics` and `--rule-metrics`",
	"networkqos": "of pods, at most `--rule-metrics`",
	"object":     "the kinds of objects, `" + kinds("`, `") + "`, and `step`",
	"outcome":    "`Success` and the seven error kinds",
	"phase":      "`observe`, `journal`, `apply`",
	"pod":        "of pods, at most `--interface-metrics` and `--rule-metrics`",
	"revision":   "one per process",
	"rule":       "0 to 19",
	"severity":   "`Degraded`, `Lost`",
	"state":      "`InSync`, `Drifted`, `Failed`; of addresses `free`, `resting`, `used`; of NetworkQoS objects `InPlace`, `Updating`, `Failing`",
	"status":     "`Up`, `Down`, `Unknown`",
	"pool":       "the AddressPools of the cluster",
	"step":       "steps of topologies on the node, and `none`",
	"step_type":  "the step types, and `none`",
	"topology":   "topologies with a sandbox on the node in the last 15 minutes",
	"trigger":    "`plan`, `ensure`, `check`, `repair`, `release`",
	"version":    "one per process",
}

// TestMetricsPage writes the page of metrics from the golden files of the packages
// that define them; these contain every metric.
func TestMetricsPage(t *testing.T) {
	var files []string
	for _, pattern := range []string{"../reconcile/*/testdata/exposition.txt", "../reconcile/pod/*/testdata/exposition.txt", "../qos/*/testdata/exposition.txt"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatal("no metrics", pattern, err)
		}
		files = append(files, found...)
	}
	type metric struct{ name, kind, help, labels string }
	var metrics []metric
	used := map[string]bool{}
	for _, file := range files {
		data := read(t, file)
		for line := range strings.Lines(data) {
			head := metricHead.FindStringSubmatch(line)
			switch {
			case head != nil && head[1] == "HELP":
				metrics = append(metrics, metric{name: head[2], help: head[3]})
			case head != nil:
				metrics[len(metrics)-1].kind = head[3]
			default:
				m := &metrics[len(metrics)-1]
				labels := metricLabels.FindStringSubmatch(line)
				if labels == nil || m.labels != "" {
					continue
				}
				var names []string
				for _, l := range metricLabel.FindAllStringSubmatch(labels[1], -1) {
					if l[1] != "le" {
						names = append(names, l[1])
						used[l[1]] = true
					}
				}
				if len(names) > 0 {
					m.labels = "{" + strings.Join(names, ",") + "}"
				}
			}
		}
	}
	slices.SortFunc(metrics, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	head := read(t, "testdata/metrics.txt")
	var page strings.Builder
	page.WriteString(generated + head + "\n")
	for _, m := range metrics {
		kind := "gauge"
		switch {
		case strings.HasSuffix(m.name, "_total"):
			kind = "counter"
		case strings.HasSuffix(m.name, "_duration_seconds"), m.name == "plumbline_time_to_repair_seconds":
			kind = "histogram"
		}
		if m.kind != kind {
			t.Errorf("%s is a %s, and the page says %s by the name", m.name, m.kind, kind)
		}
		fmt.Fprintf(&page, "- `%s%s`: %s\n", m.name, m.labels, m.help)
	}
	page.WriteString("\n## Values of each label\n\nTests check these bounds.\n\n")
	var bounds, alike []string
	for _, label := range slices.Sorted(maps.Keys(used)) {
		bound, ok := boundOf[label]
		if !ok {
			t.Errorf("label %q: add its values to boundOf", label)
		}
		if at := slices.Index(bounds, bound); at >= 0 {
			alike[at] += "`, `" + label
		} else {
			bounds, alike = append(bounds, bound), append(alike, label)
		}
	}
	for i, bound := range bounds {
		fmt.Fprintf(&page, "- `%s`: %s\n", alike[i], bound)
	}
	generates(t, "metrics.md", page.String())
}

// pages returns every Markdown file a reader finds, by path from here.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, pattern := range []string{"../README.md", "../CONTRIBUTING.md", "../CHANGELOG.md", "../SECURITY.md", "../integration/*.md", "*.md", "*/*.md", "examples/*/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			data := read(t, f)
			out[f] = data
		}
	}
	return out
}

var (
	fenced    = regexp.MustCompile("(?ms)^```(yaml|console|sh)\n(.*?)^```")
	object    = regexp.MustCompile(`(?ms)^apiVersion: .*?(?:^EOF$|^\$ |\z)`) // in a session, up to what follows it
	lineStart = regexp.MustCompile(`(?m)^`)
	steps     = regexp.MustCompile(`(?m)^ *- name: `)
)

// TestExamples validates the objects in the pages, and the steps without an object around them.
func TestExamples(t *testing.T) {
	found := map[string]int{}
	for file, text := range pages(t) {
		for _, m := range fenced.FindAllStringSubmatch(text, -1) {
			text := object.FindString(m[2])
			if at := steps.FindStringIndex(m[2]); text == "" && m[1] == "yaml" && at != nil && at[0] == 0 && !strings.Contains(m[2], "dependOn") {
				text = "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n" + lineStart.ReplaceAllString(m[2], "  ")
			}
			text = strings.TrimSuffix(strings.TrimSuffix(text, "$ "), "EOF")
			if text == "" {
				continue
			}
			if err := example(t, []byte(text), found); err != nil {
				t.Errorf("%s: %v\n%s", file, err, text)
			}
		}
	}
	for _, kind := range []string{v1alpha1.Kind, v1alpha1.AddressPoolKind, v1alpha1.PolicyKind, qosv1alpha1.Kind} {
		if found[kind] < 2 {
			t.Errorf("%d examples of kind %s were found", found[kind], kind)
		}
	}
}

// example validates the objects of a text, and counts them by kind.
func example(t *testing.T, data []byte, found map[string]int) error {
	t.Helper()
	var errs []error
	f, err := topology.Parse("", data)
	if err != nil {
		return err
	}
	topologies := f.Objects(v1alpha1.Kind)
	if len(topologies) > 0 {
		_, _, err := validity.Topology(t.Context(), f, registry(t))
		errs = append(errs, err)
	}
	pools, err := objectfile.Decode[v1alpha1.AddressPool](f, v1alpha1.GroupVersion.WithKind(v1alpha1.AddressPoolKind))
	errs = append(errs, err)
	for _, o := range pools {
		_, err := addresspool.Of(o)
		errs = append(errs, err)
	}
	policies, err := objectfile.Decode[v1alpha1.DeviceExposurePolicy](f, v1alpha1.GroupVersion.WithKind(v1alpha1.PolicyKind))
	errs = append(errs, err)
	for _, o := range policies {
		errs = append(errs, exposure.New(o).Err)
	}
	rules, err := qos.Objects(f)
	errs = append(errs, err)
	for _, o := range rules {
		errs = append(errs, qos.New(o).Err)
	}
	found[v1alpha1.Kind] += len(topologies)
	found[v1alpha1.AddressPoolKind] += len(pools)
	found[v1alpha1.PolicyKind] += len(policies)
	found[qosv1alpha1.Kind] += len(rules)
	return errors.Join(errs...)
}

var (
	command  = regexp.MustCompile("plumbline ((?:qos |pod )?[a-z-]+)[^|;`&]*")
	longFlag = regexp.MustCompile(` (--[a-z][a-z-]*)`)
)

// TestFlags holds that the pages name commands and flags that exist.
func TestFlags(t *testing.T) {
	help := map[string]string{}
	for section := range strings.SplitSeq(read(t, "cli.md"), "\n## ") {
		name, text, _ := strings.Cut(section, "\n")
		help[name] = strings.ReplaceAll(text, "\n", " \n") // a flag may end its line
	}
	seen := 0
	for file, text := range pages(t) {
		if file == "cli.md" {
			continue
		}
		text = strings.ReplaceAll(text, "\\\n", " ")
		for _, code := range fenced.FindAllStringSubmatch(text, -1) {
			for line := range strings.Lines(code[2]) {
				line, _, _ = strings.Cut(line, " #")
				m := command.FindStringSubmatch(line)
				if m == nil || strings.Contains(line, "helm ") || strings.Contains(line, "kubectl ") {
					continue
				}
				text, known := help[m[1]]
				text += help["plumbline"] // every command has its flags
				if !known {
					t.Errorf("%s: there is no command %q: %s", file, m[1], line)
					continue
				}
				for _, f := range longFlag.FindAllStringSubmatch(m[0], -1) {
					seen++
					if !strings.Contains(text, f[1]+" ") {
						t.Errorf("%s: command %q has no flag %s", file, m[1], f[1])
					}
				}
			}
		}
	}
	if seen < 20 {
		t.Errorf("%d flags were found", seen)
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)|(?:src|href)="([^"#:]+)"`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notSlug = regexp.MustCompile("[^a-z0-9 _-]")
)

// anchors returns the anchors of a page's headings, as GitHub makes them.
func anchors(page string) map[string]bool {
	out := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(page, -1) {
		out[strings.ReplaceAll(notSlug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return out
}

// TestLinks follows each relative link, up to the heading that it names.
func TestLinks(t *testing.T) {
	all := pages(t)
	for file, text := range all {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target := file
			if path := m[1] + m[3]; path != "" {
				// The key of a page in docs, also if another folder links to it.
				target = strings.TrimPrefix(filepath.Join(filepath.Dir(file), path), "../docs/")
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: link to %q: %v", file, target, err)
			}
			page := strings.TrimPrefix(target, "../docs/") // as pages names those of this folder
			if m[2] != "" && !anchors(all[page])[m[2]] {
				t.Errorf("%s: %q has no heading %q", file, target, m[2])
			}
		}
	}
}

// TestArchitecture compares the lists of packages in architecture.md and integration/README.md with the tree:
// a package without a line fails, and so does a line without a package.
func TestArchitecture(t *testing.T) {
	page := read(t, "architecture.md")
	listed := map[string]bool{}
	for folder, text := range map[string]string{"docs": page, "integration": read(t, "../integration/README.md")} {
		for _, m := range slices.Concat(packageLine.FindAllStringSubmatch(text, -1), stepTypeLink.FindAllStringSubmatch(text, -1)) {
			if listed[m[1]] {
				t.Errorf("the package %q has two lines", m[1])
			}
			listed[m[1]] = true
			if got := filepath.Join(folder, m[2]); got != m[1] {
				t.Errorf("the line of package %q links to %q", m[1], got)
			}
		}
	}
	delete(listed, "integration") // the folder
	for _, pkg := range packages(t) {
		if !listed[pkg] {
			t.Errorf("the package %q has no line in architecture.md or integration/README.md: add it to the list of its folder", pkg)
		}
		delete(listed, pkg)
	}
	for pkg := range listed {
		t.Errorf("a page lists a package %q, which does not exist", pkg)
	}
	for _, m := range namedFuncs.FindAllStringSubmatch(page, -1) {
		source, err := os.ReadFile(m[1])
		if err != nil {
			t.Error(err)
			continue
		}
		for _, name := range codeWord.FindAllStringSubmatch(m[2], -1) {
			if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + name[1] + `[(\[]`).Match(source) {
				t.Errorf("architecture.md names the function %q of %s, which has none", name[1], m[1])
			}
		}
	}
}

var (
	// The packages of step types are in a list, separated by commas.
	stepTypeLink = regexp.MustCompile(`(?m)[:,]\s\[(ops/[a-z0-9]+)\]\((\.\./ops/[a-z0-9]+)\)`)
	packageLine  = regexp.MustCompile(`(?m)^- \[([a-z0-9/-]+)\]\(([./a-z0-9-]+)\): \S`)
	// A link to a Go file is followed by functions of it.
	namedFuncs = regexp.MustCompile("\\]\\((\\S+\\.go)\\)((?:(?:,| and)?\\s+`\\w+`)+)")
	codeWord   = regexp.MustCompile("`(\\w+)`")
)

// packages returns the folders of the module that hold Go files, see source.Files.
func packages(t *testing.T) []string {
	t.Helper()
	found := map[string]bool{}
	for file := range source.Files(t, "..") {
		found[path.Dir(file)] = true
	}
	return slices.Sorted(maps.Keys(found))
}

var makeTarget = regexp.MustCompile("`make ([a-z][a-z0-9-]*)")

// TestTargets holds that each make target that the pages name exists.
func TestTargets(t *testing.T) {
	makefile := read(t, "../Makefile")
	for file, text := range pages(t) {
		for _, m := range makeTarget.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s: there is no target %q in the Makefile", file, m[1])
			}
		}
	}
}

// TestAttributesOfAllDevices holds that devices.md names the attributes that every device has.
func TestAttributesOfAllDevices(t *testing.T) {
	text, _, found := strings.Cut(read(t, "devices.md"), " are on every device")
	at := strings.LastIndex(text, "\n\n")
	if !found || at < 0 {
		t.Fatal("devices.md does not say which attributes are on every device")
	}
	var named, have []string
	for _, m := range codeWord.FindAllStringSubmatch(text[at:], -1) {
		named = append(named, m[1])
	}
	for name := range inventory.Attributes(inventory.Device{}) {
		have = append(have, string(name))
	}
	slices.Sort(named)
	slices.Sort(have)
	if !slices.Equal(named, have) {
		t.Errorf("devices.md names %q, and a device of which nothing is known has %q", named, have)
	}
}

var alert = regexp.MustCompile(`- alert: (\w+)`)

// TestAlerts holds that the page on troubleshooting has a line for each alert, and
// names no other.
func TestAlerts(t *testing.T) {
	rules := read(t, "../chart/plumbline/rules/plumbline.yaml")
	page := read(t, "troubleshooting.md")
	_, section, _ := strings.Cut(page, "\n## Alerts\n")
	section, _, _ = strings.Cut(section, "\n## ")
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`(Plumbline\\w+)`").FindAllStringSubmatch(section, -1) {
		named[m[1]] = true
	}
	for _, m := range alert.FindAllStringSubmatch(rules, -1) {
		if !named[m[1]] {
			t.Errorf("troubleshooting.md does not name the alert %q", m[1])
		}
		delete(named, m[1])
	}
	for name := range named {
		t.Errorf("troubleshooting.md names %q, and there is no such alert", name)
	}
}

// TestRunbooks holds that each alert links to the section of the page on troubleshooting
// that names it.
func TestRunbooks(t *testing.T) {
	rules := read(t, "../chart/plumbline/rules/plumbline.yaml")
	page := read(t, "troubleshooting.md")
	const prefix = "https://github.com/plumbline/plumbline/blob/main/docs/troubleshooting.md#"
	for text := range strings.SplitSeq(rules, "\n      - ") {
		m := alert.FindStringSubmatch("- " + text)
		if m == nil {
			continue
		}
		_, url, _ := strings.Cut(text, "\n          runbook_url: ")
		url, _, _ = strings.Cut(url, "\n")
		link, ok := strings.CutPrefix(url, prefix)
		if !ok {
			t.Errorf("alert %q has no runbook_url that begins with %s", m[1], prefix)
			continue
		}
		named := false
		for section := range strings.SplitSeq("\n"+page, "\n## ") {
			heading, text, _ := strings.Cut(section, "\n")
			named = named || anchors("## " + heading)[link] && strings.Contains(text, "`"+m[1]+"`")
		}
		if !named {
			t.Errorf("alert %q links to #%s, and no such section names it", m[1], link)
		}
	}
}

// TestKubeVersion holds that the chart refuses a Kubernetes older than the page on
// installation names.
func TestKubeVersion(t *testing.T) {
	page := read(t, "install.md")
	chart := read(t, "../chart/plumbline/Chart.yaml")
	m := regexp.MustCompile(`Kubernetes (\d+\.\d+) or later`).FindStringSubmatch(page)
	if m == nil {
		t.Fatal("install.md names no version of Kubernetes")
	}
	if want := fmt.Sprintf("\nkubeVersion: \">=%s.0-0\"", m[1]); !strings.Contains(chart, want) {
		t.Errorf("the chart has no line %q", want[1:])
	}
}

// TestRecords checks that decisions are numbered without gaps and name what
// they must.
func TestRecords(t *testing.T) {
	files, err := filepath.Glob("adr/[0-9]*.md")
	if err != nil || len(files) == 0 {
		t.Fatalf("no decision records: %v", err)
	}
	for i, file := range files {
		data := read(t, file)
		number := fmt.Sprintf("%04d", i+1)
		if !strings.HasPrefix(filepath.Base(file), number+"-") || !strings.HasPrefix(data, "# "+number+" ") {
			t.Errorf("%s: want number %s in its name and title", file, number)
		}
		for _, heading := range []string{"Context", "Decision", "Alternatives", "Price"} {
			if !strings.Contains(data, "\n## "+heading+"\n") {
				t.Errorf("%s: no section %q", file, heading)
			}
		}
	}
}

// TestWalkOfARule holds that a rule of a NetworkQoS goes through few packages on its way from the object to the filter, all of which
// the map of the source names.
func TestWalkOfARule(t *testing.T) {
	text, err := os.ReadFile("architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, walk, found := strings.Cut(string(text), "\n## One rule: from a NetworkQoS to a filter\n")
	walk, _, ends := strings.Cut(walk, "\nOn a port of OVN, ")
	packages := map[string]bool{}
	for _, m := range regexp.MustCompile(`\]\(\.\./([^)]*)/[^/)]*\)`).FindAllStringSubmatch(walk, -1) {
		packages[m[1]] = true
	}
	if !found || !ends || len(packages) != 9 {
		t.Errorf("the walk of a rule has %d packages, and the page says nine: %v", len(packages), slices.Sorted(maps.Keys(packages)))
	}
}
