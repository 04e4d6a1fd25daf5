package gateway

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/wire"
)

// The attributes that GetObjectAttributes may be asked for.
var attributeNames = []string{"ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"}

func (g *Gateway) getObjectAttributes(ctx context.Context, _ Principal, r *request) (*response, error) {
	if err := checkRead(r); err != nil {
		return nil, err
	}
	wanted, err := wantedAttributes(r)
	if err != nil {
		return nil, err
	}
	maxParts, err := headerCount(r, "X-Amz-Max-Parts", store.MaxListEntries, store.MaxListEntries)
	if err != nil {
		return nil, err
	}
	after, err := headerCount(r, "X-Amz-Part-Number-Marker", 0, store.MaxPartNumber)
	if err != nil {
		return nil, err
	}
	o, err := g.store.Stat(ctx, r.Bucket, r.Key)
	if err != nil {
		return nil, err
	}
	x := wire.NewXML("GetObjectAttributesResponse")
	if wanted["ETag"] {
		x.Text("ETag", o.ETag)
	}
	if wanted["Checksum"] && len(o.Checksums) > 0 {
		x.Open("Checksum")
		for _, c := range o.Checksums {
			x.Text("Checksum"+c.Algorithm.String(), wire.ChecksumText(c, len(o.Parts)))
		}
		x.Text("ChecksumType", wire.ChecksumType(o.Checksums[0]).String())
		x.Close("Checksum")
	}
	if wanted["ObjectParts"] && o.Parts != nil {
		writeParts(x, &o, after, maxParts)
	}
	if wanted["StorageClass"] {
		x.Text("StorageClass", wire.StorageClass)
	}
	if wanted["ObjectSize"] {
		x.Int("ObjectSize", o.SizeBytes)
	}
	x.Close("GetObjectAttributesResponse")
	resp := document(x.Bytes())
	resp.set("Last-Modified", httpTime(&o))
	return resp, nil
}

func wantedAttributes(r *request) (map[string]bool, error) {
	wanted := map[string]bool{}
	for _, list := range r.HTTP.Header["X-Amz-Object-Attributes"] {
		for name := range strings.SplitSeq(list, ",") {
			name = strings.TrimSpace(name)
			if !slices.Contains(attributeNames, name) {
				return nil, wire.InvalidArg("x-amz-object-attributes", list, "Invalid attribute name specified.")
			}
			wanted[name] = true
		}
	}
	if len(wanted) == 0 {
		return nil, wire.Refuse("The x-amz-object-attributes header specifying the attributes to be retrieved " +
			"is either missing or empty")
	}
	return wanted, nil
}

func headerCount(r *request, name string, fallback, limit int) (int, error) {
	text := r.Header(name)
	if text == "" {
		return fallback, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, wire.InvalidArg(strings.ToLower(name), text, "Argument must be an integer between 0 and 2147483647")
	}
	return min(n, limit), nil
}

// writeParts writes a page of the parts of an object, which are numbered anew from 1 when it is
// completed.
func writeParts(x *wire.XML, o *store.Object, after, maxParts int) {
	from := min(after, len(o.Parts))
	to := min(from+maxParts, len(o.Parts))
	x.Open("ObjectParts")
	x.Int("PartsCount", int64(len(o.Parts)))
	x.Int("PartNumberMarker", int64(after))
	if to < len(o.Parts) {
		x.Int("NextPartNumberMarker", int64(to))
	}
	x.Int("MaxParts", int64(maxParts))
	x.Bool("IsTruncated", to < len(o.Parts))
	for i := from; i < to; i++ {
		p := &o.Parts[i]
		x.Open("Part")
		x.Int("PartNumber", int64(i+1))
		x.Int("Size", p.SizeBytes)
		for _, c := range shownChecksums(p, o) {
			x.PartChecksum(p, c.Algorithm)
		}
		x.Close("Part")
	}
	x.Close("ObjectParts")
}
