package wire

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/store"
)

func TestParseXML(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("<a>", n) + strings.Repeat("</a>", n) }
	for _, c := range []struct {
		body string
		want *node // nil: MalformedXML
	}{
		{"<a/>", &node{name: "a"}},
		{"<a></a>", &node{name: "a"}},
		{"<?xml version='1.0'?>\n<!-- c --><a > x </a >\n<!-- d --> ", &node{name: "a", text: " x "}},
		{"\ufeff<a>x</a>", &node{name: "a", text: "x"}},
		{`<p:a xmlns:p="urn:x" b='1'>x</p:a>`, &node{name: "a", text: "x"}},
		{"<a><b>1</b><c/><b>2</b></a>", &node{name: "a", children: []node{
			{name: "b", text: "1"}, {name: "c"}, {name: "b", text: "2"}}}},
		{"<a>&lt;&gt;&amp;&quot;&apos;&#65;&#x41;&#x1;&#x0;&#x10ffff;</a>",
			&node{name: "a", text: "<>&\"'AA\x01\x00\U0010ffff"}},
		{"<a>x<![CDATA[<&]]>y</a>", &node{name: "a", text: "x<&y"}},
		{"<a>1\r\n2\r3\n\r</a>", &node{name: "a", text: "1\n2\n3\n\n"}},
		{"<a>\x01</a>", &node{name: "a", text: "\x01"}},
		{"<a>]]></a>", &node{name: "a", text: "]]>"}},
		{deep(MaxXMLDepth), func() *node {
			n := &node{name: "a"}
			for range MaxXMLDepth - 1 {
				n = &node{name: "a", children: []node{*n}}
			}
			return n
		}()},
		{deep(MaxXMLDepth + 1), nil}, {strings.Repeat("<a>", 100_000), nil},
		{"", nil}, {" ", nil}, {"x", nil}, {"<", nil}, {"<a", nil}, {"<a>", nil}, {"<a></b>", nil}, {"<a/>x", nil},
		{"<a/><b/>", nil}, {"<a></a", nil}, {"<a b></a>", nil}, {"<a b=c></a>", nil}, {"<a b='<'></a>", nil},
		{`<a b="1"c="2"></a>`, nil}, {"<1a/>", nil}, {"<a:/>", nil}, {"<p:a></a>", nil}, {"<a>&x;</a>", nil},
		{"<a>&amp</a>", nil}, {"<a>&#xd800;</a>", nil}, {"<a>&#x110000;</a>", nil}, {"<a>&#;</a>", nil},
		{"<a>&#-1;</a>", nil},
		{"<a>&#x0000000000000041;</a>", nil}, {"<a>\xff</a>", nil}, {"<a><!-- </a>", nil}, {"<a><![CDATA[</a>", nil},
		{`<!DOCTYPE a><a/>`, nil},
		{`<!DOCTYPE lolz [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><a>&b;</a>`, nil},
		{`<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>`, nil},
		{"<a><!DOCTYPE a></a>", nil},
	} {
		got, err := parseXML([]byte(c.body))
		if c.want == nil {
			if codeOf(err) != MalformedXML {
				t.Errorf("parseXML(%.60q) = %+v, %v; want MalformedXML", c.body, got, err)
			}
			continue
		}
		if d := cmp.Diff(*c.want, got, cmp.AllowUnexported(node{})); err != nil || d != "" {
			t.Errorf("parseXML(%.60q): %v, differs (-want +got):\n%s", c.body, err, d)
		}
	}
}

// FuzzParseXML compares with encoding/xml: what both accept must mean the same.
func FuzzParseXML(f *testing.F) {
	for _, s := range []string{
		"<a/>", "<a>x<b c='d'>&amp;&#x41;</b></a>", "<?xml version='1.0'?><a xmlns=\"x\"><![CDATA[x]]><!--c--></a>",
		"<Delete><Object><Key>k</Key></Object></Delete>", "<!DOCTYPE a><a/>", "<a>\r\n</a>",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		got, err := parseXML([]byte(body))
		if err != nil {
			return
		}
		if want, ok := stdText(body); ok && want != allText(&got) {
			t.Fatalf("parseXML(%q) has the text %q; encoding/xml has %q", body, allText(&got), want)
		}
		_, _ = ParseDelete([]byte(body)) // must not panic
		_, _ = ParseComplete([]byte(body))
		_, _ = ParseTagging([]byte(body), MaxTags)
	})
}

// allText is the text of the elements without children, in document order.
func allText(n *node) string {
	if len(n.children) == 0 {
		return "<" + n.name + ">" + n.text
	}
	s := ""
	for i := range n.children {
		s += allText(&n.children[i])
	}
	return s
}

// stdText is allText by encoding/xml; false if it does not accept body.
func stdText(body string) (string, bool) {
	type open struct {
		name, text string
		parent     bool
	}
	d := xml.NewDecoder(strings.NewReader(body))
	var stack []open
	all := ""
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all, true
		}
		if err != nil {
			return "", false
		}
		switch token := token.(type) {
		case xml.StartElement:
			if len(stack) > 0 {
				stack[len(stack)-1].parent = true
			}
			stack = append(stack, open{name: token.Name.Local})
		case xml.CharData:
			if len(stack) > 0 {
				stack[len(stack)-1].text += string(token)
			}
		case xml.EndElement:
			if top := stack[len(stack)-1]; !top.parent {
				all += "<" + top.name + ">" + top.text
			}
			stack = stack[:len(stack)-1]
		}
	}
}

func TestBodies(t *testing.T) {
	for _, c := range []struct {
		name string
		got  func() (any, error)
		want any
		code Code
	}{
		{"location", func() (any, error) {
			return ParseCreateBucket([]byte("<CreateBucketConfiguration><LocationConstraint> eu </LocationConstraint>" +
				"<Other/></CreateBucketConfiguration>"))
		}, "eu", ""},
		{"no body", func() (any, error) { return ParseCreateBucket(nil) }, "", ""},
		{"wrong root", func() (any, error) { return ParseCreateBucket([]byte("<Delete/>")) }, "", MalformedXML},
		{"delete", func() (any, error) {
			return ParseDelete([]byte("<Delete><Quiet>true</Quiet><Object><Key> a </Key><VersionId>null</VersionId></Object>" +
				"<Object><Key>b</Key><ETag>\"e\"</ETag><Size>5</Size>" +
				"<LastModifiedTime>Wed, 21 Oct 2015 07:28:00 GMT</LastModifiedTime></Object></Delete>"))
		}, DeleteList{Quiet: true, Keys: []DeleteKey{
			{Key: " a ", VersionID: "null", Conditions: Conditions{IfMatchSize: -1}},
			{Key: "b", Conditions: Conditions{IfMatch: `"e"`, IfMatchSize: 5,
				IfMatchModified: time.Date(2015, 10, 21, 7, 28, 0, 0, time.UTC)}},
		}}, ""},
		{"delete nothing", func() (any, error) { return ParseDelete([]byte("<Delete/>")) }, DeleteList{}, MalformedXML},
		{"delete too much", func() (any, error) {
			return ParseDelete([]byte("<Delete>" + strings.Repeat("<Object><Key>k</Key></Object>", 1001) + "</Delete>"))
		}, DeleteList{}, MalformedXML},
		{"complete", func() (any, error) {
			return ParseComplete([]byte("<CompleteMultipartUpload xmlns='x'><Part><ETag>&quot;e1&quot;</ETag>" +
				"<PartNumber>1</PartNumber></Part><Part><PartNumber>7</PartNumber><ETag>e7</ETag>" +
				"<ChecksumCRC32>AAAAAA==</ChecksumCRC32></Part></CompleteMultipartUpload>"))
		}, []CompletePart{{Number: 1, ETag: "e1"}, {7, "e7", checksum.CRC32, "AAAAAA=="}}, ""},
		{"complete nothing", func() (any, error) {
			return ParseComplete([]byte("<CompleteMultipartUpload/>"))
		}, []CompletePart(nil), MalformedXML},
		{"complete out of order", func() (any, error) {
			return ParseComplete([]byte("<CompleteMultipartUpload><Part><ETag>a</ETag><PartNumber>2</PartNumber></Part>" +
				"<Part><ETag>a</ETag><PartNumber>2</PartNumber></Part></CompleteMultipartUpload>"))
		}, []CompletePart(nil), InvalidPartOrder},
		{"complete part 0", func() (any, error) {
			return ParseComplete([]byte("<CompleteMultipartUpload><Part><ETag>a</ETag><PartNumber>0</PartNumber></Part>" +
				"</CompleteMultipartUpload>"))
		}, []CompletePart(nil), InvalidArgument},
		{"tags", func() (any, error) {
			return ParseTagging([]byte("<Tagging><TagSet><Tag><Key>b</Key><Value>1</Value></Tag>"+
				"<Tag><Key>a</Key><Value></Value></Tag></TagSet></Tagging>"), MaxTags)
		}, []Tag{{"a", ""}, {"b", "1"}}, ""},
		{"tag twice", func() (any, error) {
			tags, err := ParseTags("a=1&a=2")
			return tags[:0], err
		}, []Tag{}, InvalidTag},
	} {
		got, err := c.got()
		if d := cmp.Diff(c.want, got); codeOf(err) != c.code || d != "" {
			t.Errorf("%s: error %v; want %q; differs (-want +got):\n%s", c.name, err, c.code, d)
		}
	}
}

func TestEscape(t *testing.T) {
	for text, want := range map[string]string{
		"a<b>&\"'": "a&lt;b&gt;&amp;&quot;'", "\x00\x01\t\n\r\x1f\x7f": "&#x0;&#x1;\t\n&#xd;&#x1f;\x7f",
		"\u00e4\u0085\ufffe\uffff\ufffd\U0010ffff": "\u00e4\u0085&#xfffe;&#xffff;\ufffd\U0010ffff",
		"\xff\xc3": "\ufffd\ufffd",
	} {
		if got := string(appendEscaped(nil, text)); got != want {
			t.Errorf("appendEscaped(%q) = %q; want %q", text, got, want)
		}
	}
}

// FuzzEscape checks that what is written is read back as it was.
func FuzzEscape(f *testing.F) {
	f.Add("a<b>&\"'\x00\r\n\ufffe")
	f.Fuzz(func(t *testing.T, text string) {
		want := strings.ToValidUTF8(text, "\ufffd")
		if strings.Contains(text, "\ufffd") || want != text {
			return
		}
		x := NewXML("a")
		x.Text("b", text)
		x.Close("a")
		n, err := parseXML(x.Bytes())
		if err != nil || n.children[0].text != text {
			t.Fatalf("%q is read back as %+v, %v", text, n, err)
		}
		if got, ok := Unescape(string(AppendURLEncoded(nil, text)), false); !ok || got != text {
			t.Fatalf("%q is URL-decoded as %q", text, got)
		}
	})
}

func TestLists(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	token := "dG9rZW4="
	l := ObjectList{
		Listing: Listing{
			Bucket: "b", Prefix: "p<", Delimiter: "/", MaxEntries: 2, Truncated: true, Prefixes: []string{"p<a/"},
		},
		Objects: []store.Object{{
			Key: "p<\x01", Modified: at, ETag: "e", SizeBytes: 3,
			Checksums: []store.Checksum{{Algorithm: checksum.SHA256, Composite: true}},
		}},
		Owner: &Account{"id", "name"}, Marker: "m", NextMarker: "n", StartAfter: "s", Token: &token, NextToken: "bmV4dA==",
	}
	encoded := l
	encoded.URLEncode = true
	u := UploadList{
		Listing: l.Listing, KeyMarker: "k", IDMarker: "i", NextKeyMarker: "nk", NextID: "ni",
		Uploads:  []store.Upload{{Key: "key", ID: "id1", Owner: "o", Initiated: at}},
		Owner:    func(id string) Account { return Account{id, "name of " + id} },
		Checksum: func(*store.Upload) (checksum.Algorithm, checksum.Type) { return checksum.CRC32, checksum.FullObject },
	}
	e := &Error{Code: NoSuchKey, Fields: []Field{{"Key", "a&b"}}}
	text := ""
	for _, b := range [][]byte{
		l.V1(), l.V2(), encoded.V1(), u.XML(), AppendError(nil, e, "/b/a&b", "REQ", "HOST"),
	} {
		text += strings.ReplaceAll(string(b), "><", ">\n<") + "\n\n"
		if _, err := parseXML(b); err != nil {
			t.Errorf("not well-formed: %s", b)
		}
	}
	golden(t, "lists.golden", text)
}

func BenchmarkListV2(b *testing.B) {
	l := ObjectList{Listing: Listing{Bucket: "bucket", MaxEntries: 1000, URLEncode: true}}
	for range 1000 {
		l.Objects = append(l.Objects, store.Object{
			Key: "some/prefix/and a name.bin", Modified: time.Unix(1e9, 0), ETag: "d41d8cd98f00b204e9800998ecf8427e",
			Checksums: []store.Checksum{{Algorithm: checksum.CRC64NVME, Value: make([]byte, 8)}},
		})
	}
	b.ReportAllocs()
	for b.Loop() {
		l.V2()
	}
}
