package api

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// shown is a source.
type shown struct{ scrubs int }

func (s *shown) Pool() Pool {
	return Pool{ID: "p", Status: OK, Scheme: "4+2", Drives: map[string]int{"in": 6}, Scrub: Scrub{Shards: 7}}
}
func (s *shown) Drives() []Drive { return []Drive{{Slot: 0, ID: "d", State: "in", SizeBytes: 5}} }
func (s *shown) StartScrub()     { s.scrubs++ }

func serve(t *testing.T, s *shown) *httptest.Server {
	t.Helper()
	server := httptest.NewTLSServer(New(Config{Source: s, User: "ak", Password: "secret"}))
	t.Cleanup(server.Close)
	return server
}

func client(t *testing.T, server *httptest.Server, user, password string) *Client {
	t.Helper()
	c, err := NewClient(server.URL, user, password, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestClient(t *testing.T) {
	s := &shown{}
	c := client(t, serve(t, s), "ak", "secret")
	ctx := context.Background()
	pool, err := c.Pool(ctx)
	if diff := cmp.Diff(s.Pool(), pool); err != nil || diff != "" {
		t.Errorf("Pool() = %v (-want +got):\n%s", err, diff)
	}
	drives, err := c.Drives(ctx)
	if diff := cmp.Diff(s.Drives(), drives); err != nil || diff != "" {
		t.Errorf("Drives() = %v (-want +got):\n%s", err, diff)
	}
	scrub, err := c.StartScrub(ctx)
	if err != nil || scrub.Shards != 7 || s.scrubs != 1 {
		t.Errorf("StartScrub() = %+v, %v, %d started; want one", scrub, err, s.scrubs)
	}
	if err := c.do(ctx, http.MethodGet, "/api/v1/none", nil); err == nil || !strings.Contains(err.Error(), "404 there is nothing here") {
		t.Errorf("GET of nothing = %v; want 404", err)
	}
	if err := c.do(ctx, http.MethodDelete, "/api/v1/pool", nil); err == nil {
		t.Error("DELETE of the pool: no error")
	}
	for _, address := range []string{"", "http://h:1", "https://", "%"} {
		if _, err := NewClient(address, "", "", nil); err == nil {
			t.Errorf("NewClient(%q): no error", address)
		}
	}
}

func TestAuthentication(t *testing.T) {
	s := &shown{}
	server := serve(t, s)
	for _, test := range []struct{ user, password string }{
		{"", ""}, {"ak", ""}, {"ak", "secre"}, {"ak", "secret "}, {"AK", "secret"}, {"", "secret"}, {"secret", "ak"},
	} {
		c := client(t, server, test.user, test.password)
		if _, err := c.Pool(context.Background()); !errors.Is(err, ErrDenied) {
			t.Errorf("Pool() as %q with %q = %v; want ErrDenied", test.user, test.password, err)
		}
		if _, err := c.StartScrub(context.Background()); !errors.Is(err, ErrDenied) {
			t.Errorf("StartScrub() as %q with %q = %v; want ErrDenied", test.user, test.password, err)
		}
	}
	resp, err := server.Client().Get(server.URL + "/api/v1/none")
	if err != nil || resp.StatusCode != 401 || resp.Header.Get("WWW-Authenticate") == "" {
		t.Errorf("a path that isn't there, without credentials: %v, %v; want 401", resp.StatusCode, err)
	}
	resp.Body.Close()
	// No password means that nobody may come in.
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/api/v1/pool", nil)
	r.SetBasicAuth("", "")
	New(Config{Source: s}).ServeHTTP(w, r)
	if w.Code != 401 {
		t.Errorf("without a configured password: %d; want 401", w.Code)
	}
	if s.scrubs != 0 {
		t.Errorf("%d scrubs started without access", s.scrubs)
	}
}

// TestOtherSites: a browser that has the password must not be made to use it by another site's page.
func TestOtherSites(t *testing.T) {
	s := &shown{}
	server := serve(t, s)
	r, err := http.NewRequest("POST", server.URL+"/api/v1/pool/scrub", strings.NewReader("a=b"))
	if err != nil {
		t.Fatal(err)
	}
	r.SetBasicAuth("ak", "secret")
	r.Header.Set("Origin", "https://elsewhere.example")
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	resp, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 403 || s.scrubs != 0 {
		t.Errorf("POST from another site: %d, %d scrubs; want 403 and none", resp.StatusCode, s.scrubs)
	}
}
