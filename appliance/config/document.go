package config

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"
)

// WriteMarkdown writes the table of all options: docs/configuration.md is made of it.
func WriteMarkdown(w io.Writer) error {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	defaults := Default()
	bindAll(fs, &defaults)
	var b strings.Builder
	b.WriteString("| option | value | default | meaning |\n|---|---|---|---|\n")
	for _, o := range options {
		flag := fs.Lookup(o.name)
		value, _ := pflag.UnquoteUsage(flag)
		if value == "" {
			value = "true, false"
		}
		initial := o.unset
		if initial == "" && flag.DefValue != "" && flag.DefValue != "[]" {
			initial = "`" + flag.DefValue + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", o.name, value, initial, strings.ReplaceAll(o.doc, "`", ""))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
