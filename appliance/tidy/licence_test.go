package tidy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// licence is how the text of an allowed licence is told.
type licence struct {
	name string
	text *regexp.Regexp
}

func allowedLicences() []licence {
	return []licence{
		{"Apache-2.0", regexp.MustCompile(`Apache License\s+Version 2\.0`)},
		{"MIT", regexp.MustCompile(`Permission is hereby granted, free of charge, to any person`)},
		{"BSD", regexp.MustCompile(`Redistribution and use in source and binary forms, with or without`)},
		{"MPL-2.0", regexp.MustCompile(`Mozilla Public License,? [Vv]ersion 2\.0`)},
	}
}

var refusedLicence = regexp.MustCompile(
	`GNU (AFFERO |LESSER )?GENERAL PUBLIC LICENSE|GNU Affero|Business Source License|Server Side Public|SSPL|Commons Clause`)

// TestLicences reads the licence of every module that is linked into a package of ours.
func TestLicences(t *testing.T) {
	list := exec.Command("go", "list", "-deps", "-f",
		"{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Dir}}{{end}}{{end}}", "./...")
	list.Dir = root(t)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list -deps ./...: %v", err)
	}
	seen := map[string]bool{}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		module, dir, ok := strings.Cut(line, "\t")
		if !ok || seen[module] {
			continue
		}
		seen[module] = true
		if name, err := licenceOf(dir); err != nil {
			t.Errorf("%s: %v", module, err)
		} else {
			t.Logf("%s: %s", module, name)
		}
	}
}

// licenceOf names the licence in a module's folder. Every licence file there must be allowed.
func licenceOf(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var names []string
	for _, e := range entries {
		if !licenceFile.MatchString(e.Name()) || e.IsDir() || filepath.Ext(e.Name()) == ".go" {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return "", err
		}
		name, err := classify(string(content))
		if err != nil {
			return "", fmt.Errorf("%s: %w", e.Name(), err)
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return "", fmt.Errorf("no licence file in %s", dir)
	}
	return strings.Join(names, " and "), nil
}

var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying)([-_.].*)?$`)

func classify(text string) (string, error) {
	if m := refusedLicence.FindString(text); m != "" {
		return "", fmt.Errorf("licence is not allowed: %s", m)
	}
	for _, l := range allowedLicences() {
		if l.text.MatchString(text) {
			return l.name, nil
		}
	}
	return "", fmt.Errorf("licence is not known: %.60q", text)
}
