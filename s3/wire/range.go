package wire

import (
	"strconv"
	"strings"
)

// Span is a range of bytes: Length bytes from Offset.
type Span struct{ Offset, Length int64 }

// ContentRange returns the Content-Range header for a span of size bytes (RFC 9110 section 14.4).
func (s Span) ContentRange(size int64) string {
	return "bytes " + itoa(s.Offset) + "-" + itoa(s.Offset+s.Length-1) + "/" + itoa(size)
}

// ParseRange applies a Range header (RFC 9110 section 14.2) to size bytes. As S3 does, it ignores a
// header with several ranges or with one that is malformed: partial is false then. A range
// outside the object is InvalidRange.
func ParseRange(header string, size int64) (span Span, partial bool, err error) {
	spec, ok := cutUnit(header)
	first, last, dash := strings.Cut(spec, "-")
	if !ok || !dash {
		return Span{0, size}, false, nil
	}
	from, fromOK := position(first)
	to, toOK := position(last)
	switch {
	case first == "" && toOK: // the last bytes
		n := min(to, size)
		span = Span{size - n, n}
	case fromOK && last == "":
		span = Span{from, size - from}
	case fromOK && toOK && from <= to:
		span = Span{from, min(to, size-1) - from + 1}
	default:
		return Span{0, size}, false, nil
	}
	if span.Length <= 0 {
		return Span{}, false, &Error{Code: InvalidRange, Fields: []Field{
			{"RangeRequested", header}, {"ActualObjectSize", itoa(size)},
		}}
	}
	return span, true, nil
}

func cutUnit(header string) (string, bool) {
	const unit = "bytes="
	if len(header) < len(unit) || !strings.EqualFold(header[:len(unit)], unit) {
		return "", false
	}
	return strings.TrimSpace(header[len(unit):]), true
}

// position parses a byte position; one that is greater than any object counts as the greatest.
func position(text string) (int64, bool) {
	if text == "" {
		return 0, false
	}
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n > 1<<62 {
		n = 1 << 62
	}
	return n, true
}

// ParseCopyRange parses x-amz-copy-source-range, which must be of the form bytes=first-last and lie
// within the size bytes of the source.
func ParseCopyRange(header string, size int64) (Span, error) {
	const name = "x-amz-copy-source-range"
	spec, ok := strings.CutPrefix(header, "bytes=")
	first, last, dash := strings.Cut(spec, "-")
	from, fromOK := position(first)
	to, toOK := position(last)
	if !ok || !dash || !fromOK || !toOK || from > to {
		return Span{}, InvalidArg(name, header, "The "+name+" value must be of the form bytes=first-last "+
			"where first and last are the zero-based offsets of the first and last bytes to copy")
	}
	if to >= size {
		return Span{}, &Error{
			Code: InvalidRange, Message: "Range specified is not valid for source object of size: " + itoa(size),
			Fields: []Field{{"RangeRequested", header}, {"ActualObjectSize", itoa(size)}},
		}
	}
	return Span{from, to - from + 1}, nil
}
