package tidy

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"sort"
	"strings"
	"testing"
)

// modulePath is the import path of the repository's own packages.
const modulePath = "github.com/millrace/millrace"

// goFile is one parsed Go file. path is relative to the root of the repository.
type goFile struct {
	path      string
	source    []byte
	syntax    *ast.File
	generated bool
	test      bool
}

// dir is the folder of the file, relative to the root.
func (f *goFile) dir() string { return path.Dir(f.path) }

// tree is what the checks look at: every file that git tracks.
type tree struct {
	fset *token.FileSet
	all  []string // every tracked path, sorted
	text map[string][]byte
	code []*goFile
}

// finding is one breach of a rule.
type finding struct {
	where string
	what  string
}

func (f finding) String() string { return f.where + ": " + f.what }

func (t *tree) at(p token.Pos) string {
	pos := t.fset.Position(p)
	return fmt.Sprintf("%s:%d", pos.Filename, pos.Line)
}

// lines is the number of lines from the first to the last line of a node.
func (t *tree) lines(n ast.Node) int {
	return t.fset.Position(n.End()).Line - t.fset.Position(n.Pos()).Line + 1
}

// byDir groups the Go files by folder, in order of the folders' names.
func (t *tree) byDir() [][]*goFile {
	groups := map[string][]*goFile{}
	for _, f := range t.code {
		groups[f.dir()] = append(groups[f.dir()], f)
	}
	var dirs []string
	for d := range groups {
		dirs = append(dirs, d)
	}
	sort.Strings(dirs)
	var out [][]*goFile
	for _, d := range dirs {
		out = append(out, groups[d])
	}
	return out
}

// add puts one file into the tree. Binary files (with a NUL byte) have no text.
func (t *tree) add(name string, content []byte) error {
	t.all = append(t.all, name)
	if bytes.IndexByte(content, 0) >= 0 {
		return nil
	}
	t.text[name] = content
	if path.Ext(name) != ".go" || inTestdata(name) {
		return nil
	}
	syntax, err := parser.ParseFile(t.fset, name, content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return fmt.Errorf("parse %s: %w", name, err)
	}
	t.code = append(t.code, &goFile{
		path: name, source: content, syntax: syntax,
		generated: ast.IsGenerated(syntax),
		test:      strings.HasSuffix(name, "_test.go"),
	})
	return nil
}

func newTree() *tree { return &tree{fset: token.NewFileSet(), text: map[string][]byte{}} }

func inTestdata(name string) bool {
	return strings.HasPrefix(name, "testdata/") || strings.Contains(name, "/testdata/")
}

// root is the top of the repository, seen from this folder.
func root(t *testing.T) string {
	t.Helper()
	abs, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

var alsoUntracked = flag.Bool("untracked", false, "look also at files that git does not track yet and does not ignore")

// loadTree reads every tracked file. A file that is deleted in the work tree is left out.
func loadTree(t *testing.T) *tree {
	t.Helper()
	top := root(t)
	args := []string{"-C", top, "ls-files", "-z", "--cached"}
	if *alsoUntracked {
		args = append(args, "--others", "--exclude-standard")
	}
	out, err := exec.Command("git", args...).Output()
	if err != nil {
		t.Skipf("git ls-files: %v: not a git checkout", err)
	}
	loaded := newTree()
	for _, name := range strings.Split(strings.TrimRight(string(out), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(top, name))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := loaded.add(name, content); err != nil {
			t.Error(err)
		}
	}
	if len(loaded.all) == 0 {
		t.Fatal("git tracks no files")
	}
	return loaded
}

// TestRepository runs every rule over the repository.
func TestRepository(t *testing.T) {
	tr := loadTree(t)
	for _, r := range rules() {
		t.Run(r.name, func(t *testing.T) {
			for _, f := range r.check(tr) {
				t.Error(f)
			}
		})
	}
}

// rule is one thing that must hold for the whole repository.
type rule struct {
	name  string
	check func(*tree) []finding
}

func rules() []rule {
	return []rule{
		{"layering", checkLayering},
		{"folders", checkFolders},
		{"package names", checkPackageNames},
		{"test imports", checkTestImports},
		{"sizes", checkSizes},
		{"interfaces", checkInterfaces},
		{"package comments", checkPackageComments},
		{"exported comments", checkExportedComments},
		{"no init", checkNoInit},
		{"no mutable state", checkState},
		{"unfinished", checkUnfinished},
		{"words", checkWords},
		{"gofmt", checkGofmt},
		{"change log", checkChangelog},
		{"make targets", checkMakeTargets},
		{"readme commands", checkReadmeCommands},
		{"links", checkLinks},
	}
}
