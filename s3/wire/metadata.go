package wire

import (
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/s3/store"
)

const (
	metaPrefix     = "X-Amz-Meta-"
	chunkedCoding  = "aws-chunked"
	defaultType    = "binary/octet-stream"
	contentType    = "Content-Type"
	contentCoding  = "Content-Encoding"
	taggingHeader  = "X-Amz-Tagging"
	redirectHeader = "X-Amz-Website-Redirect-Location"
)

// systemHeaders are the headers that are kept with an object and given back with it.
var systemHeaders = [...]string{
	contentType, contentCoding, "Content-Disposition", "Content-Language", "Cache-Control", "Expires", redirectHeader,
}

// DefaultContentType is what an object has that was stored without a type.
const DefaultContentType = defaultType

// Metadata is what the headers of a write say about the object.
type Metadata struct {
	System, User map[string]string // as store.Object has them; nil if empty
	Tags         []Tag
}

// ParseMetadata reads the headers that are kept with an object. It returns MetadataTooLarge when the
// user metadata is over store.MaxUserMetaBytes or the system metadata over store.MaxSystemBytes, and
// InvalidTag for wrong tags.
func ParseMetadata(h http.Header) (Metadata, error) {
	var m Metadata
	system, user := 0, 0
	for _, name := range systemHeaders {
		value := join(h[name])
		if name == contentCoding {
			value = withoutChunked(value)
		}
		if value == "" {
			continue
		}
		if m.System == nil {
			m.System = make(map[string]string, 2)
		}
		m.System[name] = value
		system += len(name) + len(value)
	}
	for name, values := range h {
		if len(name) <= len(metaPrefix) || name[:len(metaPrefix)] != metaPrefix {
			continue
		}
		if m.User == nil {
			m.User = map[string]string{}
		}
		key, value := strings.ToLower(name[len(metaPrefix):]), join(values)
		m.User[key] = value
		user += len(key) + len(value)
	}
	if user > store.MaxUserMetaBytes || system > store.MaxSystemBytes {
		size, limit := user, store.MaxUserMetaBytes
		if user <= limit {
			size, limit = system, store.MaxSystemBytes
		}
		return m, &Error{Code: MetadataTooLarge, Fields: []Field{
			{"Size", itoa(int64(size))}, {"MaxSizeAllowed", itoa(int64(limit))},
		}}
	}
	var err error
	m.Tags, err = ParseTags(first(h[taggingHeader]))
	return m, err
}

// withoutChunked removes aws-chunked, which is about the transfer, from a list of content codings.
func withoutChunked(list string) string {
	if !strings.Contains(list, chunkedCoding) {
		return list
	}
	var kept []string
	for coding := range strings.SplitSeq(list, ",") {
		if coding = strings.TrimSpace(coding); coding != "" && !strings.EqualFold(coding, chunkedCoding) {
			kept = append(kept, coding)
		}
	}
	return strings.Join(kept, ", ")
}

// Tag is a tag of an object or a bucket.
type Tag struct{ Key, Value string }

// ParseTags parses the form of x-amz-tagging: a query. The tags come back in the order of their keys.
func ParseTags(text string) ([]Tag, error) { return parseTags(text, MaxTags) }

// ParseBucketTags is ParseTags for the tags of a bucket, of which there may be more.
func ParseBucketTags(text string) ([]Tag, error) { return parseTags(text, MaxQueryParams) }

func parseTags(text string, limit int) ([]Tag, error) {
	if text == "" {
		return nil, nil
	}
	q, err := ParseQuery(text)
	if err != nil {
		return nil, &Error{Code: InvalidTag, Message: "The header 'x-amz-tagging' shall be encoded as UTF-8 " +
			"then URLEncoded URL query parameters without tag name duplicates."}
	}
	tags := make([]Tag, len(q.params))
	for i, p := range q.params {
		tags[i] = Tag{p.Name, p.Value}
	}
	return tags, CheckTags(tags, limit)
}

// CheckTags applies S3's rules to tags, and puts them in the order of their keys.
func CheckTags(tags []Tag, limit int) error {
	slices.SortStableFunc(tags, func(a, b Tag) int { return strings.Compare(a.Key, b.Key) })
	if len(tags) > limit {
		return &Error{Code: InvalidTag, Message: "Object tags cannot be greater than " + itoa(int64(limit))}
	}
	for i, t := range tags {
		switch {
		case t.Key == "" || utf8.RuneCountInString(t.Key) > MaxTagKeyRunes:
			return &Error{Code: InvalidTag, Message: "The TagKey you have provided is invalid"}
		case utf8.RuneCountInString(t.Value) > MaxTagValueRunes:
			return &Error{Code: InvalidTag, Message: "The TagValue you have provided is invalid"}
		case i > 0 && tags[i-1].Key == t.Key:
			return &Error{Code: InvalidTag, Message: "Cannot provide multiple Tags with the same key"}
		}
	}
	return nil
}

// FormatTags writes tags in the form that ParseTags reads.
func FormatTags(tags []Tag) []byte {
	var b []byte
	for i, t := range tags {
		if i > 0 {
			b = append(b, '&')
		}
		b = append(AppendURLEncoded(b, t.Key), '=')
		b = AppendURLEncoded(b, t.Value)
	}
	return b
}

// CopySource is the object that x-amz-copy-source names.
type CopySource struct{ Bucket, Key, VersionID string }

// ParseCopySource parses x-amz-copy-source: /bucket/key?versionId=id, URL-encoded, the first slash being optional.
func ParseCopySource(header string) (CopySource, error) {
	bad := func(message string) (CopySource, error) {
		return CopySource{}, InvalidArg("x-amz-copy-source", header, message)
	}
	const versionMark = "?versionId="
	path, version := header, ""
	if i := strings.LastIndex(header, versionMark); i >= 0 {
		path, version = header[:i], header[i+len(versionMark):]
	}
	path, ok := Unescape(path, false)
	if !ok || !utf8.ValidString(path) {
		return bad("Invalid copy source encoding.")
	}
	bucket, key, ok := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if !ok || key == "" || !ValidBucketName(bucket, false) {
		return bad("Invalid copy source object key")
	}
	if err := checkKey(key); err != nil {
		return CopySource{}, err
	}
	return CopySource{bucket, key, version}, nil
}
