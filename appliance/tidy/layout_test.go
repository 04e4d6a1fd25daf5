package tidy

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// room says what the packages below one top-level folder may import of the repository.
// Every room may import itself. No room imports image: it is a build tool.
type room struct {
	name      string
	mayImport []string
}

func rooms() []room {
	return []room{
		{name: "bsp"},
		{name: "nvme"},
		{name: "verbs"},
		{name: "mgmt"},
		{name: "image"},
		{name: "s3", mayImport: []string{"verbs"}},
		{name: "appliance", mayImport: []string{"bsp", "nvme", "verbs", "s3", "mgmt"}},
	}
}

// topFiles and topFolders are all that may lie at the root, beside the rooms.
func topFiles() []string {
	return []string{
		".gitignore", ".gitattributes", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "NOTICE",
		"README.md", "SECURITY.md", "go.mod", "go.sum",
	}
}

func topFolders() []string { return []string{"docs", ".ci"} }

func imports(f *goFile) []string {
	var paths []string
	for _, spec := range f.syntax.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err == nil {
			paths = append(paths, p)
		}
	}
	return paths
}

// top is the first element of a slash-separated path.
func top(p string) string {
	first, _, _ := strings.Cut(p, "/")
	return first
}

func ours(importPath string) (string, bool) {
	if importPath == modulePath {
		return ".", true
	}
	return strings.CutPrefix(importPath, modulePath+"/")
}

func checkLayering(t *tree) []finding {
	may := map[string]map[string]bool{}
	for _, r := range rooms() {
		may[r.name] = map[string]bool{r.name: true}
		for _, other := range r.mayImport {
			may[r.name][other] = true
		}
	}
	var out []finding
	for _, f := range t.code {
		for _, p := range imports(f) {
			local, mine := ours(p)
			from, to := top(f.path), top(local)
			if mine && !may[from][to] {
				out = append(out, finding{f.path, fmt.Sprintf("%s may not import %s (%s)", from, to, p)})
			}
		}
	}
	return out
}

func checkFolders(t *tree) []finding {
	code := map[string]bool{}
	for _, r := range rooms() {
		code[r.name] = true
	}
	known, files := map[string]bool{}, map[string]bool{}
	for _, name := range topFolders() {
		known[name] = true
	}
	for _, name := range topFiles() {
		files[name] = true
	}
	var out []finding
	for _, name := range t.all {
		first := top(name)
		switch {
		case code[first]:
		case first == name && !files[name]:
			out = append(out, finding{name, "unknown file at the root"})
		case first != name && !known[first]:
			out = append(out, finding{name, "unknown top-level folder " + first})
		case isSource(name):
			out = append(out, finding{name, "code outside the rooms"})
		}
	}
	return out
}

// isSource tells a file of program text by the end of its name.
func isSource(name string) bool {
	switch path.Ext(name) {
	case ".go", ".c", ".h", ".s", ".py", ".sh", ".js", ".ts":
		return true
	}
	return false
}

func checkPackageNames(t *tree) []finding {
	banned := map[string]bool{}
	for _, name := range []string{"util", "utils", "common", "helper", "helpers", "pkg", "misc", "shared", "base", "lib"} {
		banned[name] = true
	}
	var out []finding
	seen := map[string]bool{}
	for _, f := range t.code {
		if seen[f.dir()] {
			continue
		}
		seen[f.dir()] = true
		for _, element := range strings.Split(f.dir(), "/") {
			if banned[element] {
				out = append(out, finding{f.dir(), "a folder is named by what it holds, not " + element})
			}
		}
		if name := f.syntax.Name.Name; banned[name] {
			out = append(out, finding{f.path, "a package is named by what it holds, not " + name})
		}
	}
	return out
}

// checkTestImports holds tests to the standard library, go-cmp, and the modules that the code
// itself links. A module of its own (the tests with other people's clients) is free in that.
func checkTestImports(t *tree) []finding {
	required := append(modules(t), "github.com/google/go-cmp")
	linked := map[string]bool{"github.com/google/go-cmp": true}
	for _, f := range t.code {
		if f.test || inNestedModule(t, f.path) {
			continue
		}
		for _, p := range imports(f) {
			linked[moduleOf(p, required)] = true
		}
	}
	var out []finding
	for _, f := range t.code {
		if !f.test || inNestedModule(t, f.path) {
			continue
		}
		for _, p := range imports(f) {
			_, mine := ours(p)
			if !mine && strings.Contains(top(p), ".") && !linked[moduleOf(p, required)] {
				out = append(out, finding{f.path, "a test needs a library of its own: " + p})
			}
		}
	}
	return out
}

var requirement = regexp.MustCompile(`(?m)^(?:require)?[ \t]+(\S+\.\S+/\S+) v\S+`)

// modules are the paths that go.mod requires.
func modules(t *tree) []string {
	var paths []string
	for _, m := range requirement.FindAllSubmatch(t.text["go.mod"], -1) {
		paths = append(paths, string(m[1]))
	}
	return paths
}

// moduleOf is the longest of the modules that holds the package, or the package itself.
func moduleOf(importPath string, modules []string) string {
	best := ""
	for _, m := range modules {
		if (importPath == m || strings.HasPrefix(importPath, m+"/")) && len(m) > len(best) {
			best = m
		}
	}
	return cmp.Or(best, importPath)
}

// inNestedModule says whether the file belongs to a go.mod below the root.
func inNestedModule(t *tree, name string) bool {
	for d := path.Dir(name); d != "."; d = path.Dir(d) {
		if _, ok := t.text[d+"/go.mod"]; ok {
			return true
		}
	}
	return false
}
