package sigv4

import (
	"bytes"
	"crypto/sha256"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// parameter is one name=value of a query. Name and value are encoded as they are signed, and lie in
// workspace.query.
type parameter struct {
	name, value span
	raw         string // the value as it was sent
}

type span struct{ from, to int }

// workspace is the memory that building a string to sign takes. It is reused.
type workspace struct {
	query      []byte
	parameters []parameter
	canonical  []byte
	toSign     []byte
	key        []byte // a header's map key
}

var workspaces = sync.Pool{New: func() any { return new(workspace) }}

func (w *workspace) release() {
	const maxKeptBytes = 64 << 10
	if cap(w.canonical)+cap(w.query) <= maxKeptBytes {
		clear(w.parameters) // it refers to the request
		workspaces.Put(w)
	}
}

func isUnreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '-' || c == '.' || c == '_' || c == '~'
}

func appendEscaped(dst []byte, c byte) []byte {
	const digits = "0123456789ABCDEF"
	return append(dst, '%', digits[c>>4], digits[c&15])
}

// appendPath appends the path, which is not encoded, as it is signed. S3 encodes once and
// does not clean: "//" and "/../" are parts of keys. Since a URL's Path is exactly what its escaped
// form decodes to, any way in which a client may have escaped it gives the same.
func appendPath(dst []byte, path string) []byte {
	if path == "" {
		return append(dst, '/')
	}
	for len(path) > 0 {
		n := 0
		for n < len(path) && (isUnreserved(path[n]) || path[n] == '/') {
			n++
		}
		dst = append(dst, path[:n]...)
		if n < len(path) {
			dst = appendEscaped(dst, path[n])
			n++
		}
		path = path[n:]
	}
	return dst
}

// appendComponent decodes a query component and appends it as it is signed. It returns false for
// a wrong escape.
func appendComponent(dst []byte, s string) ([]byte, bool) {
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch c {
		case '+':
			c = ' '
		case '%':
			if i+2 >= len(s) {
				return dst, false
			}
			high, low := unhex(s[i+1]), unhex(s[i+2])
			if high > 15 || low > 15 {
				return dst, false
			}
			c = high<<4 | low
			i += 2
		}
		if isUnreserved(c) {
			dst = append(dst, c)
		} else {
			dst = appendEscaped(dst, c)
		}
	}
	return dst, true
}

// unhex returns the value of a hex digit; 255 if it is none.
func unhex(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 255
}

// setQuery fills w.parameters, in the order in which they are signed.
func (w *workspace) setQuery(raw string) error {
	w.query, w.parameters = w.query[:0], w.parameters[:0]
	for len(raw) > 0 {
		var piece string
		piece, raw, _ = strings.Cut(raw, "&")
		if piece == "" {
			continue
		}
		if len(w.parameters) == MaxQueryParameters {
			return errURI()
		}
		name, value, _ := strings.Cut(piece, "=")
		p := parameter{raw: value}
		var ok, ok2 bool
		p.name.from = len(w.query)
		w.query, ok = appendComponent(w.query, name)
		p.name.to, p.value.from = len(w.query), len(w.query)
		w.query, ok2 = appendComponent(w.query, value)
		p.value.to = len(w.query)
		if !ok || !ok2 {
			return errURI()
		}
		w.parameters = append(w.parameters, p)
	}
	slices.SortFunc(w.parameters, func(a, b parameter) int {
		if c := bytes.Compare(w.at(a.name), w.at(b.name)); c != 0 {
			return c
		}
		return bytes.Compare(w.at(a.value), w.at(b.value))
	})
	return nil
}

func (w *workspace) at(s span) []byte { return w.query[s.from:s.to] }

// parameter returns the first parameter of that name, which must need no escape, and how many
// there are of it.
func (w *workspace) parameter(name string) (raw string, count int) {
	for _, p := range w.parameters {
		if string(w.at(p.name)) != name {
			continue
		}
		if count == 0 {
			raw = p.raw
		}
		count++
	}
	return raw, count
}

// setCanonical builds w.canonical, the canonical request. setQuery comes first.
func (w *workspace) setCanonical(r *http.Request, signed HeaderSet, payload string) {
	b := append(w.canonical[:0], r.Method...)
	b = append(b, '\n')
	b = appendPath(b, r.URL.Path)
	b = append(b, '\n')
	first := true
	for _, p := range w.parameters {
		if string(w.at(p.name)) == querySignature {
			continue
		}
		if !first {
			b = append(b, '&')
		}
		first = false
		b = append(b, w.at(p.name)...)
		b = append(b, '=')
		b = append(b, w.at(p.value)...)
	}
	b = append(b, '\n')
	rest, more := string(signed), true
	for more {
		var name string
		name, rest, more = strings.Cut(rest, ";")
		b = append(b, name...)
		b = append(b, ':')
		b = w.appendHeader(b, r, name)
		b = append(b, '\n')
	}
	b = append(b, '\n')
	b = append(b, signed...)
	b = append(b, '\n')
	w.canonical = append(b, payload...)
}

// appendHeader appends the value of a header, which may not be in r.Header: net/http keeps some apart.
func (w *workspace) appendHeader(dst []byte, r *http.Request, name string) []byte {
	if name == "host" {
		return appendFolded(dst, hostOf(r))
	}
	w.key = appendMIMEKey(w.key[:0], name)
	values, ok := r.Header[string(w.key)]
	if !ok {
		switch {
		case name == "content-length" && r.ContentLength >= 0:
			return strconv.AppendInt(dst, r.ContentLength, 10)
		case name == "transfer-encoding":
			values = r.TransferEncoding
		}
	}
	for i, v := range values {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendFolded(dst, v)
	}
	return dst
}

func hostOf(r *http.Request) string {
	if r.Host != "" {
		return r.Host
	}
	return r.URL.Host
}

// appendMIMEKey appends a lower-case header name as http.Header has it.
func appendMIMEKey(dst []byte, name string) []byte {
	upper := true
	for i := range len(name) {
		c := name[i]
		if upper && 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		upper = c == '-'
		dst = append(dst, c)
	}
	return dst
}

// appendFolded appends a header value without space around it, and with one space for each run
// of white space in it.
func appendFolded(dst []byte, value string) []byte {
	start, space := len(dst), false
	for i := range len(value) {
		switch c := value[i]; c {
		case ' ', '\t', '\n', '\v', '\f', '\r':
			space = true
		default:
			if space && len(dst) > start {
				dst = append(dst, ' ')
			}
			space = false
			dst = append(dst, c)
		}
	}
	return dst
}

// setToSign builds w.toSign from w.canonical.
func (w *workspace) setToSign(timestamp string, scope Scope) {
	b := append(w.toSign[:0], algorithmName+"\n"...)
	b = append(b, timestamp...)
	b = append(b, '\n')
	b = scope.append(b)
	b = append(b, '\n')
	digest := hexDigest(sha256.Sum256(w.canonical))
	w.toSign = append(b, digest[:]...)
}
