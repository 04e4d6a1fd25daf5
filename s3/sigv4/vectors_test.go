package sigv4

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"
)

// The examples of "Authenticating Requests (AWS Signature Version 4)" in the S3 API reference.
var (
	exampleCredential = Credential{
		AccessKey: "AKIAIOSFODNN7EXAMPLE",
		SecretKey: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
	}
	exampleTime = time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC)
)

const exampleHost = "examplebucket.s3.amazonaws.com"

func lookupOf(credentials ...Credential) Lookup {
	return func(_ context.Context, accessKey string) (Credential, error) {
		for _, c := range credentials {
			if c.AccessKey == accessKey {
				return c, nil
			}
		}
		return Credential{}, ErrUnknownKey
	}
}

func newVerifier(now time.Time, credentials ...Credential) *Verifier {
	return &Verifier{
		Lookup: lookupOf(append(credentials, exampleCredential)...),
		Region: "us-east-1",
		Now:    func() time.Time { return now },
	}
}

// parseRequest reads a request as net/http's server does. Its lines end in \n.
func parseRequest(t testing.TB, text string) *http.Request {
	t.Helper()
	text = strings.ReplaceAll(strings.TrimRight(text, "\n")+"\n\n", "\n", "\r\n")
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
	if err != nil {
		t.Fatalf("ReadRequest(%q): %v", text, err)
	}
	return r
}

const exampleScope = "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request"

var exampleRequests = []struct{ name, payload, signature, signed, head string }{
	{"get with range", EmptySHA256, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
		"host;range;x-amz-content-sha256;x-amz-date",
		"GET /test.txt HTTP/1.1\nHost: " + exampleHost + "\nRange: bytes=0-9\nx-amz-date: 20130524T000000Z\n"},
	{"put", "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
		"98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
		"date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
		"PUT /test$file.text HTTP/1.1\nHost: " + exampleHost + "\nDate: Fri, 24 May 2013 00:00:00 GMT\n" +
			"x-amz-date: 20130524T000000Z\nx-amz-storage-class: REDUCED_REDUNDANCY\n"},
	{"get lifecycle", EmptySHA256, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
		"host;x-amz-content-sha256;x-amz-date",
		"GET /?lifecycle HTTP/1.1\nHost: " + exampleHost + "\nx-amz-date: 20130524T000000Z\n"},
	{"list", EmptySHA256, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
		"host;x-amz-content-sha256;x-amz-date",
		"GET /?max-keys=2&prefix=J HTTP/1.1\nHost: " + exampleHost + "\nx-amz-date: 20130524T000000Z\n"},
	{"chunked put", StreamingSigned, "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
		"content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;" +
			"x-amz-storage-class",
		"PUT /examplebucket/chunkObject.txt HTTP/1.1\nHost: s3.amazonaws.com\nx-amz-date: 20130524T000000Z\n" +
			"x-amz-storage-class: REDUCED_REDUNDANCY\nContent-Encoding: aws-chunked\n" +
			"x-amz-decoded-content-length: 66560\nContent-Length: 66824\n"},
	{"chunked put with trailer", StreamingSignedTrailer,
		"106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
		"content-encoding;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class;" +
			"x-amz-trailer",
		"PUT /examplebucket/chunkObject.txt HTTP/1.1\nHost: s3.amazonaws.com\nx-amz-date: 20130524T000000Z\n" +
			"x-amz-storage-class: REDUCED_REDUNDANCY\nContent-Encoding: aws-chunked\n" +
			"x-amz-decoded-content-length: 66560\nx-amz-trailer: x-amz-checksum-crc32c\n"},
}

func TestPublishedExamples(t *testing.T) {
	for _, e := range exampleRequests {
		t.Run(e.name, func(t *testing.T) {
			authorization := algorithmName + " " + exampleScope + ",SignedHeaders=" + e.signed + ",Signature=" + e.signature
			r := parseRequest(t, e.head+"x-amz-content-sha256: "+e.payload+"\nAuthorization: "+authorization)
			id, err := newVerifier(exampleTime.Add(time.Minute)).Verify(context.Background(), r)
			if err != nil {
				var refused *Error
				errors.As(err, &refused)
				t.Fatalf("Verify: %v\n%s", err, refused.Field("CanonicalRequest"))
			}
			if id.AccessKey != exampleCredential.AccessKey || id.Presigned || !id.SignedHeaders.Has("Host") ||
				id.Seed.Signature != e.signature || !id.Seed.Time.Equal(exampleTime) {
				t.Errorf("Verify = %+v", id)
			}
			r = parseRequest(t, e.head)
			signer := Signer{Credential: exampleCredential, Region: "us-east-1"}
			seed, err := signer.Sign(r, e.payload, exampleTime)
			if err != nil || seed.Signature != e.signature || r.Header.Get("Authorization") != authorization {
				t.Errorf("Sign = %s, %v\nAuthorization: %s\nwant %s", seed.Signature, err,
					r.Header.Get("Authorization"), authorization)
			}
		})
	}
}

func TestPublishedPresigned(t *testing.T) {
	const want = "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524" +
		"%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host" +
		"&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
	r := parseRequest(t, "GET "+want+" HTTP/1.1\nHost: "+exampleHost)
	id, err := newVerifier(exampleTime.Add(23*time.Hour)).Verify(context.Background(), r)
	if err != nil || !id.Presigned || id.Payload.Kind != PayloadUnsigned {
		t.Errorf("Verify = %+v, %v", id, err)
	}
	r = parseRequest(t, "GET /test.txt HTTP/1.1\nHost: "+exampleHost)
	signer := Signer{Credential: exampleCredential, Region: "us-east-1"}
	if err := signer.Presign(r, 24*time.Hour, exampleTime); err != nil || r.URL.RequestURI() != want {
		t.Errorf("Presign = %s, %v\nwant %s", r.URL.RequestURI(), err, want)
	}
}

func TestPublishedChunks(t *testing.T) {
	body := []byte(strings.Repeat("a", 66560))
	pieces := [][]byte{body[:65536], body[65536:], nil}
	for _, c := range []struct {
		name, seed string
		want       []string
		trailer    string
	}{
		{"plain", "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9", []string{
			"ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
			"0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
			"b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"}, ""},
		{"trailer", "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e", []string{
			"b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
			"1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
			"2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992"},
			"d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"},
	} {
		scope := Scope{"20130524", "us-east-1"}
		chain := NewChain(Seed{c.seed, deriveKey(exampleCredential.SecretKey, scope), scope, exampleTime})
		for i, want := range c.want {
			if got := chain.Chunk(sha256.Sum256(pieces[i])); !Equal(got, want) {
				t.Errorf("%s: signature of chunk %d = %s; want %s", c.name, i, got, want)
			}
		}
		if c.trailer == "" {
			continue
		}
		if got := chain.Trailer(sha256.Sum256([]byte("x-amz-checksum-crc32c:sOO8/Q==\n"))); !Equal(got, c.trailer) {
			t.Errorf("%s: signature of the trailer = %s; want %s", c.name, got, c.trailer)
		}
	}
}

func BenchmarkVerifyHeader(b *testing.B) {
	e := exampleRequests[1]
	r := parseRequest(b, e.head+"x-amz-content-sha256: "+e.payload+"\nAuthorization: "+algorithmName+" "+
		exampleScope+",SignedHeaders="+e.signed+",Signature="+e.signature)
	v := newVerifier(exampleTime)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := v.Verify(context.Background(), r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkVerifyPresigned(b *testing.B) {
	r := parseRequest(b, "GET /test.txt HTTP/1.1\nHost: "+exampleHost)
	signer := Signer{Credential: exampleCredential, Region: "us-east-1"}
	if err := signer.Presign(r, time.Hour, exampleTime); err != nil {
		b.Fatal(err)
	}
	v := newVerifier(exampleTime)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := v.Verify(context.Background(), r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkChainChunk(b *testing.B) {
	chain := NewChain(Seed{Signature: EmptySHA256, Scope: Scope{"20130524", "us-east-1"}, Time: exampleTime})
	b.ReportAllocs()
	for b.Loop() {
		chain.Chunk([32]byte{})
	}
}
