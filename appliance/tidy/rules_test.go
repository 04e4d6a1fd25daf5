package tidy

import (
	"fmt"
	"strings"
	"testing"
)

// TestRulesBite shows each rule something that breaks it, and something beside it that does not.
func TestRulesBite(t *testing.T) {
	for _, tc := range bites() {
		t.Run(tc.rule+"/"+tc.name, func(t *testing.T) {
			tr := newTree()
			for name, text := range tc.files {
				if err := tr.add(name, []byte(text)); err != nil {
					t.Fatal(err)
				}
			}
			var got []string
			for _, r := range rules() {
				if r.name == tc.rule {
					for _, f := range r.check(tr) {
						got = append(got, f.String())
					}
				}
			}
			joined := strings.Join(got, "\n")
			if tc.want == "" && joined != "" || !strings.Contains(joined, tc.want) {
				t.Errorf("%s = %q; want a finding with %q", tc.rule, joined, tc.want)
			}
		})
	}
}

type bite struct {
	rule  string
	name  string
	files map[string]string
	want  string // part of a finding; empty: no finding
}

func bites() []bite {
	file := func(name, text string) map[string]string { return map[string]string{name: text} }
	return append(codeBites(file), []bite{
		{"layering", "upward", file("nvme/a/a.go", `package a; import _ "`+modulePath+`/s3/wire"`), "nvme may not import s3"},
		{"layering", "own room", file("nvme/a/a.go", `package a; import _ "`+modulePath+`/nvme/b"`), ""},
		{"layering", "image", file("appliance/a/a.go", `package a; import _ "`+modulePath+`/image"`), "may not import image"},
		{"folders", "unknown", file("internal/a.go", "package a"), "unknown top-level folder internal"},
		{"folders", "code in docs", file("docs/a.py", ""), "code outside the rooms"},
		{"package names", "folder", file("nvme/util/a.go", "package a"), "not util"},
		{"package names", "package", file("nvme/a/a.go", "package helpers"), "not helpers"},
		{"test imports", "library", file("s3/a/a_test.go", `package a; import _ "example.com/testify"`), "library of its own"},
		{"test imports", "linked module", map[string]string{
			"go.mod":          "module m\n\nrequire example.com/kv/v2 v2.0.0\n",
			"s3/a/a.go":       `package a; import _ "example.com/kv/v2/db"`,
			"s3/a/a_test.go":  `package a; import _ "example.com/kv/v2/faults"`,
			"s3/a/b_test.go":  `package a; import _ "github.com/google/go-cmp/cmp"`,
			"s3/a/c_test.go":  `package a; import _ "testing"`,
			"s3/a/ab_test.go": `package a; import _ "` + modulePath + `/s3/wire"`,
		}, ""},
		{"unfinished", "bare", file("a.md", "TO"+"DO later"), "without an issue number"},
		{"unfinished", "numbered", file("a.md", "TO"+"DO(#7) later"), ""},
		{"words", "path", file("a.md", "see /wo"+"rk/main"), "means nothing"},
		{"words", "frame", file("a.md", "frame"+"wo"+"rk/main and SigV4 session token"), ""},
		{"make targets", "bare", file("Makefile", "all: build ## everything\nbuild:\n\tgo build\nX := 1\n"), "target build has no help"},
		{"readme commands", "gone", map[string]string{"Makefile": "test: ## t\n", "README.md": "    make tset\n"}, "make tset"},
		{"links", "dead", file("docs/a.md", "see [b](b.md#part)"), "docs/b.md"},
		{"links", "alive", map[string]string{"docs/a.md": "[up](../README.md) [all](d/)", "README.md": "x", "docs/d/e.md": "x"}, ""},
		{"change log", "missing", file("README.md", "x"), "missing"},
	}...)
}

func codeBites(file func(name, text string) map[string]string) []bite {
	long := "package a\nfunc f() {" + strings.Repeat("\n", maxFunctionLines) + "}\n"
	var methods strings.Builder
	for i := range maxInterfaceMethods + 1 {
		fmt.Fprintf(&methods, "m%d(); ", i)
	}
	threeSentences := "// Package a is. It is not. It keeps.\npackage a\n"
	state := func(text string) map[string]string { return file("nvme/a/a.go", "package a\n"+text) }
	return []bite{
		{"sizes", "function", file("nvme/a/a.go", long), "f has 71 lines"},
		{"sizes", "file", file("nvme/a/a.go", "package a\n"+strings.Repeat("\n", maxFileLines)), "501 lines"},
		{"interfaces", "wide", state("type i interface{" + methods.String() + "}"), "8 methods"},
		{"package comments", "none", state(""), "0 package comments"},
		{"package comments", "short", file("nvme/a/a.go", "// Package a is.\npackage a\n"), "1 sentences"},
		{"package comments", "good", file("nvme/a/a.go", threeSentences), ""},
		{"package comments", "two", map[string]string{"nvme/a/a.go": threeSentences, "nvme/a/b.go": threeSentences}, "2 package"},
		{"exported comments", "none", state("func F() {}"), "F has no comment"},
		{"exported comments", "name", state("// G does.\nfunc F() {}"), "does not start"},
		{"exported comments", "prefix", state("// Foo does.\nfunc F() {}"), "does not start"},
		{"exported comments", "method", state("// A T is.\ntype T[K any] struct{}\nfunc (t *T[K]) M() {}"), "M has no comment"},
		{"no init", "init", state("func init() {}"), "init function"},
		{"no mutable state", "map", state("var m = make(map[int]int)"), "m is state"},
		{"no mutable state", "bare", state("import \"sync\"\nvar mu sync.Mutex"), "mu is state"},
		{"no mutable state", "pointer", state("var p = &struct{}{}"), "p is state"},
		{"no mutable state", "own table", state("var p = newTable(7)"), ""},
		{"no mutable state", "own state", state("var p = newCache()"), "p is state"},
		{"no mutable state", "sentinel", state("import \"errors\"\nvar ErrX = errors.New(\"x\")"), ""},
		{"no mutable state", "table", state("var t = [2]int{1, 2}\nfunc f(t []int) { t[0] = 1 }"), ""},
		{"no mutable state", "assigned", state("var t = [2]int{1, 2}\nfunc f() { t[0] = 1 }"), "t is changed"},
		{"no mutable state", "elsewhere", state("import \"os\"\nfunc f() { os.Args = nil }"), "os.Args of another package"},
		{"no mutable state", "version", state("var version string"), ""},
		{"gofmt", "spaces", state("func  f() {}"), "not as gofmt"},
	}
}
