package gateway

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/wire"
)

func (g *Gateway) getObject(ctx context.Context, _ Principal, r *request) (*response, error) {
	if err := checkRead(r); err != nil {
		return nil, err
	}
	object, err := g.store.Open(ctx, r.Bucket, r.Key)
	if err != nil {
		return nil, err
	}
	o := object.Info()
	resp, err := readResponse(r, &o)
	if err != nil {
		return nil, errors.Join(err, object.Close())
	}
	if r.rdma != nil {
		if err := errors.Join(g.sendWindow(ctx, r, object, resp), object.Close()); err != nil {
			return nil, err
		}
		return resp, nil
	}
	resp.object = object
	return resp, nil
}

func (g *Gateway) headObject(ctx context.Context, _ Principal, r *request) (*response, error) {
	if err := checkRead(r); err != nil {
		return nil, err
	}
	o, err := g.store.Stat(ctx, r.Bucket, r.Key)
	if err != nil {
		return nil, err
	}
	resp, err := readResponse(r, &o)
	if err != nil {
		return nil, err
	}
	resp.length = resp.span.Length
	return resp, nil
}

// readResponse judges the conditions of GET and HEAD, finds the range, and sets the headers.
func readResponse(r *request, o *store.Object) (*response, error) {
	h := r.HTTP.Header
	conditions := wire.ParseConditions(h)
	if err := conditions.Read(o); err != nil {
		var e *wire.Error
		if errors.As(err, &e) && e.Code == wire.NotModified {
			e.Fields = append(e.Fields, wire.Field{Name: "ETag", Value: quote(o.ETag)},
				wire.Field{Name: "Last-Modified", Value: httpTime(o)})
		}
		return nil, err
	}
	resp := &response{header: make([]field, 0, 16)}
	ranged, part := r.Header("Range"), r.Query.Get("partNumber")
	partial := false
	var err error
	var checksums []store.Checksum
	switch {
	case part != "" && ranged != "":
		return nil, wire.Refuse("Cannot specify both Range header and partNumber query parameter")
	case part != "":
		resp.span, checksums, err = findPart(resp, o, part)
		partial = o.SizeBytes > 0
	case ranged != "" && wire.RangeAllowed(r.Header("If-Range"), o):
		resp.span, partial, err = wire.ParseRange(ranged, o.SizeBytes)
	default:
		resp.span = wire.Span{Length: o.SizeBytes}
	}
	if err != nil {
		return nil, err
	}
	if partial {
		resp.status = http.StatusPartialContent
		resp.set("Content-Range", resp.span.ContentRange(o.SizeBytes))
	}
	if part == "" && !partial {
		checksums = o.Checksums
	}
	objectHeaders(resp, r, o)
	if strings.EqualFold(r.Header("X-Amz-Checksum-Mode"), "ENABLED") {
		setChecksums(resp, checksums, o)
	}
	return resp, nil
}

// findPart returns where a part is in an object, and its checksums. An object that was not made of
// parts is its own part 1.
func findPart(resp *response, o *store.Object, text string) (wire.Span, []store.Checksum, error) {
	number, err := strconv.Atoi(text)
	if err != nil || number < 1 || number > store.MaxPartNumber {
		return wire.Span{}, nil, wire.InvalidArg("partNumber", text,
			"Part number must be an integer between 1 and 10000, inclusive")
	}
	if o.Parts == nil && number == 1 {
		return wire.Span{Length: o.SizeBytes}, o.Checksums, nil
	}
	span := wire.Span{}
	for i := range o.Parts {
		p := &o.Parts[i]
		if i+1 == number {
			span.Length = p.SizeBytes
			resp.set("X-Amz-Mp-Parts-Count", strconv.Itoa(len(o.Parts)))
			return span, shownChecksums(p, o), nil
		}
		span.Offset += p.SizeBytes
	}
	return span, nil, &wire.Error{Code: wire.InvalidPart, Message: "The requested partnumber is not satisfiable"}
}

// shownChecksums returns the checksum of a part that is of the algorithm of the object's.
func shownChecksums(p *store.Part, o *store.Object) []store.Checksum {
	for _, c := range p.Checksums {
		if len(o.Checksums) > 0 && c.Algorithm == o.Checksums[0].Algorithm {
			return []store.Checksum{c}
		}
	}
	return nil
}

func quote(etag string) string { return `"` + etag + `"` }

func httpTime(o *store.Object) string { return o.Modified.UTC().Format(http.TimeFormat) }

// overrides are the parameters that replace a header of the answer. Every request here is signed, as
// S3 demands of those that have them.
var overrides = [...]struct{ parameter, header string }{
	{"response-content-type", "Content-Type"},
	{"response-content-language", "Content-Language"},
	{"response-expires", "Expires"},
	{"response-cache-control", "Cache-Control"},
	{"response-content-disposition", "Content-Disposition"},
	{"response-content-encoding", "Content-Encoding"},
}

// objectHeaders sets what headers say of an object.
func objectHeaders(resp *response, r *request, o *store.Object) {
	resp.set("Last-Modified", httpTime(o))
	resp.set("ETag", quote(o.ETag))
	resp.set("Accept-Ranges", "bytes")
	if _, ok := o.System["Content-Type"]; !ok {
		resp.set("Content-Type", wire.DefaultContentType)
	}
	for name, value := range o.System {
		resp.set(name, value)
	}
	for name, value := range o.User {
		resp.set("x-amz-meta-"+name, value)
	}
	if tags, ok := o.Attributes[tagsAttribute]; ok {
		resp.set("X-Amz-Tagging-Count", strconv.Itoa(strings.Count(string(tags), "&")+1))
	}
	for _, v := range overrides {
		if value := r.Query.Get(v.parameter); value != "" {
			resp.set(v.header, value)
		}
	}
}

// setChecksums sets the headers of checksums, as x-amz-checksum-mode asks for.
func setChecksums(resp *response, list []store.Checksum, o *store.Object) {
	for _, c := range list {
		resp.set(c.Algorithm.HeaderKey(), wire.ChecksumText(c, len(o.Parts)))
	}
	if len(list) > 0 {
		resp.set("X-Amz-Checksum-Type", wire.ChecksumType(o.Checksums[0]).String())
	}
}
