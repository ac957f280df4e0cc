package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// writers are the packages whose sentences are conditions, Events and statuses.
var writers = []string{
	"inventory/publish", "reconcile/pod/claimstatus", "reconcile/pod/failures", "qos/controller", "topology/controller", "topology/exposure",
}

// noteCalls are the names of functions whose texts are notes of a plan, of validate and of the webhook.
var noteCalls = []string{"Note", "noteFor", "note", "warn", "Warn"}

// TestMessages holds all texts of conditions, Events and notes in one file, so that a change of words is seen in one diff.
func TestMessages(t *testing.T) {
	const golden = "testdata/messages.golden"
	var out strings.Builder
	for _, dir := range []string{"cmd", "inventory", "ops", "qos", "reconcile", "topology"} {
		err := filepath.WalkDir(filepath.Join("..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(d.Name(), "zz_") {
				return err
			}
			name := strings.TrimPrefix(filepath.ToSlash(path), "../")
			texts, err := messagesOf(path, slices.Contains(writers, filepath.ToSlash(filepath.Dir(name))))
			if len(texts) > 0 {
				fmt.Fprintf(&out, "\n%s\n", name)
			}
			for _, text := range texts {
				fmt.Fprintf(&out, "\t%s\n", text)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	generates(t, golden, out.String())
}

// messagesOf returns the sentences of a file: all of them, or those of notes.
func messagesOf(path string, all bool) ([]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var texts []string
	collect := func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field: // its tag
			return false
		case *ast.BinaryExpr:
			joinText(n)
		case *ast.BasicLit:
			text, err := strconv.Unquote(n.Value)
			if err == nil && n.Kind == token.STRING && strings.Count(text, " ") > 1 && !strings.Contains(text, "%w") {
				texts = append(texts, strings.ReplaceAll(text, "\n", "\n\t"))
			}
		}
		return true
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && !all && slices.Contains(noteCalls, nameOf(call.Fun)) {
			for _, arg := range call.Args {
				ast.Inspect(arg, collect)
			}
			return false
		}
		return true
	})
	if all {
		ast.Inspect(file, collect)
	}
	return texts, nil
}

// joinText moves all of a text that is written on several lines into the first of its literals.
func joinText(e ast.Expr) (last *ast.BasicLit) {
	switch e := e.(type) {
	case *ast.BasicLit:
		return e
	case *ast.BinaryExpr:
		x, y := joinText(e.X), joinText(e.Y)
		if x == nil || y != e.Y {
			return y
		}
		head, first := strconv.Unquote(x.Value)
		tail, second := strconv.Unquote(y.Value)
		if first != nil || second != nil {
			return y
		}
		x.Value, y.Value = strconv.Quote(head+tail), `""`
		return x
	}
	return nil
}

// nameOf returns the name of a called function or method, without its package or receiver.
func nameOf(fun ast.Expr) string {
	switch f := fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}
