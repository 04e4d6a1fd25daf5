package client

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// leaves scans a document into "path=text" lines.
func leaves(doc string) ([]string, error) {
	var lines []string
	err := scanXML([]byte(doc), func(path []string, text []byte) error {
		lines = append(lines, strings.Join(path, "/")+"="+string(text))
		return nil
	})
	return lines, err
}

func TestScanXML(t *testing.T) {
	doc := `<?xml version="1.0"?><!-- c -> --><a xmlns="u" b='>'>
		<n:b>1&lt;&#x41;&#66;<![CDATA[<&]]>&amp;</n:b ><c/><c x="/"/></a>` + "\n"
	got, err := leaves(doc)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a/b=1<AB<&&", "a/c=", "a/c=", "a="}, got); diff != "" {
		t.Errorf("leaves (-want +got):\n%s", diff)
	}
	deep := strings.Repeat("<a>", maxXMLDepth+1) + strings.Repeat("</a>", maxXMLDepth+1)
	for _, bad := range []string{"", "x", "<a>", "</a>", "<a></b>", "<a/><b/>", "<a>&x;</a>", "<a>&#xD800;</a>", "<a>&41;</a>",
		"<a>&lt</a>", "<!DOCTYPE a><a/>", "<a", "<a b='></a>", "<a><!-- </a>", "<a><</a>", "<>", "<a/>x", deep} {
		if lines, err := leaves(bad); err == nil {
			t.Errorf("scanXML(%q) = %q; want an error", bad, lines)
		}
	}
}

// FuzzScanXML compares the scanner with encoding/xml where both accept a document.
func FuzzScanXML(f *testing.F) {
	f.Add(`<a><b>1</b><c x="y">&amp;&#65;</c><d/></a>`)
	f.Add(`<?xml version="1.0"?><x:a xmlns:x="u"><![CDATA[<]]></x:a>`)
	f.Fuzz(func(t *testing.T, doc string) {
		got, err := leaves(doc)
		if err != nil || strings.Contains(doc, "\r") {
			return
		}
		want, err := reference(doc)
		if err != nil {
			return
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-encoding/xml +scanXML):\n%s", doc, diff)
		}
	})
}

// reference is leaves by encoding/xml.
func reference(doc string) ([]string, error) {
	var lines, path, text []string
	d := xml.NewDecoder(strings.NewReader(doc))
	for {
		token, err := d.Token()
		if err == io.EOF {
			return lines, nil
		}
		if err != nil {
			return nil, err
		}
		switch v := token.(type) {
		case xml.StartElement:
			path, text = append(path, v.Name.Local), nil
		case xml.CharData:
			text = append(text, string(v))
		case xml.EndElement:
			lines = append(lines, strings.Join(path, "/")+"="+strings.Join(text, ""))
			path, text = path[:len(path)-1], nil
		}
	}
}

func BenchmarkParseListing(b *testing.B) {
	var doc strings.Builder
	doc.WriteString(`<?xml version="1.0"?><ListBucketResult xmlns="u"><EncodingType>url</EncodingType><KeyCount>1000</KeyCount>`)
	for n := range 1000 {
		fmt.Fprintf(&doc, `<Contents><Key>bench%%2F1024/%08d</Key><LastModified>2026-11-29T16:00:00.000Z</LastModified>`+
			`<ETag>&#34;0123456789abcdef0123456789abcdef&#34;</ETag><Size>1024</Size><StorageClass>STANDARD</StorageClass></Contents>`, n)
	}
	doc.WriteString(`</ListBucketResult>`)
	text := []byte(doc.String())
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if page, err := parseListing(text); err != nil || len(page.entries) != 1000 {
			b.Fatal(err)
		}
	}
}
