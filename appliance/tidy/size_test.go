package tidy

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
)

// The limits of the house. They are not raised: what outgrows them is split by what it holds.
const (
	maxFunctionLines    = 70
	maxFileLines        = 500
	maxInterfaceMethods = 7
)

func checkSizes(t *tree) []finding {
	var out []finding
	generated := map[string]bool{}
	for _, f := range t.code {
		generated[f.path] = f.generated
		if f.generated {
			continue
		}
		for _, decl := range f.syntax.Decls {
			out = append(out, longFunctions(t, decl)...)
		}
	}
	for _, name := range t.all {
		if !isSource(name) || generated[name] {
			continue
		}
		if n := bytes.Count(t.text[name], []byte("\n")); n > maxFileLines {
			out = append(out, finding{name, fmt.Sprintf("%d lines in a file; at most %d", n, maxFileLines)})
		}
	}
	return out
}

// longFunctions looks at a declared function and at function literals outside of any function.
// A literal inside a function counts as lines of that function.
func longFunctions(t *tree, decl ast.Decl) []finding {
	var out []finding
	ast.Inspect(decl, func(n ast.Node) bool {
		name := "function literal"
		switch f := n.(type) {
		case *ast.FuncDecl:
			name = f.Name.Name
		case *ast.FuncLit:
		default:
			return true
		}
		if lines := t.lines(n); lines > maxFunctionLines {
			out = append(out, finding{t.at(n.Pos()), fmt.Sprintf("%s has %d lines; at most %d", name, lines, maxFunctionLines)})
		}
		return false
	})
	return out
}

func checkInterfaces(t *tree) []finding {
	var out []finding
	for _, f := range t.code {
		if f.generated {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			i, ok := n.(*ast.InterfaceType)
			if !ok {
				return true
			}
			methods := 0
			for _, field := range i.Methods.List {
				if _, ok := field.Type.(*ast.FuncType); ok {
					methods += len(field.Names)
				}
			}
			if methods > maxInterfaceMethods {
				out = append(out, finding{t.at(i.Pos()),
					fmt.Sprintf("%d methods in an interface; at most %d", methods, maxInterfaceMethods)})
			}
			return true
		})
	}
	return out
}

func checkGofmt(t *tree) []finding {
	var out []finding
	for _, f := range t.code {
		if f.generated {
			continue
		}
		formatted, err := format.Source(f.source)
		if err != nil {
			out = append(out, finding{f.path, err.Error()})
		} else if !bytes.Equal(formatted, f.source) {
			out = append(out, finding{f.path, "not as gofmt writes it"})
		}
	}
	return out
}
