package wire

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Param is one decoded parameter of a query.
type Param struct{ Name, Value string }

// Query is the decoded query of a request, in the order in which it was sent.
type Query struct {
	params []Param
}

// ParseQuery decodes a raw query; "+" stands for a space. It returns InvalidURI for a wrong escape or
// text that is not UTF-8, and for more than MaxQueryParams parameters.
func ParseQuery(raw string) (Query, error) {
	var q Query
	if raw == "" {
		return q, nil
	}
	var room [8]Param // for most queries
	params := room[:0]
	for raw != "" {
		var piece string
		piece, raw, _ = strings.Cut(raw, "&")
		if piece == "" {
			continue
		}
		name, value, _ := strings.Cut(piece, "=")
		name, ok := Unescape(name, true)
		value, ok2 := Unescape(value, true)
		if !ok || !ok2 || !utf8.ValidString(name) || !utf8.ValidString(value) || len(params) == MaxQueryParams {
			return Query{}, &Error{Code: InvalidURI}
		}
		params = append(params, Param{name, value})
	}
	q.params = append([]Param(nil), params...)
	return q, nil
}

// Lookup returns the first value of a parameter, and whether the parameter is there at all.
func (q *Query) Lookup(name string) (string, bool) {
	for _, p := range q.params {
		if p.Name == name {
			return p.Value, true
		}
	}
	return "", false
}

// Get returns the first value of a parameter, or "".
func (q *Query) Get(name string) string {
	v, _ := q.Lookup(name)
	return v
}

// Has tells whether a parameter is there.
func (q *Query) Has(name string) bool {
	_, ok := q.Lookup(name)
	return ok
}

// HasFold is Has for a name in upper or lower case.
func (q *Query) HasFold(name string) bool {
	for _, p := range q.params {
		if len(p.Name) == len(name) && strings.EqualFold(p.Name, name) {
			return true
		}
	}
	return false
}

// Count returns the value of a parameter that is a number of 0 … limit, or fallback if it is not
// there or empty. A greater number counts as limit; anything else is InvalidArgument.
func (q *Query) Count(name string, fallback, limit int) (int, error) {
	text := q.Get(name)
	if text == "" {
		return fallback, nil
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 {
		return 0, InvalidArg(name, text, "Provided "+name+" not an integer or within integer range")
	}
	return min(int(n), limit), nil
}

// Unescape decodes percent escapes once; with plus, "+" becomes a space. It returns false for an escape
// that is not one.
func Unescape(s string, plus bool) (string, bool) {
	i := strings.IndexByte(s, '%')
	if i < 0 && (!plus || strings.IndexByte(s, '+') < 0) {
		return s, true
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '+' && plus:
			b = append(b, ' ')
		case c == '%':
			if i+2 >= len(s) || unhex(s[i+1]) < 0 || unhex(s[i+2]) < 0 {
				return "", false
			}
			b = append(b, byte(unhex(s[i+1])<<4|unhex(s[i+2])))
			i += 2
		default:
			b = append(b, c)
		}
	}
	return string(b), true
}

// unhex returns the value of a hex digit; -1 if it is none.
func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// AppendURLEncoded appends text as encoding-type=url asks for it: percent escapes for every
// byte but the unreserved ones (RFC 3986) and "/".
func AppendURLEncoded(dst []byte, text string) []byte {
	const digits = "0123456789ABCDEF"
	for i := range len(text) {
		switch c := text[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9',
			c == '-', c == '.', c == '_', c == '~', c == '/':
			dst = append(dst, c)
		default:
			dst = append(dst, '%', digits[c>>4], digits[c&15])
		}
	}
	return dst
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
