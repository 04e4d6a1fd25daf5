package rdma_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/s3/gateway"
	"github.com/millrace/millrace/verbs/iwarp"
)

// verdict is what a client makes of an answer.
type verdict string

const (
	done     verdict = "done"
	declined verdict = "declined" // it turns to HTTP, or gives up
	again    verdict = "again"    // it comes again with a fresh token, then turns to HTTP
)

// player plays a known client: how it asks, and by which rule it takes an answer.
type player struct {
	name   string
	header string // of the token
	ranges bool   // it always sends Range
	put    func(a answer) verdict
	get    func(a answer, asked int64) verdict
}

func ok(is bool) verdict {
	if is {
		return done
	}
	return again
}

func reply(a answer) string { return a.header.Get("x-amz-rdma-reply") }

// moved is the number of bytes that the answer tells, or -1.
func moved(a answer) int64 {
	n, err := strconv.ParseInt(a.header.Get("x-amz-rdma-bytes-transferred"), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

func players() []player {
	isReply := func(a answer, codes ...string) bool {
		for _, c := range codes {
			if reply(a) == c {
				return true
			}
		}
		return false
	}
	// An HTTP 200 with an ETag is a success for these two, whatever the reply says.
	putByETag := func(a answer) verdict {
		switch {
		case a.status == 200 && a.header.Get("ETag") != "":
			return done
		case isReply(a, "", "501"):
			return declined
		}
		return ok(isReply(a, "200", "204"))
	}
	status2xx := func(a answer) verdict { return ok(a.status/100 == 2) }
	return []player{
		{name: "minio-cpp", header: "x-amz-rdma-token", put: putByETag, get: func(a answer, _ int64) verdict {
			if isReply(a, "", "501") {
				return declined
			}
			return ok(isReply(a, "200", "206"))
		}},
		{name: "nixl", header: "x-amz-rdma-token", ranges: true, put: putByETag, get: func(a answer, asked int64) verdict {
			if isReply(a, "", "501") {
				return declined
			}
			same := a.status == 200 && isReply(a, "200") || a.status == 206 && isReply(a, "206")
			return ok(same && 0 <= moved(a) && moved(a) <= asked)
		}},
		{name: "nixl dell", header: "x-rdma-info", ranges: true, put: status2xx,
			get: func(a answer, _ int64) verdict { return status2xx(a) }},
		{name: "noobaa", header: "x-amz-rdma-token", put: func(a answer) verdict {
			if isReply(a, "501") {
				return declined
			}
			return ok(strings.HasPrefix(reply(a), "2") && moved(a) >= 0)
		}, get: func(a answer, _ int64) verdict {
			if isReply(a, "501") {
				return declined
			}
			return ok(strings.HasPrefix(reply(a), "2") && moved(a) >= 0)
		}},
	}
}

// TestClientsAccept plays every client through success, decline and failure.
func TestClientsAccept(t *testing.T) {
	const size = 100_000
	data := noise(size, 2)
	on := newRig(t, options{})
	off := newRig(t, options{gateway: func(c *gateway.Config) { c.RDMA = nil }})
	for _, r := range []*rig{on, off} {
		r.must("PUT", "/bucket/o", string(data))
	}
	h := newHost(t, size, iwarp.Config{})
	fresh := func() string { return h.window(size) }
	closed := func() string {
		token, b := h.bind(size)
		_ = b.Close()
		return token
	}
	for _, p := range players() {
		for _, tc := range []struct {
			name  string
			token func() string
			on    *rig
			want  verdict
		}{
			{"success", fresh, on, done},
			{"off", fresh, off, declined},
			{"closed window", closed, on, again},
		} {
			want := tc.want
			if p.name == "nixl dell" && want == declined {
				want = again // it knows no declining: any other status is a failure
			}
			copy(h.memory(), data)
			headers := []string{p.header + ": " + tc.token()}
			a := tc.on.do("PUT", "/bucket/p", "", headers...)
			if got := p.put(a); got != want {
				t.Errorf("%s takes PUT, %s, for %s; want %s: %+v", p.name, tc.name, got, want, a)
			}
			got := tc.on.do("GET", "/bucket/p", "")
			if want == done && got.body != string(data) || want != done && got.status != 404 {
				t.Errorf("%s after PUT, %s: GET = %d with %d bytes", p.name, tc.name, got.status, len(got.body))
			}
			tc.on.must("DELETE", "/bucket/p", "")
			clear(h.memory())
			headers[0] = p.header + ": " + tc.token()
			if p.ranges {
				headers = append(headers, "Range: bytes=0-"+strconv.Itoa(size-1))
			}
			a = tc.on.do("GET", "/bucket/o", "", headers...)
			if got := p.get(a, size); got != want {
				t.Errorf("%s takes GET, %s, for %s; want %s: %+v", p.name, tc.name, got, want, a)
			}
			if want == done {
				same(t, p.name+": GET", h.memory(), data)
				checkSuccess(t, p, a)
			}
		}
	}
}

// checkSuccess checks what no client asks for alone but all of them together.
func checkSuccess(t *testing.T, p player, a answer) {
	t.Helper()
	status := http.StatusOK
	if p.ranges {
		status = http.StatusPartialContent
	}
	if a.status != status || a.body != "" || a.header.Get("Content-Length") != "0" || a.header.Get("ETag") == "" {
		t.Errorf("%s: GET = %+v; want status %d, an ETag, and no body", p.name, a, status)
	}
	bare := p.header == "x-rdma-info"
	if has := reply(a) != "" || moved(a) >= 0; has == bare {
		t.Errorf("%s: GET has x-amz-rdma headers: %v; want %v", p.name, has, !bare)
	}
	if !bare && (reply(a) != strconv.Itoa(status) || a.header.Get("X-Amz-Checksum-Crc64nvme") != "") {
		t.Errorf("%s: GET = %+v; want reply %d and no checksum", p.name, a, status)
	}
}
