package chunked

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/millrace/millrace/s3/sigv4"
)

// pieces takes the body apart into its chunks, each with its header and line end, and the end.
func pieces(t *testing.T, body []byte, chunkBytes, count int) []string {
	t.Helper()
	var out []string
	for range count {
		n := bytes.IndexByte(body, '\n') + 1 + chunkBytes + 2
		out, body = append(out, string(body[:n])), body[n:]
	}
	return append(out, string(body))
}

// replaceNth replaces the n-th occurrence, from 0, of old.
func replaceNth(text, old, replacement string, n int) string {
	at := 0
	for ; n >= 0; n-- {
		i := strings.Index(text[at:], old)
		if i < 0 {
			panic("nothing to replace")
		}
		at += i + len(old)
	}
	return text[:at-len(old)] + replacement + text[at:]
}

const tamperChunk = MinChunkBytes

// Three chunks of MinChunkBytes, each of other bytes, and the end.
func tamperBody(t *testing.T, kind sigv4.PayloadKind) []string {
	data := bytes.Repeat([]byte("a"), tamperChunk)
	data = append(data, bytes.Repeat([]byte("b"), tamperChunk)...)
	data = append(data, bytes.Repeat([]byte("c"), tamperChunk)...)
	return pieces(t, encode(t, kind, data, tamperChunk), tamperChunk, 3)
}

func join(p ...string) string { return strings.Join(p, "") }

func checkCode(t *testing.T, name string, kind sigv4.PayloadKind, body string, decodedBytes int, want string) {
	t.Helper()
	d := decoderOf(t, kind, strings.NewReader(body), decodedBytes)
	_, err := io.ReadAll(d)
	if want == "" {
		if err != nil {
			t.Errorf("%s, kind %d: %v; want no error", name, kind, err)
		}
		return
	}
	var refused *sigv4.Error
	if !errors.As(err, &refused) || refused.Code != want {
		t.Errorf("%s, kind %d: %v; want %s", name, kind, err, want)
	}
	if _, again := d.Read(make([]byte, 1)); !errors.Is(again, err) {
		t.Errorf("%s, kind %d: the next Read gives %v; want %v", name, kind, again, err)
	}
}

const (
	mismatch   = "SignatureDoesNotMatch"
	incomplete = "IncompleteBody"
	invalid    = "InvalidRequest"
	badTrailer = "MalformedTrailerError"
	badSize    = "InvalidChunkSizeError"
)

func TestTamperedChunksAreRefused(t *testing.T) {
	type mutation struct {
		name             string
		body             func(p []string) string
		signed, unsigned string
	}
	for _, m := range []mutation{
		{"untouched", func(p []string) string { return join(p...) }, "", ""},
		{"chunk dropped", func(p []string) string { return join(p[0], p[2], p[3]) }, mismatch, incomplete},
		{"last chunk dropped", func(p []string) string { return join(p[0], p[1], p[3]) }, incomplete, incomplete},
		{"chunks swapped", func(p []string) string { return join(p[1], p[0], p[2], p[3]) }, mismatch, ""},
		{"chunk replayed", func(p []string) string { return join(p[0], p[0], p[2], p[3]) }, mismatch, ""},
		{"chunk added", func(p []string) string { return join(p[0], p[1], p[2], p[2], p[3]) }, incomplete, incomplete},
		{"end missing", func(p []string) string { return join(p[0], p[1], p[2]) }, incomplete, incomplete},
		{"end twice", func(p []string) string { return join(p[0], p[1], p[2], p[3], p[3]) }, badTrailer, badTrailer},
		{"cut in data", func(p []string) string { return join(p[0], p[1][:500]) }, incomplete, incomplete},
		{"cut in header", func(p []string) string { return join(p[0], p[1][:2]) }, incomplete, incomplete},
		{"empty", func([]string) string { return "" }, incomplete, incomplete},
		{"cut at the end", func(p []string) string { s := join(p...); return s[:len(s)-2] }, incomplete, incomplete},
		{"garbage", func(p []string) string { return join(p...) + "garbage\r\n\r\n" }, badTrailer, badTrailer},
		{"bit of data", func(p []string) string { return replaceNth(join(p...), "bbbb", "bcbb", 7) }, mismatch, ""},
		{"size smaller", func(p []string) string { return join(p[0], "1fff"+p[1][4:], p[2], p[3]) }, invalid, invalid},
		{"size larger", func(p []string) string { return join(p[0], p[1], "2001"+p[2][4:], p[3]) },
			incomplete, incomplete},
		{"size signed", func(p []string) string { return "+" + join(p...) }, invalid, invalid},
		{"size empty", func(p []string) string { return join(p...)[4:] }, invalid, invalid},
		{"size huge", func(p []string) string { return "fffffffffffffffff" + join(p...) }, invalid, invalid},
		{"header endless", func([]string) string { return strings.Repeat("0", 100_000) }, invalid, invalid},
		{"header with LF only", func(p []string) string { return strings.Replace(join(p...), "\r\n", "\n", 1) },
			invalid, invalid},
		{"extensions", func(p []string) string { return strings.Replace(join(p...), "\r\n", ";a=1;b\r\n", 1) }, "", ""},
		{"too many extensions", func(p []string) string { return strings.Replace(join(p...), "\r\n", ";a;b;c;d;e\r\n", 1) },
			invalid, invalid},
	} {
		for _, kind := range kinds {
			want := m.signed
			if kind == sigv4.PayloadStreamingUnsignedTrailer {
				want = m.unsigned
			}
			checkCode(t, m.name, kind, m.body(tamperBody(t, kind)), 3*tamperChunk, want)
		}
	}
}

func TestTamperedSignaturesAreRefused(t *testing.T) {
	for _, kind := range kinds[:2] {
		body := join(tamperBody(t, kind)...)
		for n := range 4 {
			name := "chunk-signature="
			at := strings.Index(replaceNth(body, name, strings.Repeat("?", len(name)), n), "????")
			at += len(name) // of the n-th signature
			first := byte('0')
			if body[at] == first {
				first = '1'
			}
			checkCode(t, "signature changed", kind, body[:at]+string(first)+body[at+1:], 3*tamperChunk, mismatch)
			checkCode(t, "signature upper-case", kind, body[:at]+strings.ToUpper(body[at:at+64])+body[at+64:],
				3*tamperChunk, mismatch)
			checkCode(t, "signature short", kind, body[:at]+body[at+1:], 3*tamperChunk, mismatch)
			checkCode(t, "signature gone", kind, replaceNth(body, ";"+name, ";x=", n), 3*tamperChunk, invalid)
			checkCode(t, "signature twice", kind, replaceNth(body, ";"+name, ";"+name+"x;"+name, n), 3*tamperChunk, invalid)
		}
	}
	// A chain from another request.
	body := encode(t, kinds[0], make([]byte, 100), 0)
	checkCode(t, "other seed", kinds[1], string(body), 100, mismatch)
}

func TestWrongLengthsAreRefused(t *testing.T) {
	for _, kind := range kinds {
		body := join(tamperBody(t, kind)...)
		for _, n := range []int{0, 1, 3*tamperChunk - 1, 3*tamperChunk + 1} {
			checkCode(t, "decoded length", kind, body, n, incomplete)
		}
		checkCode(t, "negative length", kind, body, -1, invalid)
	}
}

func TestSmallChunksAreRefused(t *testing.T) {
	const field = "x-amz-checksum-crc32c:AAAAAA==\r\n"
	kind := sigv4.PayloadStreamingUnsignedTrailer
	checkCode(t, "small last", kind, "3\r\nabc\r\n0\r\n"+field+"\r\n", 3, "")
	checkCode(t, "small first", kind, "3\r\nabc\r\n3\r\nabc\r\n0\r\n"+field+"\r\n", 6, badSize)
	checkCode(t, "leading zeros", kind, "00003\r\nabc\r\n000\r\n"+field+"\r\n", 3, "")
}

func TestTrailers(t *testing.T) {
	const good = "x-amz-checksum-crc32c:AAAAAA==\r\n"
	for _, c := range []struct{ name, trailer, want string }{
		{"good", good + "\r\n", ""},
		{"as some clients end it", "x-amz-checksum-crc32c:AAAAAA==\n\r\n\r\n", ""},
		{"upper-case and space", "X-Amz-Checksum-CRC32C: AAAAAA== \r\n\r\n", ""},
		{"none", "\r\n", badTrailer},
		{"nothing", "", incomplete},
		{"no line end", good[:len(good)-2], incomplete},
		{"no empty line", good, incomplete},
		{"other field", "x-amz-checksum-crc32:AAAAAA==\r\n\r\n", badTrailer},
		{"further field", good + "x-amz-meta-a:b\r\n\r\n", badTrailer},
		{"twice", good + good + "\r\n", badTrailer},
		{"no colon", "x-amz-checksum-crc32c\r\n\r\n", badTrailer},
		{"no name", ":a\r\n\r\n", badTrailer},
		{"signature not asked for", good + "x-amz-trailer-signature:aa\r\n\r\n", badTrailer},
		{"CR inside", "x-amz-checksum-crc32c:AA\rAA\r\n\r\n", badTrailer},
		{"too long", good + strings.Repeat("\r\n", MaxTrailerBytes), badTrailer},
		{"too many", strings.Repeat("a:b\r\n", MaxTrailerFields+1) + "\r\n", badTrailer},
	} {
		checkCode(t, c.name, sigv4.PayloadStreamingUnsignedTrailer, "3\r\nabc\r\n0\r\n"+c.trailer, 3, c.want)
	}
}

func TestSignedTrailers(t *testing.T) {
	kind := sigv4.PayloadStreamingSignedTrailer
	body := string(encode(t, kind, []byte("abc"), 0))
	const name, signature = "x-amz-checksum-crc32c:", "x-amz-trailer-signature:"
	at := strings.Index(body, signature)
	field := body[strings.Index(body, name):at]
	for _, c := range []struct{ name, body, want string }{
		{"good", body, ""},
		{"value changed", strings.Replace(body, name, name+"A", 1), mismatch},
		{"signature gone", body[:at] + "\r\n", mismatch},
		{"signature empty", body[:at] + signature + "\r\n\r\n", badTrailer},
		{"signature changed", strings.Replace(body, signature, signature+"0", 1), mismatch},
		{"field after the signature", strings.Replace(body, field, "", 1)[:at-len(field)] + body[at:len(body)-2] + field +
			"\r\n", badTrailer},
		{"further field", strings.Replace(body, name, "x-amz-meta-a:b\r\n"+name, 1), badTrailer},
		{"field gone", strings.Replace(body, field, "", 1), badTrailer},
	} {
		checkCode(t, c.name, kind, c.body, 3, c.want)
	}
	plain := string(encode(t, sigv4.PayloadStreamingSigned, []byte("abc"), 0))
	checkCode(t, "trailer where none may be", sigv4.PayloadStreamingSigned, plain[:len(plain)-2]+field+"\r\n", 3,
		badTrailer)
}
