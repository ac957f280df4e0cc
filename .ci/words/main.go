// Command words finds words that CONTRIBUTING's table replaces by standard terms, in docs,
// in the chart, and in comments and strings of Go files. It prints each with its
// replacement, and exits with 1 if there are any.
//
//	go run ./.ci/words              # from the checkout's root
//	go run ./.ci/words -selftest    # holds the lines of testdata that say "want"
package main

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	home    = ".ci/words"
	table   = "CONTRIBUTING.md"
	heading = "\n## Words\n"
)

// finding is a word at a place.
type finding struct {
	file string
	line int
	word string
	term string // to write instead
}

func main() {
	self := flag.Bool("selftest", false, "test the check itself")
	flag.Parse()
	list, err := readTable()
	if err == nil {
		if *self {
			err = list.selftest()
		} else {
			err = list.check()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// words maps each word to look for to the term that replaces it.
type words struct {
	find  *regexp.Regexp
	terms map[string]string
}

// readTable reads the table's third column.
func readTable() (*words, error) {
	page, err := os.ReadFile(table)
	if err != nil {
		return nil, err
	}
	_, section, found := strings.Cut(string(page), heading)
	w := &words{terms: map[string]string{}}
	var all []string
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 5 || strings.HasPrefix(cells[1], " ---") || strings.TrimSpace(cells[1]) == "term" {
			continue
		}
		for word := range strings.SplitSeq(cells[3], ",") {
			if word = strings.ToLower(strings.TrimSpace(word)); word != "" {
				w.terms[word] = strings.TrimSpace(cells[1])
				// A line may end within it.
				all = append(all, strings.Join(strings.Fields(regexp.QuoteMeta(word)), `\s+`))
			}
		}
	}
	if !found || len(all) == 0 {
		return nil, fmt.Errorf("%s: no table of words below %q", table, strings.TrimSpace(heading))
	}
	// Longest first: "made anew" before "anew".
	slices.SortFunc(all, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	w.find = regexp.MustCompile(`(?i)\b(` + strings.Join(all, "|") + `)\b`)
	return w, nil
}

// in finds the words in a text that begins at a line of a file.
func (w *words) in(file string, line int, text string) (out []finding) {
	for _, at := range w.find.FindAllStringIndex(text, -1) {
		word := strings.Join(strings.Fields(strings.ToLower(text[at[0]:at[1]])), " ")
		out = append(out, finding{file, line + strings.Count(text[:at[0]], "\n"), word, w.terms[word]})
	}
	return out
}

var (
	code = regexp.MustCompile("(?s)```.*?```|`[^`]*`|\\]\\([^)]*\\)")
	mark = regexp.MustCompile(`(?m)^\s*//\s?`)
)

// blank replaces what a pattern matches by spaces, and leaves the lines.
func blank(text string, what *regexp.Regexp) string {
	return what.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) + " " })
}

// file finds the words of one file.
func (w *words) file(path string) ([]finding, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	text := string(data)
	if filepath.Ext(path) == ".go" {
		return w.source(path, data)
	}
	if path == table {
		text, _, _ = strings.Cut(text, heading)
	}
	if filepath.Ext(path) == ".md" {
		text = blank(text, code)
	}
	return w.in(path, 1, text), nil
}

// source finds the words in comments and strings, not in names.
func (w *words) source(path string, data []byte) (out []finding, err error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, path, data, parser.ParseComments)
	if err != nil || ast.IsGenerated(parsed) {
		return nil, err
	}
	for _, group := range parsed.Comments {
		var text strings.Builder
		for _, c := range group.List {
			text.WriteString(mark.ReplaceAllString(c.Text, "") + "\n")
		}
		out = append(out, w.in(path, files.Position(group.Pos()).Line, blank(text.String(), code))...)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				out = append(out, w.in(path, files.Position(n.Pos()).Line, n.Value)...)
			}
		}
		return true
	})
	return out, nil
}

// all finds the words of the checkout.
func (w *words) all() (out []finding, err error) {
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		switch {
		case d.IsDir() && path != "." && (name[0] == '.' || name == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || !wanted(path):
			return nil
		}
		found, err := w.file(path)
		out = append(out, found...)
		return err
	})
	return out, err
}

// wanted reports whether the file is checked.
func wanted(path string) bool {
	switch filepath.Ext(path) {
	case ".go", ".md":
		return true
	case ".yaml", ".json", ".txt", ".tpl":
		return strings.HasPrefix(path, "chart/")
	}
	return false
}

// check prints the words of the checkout.
func (w *words) check() error {
	found, err := w.all()
	if err != nil {
		return err
	}
	for _, f := range found {
		fmt.Printf("%s:%d: %q: write %q\n", f.file, f.line, f.word, f.term)
	}
	if len(found) > 0 {
		return fmt.Errorf("words: %s has other words for these", table)
	}
	fmt.Println("words: none that the table replaces")
	return nil
}

// want marks a line with an expected word. The word has underscores for spaces, and one in
// front, so that the mark itself is not found.
var want = regexp.MustCompile(`want _([a-z_']+)`)

// selftest checks that exactly the marked words of testdata are found.
func (w *words) selftest() error {
	files, err := filepath.Glob(home + "/testdata/*")
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no files to test the words with: %w", err)
	}
	var got, wanted []string
	for _, path := range files {
		found, err := w.file(path)
		if err != nil {
			return err
		}
		for _, f := range found {
			got = append(got, fmt.Sprintf("%s:%d: %s", f.file, f.line, f.word))
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for i, line := range strings.Split(string(data), "\n") {
			for _, m := range want.FindAllStringSubmatch(line, -1) {
				wanted = append(wanted, fmt.Sprintf("%s:%d: %s", path, i+1, strings.ReplaceAll(m[1], "_", " ")))
			}
		}
	}
	slices.Sort(got)
	slices.Sort(wanted)
	for _, s := range got {
		if !slices.Contains(wanted, s) {
			err = fmt.Errorf("words: found, and should not be: %s", s)
			fmt.Println(err)
		}
	}
	for _, s := range wanted {
		if !slices.Contains(got, s) {
			err = fmt.Errorf("words: not found: %s", s)
			fmt.Println(err)
		}
	}
	if err == nil {
		fmt.Printf("words: %d found that should be, and nothing else\n", len(got))
	}
	return err
}
