package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"net/http/httptest"

	"github.com/millrace/millrace/s3/gateway"
	"github.com/millrace/millrace/s3/sigv4"
	"github.com/millrace/millrace/s3/store/memstore"
	"github.com/millrace/millrace/s3/wire"
)

// asCommand makes the test's own binary the command: tests start it again to have a process.
const asCommand = "MILLRACE_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// account is the one account of the test's endpoint.
type account struct{ credential sigv4.Credential }

func (a account) Principal(context.Context, string) (gateway.Principal, error) {
	return gateway.Principal{Account: a.Account(""), Root: true}, nil
}

func (a account) Account(string) wire.Account { return wire.Account{ID: "id", DisplayName: "root"} }

// endpoint serves an S3 endpoint in memory and returns its URL.
func endpoint(t *testing.T) string {
	t.Helper()
	a := account{sigv4.Credential{AccessKey: "ak", SecretKey: "secret-key"}}
	server := httptest.NewServer(gateway.New(gateway.Config{
		Store: memstore.New(), Accounts: a, Region: "us-east-1",
		Verifier: &sigv4.Verifier{Region: "us-east-1", Lookup: func(context.Context, string) (sigv4.Credential, error) {
			return a.credential, nil
		}},
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// millrace runs commands in this process.
type millrace struct {
	t        *testing.T
	env      map[string]string
	stdin    io.Reader
	terminal bool
}

func newMillrace(t *testing.T, url string) *millrace {
	return &millrace{t: t, env: map[string]string{
		"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "ak", "AWS_SECRET_ACCESS_KEY": "secret-key"}}
}

// run runs one command, and returns what it printed and its exit code.
func (m *millrace) run(args ...string) (stdout, stderr string, code int) {
	m.t.Helper()
	var out, err bytes.Buffer
	stdin := m.stdin
	if stdin == nil {
		stdin = strings.NewReader("")
	}
	code = run(context.Background(), &environment{args: args, stdin: stdin, stdout: &out, stderr: &err,
		getenv: func(name string) string { return m.env[name] }, terminal: m.terminal})
	return out.String(), err.String(), code
}

// ok runs a command that must succeed, and returns its standard output.
func (m *millrace) ok(args ...string) string {
	m.t.Helper()
	stdout, stderr, code := m.run(args...)
	if code != exitOK {
		m.t.Fatalf("millrace %q: exit %d: %s", args, code, stderr)
	}
	return stdout
}

// exitCase is a command line and how it ends.
type exitCase struct {
	args string
	code int
	text string // in stdout or stderr
}

func exitCases() []exitCase {
	return []exitCase{
		{"", 2, "Usage:"},
		{"help", 0, "serve"},
		{"--help", 0, "bench"},
		{"help get", 0, "millrace get s3://"},
		{"help mow", 2, "unknown command"},
		{"mow", 2, "unknown command"},
		{"version", 0, "millrace unknown"},
		{"--version", 0, "millrace unknown"},
		{"version --json", 0, `{"version":"unknown"}`},
		{"version x", 2, "unexpected argument"},
		{"get", 2, "want s3://BUCKET/KEY"},
		{"get --wrong", 2, "unknown flag"},
		{"get bucket/key", 2, "want s3://BUCKET/KEY"},
		{"get s3://bucket", 2, "no key"},
		{"get s3://bucket/a/", 2, "does not end in a file's name"},
		{"get s3://bucket/..", 2, "does not end in a file's name"},
		{"get s3://bucket/none -", 1, "NoSuchKey"},
		{"get s3://bucket/none /tmp/none", 1, "NotFound"},
		{"get s3://bucket/k - --json", 2, "exclude each other"},
		{"get s3://bucket/k --parallel 0", 2, "--parallel"},
		{"get s3://bucket/k --part-size 1KiB", 2, "--part-size"},
		{"get s3://bucket/k - --rdma require", 1, "NoSuchKey"},
		{"get s3://bucket/k --rdma perhaps", 2, "want auto, require or off"},
		{"get s3://bucket/k --endpoint h:1", 2, "endpoint"},
		{"get s3://bucket/k --credentials /none", 1, "no such file"},
		{"put /none s3://bucket/k", 1, "no such file"},
		{"put /tmp s3://bucket/k", 1, "is a folder"},
		{"put - s3://bucket/", 2, "whole key"},
		{"put x", 2, "want FILE"},
		{"ls s3://none", 1, "NoSuchBucket"},
		{"ls a b", 2, "unexpected argument"},
		{"rm s3://bucket", 2, "no key"},
		{"rm", 2, "want s3://"},
		{"rb s3://none", 1, "NoSuchBucket"},
		{"mb s3://bucket/key", 2, "want a bucket"},
		{"mb", 2, "want one"},
		{"bench", 2, "want one of"},
		{"bench mow", 2, "want get, put, head or list"},
		{"bench get --sizes 1X", 2, "--sizes"},
		{"bench get --mgmt https://h --server-pid 1", 2, "exclude each other"},
		{"pool", 2, "want status or scrub"},
		{"pool mow", 2, "want status or scrub"},
		{"pool status a b", 2, "unexpected argument"},
		{"pool status /none", 1, "mgmt-cert.pem"},
		{"pool status --mgmt http://h", 2, "want https"},
		{"drive", 2, "want list"},
		{"drive list --credentials /none", 1, "no such file"},
		{"fsck", 2, "want DIR or --drive"},
		{"fsck a b", 2, "unexpected argument"},
		{"fsck a --drive b", 2, "exclude each other"},
		{"fsck /none", 2, "no drives in it"},
		{"fsck --drive /none", 1, "NOT sound"},
		{"fsck --drive /none --json", 1, `"kind":"pool"`},
		{"dump", 2, "want DIR or --drive"},
		{"dump --drive /none", 0, "not readable"},
		{"dump --drive /none --kind mow", 2, "no kind"},
		{"dump --drive /none --key k", 2, "without its bucket"},
		{"serve", 2, "no drives"},
		{"serve x", 2, "unexpected argument"},
		{"serve --drive d", 2, "--state-dir"},
		{"serve --dir d --config /none.toml", 2, "read configuration"},
	}
}

func TestExitCodes(t *testing.T) {
	m := newMillrace(t, endpoint(t))
	m.ok("mb", "s3://bucket")
	for _, test := range exitCases() {
		stdout, stderr, code := m.run(strings.Fields(test.args)...)
		if code != test.code || !strings.Contains(stdout+stderr, test.text) {
			t.Errorf("millrace %s: exit %d, %q %q; want exit %d and %q", test.args, code, stdout, stderr, test.code, test.text)
		}
	}
	m.env = nil
	if _, stderr, code := m.run("ls"); code != exitUsage || !strings.Contains(stderr, "no access key") {
		t.Errorf("millrace ls without a key: exit %d, %q; want 2", code, stderr)
	}
}

func TestHelpOfEachCommand(t *testing.T) {
	m := newMillrace(t, "")
	for _, c := range commands() {
		text := m.ok(c.name, "--help")
		for _, want := range []string{"millrace " + c.name + ": " + c.summary, "Usage:", "Examples:"} {
			if !strings.Contains(text, want) {
				t.Errorf("millrace %s --help has no %q:\n%s", c.name, want, text)
			}
		}
	}
}
