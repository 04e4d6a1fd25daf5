package rdma_test

import (
	"encoding/base64"
	"encoding/xml"
	"fmt"
	"hash/crc32"
	"net/netip"
	"strings"
	"testing"

	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/gateway"
	"github.com/millrace/millrace/s3/rdma"
	"github.com/millrace/millrace/s3/sigv4"
	"github.com/millrace/millrace/verbs/iwarp"
)

// expect checks status, reply header and error code of an answer, and that an error has no ETag.
func expect(t *testing.T, what string, a answer, status int, rdmaReply, code string) {
	t.Helper()
	if a.status != status || reply(a) != rdmaReply || a.code() != code || status >= 400 && a.header.Get("ETag") != "" {
		t.Errorf("%s = %d, reply %q, code %q, ETag %q; want %d, %q, %q and no ETag with an error\n%s",
			what, a.status, reply(a), a.code(), a.header.Get("ETag"), status, rdmaReply, code, a.body)
	}
}

// refusal is a request that is refused. Its status is 501, with that as reply, or has no reply.
type refusal struct {
	name, request string
	headers       []string
	status        int
	code, message string
}

// badTokens are requests whose token itself is wrong; token is a good one.
func badTokens(token string) []refusal {
	with := func(tokens ...string) (headers []string) {
		for _, t := range tokens {
			headers = append(headers, tokenHeader+t)
		}
		return headers
	}
	const put, bad = "PUT /bucket/p", "InvalidRDMAToken"
	return []refusal{
		{"old form", put, with(token + ":00000000000003e8:0000000000000000"), 400, bad, "update the client"},
		{"semicolon", put, with(token + ";"), 400, bad, "semicolon"},
		{"upper case", put, with("A" + token[1:]), 400, bad, "lower-case"},
		{"empty", put, with(""), 400, bad, "0 characters"},
		{"empty bare", put, []string{"x-rdma-info: "}, 400, bad, "0 characters"},
		{"88 digits", "GET /bucket/o", with(strings.Repeat("0", 88)), 400, bad, "exactly 81"},
		{"two headers", put, append(with(token), "x-rdma-info: "+token), 400, bad, "one"},
		{"twice", put, with(token, token), 400, bad, "one"},
		{"in the query", put + "?X-Amz-Rdma-Token=" + token, nil, 400, bad, "not in the query"},
		{"as metadata", put, []string{"x-amz-meta-rdma-token: " + token}, 501, "RDMANotSupported", "x-amz-rdma-token"},
		{"another server's", put, []string{"X-CuObj-RDMA-Descr: " + token}, 501, "RDMANotSupported", ""},
		{"hardware", "GET /bucket/o", with(token[:35] + "0000:0a0b0c" + token[46:]), 501, "RDMANotSupported", "no TCP port"},
		{"HEAD", "HEAD /bucket/o", with(token), 400, "", ""},
		{"DELETE", "DELETE /bucket/o", with(token), 400, bad, "DeleteObject"},
		{"list", "GET /bucket?list-type=2", []string{"x-rdma-info: " + token}, 400, bad, "ListObjectsV2"},
		{"copy", put, append(with(token), "x-amz-copy-source: /bucket/o"), 400, bad, "CopyObject"},
		{"create bucket", "PUT /other", with(token), 400, bad, "CreateBucket"},
	}
}

// badRequests are requests that are wrong beside their token; small is that of a window of 999 bytes.
func badRequests(token, small string) []refusal {
	with := func(headers ...string) []string { return append(headers, tokenHeader+token) }
	const get, put = "GET /bucket/o", "PUT /bucket/p"
	zeros := base64.StdEncoding.EncodeToString(make([]byte, 32))
	return []refusal{
		{"small window", get, []string{tokenHeader + small}, 400, "InvalidRDMAToken", "holds 999 bytes, the request is for 1000"},
		{"with a trailer", put, with("x-amz-trailer: x-amz-checksum-crc32"), 400, "InvalidRequest", ""},
		{"with an MD5", put, with("Content-MD5: 1B2M2Y8AsgTpgAmY7PhCfg=="), 400, "InvalidRequest", "Content-MD5"},
		{"no such key", "GET /bucket/none", with(), 404, "NoSuchKey", ""},
		{"no such bucket", "PUT /nobucket/p", with(), 404, "NoSuchBucket", ""},
		{"range", get, with("Range: bytes=1000-"), 416, "InvalidRange", ""},
		{"If-Match", get, with(`If-Match: "x"`), 412, "PreconditionFailed", ""},
		{"If-None-Match", "PUT /bucket/o", with("If-None-Match: *"), 412, "PreconditionFailed", ""},
		{"wrong CRC32", put, with("x-amz-checksum-crc32: AAAAAA=="), 400, "BadDigest", "CRC32"},
		{"wrong CRC64", put, with("x-amz-checksum-crc64nvme: AAAAAAAAAAA="), 400, "BadDigest", ""},
		{"wrong SHA", put, with("x-amz-checksum-sha256: " + zeros), 400, "BadDigest", ""},
		{"no upload", put + "?partNumber=1&uploadId=none", with(), 404, "NoSuchUpload", ""},
	}
}

// TestRefused: what can't be honoured is refused, and nothing is stored.
func TestRefused(t *testing.T) {
	r := newRig(t, options{})
	r.must("PUT", "/bucket/o", strings.Repeat("x", 1000))
	h := newHost(t, 1000, iwarp.Config{})
	token := h.window(1000)
	for _, tc := range append(badTokens(token), badRequests(token, h.window(999))...) {
		method, target, _ := strings.Cut(tc.request, " ")
		want := ""
		if tc.status == 501 {
			want = "501"
		}
		a := r.do(method, target, "", tc.headers...)
		expect(t, tc.name, a, tc.status, want, tc.code)
		if !strings.Contains(a.message(), tc.message) {
			t.Errorf("%s: message %q; want %q in it", tc.name, a.message(), tc.message)
		}
	}
	a := r.do("PUT", "/bucket/p", "body", tokenHeader+token)
	expect(t, "PUT with a body", a, 400, "", "InvalidRequest")
	if a := r.do("GET", "/bucket/p", ""); a.status != 404 {
		t.Errorf("a refused PUT has left an object: %d %q", a.status, a.body)
	}
	if got := r.must("GET", "/bucket/o", ""); len(got.body) != 1000 {
		t.Errorf("the object has %d bytes; want 1000", len(got.body))
	}
	if strings.Trim(string(h.memory()), "\x00") != "" {
		t.Error("a refused GET has written into the window")
	}
}

// TestBadPayload: the hash in x-amz-content-sha256 can only be that of no bytes, or none.
func TestBadPayload(t *testing.T) {
	r := newRig(t, options{})
	h := newHost(t, 10, iwarp.Config{})
	for _, tc := range []struct {
		payload string
		status  int
	}{
		{sigv4.EmptySHA256, 200}, {sigv4.UnsignedPayload, 200}, {strings.Repeat("0", 64), 400},
		{sigv4.StreamingUnsignedTrailer, 400},
	} {
		req := r.request("PUT", "/bucket/p", "", tokenHeader+h.window(10), "x-amz-decoded-content-length: 0")
		r.sign(req, "AK", tc.payload)
		if a := r.send(req); a.status != tc.status {
			t.Errorf("PUT with %s = %d %s; want %d", tc.payload, a.status, a.body, tc.status)
		}
	}
}

// TestChecksums: they are of the bytes in the window, whichever algorithm it is.
func TestChecksums(t *testing.T) {
	r := newRig(t, options{})
	data := noise(200_000, 3)
	h := newHost(t, len(data), iwarp.Config{})
	copy(h.memory(), data)
	for _, a := range checksum.All() {
		hash := checksum.New(a)
		hash.Write(data)
		value := checksum.Encode(hash.Sum(nil))
		got := r.must("PUT", "/bucket/c", "", tokenHeader+h.window(int64(len(data))), a.Header()+": "+value)
		if sum := got.header.Get(a.Header()); sum != value {
			t.Errorf("PUT with %v: answer has %q; want %q", a, sum, value)
		}
		for mode, want := range map[string]string{"": "", "ENABLED": value} {
			got := r.must("GET", "/bucket/c", "", tokenHeader+h.window(int64(len(data))), "x-amz-checksum-mode: "+mode)
			if sum := got.header.Get(a.Header()); sum != want {
				t.Errorf("GET of an object with %v, mode %q: answer has %q; want %q", a, mode, sum, want)
			}
		}
	}
}

// TestRanges: any satisfiable range is 206 with reply 206, also one of the whole object.
func TestRanges(t *testing.T) {
	r := newRig(t, options{})
	data := noise(100_000, 4)
	r.must("PUT", "/bucket/o", string(data))
	for _, tc := range []struct {
		header     string
		start, end int
		status     int
	}{
		{"bytes=0-99999", 0, 100_000, 206},
		{"bytes=0-", 0, 100_000, 206},
		{"bytes=1-1", 1, 2, 206},
		{"bytes=99990-200000", 99_990, 100_000, 206},
		{"bytes=-7", 99_993, 100_000, 206},
		{"bytes=7-3", 0, 100_000, 200}, // ignored
	} {
		n := tc.end - tc.start
		h := newHost(t, n, iwarp.Config{}) // a window as large as the range
		a := r.do("GET", "/bucket/o", "", tokenHeader+h.window(int64(n)), "Range: "+tc.header)
		expect(t, tc.header, a, tc.status, fmt.Sprint(tc.status), "")
		if moved(a) != int64(n) {
			t.Errorf("%s: %d bytes; want %d", tc.header, moved(a), n)
		}
		want := ""
		if tc.status == 206 {
			want = fmt.Sprintf("bytes %d-%d/100000", tc.start, tc.end-1)
		}
		if got := a.header.Get("Content-Range"); got != want {
			t.Errorf("%s: Content-Range %q; want %q", tc.header, got, want)
		}
		same(t, tc.header, h.memory(), data[tc.start:tc.end])
	}
}

// TestMultipart: parts by RDMA and by HTTP make one object, and are read by number.
func TestMultipart(t *testing.T) {
	r := newRig(t, options{})
	created := r.must("POST", "/bucket/m?uploads", "")
	var upload struct {
		UploadID string `xml:"UploadId"`
	}
	if err := xml.Unmarshal([]byte(created.body), &upload); err != nil {
		t.Fatal(err)
	}
	data := noise(6<<20, 5)
	first, second := data[:5<<20], data[5<<20:]
	h := newHost(t, len(first), iwarp.Config{})
	copy(h.memory(), first)
	target := "/bucket/m?uploadId=" + upload.UploadID + "&partNumber="
	crc := checksum.Encode(crc32.NewIEEE().Sum(nil))
	a := r.do("PUT", target+"1", "", tokenHeader+h.window(5<<20), "x-amz-checksum-crc32: "+crc)
	expect(t, "part with a wrong checksum", a, 400, "", "BadDigest")
	a = r.do("PUT", target+"1", "", tokenHeader+h.window(5<<20))
	expect(t, "part by RDMA", a, 200, "200", "")
	if moved(a) != 5<<20 || a.header.Get("X-Amz-Checksum-Crc64nvme") == "" {
		t.Errorf("part by RDMA: %+v", a.header)
	}
	b := r.must("PUT", target+"2", string(second))
	r.must("POST", "/bucket/m?uploadId="+upload.UploadID, fmt.Sprintf("<CompleteMultipartUpload>"+
		"<Part><PartNumber>1</PartNumber><ETag>%s</ETag></Part><Part><PartNumber>2</PartNumber><ETag>%s</ETag></Part>"+
		"</CompleteMultipartUpload>", a.header.Get("ETag"), b.header.Get("ETag")))
	if got := r.must("GET", "/bucket/m", ""); got.body != string(data) {
		t.Error("GET by HTTP: other bytes")
	}
	clear(h.memory())
	a = r.do("GET", "/bucket/m?partNumber=2", "", tokenHeader+h.window(1<<20))
	expect(t, "GET of a part", a, 206, "206", "")
	if moved(a) != 1<<20 {
		t.Errorf("GET of a part: %d bytes; want %d", moved(a), 1<<20)
	}
	same(t, "GET of a part", h.memory()[:1<<20], second)
}

// TestConditions: a GET that is not modified writes nothing.
func TestConditions(t *testing.T) {
	r := newRig(t, options{})
	a := r.must("PUT", "/bucket/o", "data")
	h := newHost(t, 4, iwarp.Config{})
	b := r.do("GET", "/bucket/o", "", tokenHeader+h.window(4), "If-None-Match: "+a.header.Get("ETag"))
	if b.status != 304 || reply(b) != "" || string(h.memory()) != "\x00\x00\x00\x00" {
		t.Errorf("GET = %d, reply %q, memory %q; want 304 and nothing written", b.status, reply(b), h.memory())
	}
	b = r.do("GET", "/bucket/o", "", tokenHeader+h.window(4), "If-Match: "+a.header.Get("ETag"))
	expect(t, "GET with If-Match", b, 200, "200", "")
	same(t, "GET with If-Match", h.memory(), []byte("data"))
}

// TestDeclined: reasons are told to the client and to the observer.
func TestDeclined(t *testing.T) {
	r := newRig(t, options{})
	r.must("PUT", "/bucket/o", "data")
	h := newHost(t, 4, iwarp.Config{})
	token := h.window(4)
	elsewhere := strings.Replace(token, "ffff7f000001", "ffffc0000201", 1)
	unheard := token[:40] + "000001" + token[46:] // port 1
	for _, tc := range []struct{ reason, token string }{
		{rdma.DeclinedPeer, elsewhere}, {rdma.DeclinedUnreachable, unheard},
		{rdma.DeclinedSession, token[:47] + "0:" + strings.Repeat("ab", 16)},
	} {
		for _, method := range []string{"GET", "PUT"} {
			a := r.do(method, "/bucket/o", "", tokenHeader+tc.token)
			expect(t, method+" "+tc.reason, a, 501, "501", "RDMANotSupported")
			if !strings.Contains(a.body, "<Reason>"+tc.reason+"</Reason>") || r.last().Declined != tc.reason ||
				r.last().Transport != gateway.TransportHTTP {
				t.Errorf("%s %s: %s, event %+v", method, tc.reason, a.body, r.last())
			}
			a = r.do(method, "/bucket/o", "", "x-rdma-info: "+tc.token)
			expect(t, method+" "+tc.reason+" (bare)", a, 501, "", "RDMANotSupported")
		}
	}
	if got := r.must("GET", "/bucket/o", ""); got.body != "data" {
		t.Errorf("the object is %q after declined PUTs; want %q", got.body, "data")
	}
}

// TestAllowed: a token may name a host that the configuration allows.
func TestAllowed(t *testing.T) {
	r := newRig(t, options{rdma: rdma.Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}}})
	h := newHost(t, 4, iwarp.Config{})
	l, err := h.device.Listen(netip.MustParseAddrPort("127.0.0.2:0"), nil)
	if err != nil {
		t.Skip("no second loopback address:", err)
	}
	h.at = l.Endpoint()
	copy(h.memory(), "data")
	r.must("PUT", "/bucket/o", "", tokenHeader+h.window(4))
	if got := r.must("GET", "/bucket/o", ""); got.body != "data" {
		t.Errorf("GET = %q; want %q", got.body, "data")
	}
}
