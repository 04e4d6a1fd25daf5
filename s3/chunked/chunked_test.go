package chunked

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/sigv4"
)

var exampleTime = time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC)

// seedOf signs a request to get a seed: of the published example if payload is signed.
func seedOf(t testing.TB, payload string) sigv4.Seed {
	t.Helper()
	signer := sigv4.Signer{Region: "us-east-1", Credential: sigv4.Credential{
		AccessKey: "AKIAIOSFODNN7EXAMPLE", SecretKey: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}}
	r := &http.Request{Method: "PUT", Host: "s3.amazonaws.com", URL: &url.URL{Path: "/examplebucket/chunkObject.txt"},
		Header: http.Header{}}
	r.Header.Set("X-Amz-Storage-Class", "REDUCED_REDUNDANCY")
	r.Header.Set("Content-Encoding", "aws-chunked")
	r.Header.Set("X-Amz-Decoded-Content-Length", "66560")
	if payload == sigv4.StreamingSigned {
		r.Header.Set("Content-Length", "66824")
	} else {
		r.Header.Set("X-Amz-Trailer", "x-amz-checksum-crc32c")
	}
	seed, err := signer.Sign(r, payload, exampleTime)
	if err != nil {
		t.Fatal(err)
	}
	return seed
}

func seedOfKind(t testing.TB, kind sigv4.PayloadKind) sigv4.Seed {
	if kind == sigv4.PayloadStreamingSigned {
		return seedOf(t, sigv4.StreamingSigned)
	}
	return seedOf(t, sigv4.StreamingSignedTrailer)
}

var kinds = []sigv4.PayloadKind{sigv4.PayloadStreamingSigned, sigv4.PayloadStreamingSignedTrailer,
	sigv4.PayloadStreamingUnsignedTrailer}

func encode(t testing.TB, kind sigv4.PayloadKind, data []byte, chunkBytes int) []byte {
	t.Helper()
	c := EncoderConfig{Kind: kind, DecodedBytes: int64(len(data)), ChunkBytes: chunkBytes, Seed: seedOfKind(t, kind)}
	if trailed(kind) {
		c.Trailer = checksum.CRC32C
	}
	body, err := io.ReadAll(NewEncoder(bytes.NewReader(data), c))
	if err != nil {
		t.Fatalf("encode: %v", err)
	}
	if int64(len(body)) != c.EncodedBytes() {
		t.Fatalf("EncodedBytes() = %d; want %d", c.EncodedBytes(), len(body))
	}
	return body
}

func decoderOf(t testing.TB, kind sigv4.PayloadKind, body io.Reader, decodedBytes int) *Decoder {
	t.Helper()
	c := DecoderConfig{Kind: kind, Seed: seedOfKind(t, kind), DecodedBytes: int64(decodedBytes)}
	if trailed(kind) {
		c.Trailers = []string{"X-Amz-Checksum-Crc32c"}
	}
	return NewDecoder(body, c)
}

func crc32c(data []byte) string {
	h := checksum.New(checksum.CRC32C)
	h.Write(data)
	return checksum.Encode(h.Sum(nil))
}

// The examples of the S3 API reference, byte for byte; the second one ends its trailer lines as
// some clients do.
func TestPublishedExamples(t *testing.T) {
	data := strings.Repeat("a", 66560)
	first, second := data[:65536], data[65536:]
	plain := "10000;chunk-signature=ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648\r\n" + first +
		"\r\n400;chunk-signature=0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497\r\n" + second +
		"\r\n0;chunk-signature=b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9\r\n\r\n"
	trailer := "10000;chunk-signature=b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2\r\n" + first +
		"\r\n400;chunk-signature=1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7\r\n" + second +
		"\r\n0;chunk-signature=2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992\r\n" +
		"x-amz-checksum-crc32c:sOO8/Q==\n\r\n" +
		"x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n"
	for _, c := range []struct {
		kind sigv4.PayloadKind
		body string
		want map[string]string
	}{
		{sigv4.PayloadStreamingSigned, plain, map[string]string{}},
		{sigv4.PayloadStreamingSignedTrailer, trailer, map[string]string{"x-amz-checksum-crc32c": "sOO8/Q=="}},
	} {
		d := decoderOf(t, c.kind, strings.NewReader(c.body), len(data))
		got, err := io.ReadAll(d)
		if err != nil || string(got) != data {
			t.Errorf("kind %d: %d bytes, %v; want %d bytes", c.kind, len(got), err, len(data))
		}
		if diff := cmp.Diff(c.want, d.Trailer()); diff != "" {
			t.Errorf("kind %d: trailer (-want +got):\n%s", c.kind, diff)
		}
	}
	if got := encode(t, sigv4.PayloadStreamingSigned, []byte(data), 0); string(got) != plain {
		t.Errorf("encoded = %d bytes that differ from the example's %d", len(got), len(plain))
	}
}

func TestRoundTripOfRandomBodies(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range 60 {
		data := make([]byte, []int{0, 1, MinChunkBytes, 2 * MinChunkBytes, r.IntN(200_000)}[i%5])
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		for _, kind := range kinds {
			body := io.Reader(bytes.NewReader(encode(t, kind, data, MinChunkBytes+r.IntN(70_000))))
			switch i % 4 {
			case 1:
				body = iotest.HalfReader(body)
			case 2:
				body = iotest.DataErrReader(body)
			case 3:
				if len(data) < 20_000 {
					body = iotest.OneByteReader(body)
				}
			}
			d := decoderOf(t, kind, body, len(data))
			got, err := readSome(d, r)
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("kind %d, %d bytes: got %d bytes, %v", kind, len(data), len(got), err)
			}
			if trailed(kind) && d.Trailer()["x-amz-checksum-crc32c"] != crc32c(data) {
				t.Fatalf("kind %d, %d bytes: trailer %v; want %s", kind, len(data), d.Trailer(), crc32c(data))
			}
		}
	}
}

// readSome reads all, in pieces of random sizes.
func readSome(r io.Reader, random *rand.Rand) ([]byte, error) {
	var all []byte
	p := make([]byte, 100_000)
	for {
		n, err := r.Read(p[:1+random.IntN(len(p))])
		all = append(all, p[:n]...)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
	}
}

// A caller who never asks for more than the data must still meet an error at the end.
func TestEndIsCheckedWithTheLastByte(t *testing.T) {
	data := make([]byte, 20_000)
	for _, kind := range kinds {
		body := encode(t, kind, data, 0)
		for _, bad := range [][]byte{body[:len(body)-2], append(bytes.Clone(body), "x\r\n"...)} {
			d := decoderOf(t, kind, bytes.NewReader(bad), len(data))
			if n, err := io.ReadFull(d, make([]byte, len(data))); err == nil {
				t.Errorf("kind %d: ReadFull = %d, no error", kind, n)
			}
			if d.Trailer() != nil {
				t.Errorf("kind %d: a trailer after an error", kind)
			}
		}
	}
}

func TestErrorsOfTheBodyAreReturned(t *testing.T) {
	broken := errors.New("broken")
	for _, kind := range kinds {
		body := encode(t, kind, make([]byte, 20_000), 0)
		for _, at := range []int{0, 10, 5000, len(body) - 1, len(body)} {
			d := decoderOf(t, kind, io.MultiReader(bytes.NewReader(body[:at]), iotest.ErrReader(broken)), 20_000)
			for range 2 {
				if _, err := io.Copy(io.Discard, d); !errors.Is(err, broken) {
					t.Errorf("kind %d, broken at %d: %v; want %v", kind, at, err, broken)
				}
			}
		}
	}
}

func TestEncoderRefusesWrongLengths(t *testing.T) {
	for _, n := range []int{0, 9_999, 10_001} {
		e := NewEncoder(bytes.NewReader(make([]byte, n)), EncoderConfig{
			Kind: sigv4.PayloadStreamingUnsignedTrailer, DecodedBytes: 10_000, Trailer: checksum.SHA256})
		if _, err := io.Copy(io.Discard, e); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes instead of 10000: %v; want io.ErrUnexpectedEOF", n, err)
		}
	}
}

func FuzzDecoder(f *testing.F) {
	data := make([]byte, 10_000)
	for i, kind := range kinds {
		f.Add(encode(f, kind, data, 0), uint8(i), uint16(len(data)))
		f.Add(encode(f, kind, nil, 0), uint8(i), uint16(0))
	}
	f.Add([]byte("3;a=b\r\nabc\r\n0\r\nx-amz-checksum-crc32c:AAAA\n\r\n\r\n"), uint8(2), uint16(3))
	f.Fuzz(func(t *testing.T, body []byte, kind uint8, size uint16) {
		k := kinds[int(kind)%len(kinds)]
		d := decoderOf(t, k, bytes.NewReader(body), int(size))
		got, err := io.ReadAll(d)
		var refused *sigv4.Error
		switch {
		case err == nil && len(got) != int(size):
			t.Errorf("kind %d: %d bytes without an error; want %d", k, len(got), size)
		case err == nil && k != sigv4.PayloadStreamingUnsignedTrailer && !bytes.HasPrefix(data, got):
			t.Errorf("kind %d: data that nobody signed were accepted", k)
		case err != nil && (!errors.As(err, &refused) || refused.Status < 400):
			t.Errorf("kind %d: error %v is none of S3", k, err)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	data := make([]byte, 4<<20)
	for i, kind := range kinds {
		b.Run([]string{"Signed", "SignedTrailer", "Unsigned"}[i], func(b *testing.B) {
			body, p := encode(b, kind, data, 64<<10), make([]byte, 256<<10)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				d := decoderOf(b, kind, bytes.NewReader(body), len(data))
				for {
					if _, err := d.Read(p); errors.Is(err, io.EOF) {
						break
					} else if err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
