package sigv4

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
)

func TestSHA256Reader(t *testing.T) {
	const body = "Welcome to Amazon S3."
	right, broken := sha256.Sum256([]byte(body)), errors.New("broken")
	for _, c := range []struct {
		name string
		body io.Reader
		want string
	}{
		{"right", strings.NewReader(body), "<nil>"},
		{"end with the data", iotest.DataErrReader(strings.NewReader(body)), "<nil>"},
		{"byte by byte", iotest.OneByteReader(strings.NewReader(body)), "<nil>"},
		{"shorter", strings.NewReader(body[1:]), "XAmzContentSHA256Mismatch"},
		{"changed", iotest.DataErrReader(strings.NewReader(body + " ")), "XAmzContentSHA256Mismatch"},
		{"empty", strings.NewReader(""), "XAmzContentSHA256Mismatch"},
		{"broken", iotest.ErrReader(broken), "broken"},
	} {
		r := NewSHA256Reader(c.body, right)
		got, err := io.ReadAll(r)
		if codeOf(err) != c.want || err == nil && string(got) != body {
			t.Errorf("%s: %q, %v; want %s", c.name, got, err, c.want)
		}
		if _, again := r.Read(make([]byte, 1)); err != nil && !errors.Is(again, err) {
			t.Errorf("%s: the next Read gives %v; want %v", c.name, again, err)
		}
	}
	// A buffer that the data just fill must not swallow the error that came with them.
	r := NewSHA256Reader(iotest.DataErrReader(strings.NewReader("other")), right)
	if _, err := io.ReadFull(r, make([]byte, 5)); codeOf(err) != "XAmzContentSHA256Mismatch" {
		t.Errorf("ReadFull: %v; want XAmzContentSHA256Mismatch", err)
	}
}

func TestParsePayload(t *testing.T) {
	for _, c := range []struct {
		value     string
		kind      PayloadKind
		streaming bool
	}{
		{EmptySHA256, PayloadSHA256, false},
		{strings.ToUpper(EmptySHA256), PayloadSHA256, false},
		{UnsignedPayload, PayloadUnsigned, false},
		{StreamingSigned, PayloadStreamingSigned, true},
		{StreamingSignedTrailer, PayloadStreamingSignedTrailer, true},
		{StreamingUnsignedTrailer, PayloadStreamingUnsignedTrailer, true},
	} {
		got, err := parsePayload(c.value)
		if err != nil || got.Kind != c.kind || got.Kind.Streaming() != c.streaming {
			t.Errorf("parsePayload(%q) = %+v, %v; want kind %d", c.value, got, err, c.kind)
		}
		if c.kind == PayloadSHA256 && hex.EncodeToString(got.SHA256[:]) != EmptySHA256 {
			t.Errorf("parsePayload(%q) = %x", c.value, got.SHA256)
		}
	}
}

func TestPrintedFormsHideSecrets(t *testing.T) {
	c := Credential{"AKIA", "very-secret", "token-secret"}
	key := deriveKey(c.SecretKey, Scope{"20130524", "us-east-1"})
	id := Identity{AccessKey: "AKIA", Seed: Seed{Key: key}}
	var out bytes.Buffer
	signer := &Signer{Credential: c, Region: "us-east-1"}
	signer.key(Scope{"20130524", "us-east-1"}) // it keeps that
	for _, v := range []any{c, &c, []Credential{c}, signer, key, &key, id} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		slog.New(slog.NewTextHandler(&out, nil)).Info("a", "value", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("a", "value", v)
		if err := json.NewEncoder(&out).Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	for _, secret := range []string{c.SecretKey, c.SessionToken, hex.EncodeToString([]byte(c.SecretKey)),
		hex.EncodeToString(key.key[:]), fmt.Sprint(key.key[:])} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("%q is in %s", secret, out.String())
		}
	}
	if got := c.String(); got != `credential "AKIA"` {
		t.Errorf("String() = %s", got)
	}
}

func TestSignIsHMAC(t *testing.T) {
	for n := range 700 {
		key := SigningKey{sha256.Sum256([]byte{byte(n)})}
		message := bytes.Repeat([]byte{byte(n)}, n)
		mac := hmac.New(sha256.New, key.key[:])
		mac.Write(message)
		if got, want := key.sign(message), hex.EncodeToString(mac.Sum(nil)); string(got[:]) != want {
			t.Fatalf("sign(%d bytes) = %s; want %s", n, got, want)
		}
	}
}

func TestKeyCache(t *testing.T) {
	var c keyCache
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for i := range 3*maxCachedKeys + 10 {
				scope := Scope{"20130524", "region-" + strconv.Itoa(i%(maxCachedKeys+100))}
				if got, want := c.key("secret", scope), deriveKey("secret", scope); got.key != want.key {
					t.Errorf("key for %v is wrong", scope)
				}
			}
		})
	}
	wait.Wait()
	if n := len(c.newest); n > maxCachedKeys {
		t.Errorf("%d keys are cached; want %d at most", n, maxCachedKeys)
	}
	scope := Scope{"20130524", "us-east-1"}
	if c.key("old", scope).key == c.key("new", scope).key {
		t.Error("a changed secret finds the old key")
	}
}

func TestHeaderSet(t *testing.T) {
	set := HeaderSet("content-type;host;x-amz-date")
	for name, want := range map[string]bool{"host": true, "Host": true, "X-Amz-Date": true, "x-amz": false,
		"": false, "content-type;host": false, "date": false} {
		if got := set.Has(name); got != want {
			t.Errorf("Has(%q) = %v; want %v", name, got, want)
		}
	}
	if HeaderSet("").Has("") {
		t.Error("the empty set has a header")
	}
	many := make([]string, MaxSignedHeaders+1)
	for i := range many {
		many[i] = fmt.Sprintf("a%04d", i)
	}
	if !HeaderSet(strings.Join(many[1:], ";")).valid() || HeaderSet(strings.Join(many, ";")).valid() {
		t.Error("the limit of signed headers is not kept")
	}
}
