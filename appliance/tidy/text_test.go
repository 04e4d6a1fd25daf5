package tidy

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"strings"
)

// The words are put together here so that this file does not hold them itself.
var unfinished = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X|HA` + `CK)\b(\(#[0-9]+\))?`)

// machine matches paths and hosts of one machine, and talk about how the text was made: neither
// says anything to a reader of this repository.
var machine = regexp.MustCompile(strings.Join([]string{
	`\.\./sha` + `red`,
	`\.lib` + `rary\b`,
	`(^|[^A-Za-z0-9_.$}-])/wo` + `rk/`,
	`proxy\.gol` + `ang\.org`,
	`deb\.deb` + `ian\.org`,
	`registry\.npm` + `js\.org`,
	`(?i)\b(coding|ai) assi` + `stant\b`,
	`(?i)\bas an assi` + `stant\b`,
	`(?i)\b(this|next|previous|earlier|last) coding ses` + `sion\b`,
	`(?i)\b(in|of) (a|the) (previous|earlier|next) ses` + `sion\b`,
	`(?i)\bsub-?ag` + `ents?\b`,
}, "|"))

func checkUnfinished(t *tree) []finding {
	return eachLine(t, func(line []byte) string {
		for _, m := range unfinished.FindAllSubmatch(line, -1) {
			if len(m[2]) == 0 {
				return fmt.Sprintf("%s without an issue number, as in %s(#12)", m[1], m[1])
			}
		}
		return ""
	})
}

func checkWords(t *tree) []finding {
	return eachLine(t, func(line []byte) string {
		if m := machine.Find(line); m != nil {
			return fmt.Sprintf("%q means nothing outside of one machine", bytes.TrimSpace(m))
		}
		return ""
	})
}

// eachLine runs a check over every line of every text file that people write.
func eachLine(t *tree, check func(line []byte) string) []finding {
	var out []finding
	for _, name := range t.all {
		if inTestdata(name) || strings.HasSuffix(name, ".sum") || strings.HasSuffix(name, "package-lock.json") {
			continue
		}
		for i, line := range bytes.Split(t.text[name], []byte("\n")) {
			if what := check(line); what != "" {
				out = append(out, finding{fmt.Sprintf("%s:%d", name, i+1), what})
			}
		}
	}
	return out
}

func checkChangelog(t *tree) []finding {
	if len(t.text["CHANGELOG.md"]) == 0 {
		return []finding{{"CHANGELOG.md", "missing"}}
	}
	return nil
}

var makeTarget = regexp.MustCompile(`(?m)^([a-zA-Z][a-zA-Z0-9_-]*)[ \t]*:([^=\n].*)?$`)

// checkMakeTargets wants the help of every target that a person can name: text after two hashes.
func checkMakeTargets(t *tree) []finding {
	var out []finding
	targets := makeTarget.FindAllSubmatch(t.text["Makefile"], -1)
	for _, m := range targets {
		if !bytes.Contains(m[2], []byte("## ")) {
			out = append(out, finding{"Makefile", "target " + string(m[1]) + " has no help"})
		}
	}
	if len(targets) == 0 {
		out = append(out, finding{"Makefile", "no targets"})
	}
	return out
}

var makeCommand = regexp.MustCompile(`(?m)^\s*(?:\$ |step )?make ([a-z][a-z0-9-]*)`)

// checkReadmeCommands wants every make command that a document shows to be there.
func checkReadmeCommands(t *tree) []finding {
	known := map[string]bool{}
	for _, m := range makeTarget.FindAllSubmatch(t.text["Makefile"], -1) {
		known[string(m[1])] = true
	}
	var out []finding
	for _, name := range t.all {
		if !strings.HasSuffix(name, ".md") && name != ".ci/run" {
			continue
		}
		for _, m := range makeCommand.FindAllSubmatch(t.text[name], -1) {
			if !known[string(m[1])] {
				out = append(out, finding{name, "make " + string(m[1]) + " is no target"})
			}
		}
	}
	return out
}

var relativeLink = regexp.MustCompile(`\]\(([^)#:\s]+)(?:#[^)\s]*)?\)`)

// checkLinks wants every relative link of a document to lead to a file, or to a folder of files.
func checkLinks(t *tree) []finding {
	there := map[string]bool{}
	for _, name := range t.all {
		for there[name] = true; name != "."; name = path.Dir(name) {
			there[path.Dir(name)] = true
		}
	}
	var out []finding
	for _, name := range t.all {
		if path.Ext(name) != ".md" {
			continue
		}
		for _, m := range relativeLink.FindAllSubmatch(t.text[name], -1) {
			if target := path.Join(path.Dir(name), string(m[1])); !there[target] {
				out = append(out, finding{name, "no such file: " + target})
			}
		}
	}
	return out
}
