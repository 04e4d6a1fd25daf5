package config

import "testing"

func TestParseSize(t *testing.T) {
	tests := []struct {
		text string
		want Size // -1 for an error
	}{
		{"0", 0}, {"512", 512}, {"512B", 512}, {"4GiB", 4 << 30}, {"512MiB", 512 << 20}, {"10GB", 10e9},
		{"1 TiB", 1 << 40}, {"3kib", 3 << 10}, {" 7MB ", 7e6}, {"8388607TiB", 8388607 << 40},
		{"", -1}, {"GiB", -1}, {"-1", -1}, {"1.5GiB", -1}, {"4G", -1}, {"8388608TiB", -1}, {"1e3", -1},
		{"99999999999999999999", -1},
	}
	for _, test := range tests {
		got, err := ParseSize(test.text)
		if err != nil {
			got = -1
		}
		if got != test.want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", test.text, got, err, test.want)
		}
	}
}

func TestSizeString(t *testing.T) {
	for _, text := range []string{"4GiB", "10GB", "1B", "1025B", "3KiB", "999MB", "0"} {
		v, err := ParseSize(text)
		if err != nil || v.String() != text {
			t.Errorf("ParseSize(%q).String() = %q, %v", text, v.String(), err)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, text := range []string{"4GiB", "10GB", "1", "9223372036854775807", "0x1", "1KiB "} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := ParseSize(text)
		if err != nil {
			return
		}
		if back, err := ParseSize(v.String()); err != nil || back != v || v < 0 {
			t.Errorf("ParseSize(%q) = %d, and its String %q reads back as %d, %v", text, v, v, back, err)
		}
	})
}
