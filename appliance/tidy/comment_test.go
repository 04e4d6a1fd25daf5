package tidy

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"strings"
)

const minPackageSentences = 3

var sentenceEnd = regexp.MustCompile(`[.!?]["')]*(\s|$)`)

func checkPackageComments(t *tree) []finding {
	var out []finding
	for _, files := range t.byDir() {
		var comments []*goFile
		code := false
		for _, f := range files {
			if f.test {
				continue
			}
			code = true
			if f.syntax.Doc != nil {
				comments = append(comments, f)
			}
		}
		if !code {
			continue
		}
		if len(comments) != 1 {
			out = append(out, finding{files[0].dir(), fmt.Sprintf("%d package comments; want one", len(comments))})
			continue
		}
		out = append(out, packageComment(comments[0])...)
	}
	return out
}

func packageComment(f *goFile) []finding {
	var out []finding
	text := f.syntax.Doc.Text()
	start := "Package " + f.syntax.Name.Name + " "
	if f.syntax.Name.Name == "main" {
		start = "Command "
	}
	if !strings.HasPrefix(text, start) {
		out = append(out, finding{f.path, fmt.Sprintf("the package comment does not start with %q", start)})
	}
	if n := len(sentenceEnd.FindAllString(text, -1)); n < minPackageSentences {
		out = append(out, finding{f.path, fmt.Sprintf("%d sentences in the package comment; at least %d", n, minPackageSentences)})
	}
	return out
}

func checkExportedComments(t *tree) []finding {
	var out []finding
	for _, f := range t.code {
		if f.test || f.generated {
			continue
		}
		for _, decl := range f.syntax.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && receiverExported(d) {
					out = append(out, wantName(t, d.Name, d.Doc)...)
				}
			case *ast.GenDecl:
				out = append(out, exportedSpecs(t, d)...)
			}
		}
	}
	return out
}

// receiverExported is true for functions, and for methods of exported types.
func receiverExported(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	for expr := d.Recv.List[0].Type; ; {
		switch e := expr.(type) {
		case *ast.StarExpr:
			expr = e.X
		case *ast.IndexExpr:
			expr = e.X
		case *ast.IndexListExpr:
			expr = e.X
		case *ast.Ident:
			return e.IsExported()
		default:
			return true
		}
	}
}

// exportedSpecs checks types, constants and variables. A group of constants or variables may be
// documented as a whole, by a comment above the group; one that stands alone names itself.
func exportedSpecs(t *tree, d *ast.GenDecl) []finding {
	var out []finding
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if !s.Name.IsExported() {
				continue
			}
			doc := s.Doc
			if doc == nil && !d.Lparen.IsValid() {
				doc = d.Doc
			}
			out = append(out, wantName(t, s.Name, doc)...)
		case *ast.ValueSpec:
			out = append(out, exportedValues(t, d, s)...)
		}
	}
	return out
}

func exportedValues(t *tree, d *ast.GenDecl, s *ast.ValueSpec) []finding {
	var out []finding
	for _, name := range s.Names {
		if !name.IsExported() {
			continue
		}
		switch {
		case d.Lparen.IsValid() && (d.Doc != nil || s.Comment != nil):
		case d.Lparen.IsValid():
			out = append(out, wantName(t, name, s.Doc)...)
		default:
			out = append(out, wantName(t, name, d.Doc)...)
		}
	}
	return out
}

// wantName wants a comment that starts with the name, perhaps after an article.
func wantName(t *tree, name *ast.Ident, doc *ast.CommentGroup) []finding {
	if doc == nil || strings.TrimSpace(doc.Text()) == "" {
		return []finding{{t.at(name.Pos()), name.Name + " has no comment"}}
	}
	text := strings.TrimSpace(doc.Text())
	for _, article := range []string{"A ", "An ", "The "} {
		text = strings.TrimPrefix(text, article)
	}
	rest, ok := strings.CutPrefix(text, name.Name)
	if !ok || (rest != "" && token.IsIdentifier(name.Name+rest[:1])) {
		return []finding{{t.at(name.Pos()), "the comment of " + name.Name + " does not start with its name"}}
	}
	return nil
}
