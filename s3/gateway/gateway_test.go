package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/s3/sigv4"
	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/store/memstore"
)

var update = flag.Bool("update", false, "write the golden files anew")

const testRegion = "us-east-1"

// site is a gateway behind a real HTTP server, over a memstore unless another store is given.
type site struct {
	t      testing.TB
	server *httptest.Server
	signer sigv4.Signer

	mu     sync.Mutex
	events []Event
}

// Observe implements Observer.
func (s *site) Observe(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

func newSite(t testing.TB, change func(*Config)) *site {
	t.Helper()
	s := &site{t: t, signer: sigv4.Signer{
		Credential: sigv4.Credential{AccessKey: "AKTEST", SecretKey: "secret"}, Region: testRegion,
	}}
	c := Config{
		Store: memstore.New(), Accounts: OneAccount{ID: "owner-id", DisplayName: "owner"},
		Verifier: &sigv4.Verifier{Region: testRegion, Lookup: func(_ context.Context, key string) (sigv4.Credential, error) {
			if key != s.signer.Credential.AccessKey {
				return sigv4.Credential{}, sigv4.ErrUnknownKey
			}
			return s.signer.Credential, nil
		}},
		Region: testRegion, HostID: "host-id", Observer: s, Limits: Limits{Stall: 10 * time.Second},
	}
	if change != nil {
		change(&c)
	}
	s.server = httptest.NewServer(New(c))
	s.server.Client().Transport.(*http.Transport).DisableCompression = true
	t.Cleanup(s.server.Close)
	return s
}

// request makes a signed request. Headers are lines of name: value.
func (s *site) request(method, target, body string, headers ...string) *http.Request {
	s.t.Helper()
	r, err := http.NewRequest(method, s.server.URL+target, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if body == "" {
		r.Body = http.NoBody
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	digest := sha256.Sum256([]byte(body))
	if _, err := s.signer.Sign(r, hex.EncodeToString(digest[:]), time.Now()); err != nil {
		s.t.Fatal(err)
	}
	return r
}

// answer is a response with its body read.
type answer struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

// code is the error code in the body.
func (a answer) code() string {
	_, rest, _ := strings.Cut(a.body, "<Code>")
	code, _, _ := strings.Cut(rest, "</Code>")
	return code
}

func (s *site) send(r *http.Request) answer {
	s.t.Helper()
	resp, err := s.server.Client().Do(r)
	if err != nil {
		s.t.Fatalf("%s %s: %v", r.Method, r.URL.Path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body), err}
}

func (s *site) do(method, target, body string, headers ...string) answer {
	s.t.Helper()
	return s.send(s.request(method, target, body, headers...))
}

// must sends a request that has to succeed.
func (s *site) must(method, target, body string, headers ...string) answer {
	s.t.Helper()
	a := s.do(method, target, body, headers...)
	if a.status >= 300 {
		s.t.Fatalf("%s %.80s = %d %s", method, target, a.status, a.body)
	}
	return a
}

// want sends a request and checks its status and error code.
func (s *site) want(status int, code, method, target, body string, headers ...string) answer {
	s.t.Helper()
	a := s.do(method, target, body, headers...)
	if a.status != status || a.code() != code {
		s.t.Errorf("%s %.80s %.200q = %d %q; want %d %q\n%s",
			method, target, headers, a.status, a.code(), status, code, a.body)
	}
	return a
}

// step is one request of a script: method and target, headers, and a body after an empty line.
type step string

func (s step) parts() (method, target, body string, headers []string) {
	head, body, _ := strings.Cut(string(s), "\n\n")
	lines := strings.Split(head, "\n")
	method, target, _ = strings.Cut(lines[0], " ")
	return method, target, body, lines[1:]
}

// run sends the steps of a script, and compares the transcript with a golden file.
func (s *site) run(name string, steps ...step) {
	s.t.Helper()
	var out strings.Builder
	for _, st := range steps {
		method, target, body, headers := st.parts()
		a := s.do(method, target, body, headers...)
		if a.err != nil {
			s.t.Errorf("%s %s: %v", method, target, a.err)
		}
		fmt.Fprintf(&out, "> %.400s\n", strings.ReplaceAll(string(st), "\n", "\n> "))
		fmt.Fprintf(&out, "%d\n", a.status)
		var names []string
		for h := range a.header {
			switch h {
			case "Date", "X-Amz-Request-Id", "X-Amz-Id-2", "Server":
			default:
				names = append(names, h)
			}
		}
		slices.Sort(names)
		for _, h := range names {
			fmt.Fprintf(&out, "%s: %s\n", h, strings.Join(a.header[h], ", "))
		}
		fmt.Fprintf(&out, "%s\n\n", strings.ReplaceAll(a.body, "><", ">\n<"))
		if a.header.Get("X-Amz-Request-Id") == "" {
			s.t.Errorf("%s %s: no request ID", method, target)
		}
	}
	golden(s.t, name, s.normal(out.String()))
}

// normal replaces what differs from run to run.
func (s *site) normal(text string) string {
	for _, r := range []struct{ pattern, with string }{
		{`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z`, "TIME"},
		{`[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT`, "DATE"},
		{`<RequestId>[0-9A-F]{16}</RequestId>`, "<RequestId>ID</RequestId>"},
		{regexp.QuoteMeta(s.server.URL), "http://SERVER"},
		{`(Content-Length: )\d+(\nContent-Type: application/xml)`, "${1}N$2"},
	} {
		text = regexp.MustCompile(r.pattern).ReplaceAllString(text, r.with)
	}
	return text
}

func golden(t testing.TB, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s differs (-want +got):\n%s", file, d)
	}
}

// failingStore fails Open's reader after some bytes, and every call with an error if it is set.
type failingStore struct {
	store.Store
	after int64 // bytes that WriteRange gives before it fails; -1: never
	err   error
}

func (f *failingStore) Open(ctx context.Context, bucket, key string) (store.Reader, error) {
	r, err := f.Store.Open(ctx, bucket, key)
	if err != nil || f.after < 0 {
		return r, err
	}
	return failingReader{r, f}, nil
}

func (f *failingStore) Put(ctx context.Context, r store.PutRequest) (store.Object, error) {
	if f.err != nil {
		return store.Object{}, f.err
	}
	return f.Store.Put(ctx, r)
}

type failingReader struct {
	store.Reader
	f *failingStore
}

func (r failingReader) WriteRange(ctx context.Context, w io.Writer, off, n int64) error {
	if err := r.Reader.WriteRange(ctx, w, off, min(n, r.f.after)); err != nil {
		return err
	}
	return fmt.Errorf("read: %w", store.ErrDamaged)
}

func pattern(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return string(b)
}

func equalBytes(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		i := 0
		for i < min(len(got), len(want)) && got[i] == want[i] {
			i++
		}
		t.Errorf("%s: %d bytes, which differ from byte %d on; want %d bytes", what, len(got), i, len(want))
	}
}

// TestUnsetHasAnswers checks that every operation which answerUnset serves is in its table.
func TestUnsetHasAnswers(t *testing.T) {
	for op, u := range unsetConfigurations {
		if handlers[op] == nil || u.root == "" && (u.code == "" || u.message == "") {
			t.Errorf("%v: %+v", op, u)
		}
	}
	s := newSite(t, nil)
	s.must("PUT", "/bucket", "")
	s.must("PUT", "/bucket/key", "")
	for _, target := range []string{"/bucket/key?retention", "/bucket/key?legal-hold"} {
		s.want(400, "InvalidRequest", "GET", target, "")
		s.want(400, "InvalidRequest", "PUT", target, "<x/>")
	}
	s.want(409, "InvalidBucketState", "PUT", "/bucket?object-lock", "<x/>")
	if a := s.must("GET", "/bucket?policyStatus", ""); !strings.Contains(a.body, "<IsPublic>false</IsPublic>") {
		t.Errorf("policyStatus = %s", a.body)
	}
}
