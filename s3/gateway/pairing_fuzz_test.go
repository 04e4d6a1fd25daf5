package gateway

import (
	"net/http"
	"strings"
	"testing"

	"github.com/millrace/millrace/s3/wire"
)

// FuzzPrepare reads the headers of a PREPARE. What it takes is within all limits.
func FuzzPrepare(f *testing.F) {
	token := "01" + strings.Repeat("11", 43)
	f.Add(token, "00ff10", "1a2b3c4d", "GET", "/bucket/key?partNumber=1", "4096", "1024")
	f.Add(strings.Repeat("0", 88), "000001", "00000001", "PUT", "/bucket/a%2fb", "2147483647", "")
	f.Add(token, "-00001", "+0000001", "PUT", "//host/key", "1e3", "-1")
	f.Fuzz(func(t *testing.T, token, psn, cookie, op, target, size, offset string) {
		h := http.Header{
			headerToken: {token}, headerPSN: {psn}, headerCookie: {cookie}, headerPairOp: {op}, headerTarget: {target},
			headerSize: {size}, headerOffset: {offset},
		}
		r := &request{Request: &wire.Request{HTTP: &http.Request{Header: h, RemoteAddr: "192.0.2.1:1"}}}
		s, err := (&Gateway{}).parsePrepare(r)
		if err != nil {
			return
		}
		switch {
		case s.size <= 0 || s.size > maxPairBytes || s.offset < 0 || s.cookie == 0 || s.remote.PSN == 0 || s.remote.PSN > 0xffffff ||
			s.remote.QPN > 0xffffff:
			t.Errorf("%+v is beyond the limits", s)
		case s.inner.Bucket == "" || s.inner.Key == "" || s.inner.HTTP.Method != op:
			t.Errorf("%s %q asks for %+v", op, target, s.inner)
		case op == "GET" && s.inner.Op != wire.GetObject, op == "PUT" && s.inner.Op == wire.GetObject:
			t.Errorf("%s is %v", op, s.inner.Op)
		}
	})
}
