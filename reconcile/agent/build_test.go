package agent

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestDeclared holds that nothing is used before it exists, and that each part runs or is used by one that does.
func TestDeclared(t *testing.T) {
	parts, err := graph(declared())
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, p := range slices.Backward(parts) {
		if !p.Runs && !used[p.Name] {
			t.Errorf("part %q does nothing, and no later part uses it", p.Name)
		}
		for _, name := range slices.Concat(p.Reads, p.Writes) {
			used[name] = true
		}
	}
	if _, err := graph(slices.Insert(declared(), 0, declaration{"early", func(*driftLoop) *early { return nil }})); err == nil || !strings.Contains(err.Error(), `part "early" needs *agent.driftLoop, which no earlier part is`) {
		t.Errorf("a part before what it needs: error %v", err)
	}
	twice := append(declared(), declaration{"drift loop, too", func() *driftLoop { return nil }})
	if _, err := graph(twice); err == nil || !strings.Contains(err.Error(), `part "drift loop, too" is declared twice`) {
		t.Errorf("two parts of a type: error %v", err)
	}
}

// TestNothingIsSetAfterwards holds that no function is set on a part that is built: what it calls is given when it is built.
func TestNothingIsSetAfterwards(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	files = slices.DeleteFunc(files, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
	for _, name := range files {
		file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch f := n.(type) {
			case *ast.FuncDecl:
				noneSet(t, set, f.Type, f.Body)
			case *ast.FuncLit:
				noneSet(t, set, f.Type, f.Body)
			}
			return true
		})
	}
}

// noneSet fails the test for each function that the body of another one assigns to a field of a parameter.
func noneSet(t *testing.T, set *token.FileSet, of *ast.FuncType, body *ast.BlockStmt) {
	t.Helper()
	parameters := map[string]bool{}
	for _, p := range of.Params.List {
		for _, name := range p.Names {
			parameters[name.Name] = true
		}
	}
	ast.Inspect(body, func(n ast.Node) bool {
		a, ok := n.(*ast.AssignStmt)
		if !ok {
			return true
		}
		root := a.Lhs[0]
		for {
			field, ok := root.(*ast.SelectorExpr)
			if !ok {
				break
			}
			root = field.X
		}
		_, isFunction := a.Rhs[0].(*ast.FuncLit)
		if part, ok := root.(*ast.Ident); ok && root != a.Lhs[0] && isFunction && parameters[part.Name] {
			t.Errorf("%s: a function is set on %s, which was built before", set.Position(a.Pos()), part.Name)
		}
		return true
	})
}

// log is data of test parts: what was done.
type log struct{ did []string }

// early, late and broken are test parts.
type (
	early  struct{ *log }
	late   struct{ *log }
	broken struct{}
)

func (e *early) Close() error { e.did = append(e.did, "close early"); return nil }

func (e *early) Run(context.Context) { e.did = append(e.did, "run early") }

func (l *late) Close() { l.did = append(l.did, "close late") }

func (*late) Run(context.Context) error { return errors.New("cannot run") }

// TestBuild holds that parts are given what is declared before them, run if they can, and are closed in the
// opposite order, also if a later one cannot be built; and that a part may be absent.
func TestBuild(t *testing.T) {
	all := []declaration{
		{"log", func() *log { return &log{} }},
		{"early", func(l writes[*log]) *early { return &early{l.to} }},
		{"late", func(l writes[*log], e *early) *late {
			if e == nil {
				return nil
			}
			return &late{l.to}
		}},
	}
	parts, err := build(append(all, declaration{"broken", func(l *late) (*broken, error) { return nil, errors.New("cannot open") }}))
	if err == nil || err.Error() != "cannot open" || len(parts) != 3 {
		t.Fatalf("%d parts, error %v", len(parts), err)
	}
	the[*early](parts).did = nil
	if parts[0].work() != nil {
		t.Error("data runs")
	}
	if err := parts[1].work()(t.Context()); err != nil {
		t.Errorf("error %v", err)
	}
	if err := parts[2].work()(t.Context()); err == nil || err.Error() != "cannot run" {
		t.Errorf("error %v", err)
	}
	if err := closeAll(parts); err != nil {
		t.Error(err)
	}
	if did := the[*log](parts).did; !slices.Equal(did, []string{"run early", "close late", "close early"}) {
		t.Errorf("did %q", did)
	}

	all[1] = declaration{"early", func() *early { return nil }}
	parts, err = build(all)
	if err != nil {
		t.Fatal(err)
	}
	if the[*late](parts) != nil || parts[1].work() != nil || parts[2].work() != nil || closeAll(parts) != nil {
		t.Error("parts that are absent run, or are closed")
	}
}
