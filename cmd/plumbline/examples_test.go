package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const examples = "../../docs/examples"

// TestExamples holds that the objects of each example are valid together without a note, that its claim is what plumbline
// claim prints, that its pod requests that, and that the list of the examples says whether one is applied.
func TestExamples(t *testing.T) {
	folders, err := filepath.Glob(examples + "/*/topology.yaml")
	if err != nil || len(folders) < 15 {
		t.Fatalf("%d examples, %v", len(folders), err)
	}
	list := contentOf(t, examples+"/README.md")
	for _, file := range folders {
		folder := filepath.Dir(file)
		name := filepath.Base(folder)
		t.Run(name, func(t *testing.T) {
			example(t, folder)
			shown := "validated"
			if _, err := os.Stat(folder + "/check"); err == nil {
				shown = "shown"
			}
			if !strings.Contains(list, "]("+name+"/README.md) | "+shown+" |\n") {
				t.Errorf("README.md does not list %s as %s", name, shown)
			}
			page := contentOf(t, folder+"/README.md")
			for _, part := range []string{"# ", "\n**What you see:** ", "\n**What goes wrong:** "} {
				if !strings.Contains(page, part) {
					t.Errorf("the page has no %q", part)
				}
			}
		})
	}
}

func example(t *testing.T, folder string) {
	t.Helper()
	files, err := filepath.Glob(folder + "/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	command := []string{"validate", "--strict"}
	for _, file := range files {
		if filepath.Base(file) != "pod.yaml" { // of which validate has only a note
			command = append(command, "-f", file)
		}
	}
	if _, said, code := runs(t, command...); code != 0 {
		t.Errorf("exit status %d of %q:\n%s", code, command, said)
	}
	var pod struct {
		Spec struct {
			ResourceClaims []struct{ Name, ResourceClaimTemplateName string }
			Containers     []struct {
				Resources struct{ Claims []struct{ Name string } }
			}
		}
	}
	if err := yaml.Unmarshal([]byte(contentOf(t, folder+"/pod.yaml")), &pod); err != nil {
		t.Fatal(err)
	}
	claim := folder + "/claim.yaml"
	printed, said, code := runs(t, "claim", "-f", folder+"/topology.yaml")
	if !slices.Contains(files, claim) {
		if code == 0 || len(pod.Spec.ResourceClaims) > 0 {
			t.Errorf("no claim.yaml, and plumbline claim prints one, or the pod requests one: %v", pod.Spec.ResourceClaims)
		}
		return
	}
	if code != 0 || printed != contentOf(t, claim) {
		t.Errorf("claim.yaml is not what plumbline claim prints (exit status %d):\n%s%s", code, printed, said)
	}
	requested := pod.Spec.ResourceClaims
	if len(requested) != 1 || requested[0].ResourceClaimTemplateName != filepath.Base(folder) ||
		len(pod.Spec.Containers[0].Resources.Claims) != 1 || pod.Spec.Containers[0].Resources.Claims[0].Name != requested[0].Name {
		t.Errorf("the pod does not request the claim: %v", requested)
	}
}

// runs runs a command, and returns what it prints, its errors and its exit status.
func runs(t *testing.T, command ...string) (printed, said string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), command, stdio{in: strings.NewReader(""), out: &out, err: &errs})
	return out.String(), errs.String(), code
}

func contentOf(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
