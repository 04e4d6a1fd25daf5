package client

import (
	"bytes"
	"io"
	"net/http"
	"testing"
)

func FuzzListing(f *testing.F) {
	f.Add([]byte(`<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>a%2Fb</Key></Contents></ListBucketResult>`))
	f.Add([]byte(`<ListBucketResult><Contents><Key>%zz</Key></Contents><CommonPrefixes><Prefix>p</Prefix></CommonPrefixes></ListBucketResult>`))
	f.Fuzz(func(t *testing.T, text []byte) {
		page, err := parseListing(text)
		if err == nil && len(page.entries) > len(text)/len("<Contents/>") {
			t.Errorf("%d entries of %d bytes", len(page.entries), len(text))
		}
	})
}

func FuzzError(f *testing.F) {
	f.Add(404, []byte(`<Error><Code>NoSuchKey</Code></Error>`))
	f.Add(500, []byte(`<html>`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		resp := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body))}
		if e := errorOf("Op", "b/k", resp); e.Code == "" || e.Error() == "" {
			t.Errorf("errorOf(%d, %q) has no code", status, body)
		}
	})
}

func FuzzInfo(f *testing.F) {
	f.Add("bytes 0-1/5", "AAAAAAAAAAA=", "FULL_OBJECT")
	f.Fuzz(func(t *testing.T, contentRange, sum, kind string) {
		h := http.Header{"Content-Range": {contentRange}, "X-Amz-Checksum-Crc64nvme": {sum}, "X-Amz-Checksum-Type": {kind}}
		if info := infoOf(h); len(info.ChecksumValue) != info.Checksum.SizeBytes() {
			t.Errorf("checksum value of %d bytes for %v", len(info.ChecksumValue), info.Checksum)
		}
	})
}
