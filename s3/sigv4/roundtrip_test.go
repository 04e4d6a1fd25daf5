package sigv4

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// naive is Signature V4 written down from its definition, with none of this package's code: name and value pairs
// are not encoded yet.
type naive struct {
	method, path, host string
	query              [][2]string
	headers            map[string][]string // lower-case, without host
	payload            string
	secret             string
	time               time.Time
}

func naiveEncode(s, keep string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
		if strings.IndexByte(plain+keep, c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func naiveMAC(key []byte, text string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

func (n *naive) signedHeaders() string {
	names := []string{"host"}
	for name := range n.headers {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ";")
}

func (n *naive) signature() string {
	var query [][2]string
	for _, p := range n.query {
		query = append(query, [2]string{naiveEncode(p[0], ""), naiveEncode(p[1], "")})
	}
	slices.SortFunc(query, func(a, b [2]string) int {
		return slices.Compare(a[:], b[:])
	})
	var pairs []string
	for _, p := range query {
		pairs = append(pairs, p[0]+"="+p[1])
	}
	var headers strings.Builder
	for name := range strings.SplitSeq(n.signedHeaders(), ";") {
		values := []string{n.host}
		if name != "host" {
			values = slices.Clone(n.headers[name])
		}
		for i, v := range values {
			values[i] = strings.Join(strings.Fields(v), " ")
		}
		headers.WriteString(name + ":" + strings.Join(values, ",") + "\n")
	}
	canonical := strings.Join([]string{n.method, naiveEncode(n.path, "/"), strings.Join(pairs, "&"), headers.String(),
		n.signedHeaders(), n.payload}, "\n")
	digest := sha256.Sum256([]byte(canonical))
	date := n.time.Format("20060102")
	toSign := "AWS4-HMAC-SHA256\n" + n.time.Format("20060102T150405Z") + "\n" + date + "/us-east-1/s3/aws4_request\n" +
		hex.EncodeToString(digest[:])
	key := []byte("AWS4" + n.secret)
	for _, text := range []string{date, "us-east-1", "s3", "aws4_request"} {
		key = naiveMAC(key, text)
	}
	return hex.EncodeToString(naiveMAC(key, toSign))
}

func (n *naive) credential() string {
	return exampleCredential.AccessKey + "/" + n.time.Format("20060102") + "/us-east-1/s3/aws4_request"
}

// request is the request on the wire. Components are escaped in one of the ways in which clients do.
func (n *naive) request(r *rand.Rand, extra string) string {
	escape := func(s, keep string) string {
		var b strings.Builder
		for _, c := range []byte(s) {
			safe := 'a' <= c && c <= 'z' || strings.IndexByte(keep, c) >= 0
			switch {
			case safe && r.IntN(20) > 0:
				b.WriteByte(c)
			case r.IntN(2) == 0:
				fmt.Fprintf(&b, "%%%02x", c)
			default:
				fmt.Fprintf(&b, "%%%02X", c)
			}
		}
		return b.String()
	}
	var pairs []string
	for _, p := range n.query {
		pair := escape(p[0], "-._~!*'()")
		if p[1] != "" || r.IntN(2) == 0 {
			pair += "=" + strings.ReplaceAll(escape(p[1], " -._~!*'()/:=?@"), " ", "+")
		}
		pairs = append(pairs, pair)
	}
	r.Shuffle(len(pairs), func(i, j int) { pairs[i], pairs[j] = pairs[j], pairs[i] })
	target := "/" + escape(n.path[1:], "/-._~!*'()+=:@,;&$")
	if len(pairs) > 0 {
		target += "?" + strings.Join(pairs, "&")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n%s", n.method, target, n.host, extra)
	for name, values := range n.headers {
		for _, v := range values {
			fmt.Fprintf(&b, "%s: %s\r\n", name, v)
		}
	}
	return b.String() + "\r\n"
}

func randomText(r *rand.Rand, alphabet string, least, most int) string {
	b := make([]byte, least+r.IntN(most-least+1))
	for i := range b {
		b[i] = alphabet[r.IntN(len(alphabet))]
	}
	return string(b)
}

func allBytes() string {
	var b []byte
	for c := range 256 {
		b = append(b, byte(c))
	}
	return string(b)
}

func randomNaive(r *rand.Rand) *naive {
	nasty := allBytes() + strings.Repeat("/ +%&=?#~ab..", 10)
	n := &naive{
		method: []string{"GET", "PUT", "HEAD", "DELETE"}[r.IntN(4)],
		path:   "/" + randomText(r, nasty, 0, 40),
		host:   randomText(r, "abc", 1, 9) + ".example.com:9000",
		secret: exampleCredential.SecretKey, time: exampleTime,
		headers: map[string][]string{},
	}
	for range r.IntN(6) {
		name := randomText(r, nasty, 1, 3)
		for range 1 + r.IntN(2) {
			n.query = append(n.query, [2]string{name, randomText(r, nasty, 0, 10)})
		}
	}
	for range r.IntN(5) {
		name := "x-amz-meta-" + randomText(r, "ab-_.7", 1, 4)
		if r.IntN(3) == 0 {
			name = randomText(r, "xyz_", 1, 3)
		}
		for range 1 + r.IntN(2) {
			n.headers[name] = append(n.headers[name], randomText(r, "a,;=\"\xc3\xa9  \t", 0, 12))
		}
	}
	return n
}

func verifyText(t *testing.T, text string) (*http.Request, error) {
	t.Helper()
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
	if err != nil {
		t.Fatalf("ReadRequest(%q): %v", text, err)
	}
	_, err = newVerifier(exampleTime).Verify(context.Background(), r)
	return r, err
}

func TestNaiveSignaturesOfRandomRequests(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		n := randomNaive(r)
		n.payload = EmptySHA256
		n.headers["x-amz-content-sha256"] = []string{n.payload}
		n.headers["x-amz-date"] = []string{n.time.Format("20060102T150405Z")}
		want := n.signature()
		text := n.request(r, "Authorization: AWS4-HMAC-SHA256 Credential="+n.credential()+", SignedHeaders="+
			n.signedHeaders()+", Signature="+want+"\r\n")
		request, err := verifyText(t, text)
		if err != nil {
			t.Fatalf("Verify of %q: %v", text, err)
		}
		// Our signer also signs what it finds; it must come to the same.
		signer := Signer{Credential: exampleCredential, Region: "us-east-1"}
		got, err := signer.Sign(request, n.payload, n.time)
		if err != nil || got.Signature != want {
			t.Fatalf("Sign of %q = %s, %v; want %s", text, got.Signature, err, want)
		}
	}
}

func TestNaivePresignedRandomRequests(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		n := randomNaive(r)
		n.payload = UnsignedPayload
		n.query = append(n.query, [2]string{"X-Amz-Algorithm", "AWS4-HMAC-SHA256"},
			[2]string{"X-Amz-Credential", n.credential()},
			[2]string{"X-Amz-Date", n.time.Format("20060102T150405Z")},
			[2]string{"X-Amz-Expires", "60"}, [2]string{"X-Amz-SignedHeaders", n.signedHeaders()})
		n.query = append(n.query, [2]string{"X-Amz-Signature", n.signature()})
		text := n.request(r, "")
		if _, err := verifyText(t, text); err != nil {
			t.Fatalf("Verify of %q: %v", text, err)
		}
	}
}

// What our own signer sends must verify after a real client and server have had it in hand.
func TestSignedRequestsOverTheWire(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	signer := Signer{Credential: exampleCredential, Region: "us-east-1"}
	for i := range 200 {
		n := randomNaive(r)
		values := url.Values{}
		for _, p := range n.query {
			values.Add(p[0], p[1])
		}
		u := &url.URL{Scheme: "http", Host: n.host, Path: n.path, RawQuery: values.Encode()}
		request, err := http.NewRequest(n.method, u.String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for name, values := range n.headers {
			for _, v := range values {
				request.Header.Add(name, v)
			}
		}
		if i%2 == 0 {
			_, err = signer.Sign(request, EmptySHA256, n.time)
		} else {
			err = signer.Presign(request, time.Minute, n.time)
		}
		if err != nil {
			t.Fatal(err)
		}
		var wire bytes.Buffer
		if err := request.Write(&wire); err != nil {
			t.Fatal(err)
		}
		if _, err := verifyText(t, wire.String()); err != nil {
			t.Fatalf("Verify of %q: %v", wire.String(), err)
		}
	}
}

func FuzzAuthorization(f *testing.F) {
	f.Add("AWS4-HMAC-SHA256 Credential=a/20130524/us-east-1/s3/aws4_request,SignedHeaders=host,Signature=00", "a=b")
	f.Add("AWS4-HMAC-SHA256 Credential=////,SignedHeaders=;,Signature==", "")
	f.Add("AWS a:b", "Signature=a")
	f.Fuzz(func(t *testing.T, authorization, query string) {
		r := &http.Request{Method: "GET", Host: "h", URL: &url.URL{Path: "/", RawQuery: query}, Header: http.Header{
			"Authorization":        {authorization},
			"X-Amz-Date":           {"20130524T000000Z"},
			"X-Amz-Content-Sha256": {UnsignedPayload},
		}}
		if id, err := newVerifier(exampleTime).Verify(context.Background(), r); err == nil {
			t.Errorf("Verify = %+v for a signature that nobody made", id)
		}
	})
}

func FuzzQuery(f *testing.F) {
	f.Add("X-Amz-Algorithm=AWS4-HMAC-SHA256" +
		"&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature=00")
	f.Add("&&a=b&=&%41+&c")
	f.Add("AWSAccessKeyId=a")
	f.Fuzz(func(t *testing.T, query string) {
		r := &http.Request{Method: "GET", Host: "h", URL: &url.URL{Path: "/", RawQuery: query}, Header: http.Header{}}
		if id, err := newVerifier(exampleTime).Verify(context.Background(), r); err == nil {
			t.Errorf("Verify = %+v for a signature that nobody made", id)
		}
		// A query that both can read must be signed in the same way as the naive signer does.
		values, err := url.ParseQuery(query)
		w := new(workspace)
		if err != nil || w.setQuery(query) != nil {
			return
		}
		n := naive{method: "GET", path: "/", host: "h", payload: UnsignedPayload, time: exampleTime,
			secret: exampleCredential.SecretKey}
		for name, list := range values {
			for _, v := range list {
				if name != querySignature {
					n.query = append(n.query, [2]string{name, v})
				}
			}
		}
		signer := Signer{Credential: exampleCredential, Region: "us-east-1"}
		got, _, err := signer.sign(r, Scope{"20130524", "us-east-1"}, "20130524T000000Z", "host", UnsignedPayload)
		if want := n.signature(); err != nil || got != want {
			t.Errorf("signature of %q = %s, %v; want %s", query, got, err, want)
		}
	})
}
