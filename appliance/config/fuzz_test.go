package config

import "testing"

func FuzzDecode(f *testing.F) {
	f.Add([]byte("dir = \"d\"\ndrives = 6\ndrive-size = \"1GiB\"\n"))
	f.Add([]byte("[x]\ny = {\"z]\" = 1}\n"))
	f.Add([]byte("a.b = 1\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c := Default()
		if decode(text, &c) == nil {
			_ = c.Validate() // it must not panic
		}
	})
}
