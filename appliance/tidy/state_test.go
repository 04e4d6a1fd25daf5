package tidy

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"
)

func checkNoInit(t *tree) []finding {
	var out []finding
	for _, f := range t.code {
		if f.generated {
			continue
		}
		for _, decl := range f.syntax.Decls {
			if d, ok := decl.(*ast.FuncDecl); ok && d.Recv == nil && d.Name.Name == "init" {
				out = append(out, finding{t.at(d.Pos()), "init function: build it where it is used, and hand it down"})
			}
		}
	}
	return out
}

// checkState wants every package variable to be one of: a sentinel error, a table or a compiled
// pattern that nothing assigns to, a flag of a test, an embedded file, or build information that
// the linker sets.
func checkState(t *tree) []finding {
	var out []finding
	for _, files := range t.byDir() {
		byName := map[string][]*goFile{}
		for _, f := range files {
			byName[f.syntax.Name.Name] = append(byName[f.syntax.Name.Name], f)
		}
		for _, pkg := range byName {
			out = append(out, packageState(t, pkg)...)
		}
	}
	return out
}

func packageState(t *tree, files []*goFile) []finding {
	var out []finding
	for _, f := range files {
		if f.generated {
			continue
		}
		for _, decl := range f.syntax.Decls {
			d, ok := decl.(*ast.GenDecl)
			if !ok || d.Tok != token.VAR {
				continue
			}
			for _, spec := range d.Specs {
				out = append(out, variable(t, f, d, spec.(*ast.ValueSpec))...)
			}
		}
	}
	return append(out, assignments(t, files)...)
}

func variable(t *tree, f *goFile, d *ast.GenDecl, s *ast.ValueSpec) []finding {
	var out []finding
	for i, name := range s.Names {
		var value ast.Expr
		if i < len(s.Values) {
			value = s.Values[i]
		}
		switch {
		case name.Name == "_":
		case value == nil && (embedded(d.Doc, s.Doc) || linkerSets(f, name.Name, s.Type)):
		case value != nil && linkerSets(f, name.Name, literalType(value)):
		case value != nil && constant(value, f.test):
		default:
			out = append(out, finding{t.at(name.Pos()), "package variable " + name.Name + " is state: hand it down instead"})
		}
	}
	return out
}

func embedded(docs ...*ast.CommentGroup) bool {
	for _, doc := range docs {
		if doc == nil {
			continue
		}
		for _, line := range doc.List {
			if strings.HasPrefix(line.Text, "//go:embed ") {
				return true
			}
		}
	}
	return false
}

// linkerSets is true for the strings of build information, which -ldflags -X sets.
func linkerSets(f *goFile, name string, typ ast.Expr) bool {
	switch name {
	case "version", "commit", "buildDate":
		id, ok := typ.(*ast.Ident)
		return ok && id.Name == "string" && !f.test
	}
	return false
}

// literalType is the type of a string literal, the one kind of value that linkerSets asks about.
func literalType(value ast.Expr) ast.Expr {
	if lit, ok := value.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		return ast.NewIdent("string")
	}
	return nil
}

// pure are calls whose result is a constant in all but name.
func pure() map[string]bool {
	calls := map[string]bool{}
	for _, name := range []string{
		"errors.New", "regexp.MustCompile", "strings.NewReplacer", "template.Must", "netip.MustParseAddr",
		"netip.MustParsePrefix", "crc32.MakeTable", "crc64.MakeTable", "base64.NewEncoding", "binary.Size",
		"time.Date", "big.NewInt", "len", "string", "byte",
	} {
		calls[name] = true
	}
	return calls
}

// constant tells values that are as good as constants as long as nothing assigns to them.
func constant(value ast.Expr, test bool) bool {
	switch v := value.(type) {
	case *ast.BasicLit, *ast.CompositeLit, *ast.FuncLit:
		return true
	case *ast.ParenExpr:
		return constant(v.X, test)
	case *ast.BinaryExpr:
		return constant(v.X, test) && constant(v.Y, test)
	case *ast.UnaryExpr:
		return v.Op != token.AND && v.Op != token.ARROW && constant(v.X, test)
	case *ast.SelectorExpr, *ast.Ident:
		return true
	case *ast.CallExpr:
		return constantCall(v, test)
	}
	return false
}

func constantCall(call *ast.CallExpr, test bool) bool {
	switch fun := call.Fun.(type) {
	case *ast.FuncLit: // a table that is computed in place
		return len(call.Args) == 0
	case *ast.ArrayType: // []byte("…")
		return true
	case *ast.Ident:
		return pure()[fun.Name] || buildsTable(fun.Name, call.Args)
	case *ast.SelectorExpr:
		name := types.ExprString(fun)
		if name == "fmt.Errorf" {
			return true
		}
		return pure()[name] || test && strings.HasPrefix(name, "flag.")
	}
	return false
}

// buildsTable tells a call of the package's own function that makes a table from constants, such
// as newTable(0x82f63b78). With no constant to start from it would be a thing that changes.
func buildsTable(name string, args []ast.Expr) bool {
	if len(args) == 0 || name == "make" || name == "new" {
		return false
	}
	for _, arg := range args {
		switch arg.(type) {
		case *ast.BasicLit, *ast.CompositeLit, *ast.BinaryExpr, *ast.Ident, *ast.SelectorExpr:
		default:
			return false
		}
	}
	return true
}

// assignments finds everything that changes a package variable after its declaration.
func assignments(t *tree, files []*goFile) []finding {
	var syntax []*ast.File
	for _, f := range files {
		syntax = append(syntax, f.syntax)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: noImporter{}, Error: func(error) {}, DisableUnusedImportCheck: true}
	// Types of other packages are unknown here; only the scopes are wanted, so errors are ignored.
	pkg, _ := conf.Check(files[0].dir(), t.fset, syntax, info)
	w := &watcher{tree: t, info: info, pkg: pkg}
	for _, f := range files {
		if !f.generated {
			ast.Inspect(f.syntax, w.visit)
		}
	}
	return w.found
}

// noImporter knows every package and nothing in it.
type noImporter struct{}

func (noImporter) Import(p string) (*types.Package, error) {
	pkg := types.NewPackage(p, p[strings.LastIndex(p, "/")+1:])
	pkg.MarkComplete()
	return pkg, nil
}

type watcher struct {
	tree  *tree
	info  *types.Info
	pkg   *types.Package
	found []finding
}

func (w *watcher) visit(n ast.Node) bool {
	switch s := n.(type) {
	case *ast.AssignStmt:
		if s.Tok != token.DEFINE {
			for _, left := range s.Lhs {
				w.changed(left)
			}
		}
	case *ast.IncDecStmt:
		w.changed(s.X)
	case *ast.RangeStmt:
		if s.Tok == token.ASSIGN {
			w.changed(s.Key)
			w.changed(s.Value)
		}
	case *ast.UnaryExpr:
		if s.Op == token.AND {
			w.changed(s.X)
		}
	case *ast.CallExpr:
		if id, ok := s.Fun.(*ast.Ident); ok && (id.Name == "delete" || id.Name == "clear") && len(s.Args) > 0 {
			w.changed(s.Args[0])
		}
	}
	return true
}

// changed looks through indexes and fields for the variable that an expression reaches into.
func (w *watcher) changed(e ast.Expr) {
	for {
		switch x := e.(type) {
		case *ast.IndexExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		case *ast.SelectorExpr:
			if id, ok := x.X.(*ast.Ident); ok {
				if _, other := w.info.Uses[id].(*types.PkgName); other {
					w.report(x, "variable "+types.ExprString(x)+" of another package is changed")
					return
				}
			}
			e = x.X
		case *ast.Ident:
			v, ok := w.info.Uses[x].(*types.Var)
			if ok && w.pkg != nil && v.Parent() == w.pkg.Scope() {
				w.report(x, "package variable "+x.Name+" is changed (or its address taken)")
			}
			return
		default:
			return
		}
	}
}

func (w *watcher) report(n ast.Node, what string) {
	w.found = append(w.found, finding{w.tree.at(n.Pos()), what})
}
