package checksum

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"testing"
)

// The check values are those of the algorithms' own specifications for "123456789".
func TestNew(t *testing.T) {
	for _, c := range []struct {
		algorithm Algorithm
		want      string
	}{
		{CRC32, "cbf43926"},
		{CRC32C, "e3069283"},
		{SHA1, "f7c3bc1d808e04732adf679965ccc34ca7ae3441"},
		{SHA256, "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"},
		{CRC64NVME, "ae8b14860a799888"},
	} {
		h := New(c.algorithm)
		h.Write([]byte("123456789"))
		sum := h.Sum(nil)
		if got := hex.EncodeToString(sum); got != c.want {
			t.Errorf("New(%v)(123456789) = %s; want %s", c.algorithm, got, c.want)
		}
		if got := c.algorithm.SizeBytes(); got != len(sum) || got > MaxSizeBytes {
			t.Errorf("%v.SizeBytes() = %d; want %d", c.algorithm, got, len(sum))
		}
	}
	if New(None) != nil || None.SizeBytes() != 0 {
		t.Error("None has a hash")
	}
}

func TestNames(t *testing.T) {
	for _, a := range All() {
		for _, name := range []string{a.String(), strings.ToLower(a.String())} {
			if got, err := Parse(name); got != a || err != nil {
				t.Errorf("Parse(%q) = %v, %v; want %v", name, got, err, a)
			}
		}
		for _, name := range []string{a.Header(), a.HeaderKey(), strings.ToUpper(a.Header())} {
			if got, err := ParseHeader(name); got != a || err != nil {
				t.Errorf("ParseHeader(%q) = %v, %v; want %v", name, got, err, a)
			}
		}
		if got, want := a.HeaderKey(), http.CanonicalHeaderKey(a.Header()); got != want {
			t.Errorf("%v.HeaderKey() = %q; want %q", a, got, want)
		}
		if got, want := a.Header(), "x-amz-checksum-"+strings.ToLower(a.String()); got != want {
			t.Errorf("%v.Header() = %q; want %q", a, got, want)
		}
	}
	for _, name := range []string{"", "MD5", "CRC32 ", "x-amz-checksum-type"} {
		if _, err := Parse(name); !errors.Is(err, ErrUnknown) {
			t.Errorf("Parse(%q) error = %v; want ErrUnknown", name, err)
		}
		if _, err := ParseHeader(name); !errors.Is(err, ErrUnknown) {
			t.Errorf("ParseHeader(%q) error = %v; want ErrUnknown", name, err)
		}
	}
	for _, typ := range []Type{FullObject, Composite} {
		if got, err := ParseType(typ.String()); got != typ || err != nil {
			t.Errorf("ParseType(%q) = %v, %v; want %v", typ.String(), got, err, typ)
		}
	}
	if _, err := ParseType(""); !errors.Is(err, ErrUnknown) {
		t.Errorf("ParseType(\"\") error = %v; want ErrUnknown", err)
	}
	if None.String() != "" || None.Header() != "" || None.HeaderKey() != "" || Type(0).String() != "" {
		t.Error("the zero values have names")
	}
}

func TestDecode(t *testing.T) {
	for _, c := range []struct {
		algorithm Algorithm
		text      string
		want      string // hex; "" for ErrBadValue
	}{
		{CRC32, "y/Q5Jg==", "cbf43926"},
		{CRC32, "y/Q5Jg=", ""},
		{CRC32, "y/Q5Jh==", ""}, // not canonical: bits after the value
		{CRC32, "y_Q5Jg==", ""}, // the URL alphabet
		{CRC32, "y/Q5\nJg==", ""},
		{CRC32, "y/Q\nJg==", ""}, // right length, but with a line break
		{CRC32, "", ""},
		{CRC32, "y/Q5Jicm", ""}, // right text length, six bytes
		{CRC64NVME, "rosUhgp5mIg=", "ae8b14860a799888"},
		{CRC64NVME, "y/Q5Jg==", ""},
		{None, "", ""},
	} {
		got, err := c.algorithm.Decode(c.text)
		if hex.EncodeToString(got) != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%v.Decode(%q) = %x, %v; want %s", c.algorithm, c.text, got, err, c.want)
		}
		if err == nil && Encode(got) != c.text {
			t.Errorf("Encode(%x) = %q; want %q", got, Encode(got), c.text)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, text := range []string{"y/Q5Jg==", "rosUhgp5mIg=", "y/Q5Jg==-3", "-", "-1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, a := range All() {
			if value, err := a.Decode(text); err == nil && Encode(value) != text {
				t.Errorf("%v.Decode(%q) = %x is not the only text of it", a, text, value)
			}
			value, parts, err := a.DecodeComposite(text)
			if err == nil && EncodeComposite(value, parts) != text {
				t.Errorf("%v.DecodeComposite(%q) = %x, %d is not the only text of it", a, text, value, parts)
			}
		}
	})
}

func sum(a Algorithm, p []byte) []byte {
	h := New(a)
	h.Write(p)
	return h.Sum(nil)
}

func TestPartsOfRandomObjects(t *testing.T) {
	r := newRand(t)
	for range 50 {
		var whole []byte
		pieces := make([][]byte, r.IntN(8))
		for i := range pieces {
			pieces[i] = randomBytes(r, r.IntN(3000))
			whole = append(whole, pieces[i]...)
		}
		for _, a := range All() {
			var parts []Part
			var values []byte
			for _, p := range pieces {
				parts = append(parts, Part{sum(a, p), int64(len(p))})
				values = append(values, sum(a, p)...)
			}
			checkParts(t, a, FullObject, FullObjectOf, parts, sum(a, whole))
			checkParts(t, a, Composite, CompositeOf, parts, sum(a, values))
		}
	}
}

func checkParts(t *testing.T, a Algorithm, typ Type, of func(Algorithm, []Part) ([]byte, error),
	parts []Part, want []byte) {
	t.Helper()
	got, err := of(a, parts)
	if !a.Allows(typ) {
		if !errors.Is(err, ErrNotCombinable) {
			t.Errorf("%v of %v: error %v; want ErrNotCombinable", typ, a, err)
		}
		return
	}
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v of %d parts of %v = %x, %v; want %x", typ, len(parts), a, got, err, want)
	}
	if _, err := of(a, append(parts[:len(parts):len(parts)], Part{[]byte{1}, 1})); !errors.Is(err, ErrBadValue) {
		t.Errorf("%v of %v with a short value: error %v; want ErrBadValue", typ, a, err)
	}
}

func TestAllows(t *testing.T) {
	for _, c := range []struct {
		algorithm       Algorithm
		full, composite bool
		standard        Type
	}{
		{None, false, false, 0},
		{CRC32, true, true, Composite},
		{CRC32C, true, true, Composite},
		{SHA1, false, true, Composite},
		{SHA256, false, true, Composite},
		{CRC64NVME, true, false, FullObject},
	} {
		full, composite := c.algorithm.Allows(FullObject), c.algorithm.Allows(Composite)
		if full != c.full || composite != c.composite || c.algorithm.DefaultType() != c.standard {
			t.Errorf("%v allows full %v, composite %v, default %v; want %v, %v, %v", c.algorithm,
				full, composite, c.algorithm.DefaultType(), c.full, c.composite, c.standard)
		}
	}
}

func TestDecodeComposite(t *testing.T) {
	value := sum(CRC32, []byte("123456789"))
	text := EncodeComposite(value, 17)
	if text != "y/Q5Jg==-17" {
		t.Errorf("EncodeComposite(…, 17) = %q; want y/Q5Jg==-17", text)
	}
	got, parts, err := CRC32.DecodeComposite(text)
	if !bytes.Equal(got, value) || parts != 17 || err != nil {
		t.Errorf("DecodeComposite(%q) = %x, %d, %v; want %x, 17", text, got, parts, err, value)
	}
	for _, text := range []string{"", "y/Q5Jg==", "y/Q5Jg==-", "y/Q5Jg==-0", "y/Q5Jg==-01", "y/Q5Jg==-10001",
		"y/Q5Jg==--1", "y/Q5Jg==-+1", "y/Q5J===-1"} {
		if _, _, err := CRC32.DecodeComposite(text); !errors.Is(err, ErrBadValue) {
			t.Errorf("DecodeComposite(%q) error = %v; want ErrBadValue", text, err)
		}
	}
}
