package wire

import (
	"net/http"
	"net/netip"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/s3/store"
)

// Request is an S3 request, without its body.
type Request struct {
	Op          Op
	Bucket, Key string // decoded; Key is "" if the path names no object
	Query       Query
	VirtualHost bool // the bucket was in the host name
	HTTP        *http.Request
}

// Header returns the first value of a header; name is in canonical form.
func (r *Request) Header(name string) string {
	if v := r.HTTP.Header[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// Resource returns the path that S3 names in errors.
func (r *Request) Resource() string {
	switch {
	case r.Bucket == "":
		return "/"
	case r.Key == "":
		return "/" + r.Bucket
	}
	return "/" + r.Bucket + "/" + r.Key
}

// Parse finds out what a request asks for. Domains are the host names under which buckets are
// sub-domains (virtual-host style), in lower case and without port; any other host is path style.
// The request that it returns is good for an error message even if there is an error.
func Parse(r *http.Request, domains []string) (*Request, error) {
	req := &Request{HTTP: r}
	var err error
	if req.Query, err = ParseQuery(r.URL.RawQuery); err != nil {
		return req, err
	}
	path := strings.TrimPrefix(r.URL.Path, "/")
	if bucket := hostBucket(r.Host, domains); bucket != "" {
		req.Bucket, req.Key, req.VirtualHost = bucket, path, true
	} else {
		req.Bucket, req.Key, _ = strings.Cut(path, "/")
	}
	if !utf8.ValidString(r.URL.Path) {
		return req, &Error{Code: InvalidURI}
	}
	sc := ofService
	switch {
	case req.Key != "":
		sc = ofObject
	case req.Bucket != "":
		sc = ofBucket
	case path != "" || r.URL.Path != "/" && r.URL.Path != "":
		return req, &Error{Code: InvalidBucketName, Fields: []Field{{"BucketName", ""}}}
	}
	if req.Op = operation(sc, r, &req.Query); req.Op == Unknown {
		return req, &Error{Code: MethodNotAllowed, Fields: []Field{{"Method", r.Method}}}
	}
	if sc != ofService && !ValidBucketName(req.Bucket, req.Op == CreateBucket) {
		return req, &Error{Code: InvalidBucketName, Fields: []Field{{"BucketName", req.Bucket}}}
	}
	return req, checkKey(req.Key)
}

func checkKey(key string) error {
	if len(key) > store.MaxKeyBytes {
		return &Error{Code: KeyTooLongError, Fields: []Field{
			{"Size", itoa(int64(len(key)))}, {"MaxSizeAllowed", itoa(store.MaxKeyBytes)},
		}}
	}
	return nil
}

// operation finds the operation. A sub-resource that S3 knows for the method wins over none; of
// several, the first in the query.
func operation(sc scope, r *http.Request, q *Query) Op {
	_, isCopy := r.Header["X-Amz-Copy-Source"]
	for _, p := range q.params {
		if p.Name == "" {
			continue
		}
		if op, ok := operations[resource{sc, r.Method, p.Name}]; ok {
			if op == ListObjectsV2 && p.Value != "2" {
				continue
			}
			return refine(op, isCopy, q.Has("id"))
		}
	}
	return refine(operations[resource{sc, r.Method, ""}], isCopy, false)
}

// hostBucket returns the bucket in a host name; "" if there is none.
func hostBucket(host string, domains []string) string {
	if len(domains) == 0 {
		return ""
	}
	if i := strings.LastIndexByte(host, ':'); i >= 0 && strings.IndexByte(host[i:], ']') < 0 {
		host = host[:i]
	}
	for _, d := range domains {
		n := len(host) - len(d)
		if n > 1 && host[n-1] == '.' && strings.EqualFold(host[n:], d) {
			return strings.ToLower(host[:n-1])
		}
	}
	return ""
}

// ValidBucketName applies S3's rules for the names of general purpose buckets. Those of them that
// only reserve names for other uses are applied to new buckets alone.
func ValidBucketName(name string, isNew bool) bool {
	if len(name) < 3 || len(name) > 63 {
		return false
	}
	last := byte('.')
	for i := range len(name) {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case c == '-' && last != '.':
		case c == '.' && last != '.' && last != '-':
		default:
			return false
		}
		last = c
	}
	if last == '-' || last == '.' {
		return false
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return false
	}
	return !isNew || !reservedName(name)
}

func reservedName(name string) bool {
	for _, prefix := range []string{"xn--", "sthree-", "amzn-s3-demo-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	for _, suffix := range []string{"-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}
