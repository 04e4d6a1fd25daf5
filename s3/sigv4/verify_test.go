package sigv4

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

const (
	headerRequest = "PUT /bucket/key?partNumber=1&uploadId=x HTTP/1.1\nHost: " + exampleHost +
		"\nx-amz-meta-a: b\nContent-Type: text/plain\n"
	otherSignature = "0000000000000000000000000000000000000000000000000000000000000000"
)

var temporary = Credential{AccessKey: "ASIATEMPORARY", SecretKey: "temporary/secret", SessionToken: "token+/="}

// signedBy returns a request signed in its header, as the server has it.
func signedBy(t *testing.T, c Credential, region string, at time.Time) *http.Request {
	t.Helper()
	r := parseRequest(t, headerRequest)
	signer := Signer{Credential: c, Region: region}
	if _, err := signer.Sign(r, UnsignedPayload, at); err != nil {
		t.Fatal(err)
	}
	return r
}

func presignedBy(t *testing.T, c Credential, region string, at time.Time) *http.Request {
	t.Helper()
	r := parseRequest(t, headerRequest)
	signer := Signer{Credential: c, Region: region}
	if err := signer.Presign(r, time.Hour, at); err != nil {
		t.Fatal(err)
	}
	return r
}

func codeOf(err error) string {
	var refused *Error
	if errors.As(err, &refused) {
		return refused.Code
	}
	return fmt.Sprint(err)
}

// authorization replaces a piece of the Authorization header.
func authorization(old, replacement string) func(*http.Request) {
	return func(r *http.Request) {
		value := r.Header.Get("Authorization")
		if !strings.Contains(value, old) {
			panic("nothing to replace")
		}
		r.Header.Set("Authorization", strings.Replace(value, old, replacement, 1))
	}
}

// query replaces a piece of the query.
func query(old, replacement string) func(*http.Request) {
	return func(r *http.Request) {
		if !strings.Contains(r.URL.RawQuery, old) {
			panic("nothing to replace: " + r.URL.RawQuery)
		}
		r.URL.RawQuery = strings.Replace(r.URL.RawQuery, old, replacement, 1)
	}
}

func setHeader(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func addHeader(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Add(name, value) }
}

func delHeader(name string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Del(name) }
}

const (
	malformed  = "AuthorizationHeaderMalformed"
	badQuery   = "AuthorizationQueryParametersError"
	mismatched = "SignatureDoesNotMatch"
)

type tampering struct {
	name   string
	mutate func(*http.Request)
	want   string // "<nil>" if it is accepted
}

func checkTampering(t *testing.T, base func() *http.Request, table []tampering) {
	t.Helper()
	v := newVerifier(exampleTime, temporary)
	for _, c := range table {
		r := base()
		c.mutate(r)
		id, err := v.Verify(context.Background(), r)
		if got := codeOf(err); got != c.want {
			t.Errorf("%s: %s; want %s (%v)", c.name, got, c.want, err)
		}
		if err != nil && id != (Identity{}) {
			t.Errorf("%s: an identity beside an error", c.name)
		}
		if strings.Contains(fmt.Sprintf("%+v %#v", err, err), exampleCredential.SecretKey) {
			t.Errorf("%s: the error holds the secret", c.name)
		}
	}
}

func TestTamperedHeaderForm(t *testing.T) {
	signer := func() *http.Request { return signedBy(t, exampleCredential, "us-east-1", exampleTime) }
	checkTampering(t, signer, []tampering{
		{"untouched", func(*http.Request) {}, "<nil>"},
		{"method", func(r *http.Request) { r.Method = "POST" }, mismatched},
		{"path", func(r *http.Request) { r.URL.Path += "/" }, mismatched},
		{"query value", query("partNumber=1", "partNumber=2"), mismatched},
		{"query order", query("partNumber=1&uploadId=x", "uploadId=x&partNumber=1"), "<nil>"},
		{"query more", query("uploadId=x", "uploadId=x&acl"), mismatched},
		{"query wrong escape", query("uploadId=x", "uploadId=%x"), "InvalidURI"},
		{"query endless", query("uploadId=x", strings.Repeat("a&", MaxQueryParameters)), "InvalidURI"},
		{"host", func(r *http.Request) { r.Host = "example.com" }, mismatched},
		{"signed header", setHeader("X-Amz-Meta-A", "c"), mismatched},
		{"signed header again", addHeader("X-Amz-Meta-A", "c"), mismatched},
		{"signed header gone", delHeader("X-Amz-Meta-A"), mismatched},
		{"space in signed header", setHeader("X-Amz-Meta-A", " b "), "<nil>"},
		{"unsigned header", setHeader("Range", "bytes=0-1"), "<nil>"},
		{"unsigned x-amz header", setHeader("X-Amz-Acl", "public-read"), "AccessDenied"},
		{"payload", setHeader("X-Amz-Content-Sha256", EmptySHA256), mismatched},
		{"payload kind", setHeader("X-Amz-Content-Sha256", StreamingUnsignedTrailer), mismatched},
		{"payload wrong", setHeader("X-Amz-Content-Sha256", "abc"), "InvalidArgument"},
		{"payload not hex", setHeader("X-Amz-Content-Sha256", strings.Repeat("g", 64)), "InvalidArgument"},
		{"payload ECDSA", setHeader("X-Amz-Content-Sha256", streamingECDSA), "NotImplemented"},
		{"payload missing", delHeader("X-Amz-Content-Sha256"), "InvalidRequest"},
		{"payload twice", addHeader("X-Amz-Content-Sha256", UnsignedPayload), "InvalidArgument"},
		{"date", setHeader("X-Amz-Date", "20130524T000001Z"), mismatched},
		{"date malformed", setHeader("X-Amz-Date", "yesterday"), "AccessDenied"},
		{"date missing", delHeader("X-Amz-Date"), "AccessDenied"},
		{"date of another day", setHeader("X-Amz-Date", "20130523T235959Z"), malformed},
		{"token not asked for", setHeader("X-Amz-Security-Token", "a"), "AccessDenied"},
		{"signature", authorization("Signature=", "Signature=0"), mismatched},
		{"other signature", func(r *http.Request) {
			value := r.Header.Get("Authorization")
			r.Header.Set("Authorization", value[:len(value)-64]+otherSignature)
		}, mismatched},
		{"both forms", query("uploadId=x", "X-Amz-Algorithm=AWS4-HMAC-SHA256"), "InvalidArgument"},
		{"two headers", addHeader("Authorization", "AWS4-HMAC-SHA256 a"), "InvalidArgument"},
		{"anonymous", delHeader("Authorization"), ErrAnonymous.Error()},
		{"V2", setHeader("Authorization", "AWS AKIAIOSFODNN7EXAMPLE:c2lnbmF0dXJl"), "InvalidRequest"},
		{"V4A", authorization("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"), "InvalidRequest"},
		{"basic", setHeader("Authorization", "Basic YTpi"), "InvalidArgument"},
		{"empty", setHeader("Authorization", ""), "InvalidArgument"},
	})
}

func TestTamperedAuthorization(t *testing.T) {
	signer := func() *http.Request { return signedBy(t, exampleCredential, "us-east-1", exampleTime) }
	checkTampering(t, signer, []tampering{
		{"spaces", authorization(",SignedHeaders", " ,  SignedHeaders"), "<nil>"},
		{"no components", setHeader("Authorization", "AWS4-HMAC-SHA256 "), malformed},
		{"endless", setHeader("Authorization", "AWS4-HMAC-SHA256 "+strings.Repeat("a,", MaxAuthorizationBytes)), malformed},
		{"no signature", authorization(",Signature", ",Sig"), malformed},
		{"component twice", authorization("Credential=", "Credential=a,Credential="), malformed},
		{"unknown component", authorization("Credential=", "A=b,Credential="), malformed},
		{"trailing comma", func(r *http.Request) {
			r.Header.Set("Authorization", r.Header.Get("Authorization")+",")
		}, malformed},
		{"other key", authorization("AKIAIOSFODNN7EXAMPLE", "AKIAOTHER"), "InvalidAccessKeyId"},
		{"another's key", authorization("AKIAIOSFODNN7EXAMPLE", temporary.AccessKey), mismatched},
		{"no key", authorization("AKIAIOSFODNN7EXAMPLE/", "/"), malformed},
		{"credential short", authorization("AKIAIOSFODNN7EXAMPLE/", ""), malformed},
		{"other region", authorization("us-east-1", "eu-west-1"), malformed},
		{"other service", authorization("/s3/", "/sts/"), malformed},
		{"other terminator", authorization("aws4_request", "aws5_request"), malformed},
		{"other date", authorization("20130524", "20130525"), malformed},
		{"date short", authorization("20130524", "2013052"), malformed},
		{"host not signed", authorization("host;", ""), "AccessDenied"},
		{"header not signed", authorization("x-amz-meta-a", "x-amz-meta-b"), "AccessDenied"},
		{"upper-case headers", authorization("host", "Host"), malformed},
		{"headers out of order", authorization("content-type;host", "host;content-type"), malformed},
		{"header twice", authorization("host;", "host;host;"), malformed},
		{"empty header", authorization("host;", "host;;"), malformed},
		{"header with a line end", authorization("host;", "host;i\n:;"), malformed},
		{"absent header", authorization("host;", "host;range;"), mismatched},
	})
}

func TestTamperedQueryForm(t *testing.T) {
	base := func() *http.Request { return presignedBy(t, exampleCredential, "us-east-1", exampleTime) }
	checkTampering(t, base, []tampering{
		{"untouched", func(*http.Request) {}, "<nil>"},
		{"method", func(r *http.Request) { r.Method = "GET" }, mismatched},
		{"path", func(r *http.Request) { r.URL.Path = "/bucket/other" }, mismatched},
		{"query value", query("partNumber=1", "partNumber=2"), mismatched},
		{"expiry", query("X-Amz-Expires=3600", "X-Amz-Expires=3601"), mismatched},
		{"expiry missing", query("X-Amz-Expires", "x"), badQuery},
		{"expiry twice", query("X-Amz-Expires", "X-Amz-Expires=1&X-Amz-Expires"), badQuery},
		{"expiry no number", query("X-Amz-Expires=3600", "X-Amz-Expires=1h"), badQuery},
		{"expiry negative", query("X-Amz-Expires=3600", "X-Amz-Expires=-1"), badQuery},
		{"expiry too long", query("X-Amz-Expires=3600", "X-Amz-Expires=604801"), badQuery},
		{"algorithm", query("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"), badQuery},
		{"algorithm missing", query("X-Amz-Algorithm", "x"), badQuery},
		{"signature missing", query("X-Amz-Signature", "x"), badQuery},
		{"signature", query("X-Amz-Signature=", "X-Amz-Signature=0"), mismatched},
		{"date malformed", query("20130524T000000Z", "20130524000000Z"), badQuery},
		{"date of another day", query("20130524T000000Z", "20130523T235900Z"), badQuery},
		{"credential short", query("%2Fs3", ""), badQuery},
		{"other region", query("us-east-1", "eu-west-1"), badQuery},
		{"other key", query("AKIAIOSFODNN7EXAMPLE", "AKIAOTHER"), "InvalidAccessKeyId"},
		{"signed headers", query("X-Amz-SignedHeaders=content-type%3Bhost", "X-Amz-SignedHeaders=host"), mismatched},
		{"host not signed", query("%3Bhost", ""), "AccessDenied"},
		{"unsigned x-amz header", setHeader("X-Amz-Acl", "public-read"), "AccessDenied"},
		{"payload hash", setHeader("X-Amz-Content-Sha256", EmptySHA256), mismatched},
		{"payload unsigned", setHeader("X-Amz-Content-Sha256", UnsignedPayload), "<nil>"},
		{"signed header", setHeader("Content-Type", "text/html"), mismatched},
		{"both forms", setHeader("Authorization", "AWS4-HMAC-SHA256 a"), "InvalidArgument"},
		{"V2", func(r *http.Request) {
			r.URL.RawQuery = "AWSAccessKeyId=a&Expires=1&Signature=b"
		}, "InvalidRequest"},
		{"anonymous", func(r *http.Request) { r.URL.RawQuery = "Expires=1" }, ErrAnonymous.Error()},
	})
}

func TestTimes(t *testing.T) {
	for _, c := range []struct {
		name      string
		presigned bool
		later     time.Duration
		want      string
	}{
		{"header at the skew", false, MaxSkew, "<nil>"},
		{"header too old", false, MaxSkew + time.Second, "RequestTimeTooSkewed"},
		{"header ahead", false, -MaxSkew, "<nil>"},
		{"header too far ahead", false, -MaxSkew - time.Second, "RequestTimeTooSkewed"},
		{"presigned at the expiry", true, time.Hour, "<nil>"},
		{"presigned expired", true, time.Hour + time.Second, "AccessDenied"},
		{"presigned ahead", true, -MaxSkew, "<nil>"},
		{"presigned too far ahead", true, -MaxSkew - time.Second, "AccessDenied"},
	} {
		r := signedBy(t, exampleCredential, "us-east-1", exampleTime)
		if c.presigned {
			r = presignedBy(t, exampleCredential, "us-east-1", exampleTime)
		}
		_, err := newVerifier(exampleTime.Add(c.later)).Verify(context.Background(), r)
		if got := codeOf(err); got != c.want {
			t.Errorf("%s: %s; want %s", c.name, got, c.want)
		}
	}
}

func TestRegions(t *testing.T) {
	for _, c := range []struct {
		signed string
		strict bool
		want   string
	}{
		{"eu-west-1", false, "<nil>"},
		{"eu-west-1", true, "<nil>"},
		{"us-east-1", false, "<nil>"},
		{"us-east-1", true, malformed},
		{"eu-west-2", false, malformed},
	} {
		v := newVerifier(exampleTime)
		v.Region, v.StrictRegion = "eu-west-1", c.strict
		_, err := v.Verify(context.Background(), signedBy(t, exampleCredential, c.signed, exampleTime))
		if got := codeOf(err); got != c.want {
			t.Errorf("region %s, strict %v: %s; want %s", c.signed, c.strict, got, c.want)
		}
		var refused *Error
		if errors.As(err, &refused) && refused.Field("Region") != "eu-west-1" {
			t.Errorf("region %s: the error names %q as the right one", c.signed, refused.Field("Region"))
		}
	}
}

func TestSessionTokens(t *testing.T) {
	other := temporary
	for _, c := range []struct{ name, token, want string }{
		{"right", temporary.SessionToken, "<nil>"},
		{"wrong", "other", "InvalidToken"},
		{"missing", "", "InvalidAccessKeyId"},
	} {
		other.SessionToken = c.token
		for form, sign := range map[string]func(*testing.T, Credential, string, time.Time) *http.Request{
			"header": signedBy, "presigned": presignedBy,
		} {
			_, err := newVerifier(exampleTime, temporary).Verify(context.Background(), sign(t, other, "us-east-1", exampleTime))
			if got := codeOf(err); got != c.want {
				t.Errorf("%s token, %s: %s; want %s", c.name, form, got, c.want)
			}
		}
	}
	permanent := exampleCredential
	permanent.SessionToken = "unexpected"
	_, err := newVerifier(exampleTime).Verify(context.Background(), signedBy(t, permanent, "us-east-1", exampleTime))
	if got := codeOf(err); got != "InvalidToken" {
		t.Errorf("token of a permanent key: %s; want InvalidToken", got)
	}
}

// A request dated by its Date header alone.
func TestDateHeader(t *testing.T) {
	for _, date := range []string{"Fri, 24 May 2013 00:00:00 GMT", "Fri, 24 May 2013 00:00:00 -0000", "20130524T000000Z"} {
		r := parseRequest(t, "GET /a HTTP/1.1\nHost: "+exampleHost)
		r.Header.Set("Date", date)
		r.Header.Set("X-Amz-Content-Sha256", EmptySHA256)
		signed := HeaderSet("date;host;x-amz-content-sha256")
		signer := Signer{Credential: exampleCredential, Region: "us-east-1"}
		signature, _, err := signer.sign(r, Scope{"20130524", "us-east-1"}, "20130524T000000Z", signed, EmptySHA256)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", algorithmName+" "+exampleScope+", SignedHeaders="+string(signed)+
			", Signature="+signature)
		if _, err := newVerifier(exampleTime).Verify(context.Background(), r); err != nil {
			t.Errorf("Date: %s: %v", date, err)
		}
	}
}

func TestLookupErrorsAreReturned(t *testing.T) {
	v := newVerifier(exampleTime)
	broken := errors.New("broken")
	v.Lookup = func(context.Context, string) (Credential, error) { return Credential{}, broken }
	_, err := v.Verify(context.Background(), signedBy(t, exampleCredential, "us-east-1", exampleTime))
	if !errors.Is(err, broken) {
		t.Errorf("Verify: %v; want %v", err, broken)
	}
}

func TestMismatchTellsWhatWasSigned(t *testing.T) {
	r := signedBy(t, exampleCredential, "us-east-1", exampleTime)
	r.Method = "GET"
	_, err := newVerifier(exampleTime).Verify(context.Background(), r)
	var refused *Error
	if !errors.As(err, &refused) || refused.Status != http.StatusForbidden {
		t.Fatalf("Verify: %v", err)
	}
	for name, prefix := range map[string]string{
		"AWSAccessKeyId":    exampleCredential.AccessKey,
		"CanonicalRequest":  "GET\n/bucket/key\npartNumber=1&uploadId=x\ncontent-type:text/plain\nhost:" + exampleHost + "\n",
		"StringToSign":      "AWS4-HMAC-SHA256\n20130524T000000Z\n20130524/us-east-1/s3/aws4_request\n",
		"SignatureProvided": "",
	} {
		if got := refused.Field(name); got == "" || !strings.HasPrefix(got, prefix) {
			t.Errorf("%s = %q; want %q…", name, got, prefix)
		}
	}
}

func TestSignerRefuses(t *testing.T) {
	signer := Signer{Credential: exampleCredential, Region: "us-east-1"}
	r := &http.Request{Method: "GET", URL: &url.URL{Opaque: "//host/path"}, Header: http.Header{}}
	if _, err := signer.Sign(r, EmptySHA256, exampleTime); !errors.Is(err, ErrOpaqueURL) {
		t.Errorf("Sign of an opaque URL: %v; want ErrOpaqueURL", err)
	}
	if err := signer.Presign(r, time.Hour, exampleTime); !errors.Is(err, ErrOpaqueURL) {
		t.Errorf("Presign of an opaque URL: %v; want ErrOpaqueURL", err)
	}
	r.URL = &url.URL{Path: "/"}
	for _, expiry := range []time.Duration{0, time.Millisecond, MaxExpiry + 1} {
		if err := signer.Presign(r, expiry, exampleTime); err == nil {
			t.Errorf("Presign for %v: no error", expiry)
		}
	}
}
