package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/s3/client"
)

func TestSame(t *testing.T) {
	write := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	long := strings.Repeat("x", 3<<20)
	for _, tc := range []struct {
		a, b string
		same bool
	}{{"", "", true}, {"a", "a", true}, {"a", "b", false}, {"a", "ab", false}, {long, long, true}, {long, long + "x", false},
		{long + "a", long + "b", false}} {
		if err := same(write("a", tc.a), write("b", tc.b)); (err == nil) != tc.same {
			t.Errorf("same of %d and %d bytes = %v; want %v", len(tc.a), len(tc.b), err, tc.same)
		}
	}
}

func TestFitting(t *testing.T) {
	n, err := fitting(t.TempDir(), 40<<20)
	if err != nil || n > 40<<20 || n%int64(config.MiB) != 0 {
		t.Errorf("fitting(40 MiB) = %d, %v", n, err)
	}
}

func TestCheck(t *testing.T) {
	byRDMA := client.Transfer{Transport: "rdma", Provider: "soft", RDMABytes: 10}
	for _, tc := range []struct {
		mode string
		t    transfer
		ok   bool
	}{
		{"require", transfer{Verified: true, Transfer: byRDMA, counted: 10}, true},
		{"require", transfer{Verified: true, Transfer: byRDMA, counted: 11}, false},
		{"require", transfer{Transfer: byRDMA, counted: 10}, false},
		{"require", transfer{Verified: true, Transfer: client.Transfer{Transport: "http"}}, false},
		{"off", transfer{Verified: true, Transfer: client.Transfer{Transport: "http"}}, true},
		{"off", transfer{Verified: true, Transfer: client.Transfer{Transport: "http"}, counted: 10}, false},
	} {
		if err := tc.t.check(tc.mode, 10); (err == nil) != tc.ok {
			t.Errorf("check(%s) of %+v = %v; want success %v", tc.mode, tc.t, err, tc.ok)
		}
	}
	var out bytes.Buffer
	table := newTable(&out)
	table.row("get", transfer{Transfer: byRDMA, counted: 10})
	table.flush()
	if !strings.Contains(out.String(), "rdma (soft)") || !strings.Contains(out.String(), "not verified") {
		t.Errorf("table:\n%s", &out)
	}
}
