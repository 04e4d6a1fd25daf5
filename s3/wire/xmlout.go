package wire

import (
	"strconv"
	"time"
	"unicode/utf8"
)

const (
	xmlDeclaration = `<?xml version="1.0" encoding="UTF-8"?>` + "\n"
	namespace      = "http://s3.amazonaws.com/doc/2006-03-01/"
	// timeFormat is how S3 writes times in XML: ISO 8601 with milliseconds, UTC.
	timeFormat = "2006-01-02T15:04:05.000Z"
)

// XML is a document that is being written. Names are written as they are; text is escaped.
type XML struct{ b []byte }

// NewXML starts a document with a root element in S3's namespace.
func NewXML(root string) *XML {
	x := &XML{b: make([]byte, 0, 1024)}
	x.b = append(x.b, xmlDeclaration...)
	x.b = append(x.b, '<')
	x.b = append(x.b, root...)
	x.b = append(x.b, ` xmlns="`+namespace+`">`...)
	return x
}

// Bytes returns what was written.
func (x *XML) Bytes() []byte { return x.b }

// Open writes a start tag; attributes, if any, are part of name.
func (x *XML) Open(name string) {
	x.b = append(x.b, '<')
	x.b = append(x.b, name...)
	x.b = append(x.b, '>')
}

// Close writes an end tag.
func (x *XML) Close(name string) {
	x.b = append(x.b, '<', '/')
	x.b = append(x.b, name...)
	x.b = append(x.b, '>')
}

// Text writes an element with text in it.
func (x *XML) Text(name, text string) {
	x.Open(name)
	x.b = appendEscaped(x.b, text)
	x.Close(name)
}

// TextUnlessEmpty writes an element if its text is not empty.
func (x *XML) TextUnlessEmpty(name, text string) {
	if text != "" {
		x.Text(name, text)
	}
}

// Int writes an element with a number in it.
func (x *XML) Int(name string, n int64) {
	x.Open(name)
	x.b = strconv.AppendInt(x.b, n, 10)
	x.Close(name)
}

// Bool writes an element with true or false in it.
func (x *XML) Bool(name string, v bool) {
	x.Open(name)
	x.b = strconv.AppendBool(x.b, v)
	x.Close(name)
}

// Time writes an element with a time in it.
func (x *XML) Time(name string, t time.Time) {
	x.Open(name)
	x.b = t.UTC().AppendFormat(x.b, timeFormat)
	x.Close(name)
}

// ETag writes an ETag element; etag is without the quotes.
func (x *XML) ETag(etag string) {
	x.b = append(x.b, "<ETag>&quot;"...)
	x.b = appendEscaped(x.b, etag)
	x.b = append(x.b, "&quot;</ETag>"...)
}

// Key writes an element with a key, prefix or delimiter in it, URL-encoded if the request asked for that.
func (x *XML) Key(name, key string, urlEncode bool) {
	if !urlEncode {
		x.Text(name, key)
		return
	}
	x.Open(name)
	x.b = AppendURLEncoded(x.b, key)
	x.Close(name)
}

// Owner writes who owns something; element is Owner or Initiator.
func (x *XML) Owner(element, id, displayName string) {
	x.Open(element)
	x.Text("ID", id)
	x.Text("DisplayName", displayName)
	x.Close(element)
}

// appendEscaped appends text with what XML reserves as entities. Characters that XML 1.0 can't hold
// become numeric references, which is what S3 does with control characters in keys; bytes that
// are not UTF-8 become U+FFFD.
func appendEscaped(dst []byte, text string) []byte {
	for i := 0; i < len(text); {
		c := text[i]
		if c < utf8.RuneSelf {
			i++
			switch {
			case c == '&':
				dst = append(dst, "&amp;"...)
			case c == '<':
				dst = append(dst, "&lt;"...)
			case c == '>':
				dst = append(dst, "&gt;"...)
			case c == '"':
				dst = append(dst, "&quot;"...)
			case c < ' ' && c != '\t' && c != '\n':
				dst = appendReference(dst, rune(c))
			default:
				dst = append(dst, c)
			}
			continue
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			dst = append(dst, "\ufffd"...)
		case r == 0xfffe || r == 0xffff:
			dst = appendReference(dst, r)
		default:
			dst = append(dst, text[i:i+n]...)
		}
		i += n
	}
	return dst
}

func appendReference(dst []byte, r rune) []byte {
	dst = append(dst, "&#x"...)
	dst = strconv.AppendInt(dst, int64(r), 16)
	return append(dst, ';')
}
