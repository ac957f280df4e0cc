package docs

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var adrLink = regexp.MustCompile(`\[(\d{4})\]\((\d{4}-[^)]+)\)`)

// TestDecisions holds the index of the decisions: each has its title, one sentence, and what amends it, which is each later
// page whose status names it and each page that its own status names.
func TestDecisions(t *testing.T) {
	pages, err := filepath.Glob("adr/0*.md")
	if err != nil {
		t.Fatal(err)
	}
	title, amended := map[string]string{}, map[string][]string{}
	var numbers []string
	for _, page := range pages {
		number := filepath.Base(page)[:4]
		numbers = append(numbers, number)
		text := read(t, page)
		head, rest, _ := strings.Cut(text, "\n")
		title[number] = strings.TrimPrefix(head, "# "+number+" ")
		status, _, _ := strings.Cut(strings.TrimSpace(rest), "\n\n")
		for _, m := range adrLink.FindAllStringSubmatch(status, -1) {
			older, newer := min(number, m[1]), max(number, m[1])
			if l := fmt.Sprintf("[%s](%s)", newer, fileOf(t, newer)); !strings.Contains(strings.Join(amended[older], " "), l) {
				amended[older] = append(amended[older], l)
			}
		}
	}
	index := read(t, "adr/README.md")
	sentence := map[string]string{}
	for line := range strings.Lines(index) {
		if cells := strings.Split(line, "|"); len(cells) == 5 {
			if m := adrLink.FindStringSubmatch(cells[1]); m != nil {
				sentence[m[1]] = strings.TrimSpace(cells[2])
			}
		}
	}
	var want strings.Builder
	want.WriteString("# Decisions\n\nEach page has the context, the decision, the alternatives and the price. The first columns are kept by hand, the last one by `go test ./docs -update`.\n\n| decision | in one sentence | amended by |\n| --- | --- | --- |\n")
	for _, n := range numbers {
		if sentence[n] == "" {
			t.Errorf("adr/README.md has no sentence for %s %s", n, title[n])
		}
		fmt.Fprintf(&want, "| [%s](%s) %s | %s | %s |\n", n, fileOf(t, n), title[n], sentence[n], strings.Join(amended[n], ", "))
	}
	generates(t, "adr/README.md", want.String())
}

// fileOf returns the name of a decision's file.
func fileOf(t *testing.T, number string) string {
	t.Helper()
	found, err := filepath.Glob("adr/" + number + "-*.md")
	if err != nil || len(found) != 1 {
		t.Fatalf("decision %s has the files %v: %v", number, found, err)
	}
	return filepath.Base(found[0])
}
