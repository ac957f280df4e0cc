package fault

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/integration/source"
)

// TestTexts holds that no product code decides by the text of an error: a text changes when a message is worded better, and
// the compiler does not tell. A line that has to, since a library gives no type, says why in a comment "as text: ".
func TestTexts(t *testing.T) {
	for path, content := range source.Files(t, "../..") {
		if source.IsTest(path) {
			continue
		}
		for _, at := range textsIn(t, path, []byte(content)) {
			t.Errorf("%s: an error is compared by its text: give it a type or a kind; if a library has none, write why behind \"// as text: \"", at)
		}
	}
}

// TestTextsIn holds that the rule finds what it forbids.
func TestTextsIn(t *testing.T) {
	source := `package p

func f(err error, m map[string]int) {
	_ = strings.Contains(err.Error(), "x")
	_ = m[err.Error()]
	_ = err.Error() == "x"
	_ = err.Error() != "x" // as text: a library
	for range strings.SplitSeq(e.err.Error(), "x") {
	}
	switch err.Error() {
	}
	_ = pattern.MatchString(err.Error())
	_ = fmt.Sprint(err.Error())
	_ = strings.TrimSpace(err.Error())
	l.Error("x")
}
`
	var lines []string
	for _, at := range textsIn(t, "p.go", []byte(source)) {
		lines = append(lines, at.String())
	}
	if want := []string{"p.go:4:23", "p.go:5:8", "p.go:6:6", "p.go:8:29", "p.go:10:9", "p.go:12:26"}; !slices.Equal(lines, want) {
		t.Errorf("found %q, want %q", lines, want)
	}
}

// textsIn returns where a file decides by the text of an error.
func textsIn(t *testing.T, path string, source []byte) (found []token.Position) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	excused := map[int]bool{}
	for _, c := range file.Comments {
		if strings.Contains(c.Text(), "as text: ") {
			excused[set.Position(c.End()).Line] = true
		}
	}
	check := func(all ...ast.Expr) {
		for _, e := range all {
			if at := set.Position(e.Pos()); isText(e) && !excused[at.Line] {
				found = append(found, at)
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if n.Op == token.EQL || n.Op == token.NEQ {
				check(n.X, n.Y)
			}
		case *ast.IndexExpr:
			check(n.Index)
		case *ast.SwitchStmt:
			if n.Tag != nil {
				check(n.Tag)
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok {
				x, _ := f.X.(*ast.Ident)
				if x != nil && x.Name == "strings" && deciding.MatchString(f.Sel.Name) || strings.HasPrefix(f.Sel.Name, "Match") {
					check(n.Args...)
				}
			}
		}
		return true
	})
	return found
}

// deciding are functions of package strings that look for something in a text, other than those that lay it out.
var deciding = regexp.MustCompile(`^(Contains|Count|Cut|EqualFold|Has|Index|Split|Trim(Prefix|Suffix))`)

// isText reports whether an expression is a call of a method Error without arguments.
func isText(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok || len(call.Args) > 0 {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	return ok && f.Sel.Name == "Error"
}
