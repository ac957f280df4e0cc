package docs

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/integration/source"
)

var (
	inlineCode = regexp.MustCompile("`([^`]+)`")
	runFlag    = regexp.MustCompile(`(?:RUN=|-run[ =])'?\^?\(?(Test\w+|Benchmark\w+)`)
	ofPackages = regexp.MustCompile(`(?:^|[ ='])\./([a-z0-9_-]+(?:/[a-z0-9_-]+)*)(/\.\.\.)?`)
	function   = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w+)\(`)
)

// code returns the code of the pages by page, a line of a block or a piece of inline code each, without decisions and changes, which
// also name what existed once.
func code(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for page, text := range pages(t) {
		if strings.HasPrefix(page, "adr/") || path.Base(page) == "CHANGELOG.md" {
			continue
		}
		inBlock, paragraph := false, ""
		for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ") + "\n\n") {
			switch trimmed := strings.TrimSpace(line); {
			case strings.HasPrefix(trimmed, "```"):
				inBlock = !inBlock
			case inBlock, paragraph == "" && strings.HasPrefix(line, "    "):
				out[page] = append(out[page], trimmed)
			case trimmed != "":
				paragraph += trimmed + " "
				continue
			}
			for _, m := range inlineCode.FindAllStringSubmatch(paragraph, -1) {
				out[page] = append(out[page], m[1])
			}
			paragraph = ""
		}
		if inBlock {
			t.Errorf("%s: a block of code has no end", page)
		}
	}
	return out
}

// TestTestsOfPages holds that a command of a page which runs a test finds it in the packages that it names.
func TestTestsOfPages(t *testing.T) {
	type test struct{ name, folder string }
	var tests []test
	for file, content := range source.Files(t, "..") {
		if source.IsTest(file) {
			for _, m := range function.FindAllStringSubmatch(content, -1) {
				tests = append(tests, test{m[1], path.Dir(file)})
			}
		}
	}
	seen := 0
	for page, lines := range code(t) {
		for _, line := range lines {
			m := runFlag.FindStringSubmatch(line)
			of := ofPackages.FindAllStringSubmatch(line, -1)
			if m == nil || of == nil {
				continue
			}
			seen++
			if !slices.ContainsFunc(tests, func(x test) bool {
				return strings.Contains(x.name, m[1]) && slices.ContainsFunc(of, func(p []string) bool {
					return x.folder == p[1] || p[2] != "" && strings.HasPrefix(x.folder, p[1]+"/")
				})
			}) {
				t.Errorf("%s: no package of %q has a test %s", page, line, m[1])
			}
		}
	}
	if seen < 8 {
		t.Errorf("%d commands that run a test were found", seen)
	}
}

// TestFilesOfPages holds that the files that pages name by their path from the root of the tree exist.
func TestFilesOfPages(t *testing.T) {
	folders, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for page, lines := range code(t) {
		for _, line := range lines {
			for word := range strings.FieldsSeq(line) {
				word = strings.TrimPrefix(strings.Trim(word, `'",;:()`), "./")
				first, rest, _ := strings.Cut(word, "/")
				if rest == "" || strings.ContainsAny(word, "<=:$") || !slices.ContainsFunc(folders, func(f os.DirEntry) bool {
					return f.IsDir() && f.Name() == first && first != ".cache" && first != ".git"
				}) {
					continue
				}
				seen++
				if found, err := filepath.Glob("../" + strings.TrimSuffix(word, "/...")); err != nil || len(found) == 0 {
					t.Errorf("%s: there is no %q", page, word)
				}
			}
		}
	}
	if seen < 50 {
		t.Errorf("%d files were found", seen)
	}
}

var inlineCommand = regexp.MustCompile(`^(?:kubectl )?plumbline ((?:qos |pod )?[a-z][a-z-]*)(.*)$`)

// TestInlineCommands holds that the commands that sentences name exist, with their flags.
func TestInlineCommands(t *testing.T) {
	help := map[string]string{}
	for section := range strings.SplitSeq(read(t, "cli.md"), "\n## ") {
		name, text, _ := strings.Cut(section, "\n")
		help[name] = strings.ReplaceAll(text, "\n", " ")
	}
	seen := 0
	for page, lines := range code(t) {
		for _, line := range lines {
			m := inlineCommand.FindStringSubmatch(line)
			if m == nil || page == "cli.md" {
				continue
			}
			seen++
			text, known := help[m[1]]
			if !known {
				text, known = help["pod "+m[1]]
			}
			if !known {
				t.Errorf("%s: there is no command %q: %s", page, m[1], line)
			}
			for _, f := range longFlag.FindAllStringSubmatch(m[2], -1) {
				if !strings.Contains(text+help["plumbline"], f[1]+" ") {
					t.Errorf("%s: command %q has no flag %s", page, m[1], f[1])
				}
			}
		}
	}
	if seen < 60 {
		t.Errorf("%d commands were found", seen)
	}
}
