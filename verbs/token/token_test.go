package token_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/verbs/token"
)

// published is the example that several programs of the field use in their own documents.
const published = "0102030405060708:01020304:01020304:0102:010203:1:0102030405060708090a0b0c0d0e0f10"

func publishedToken() token.Token {
	return token.Token{
		Addr: 0x0102030405060708, SizeBytes: 0x01020304, RKey: 0x01020304, LID: 0x0102, DCTN: 0x010203,
		GIDPresent: true, GID: [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
	}
}

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     token.Token
	}{
		{"published", published, publishedToken()},
		{"zero", "0000000000000000:00000000:00000000:0000:000000:0:" + strings.Repeat("0", 32), token.Token{}},
		{"largest", "ffffffffffffffff:ffffffff:ffffffff:ffff:ffffff:1:" + strings.Repeat("f", 32), token.Token{
			Addr: 1<<64 - 1, SizeBytes: 1<<32 - 1, RKey: 1<<32 - 1, LID: 1<<16 - 1, DCTN: token.MaxDCTN, GIDPresent: true,
			GID: [16]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255},
		}},
	} {
		got, err := token.Parse(tc.in)
		if err != nil || got != tc.want {
			t.Errorf("%s: Parse(%q) = %+v, %v; want %+v", tc.name, tc.in, got, err, tc.want)
		}
		if s := got.String(); s != tc.in {
			t.Errorf("%s: String() = %q; want %q", tc.name, s, tc.in)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	put := func(at int, c string) string { return published[:at] + c + published[at+1:] }
	for _, tc := range []struct{ name, in, want string }{
		{"empty", "", "0 characters"},
		{"short", published[1:], "80 characters"},
		{"semicolon", published + ";", "semicolon"},
		{"old form", published + ":0102030405060708:0000000001020304", "update the client"},
		{"old form with semicolon", published + ":0102030405060708:0000000001020304;", "update the client"},
		{"long", published + strings.Repeat("0", 34), "115 characters; a token has exactly 81"},
		{"upper case", put(0, "A"), "character 1 is not a lower-case"},
		{"space", put(20, " "), "character 21 is not a lower-case"},
		{"sign", put(17, "-"), "character 18"},
		{"no colon", put(16, "0"), "character 17 is not a colon"},
		{"present 2", put(47, "2"), "neither 0 nor 1"},
		{"GID", put(80, "g"), "character 81"},
	} {
		_, err := token.Parse(tc.in)
		if !errors.Is(err, token.ErrMalformed) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: Parse(%q) = %v; want ErrMalformed with %q", tc.name, tc.in, err, tc.want)
		}
	}
}

func TestRC(t *testing.T) {
	want := token.RC{
		Transport: token.TransportRC, QPN: 0x010203, GID: [16]byte{10: 0xff, 0xff, 192, 0, 2, 1}, RKey: 0x0a0b0c0d,
		Addr: 0x1122334455667788, LengthBytes: 1 << 20, Port: 1, LID: 0x0102,
	}
	in := "01" + "03020100" + "00000000000000000000ffffc0000201" + "0d0c0b0a" + "8877665544332211" +
		"0000100000000000" + "01" + "0201"
	got, err := token.ParseRC(in)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Fatalf("ParseRC(%q): %v, (-want +got)\n%s", in, err, diff)
	}
	if s := got.String(); s != in || len(s) != token.RCSize {
		t.Errorf("String() = %q; want %q", s, in)
	}
	if got, err := token.ParseRC(strings.Repeat("0", token.RCSize)); err != nil || got != (token.RC{}) {
		t.Errorf("ParseRC(zeros) = %+v, %v; want the zero value", got, err)
	}
	for _, bad := range []string{"", in[1:], in + "0", "02" + in[2:], strings.ToUpper(in), "01030201ff" + in[10:]} {
		if _, err := token.ParseRC(bad); !errors.Is(err, token.ErrMalformed) {
			t.Errorf("ParseRC(%q) = %v; want ErrMalformed", bad, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(published)
	f.Add(published + ";")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := token.Parse(s)
		if err != nil {
			if !errors.Is(err, token.ErrMalformed) {
				t.Fatalf("Parse(%q) = %v; want ErrMalformed", s, err)
			}
			return
		}
		if got.String() != s {
			t.Fatalf("Parse(%q).String() = %q", s, got.String())
		}
	})
}

func FuzzParseRC(f *testing.F) {
	f.Add(strings.Repeat("0", token.RCSize))
	f.Fuzz(func(t *testing.T, s string) {
		if got, err := token.ParseRC(s); err == nil && got.String() != s {
			t.Fatalf("ParseRC(%q).String() = %q", s, got.String())
		}
	})
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := token.Parse(published); err != nil {
			b.Fatal(err)
		}
	}
}
