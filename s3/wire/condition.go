package wire

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/s3/store"
)

// Conditions are the conditional headers of a request. Times are zero if the header is not there or
// is no date (RFC 9110 section 13.1.3 has such headers ignored).
type Conditions struct {
	IfMatch, IfNoneMatch               string
	IfModifiedSince, IfUnmodifiedSince time.Time
	// Of DELETE only.
	IfMatchSize     int64 // -1: no condition
	IfMatchModified time.Time
}

// ParseConditions reads the conditional headers of GET, HEAD and the writes.
func ParseConditions(h http.Header) Conditions {
	return conditions(h, "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since")
}

// ParseSourceConditions reads the conditions on the source of a copy.
func ParseSourceConditions(h http.Header) Conditions {
	return conditions(h, "X-Amz-Copy-Source-If-Match", "X-Amz-Copy-Source-If-None-Match",
		"X-Amz-Copy-Source-If-Modified-Since", "X-Amz-Copy-Source-If-Unmodified-Since")
}

// ParseDeleteConditions reads the conditions of DELETE.
func ParseDeleteConditions(h http.Header) (Conditions, error) {
	c := Conditions{IfMatch: join(h["If-Match"]), IfMatchSize: -1}
	if text := first(h["X-Amz-If-Match-Size"]); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return c, InvalidArg("x-amz-if-match-size", text, "The size must be a non-negative integer")
		}
		c.IfMatchSize = n
	}
	if text := first(h["X-Amz-If-Match-Last-Modified-Time"]); text != "" {
		t, ok := parseAnyTime(text)
		if !ok {
			return c, InvalidArg("x-amz-if-match-last-modified-time", text, "The time is not a valid date")
		}
		c.IfMatchModified = t
	}
	return c, nil
}

// parseAnyTime takes HTTP dates and ISO 8601.
func parseAnyTime(text string) (time.Time, bool) {
	if t, err := http.ParseTime(text); err == nil {
		return t, true
	}
	t, err := time.Parse(time.RFC3339, text)
	return t, err == nil
}

func conditions(h http.Header, match, noneMatch, modified, unmodified string) Conditions {
	c := Conditions{IfMatch: join(h[match]), IfNoneMatch: join(h[noneMatch]), IfMatchSize: -1}
	c.IfModifiedSince = httpDate(h[modified])
	c.IfUnmodifiedSince = httpDate(h[unmodified])
	return c
}

func httpDate(values []string) time.Time {
	if len(values) == 0 {
		return time.Time{}
	}
	t, err := http.ParseTime(values[0])
	if err != nil {
		return time.Time{}
	}
	return t
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

func join(values []string) string {
	if len(values) <= 1 {
		return first(values)
	}
	return strings.Join(values, ",")
}

// precondition returns PreconditionFailed for a condition.
func precondition(header string) *Error {
	return &Error{Code: PreconditionFailed, Fields: []Field{{"Condition", header}}}
}

// whole drops what an HTTP date can't hold.
func whole(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }

// Read judges GET and HEAD of an object, in the order of RFC 9110 section 13.2.2. It returns
// PreconditionFailed or NotModified.
func (c *Conditions) Read(o *store.Object) error {
	modified := whole(o.Modified)
	switch {
	case c.IfMatch != "":
		if !MatchETag(c.IfMatch, o.ETag) {
			return precondition("If-Match")
		}
	case !c.IfUnmodifiedSince.IsZero():
		if modified.After(c.IfUnmodifiedSince) {
			return precondition("If-Unmodified-Since")
		}
	}
	switch {
	case c.IfNoneMatch != "":
		if MatchETag(c.IfNoneMatch, o.ETag) {
			return &Error{Code: NotModified}
		}
	case !c.IfModifiedSince.IsZero():
		if !modified.After(c.IfModifiedSince) {
			return &Error{Code: NotModified}
		}
	}
	return nil
}

// Source judges the source of a copy: as Read, but each refusal is PreconditionFailed.
func (c *Conditions) Source(o *store.Object) error {
	err := c.Read(o)
	if e, ok := err.(*Error); ok && e.Code == NotModified {
		if c.IfNoneMatch != "" {
			return precondition("x-amz-copy-source-If-None-Match")
		}
		return precondition("x-amz-copy-source-If-Modified-Since")
	}
	return err
}

// HasWrite tells whether there is a condition that Write judges.
func (c *Conditions) HasWrite() bool { return c.IfMatch != "" || c.IfNoneMatch != "" }

// Write judges a write over the current version of a key, which is nil if there is none. If-Match
// with no current version is NoSuchKey, as in S3.
func (c *Conditions) Write(current *store.Object) error {
	if c.IfMatch != "" {
		if current == nil {
			return &Error{Code: NoSuchKey}
		}
		if !MatchETag(c.IfMatch, current.ETag) {
			return precondition("If-Match")
		}
	}
	if c.IfNoneMatch != "" && current != nil && MatchETag(c.IfNoneMatch, current.ETag) {
		return precondition("If-None-Match")
	}
	return nil
}

// HasDelete tells whether there is a condition that Delete judges.
func (c *Conditions) HasDelete() bool {
	return c.IfMatch != "" || c.IfMatchSize >= 0 || !c.IfMatchModified.IsZero()
}

// Delete judges the deletion of the current version of a key, which is nil if there is none: then
// there is nothing to lose, and all conditions hold.
func (c *Conditions) Delete(current *store.Object) error {
	switch {
	case current == nil:
		return nil
	case c.IfMatch != "" && !MatchETag(c.IfMatch, current.ETag):
		return precondition("If-Match")
	case c.IfMatchSize >= 0 && c.IfMatchSize != current.SizeBytes:
		return precondition("x-amz-if-match-size")
	case !c.IfMatchModified.IsZero() && !whole(c.IfMatchModified).Equal(whole(current.Modified)):
		return precondition("x-amz-if-match-last-modified-time")
	}
	return nil
}

// MatchETag tells whether a list of entity tags (RFC 9110 section 8.8.3), or "*", holds an ETag, which
// is without its quotes. Tags without quotes are taken too, as S3 does.
func MatchETag(list, etag string) bool {
	for list != "" {
		var tag string
		tag, list, _ = strings.Cut(list, ",")
		tag = strings.TrimSpace(tag)
		if tag == "*" || Unquote(strings.TrimPrefix(tag, "W/")) == etag {
			return true
		}
	}
	return false
}

// Unquote removes the quotes around an ETag, if it has them.
func Unquote(etag string) string {
	if len(etag) >= 2 && etag[0] == '"' && etag[len(etag)-1] == '"' {
		return etag[1 : len(etag)-1]
	}
	return etag
}

// RangeAllowed judges If-Range (RFC 9110 section 13.1.5): whether a Range may be applied.
func RangeAllowed(ifRange string, o *store.Object) bool {
	if ifRange == "" {
		return true
	}
	if t, err := http.ParseTime(ifRange); err == nil {
		return t.Equal(whole(o.Modified))
	}
	return Unquote(ifRange) == o.ETag
}
