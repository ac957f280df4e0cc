package eventually_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/integration/source"
)

// TestSleeps holds that no test sleeps in order to wait: it is slow where the machine is fast, and fails where it is slow. In
// a bubble of testing/synctest a sleep takes no time and ends when all other goroutines wait, so files that have such tests
// may. Any other sleep says in a comment of its line why it does not wait for something.
func TestSleeps(t *testing.T) {
	for path, content := range source.Files(t, "../..") {
		if !source.IsTest(path) {
			continue
		}
		for _, line := range sleeps(t, path, []byte(content)) {
			t.Errorf("%s:%d sleeps: wait with integration/eventually, a channel or in a bubble of testing/synctest, or write why not behind it", path, line)
		}
	}
}

// TestSleepsIn holds that the rule finds what it forbids.
func TestSleepsIn(t *testing.T) {
	const source = `package p

func f() {
	time.Sleep(1)
	time.Sleep(1) // a busy neighbour
	for ; ; time.Sleep(1) {
	}
}
`
	if lines := sleeps(t, "p_test.go", []byte(source)); len(lines) != 2 || lines[0] != 4 || lines[1] != 6 {
		t.Errorf("found lines %d", lines)
	}
	if lines := sleeps(t, "p_test.go", []byte(strings.Replace(source, "func", `import "testing/synctest"; func`, 1))); len(lines) != 0 {
		t.Errorf("found lines %d beside a bubble", lines)
	}
}

// bubble matches files with tests in bubbles.
var bubble = regexp.MustCompile(`"testing/synctest"|\binBubble\(|\bsynctest\.`)

func sleeps(t *testing.T, path string, source []byte) (lines []int) {
	t.Helper()
	if bubble.Match(source) {
		return nil
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	excused := map[int]bool{}
	for _, c := range file.Comments {
		excused[set.Position(c.Pos()).Line] = true
	}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Sleep" {
			of, _ := f.X.(*ast.Ident)
			if line := set.Position(call.Pos()).Line; of != nil && of.Name == "time" && !excused[line] {
				lines = append(lines, line)
			}
		}
		return true
	})
	return lines
}
