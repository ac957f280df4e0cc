// Command architectures type-checks all of our packages, with their tests, for an architecture. It
// compiles nothing: go vet for another architecture would compile all dependencies first, which takes minutes.
//
//	go run ./.ci/architectures arm64          # of the module in this folder
//	go run ./.ci/architectures arm64 FOLDER
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	if len(os.Args) < 2 || len(os.Args) > 3 {
		fmt.Fprintln(os.Stderr, "usage: architectures GOARCH [FOLDER]")
		os.Exit(2)
	}
	folder, err := filepath.Abs(append(os.Args, ".")[2])
	var problems []string
	if err == nil {
		problems, err = check(os.Args[1], folder)
	}
	for _, p := range problems {
		fmt.Println(p)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if err != nil || len(problems) > 0 {
		os.Exit(1)
	}
}

func check(architecture, folder string) (problems []string, err error) {
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedImports | packages.NeedDeps | packages.NeedTypes |
			packages.NeedSyntax | packages.NeedTypesSizes,
		Dir:        folder,
		Env:        append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+architecture),
		BuildFlags: []string{"-tags=cluster,soak"},
		Tests:      true,
		ParseFile: func(set *token.FileSet, name string, source []byte) (*ast.File, error) {
			file, err := parser.ParseFile(set, name, source, parser.SkipObjectResolution)
			if file != nil && !strings.HasPrefix(name, folder+"/") {
				for _, d := range file.Decls { // of dependencies the signatures are enough
					if f, ok := d.(*ast.FuncDecl); ok {
						f.Body = nil
					}
				}
			}
			return file, err
		},
	}, "./...")
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, p := range loaded {
		if strings.HasSuffix(p.ID, ".test") {
			continue // the main function that go test writes
		}
		for _, e := range p.Errors {
			text := architecture + ": " + e.Error()
			if !seen[text] {
				seen[text] = true
				problems = append(problems, text)
			}
		}
	}
	if len(loaded) == 0 {
		return nil, fmt.Errorf("no packages in %q", folder)
	}
	return problems, nil
}
