package gateway

import (
	"strings"
	"testing"
)

func TestBucketScript(t *testing.T) {
	newSite(t, nil).run("buckets",
		"GET /", "PUT /bucket-b", "PUT /bucket-a", "PUT /bucket-a",
		"PUT /bucket-c\n\n<CreateBucketConfiguration><LocationConstraint>us-east-1</LocationConstraint></CreateBucketConfiguration>",
		"PUT /bucket-d\n\n<CreateBucketConfiguration><LocationConstraint>mars</LocationConstraint></CreateBucketConfiguration>",
		"PUT /bucket-d\n\nno xml", "PUT /Bucket", "PUT /192.168.0.1",
		"GET /", "GET /?max-buckets=1", "GET /?max-buckets=5&continuation-token=YnVja2V0LWE=", "GET /?prefix=bucket-b",
		"GET /?max-buckets=0", "GET /?max-buckets=x", "GET /?continuation-token=!",
		"HEAD /bucket-a", "HEAD /nowhere", "GET /bucket-a?location", "GET /nowhere?location",
		"GET /bucket-a?versioning", "GET /bucket-a?acl", "GET /bucket-a?policy", "GET /bucket-a?lifecycle",
		"GET /bucket-a?requestPayment", "GET /nowhere?policy", "PUT /bucket-a?policy\n\n{}", "GET /bucket-a?tagging",
		"PUT /bucket-a?tagging\n\n<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>",
		"GET /bucket-a?tagging", "DELETE /bucket-a?tagging", "GET /bucket-a?tagging",
		"PUT /bucket-a?acl\nx-amz-acl: private", "PUT /bucket-a?acl\nx-amz-acl: public-read",
		"PUT /bucket-a?acl\nx-amz-acl: public-ready", "PUT /bucket-e\nx-amz-acl: public-read",
		"PUT /bucket-e\nx-amz-bucket-object-lock-enabled: true",
		"HEAD /bucket-a\nx-amz-expected-bucket-owner: owner-id", "GET /bucket-a\nx-amz-expected-bucket-owner: other",
		"PUT /bucket-b/key\n\nx", "DELETE /bucket-b", "DELETE /bucket-b/key", "POST /bucket-b/key?uploads",
		"DELETE /bucket-b", "DELETE /bucket-b", "POST /", "POST /bucket-a", "GET /bucket-a?inventory&id=1",
	)
}

func TestObjectScript(t *testing.T) {
	s := newSite(t, nil)
	s.must("PUT", "/bucket", "")
	const md5OfHello, crc32OfHello = "XUFAKrxLKna5cZ2REBfFkg==", "NhCmhg=="
	s.run("objects",
		"GET /bucket/key", "HEAD /bucket/key", "PUT /nowhere/key\n\nhello",
		"PUT /bucket/key\nContent-Type: text/plain\nCache-Control: no-cache\nContent-Encoding: gzip, aws-chunked\n"+
			"x-amz-meta-Colour: blue\nx-amz-tagging: b=2&a=1\nContent-MD5: "+md5OfHello+"\n\nhello",
		"GET /bucket/key", "HEAD /bucket/key", "GET /bucket/key\nx-amz-checksum-mode: ENABLED", "GET /bucket/key?tagging",
		"GET /bucket/key?response-content-type=a%2Fb&response-expires=never&response-cache-control=x"+
			"&response-content-disposition=y&response-content-encoding=z&response-content-language=q",
		"PUT /bucket/key?tagging\n\n<Tagging><TagSet><Tag><Key>new</Key><Value>tag</Value></Tag></TagSet></Tagging>",
		"GET /bucket/key?tagging", "PUT /bucket/key?tagging\n\n<Tagging/>", "DELETE /bucket/key?tagging",
		"GET /bucket/key?tagging", "PUT /bucket/none?tagging\n\n<Tagging><TagSet/></Tagging>",
		"GET /bucket/key?versionId=null", "GET /bucket/key?versionId=abc", "GET /bucket/key?versionId=",
		"GET /bucket/key?acl", "PUT /bucket/key?acl\nx-amz-acl: private", "PUT /bucket/key?acl\n\n<AccessControlPolicy/>",
		"GET /bucket/key?torrent", "GET /bucket/key?retention", "PUT /bucket/key?retention\n\n<Retention/>",
		"PUT /bucket/crc\nx-amz-checksum-crc32: "+crc32OfHello+"\nx-amz-sdk-checksum-algorithm: CRC32\n\nhello",
		"HEAD /bucket/crc\nx-amz-checksum-mode: enabled", "GET /bucket/crc\nx-amz-checksum-mode: ENABLED\nRange: bytes=1-2",
		"PUT /bucket/bad\nx-amz-checksum-crc32: AAAAAA==\n\nhello", "PUT /bucket/bad\nx-amz-checksum-crc32: x\n\nhello",
		"PUT /bucket/bad\nContent-MD5: AAAAAAAAAAAAAAAAAAAAAA==\n\nhello", "PUT /bucket/bad\nContent-MD5: x\n\nhello",
		"PUT /bucket/bad\nx-amz-checksum-algorithm: x\nx-amz-sdk-checksum-algorithm: CRC32\n\nhello",
		"PUT /bucket/bad\nx-amz-server-side-encryption: AES256\n\nx", "PUT /bucket/bad\nx-amz-storage-class: GLACIER\n\nx",
		"PUT /bucket/bad\nx-amz-object-lock-mode: GOVERNANCE\n\nx", "PUT /bucket/bad\nx-amz-acl: public-read\n\nx",
		"PUT /bucket/bad\nx-amz-tagging: a=1&a=2\n\nx",
		step("PUT /bucket/bad\nx-amz-meta-a: "+strings.Repeat("x", 2048)+"\n\nx"),
		"GET /bucket/bad", "PUT /bucket/empty", "GET /bucket/empty", "GET /bucket/empty?partNumber=1",
		"GET /bucket/empty\nRange: bytes=0-", "DELETE /bucket/key", "DELETE /bucket/key", "DELETE /nowhere/key",
		"DELETE /bucket/crc?versionId=abc", "HEAD /bucket/crc", "DELETE /bucket/crc?versionId=null", "HEAD /bucket/crc",
	)
}

func TestReadScript(t *testing.T) {
	s := newSite(t, nil)
	s.must("PUT", "/bucket", "")
	s.must("PUT", "/bucket/key", "0123456789")
	tag := s.must("HEAD", "/bucket/key", "").header.Get("ETag")
	modified := s.must("HEAD", "/bucket/key", "").header.Get("Last-Modified")
	s.run("reads",
		"GET /bucket/key\nRange: bytes=0-0", "HEAD /bucket/key\nRange: bytes=2-4", "GET /bucket/key\nRange: bytes=-3",
		"GET /bucket/key\nRange: bytes=8-100", "GET /bucket/key\nRange: bytes=10-", "GET /bucket/key\nRange: bytes=-0",
		"GET /bucket/key\nRange: bytes=5-2", "GET /bucket/key\nRange: bytes=0-1,4-5", "GET /bucket/key\nRange: lines=1-2",
		"GET /bucket/key\nRange: bytes=0-99999999999999999999999", "GET /bucket/key\nRange: bytes=1-2\nIf-Range: \"other\"",
		step("GET /bucket/key\nRange: bytes=1-2\nIf-Range: "+tag),
		step("GET /bucket/key\nIf-Match: "+tag), "GET /bucket/key\nIf-Match: \"other\"", "HEAD /bucket/key\nIf-Match: other",
		step("GET /bucket/key\nIf-None-Match: "+tag), step("HEAD /bucket/key\nIf-None-Match: "+tag),
		"GET /bucket/key\nIf-None-Match: other", step("GET /bucket/key\nIf-Modified-Since: "+modified),
		"GET /bucket/key\nIf-Modified-Since: Mon, 01 Jan 2001 00:00:00 GMT",
		"GET /bucket/key\nIf-Unmodified-Since: Mon, 01 Jan 2001 00:00:00 GMT", "GET /bucket/key\nIf-Modified-Since: x",
		"GET /bucket/key?partNumber=1", "GET /bucket/key?partNumber=2", "GET /bucket/key?partNumber=0",
		"GET /bucket/key?partNumber=x", "GET /bucket/key?partNumber=1\nRange: bytes=0-1",
		"GET /bucket/key?attributes\nx-amz-object-attributes: ETag,ObjectSize\nx-amz-object-attributes: Checksum,StorageClass",
		"GET /bucket/key?attributes", "GET /bucket/key?attributes\nx-amz-object-attributes: Colour",
		"GET /bucket/none?attributes\nx-amz-object-attributes: ETag",
		"GET /bucket/key\nx-amz-server-side-encryption-customer-algorithm: AES256",
	)
}

func TestWriteConditionScript(t *testing.T) {
	s := newSite(t, nil)
	s.must("PUT", "/bucket", "")
	const etagOfA = "0cc175b9c0f1b6a831c399e269772661"
	s.run("writeconditions",
		"PUT /bucket/key\nIf-Match: *\n\na", "PUT /bucket/key\nIf-None-Match: *\n\na",
		"PUT /bucket/key\nIf-None-Match: *\n\nb",
		"PUT /bucket/key\nIf-Match: other\n\nb", "PUT /bucket/key\nIf-None-Match: "+etagOfA+"\n\nb", "GET /bucket/key",
		"PUT /bucket/key\nIf-Match: \""+etagOfA+"\"\n\na", "DELETE /bucket/key\nIf-Match: other",
		"DELETE /bucket/key\nx-amz-if-match-size: 2", "DELETE /bucket/key\nx-amz-if-match-size: x",
		"DELETE /bucket/key\nx-amz-if-match-last-modified-time: Mon, 01 Jan 2001 00:00:00 GMT",
		"DELETE /bucket/key\nx-amz-if-match-size: 1\nIf-Match: "+etagOfA, "DELETE /bucket/key\nIf-Match: other",
	)
}

func TestListScript(t *testing.T) {
	s := newSite(t, nil)
	s.must("PUT", "/bucket", "")
	for _, key := range []string{"a", "b/1", "b/2", "c%20d+e", "%01%0D%26", "z"} {
		s.must("PUT", "/bucket/"+key, key)
	}
	s.run("lists",
		"GET /bucket", "GET /bucket?delimiter=%2F&max-keys=2&encoding-type=url", "GET /bucket?marker=b%2F1&max-keys=1",
		"GET /bucket?prefix=b%2F&delimiter=%2F", "GET /bucket?max-keys=0", "GET /bucket?max-keys=2000",
		"GET /bucket?max-keys=-1",
		"GET /bucket?max-keys=x", "GET /bucket?encoding-type=base64", "GET /nowhere",
		"GET /bucket?delimiter=%2F&marker=b%2F&max-keys=1",
		"GET /bucket?list-type=2&max-keys=2&fetch-owner=true", "GET /bucket?list-type=2&start-after=b%2F2&encoding-type=url",
		"GET /bucket?list-type=2&continuation-token=YQ==&start-after=zzz&max-keys=1",
		"GET /bucket?list-type=2&continuation-token=",
		"GET /bucket?list-type=2&continuation-token=%21", "GET /bucket?list-type=2&max-keys=0",
		"GET /bucket?versions&max-keys=2",
		"GET /bucket?versions&key-marker=c%20d%2Be&version-id-marker=null",
	)
}

func TestDeleteObjectsScript(t *testing.T) {
	s := newSite(t, nil)
	s.must("PUT", "/bucket", "")
	for _, key := range []string{"a", "b", "c", "d", "%01"} {
		s.must("PUT", "/bucket/"+key, key)
	}
	post := func(body string) step {
		return step("POST /bucket?delete\nContent-MD5: " + md5Base64(body) + "\n\n" + body)
	}
	many := "<Delete>" + strings.Repeat("<Object><Key>k</Key></Object>", 1001) + "</Delete>"
	s.run("deleteobjects",
		"POST /bucket?delete\n\n<Delete><Object><Key>a</Key></Object></Delete>",
		step("POST /bucket?delete\nContent-MD5: "+md5Base64("x")+"\n\ny"),
		post("<Delete><Object><Key>a</Key></Object><Object><Key>none</Key></Object>"+
			"<Object><Key>c</Key><VersionId>other</VersionId></Object></Delete>"),
		post("<Delete><Quiet>true</Quiet><Object><Key>b</Key><VersionId>null</VersionId></Object>"+
			"<Object><Key>c</Key><ETag>other</ETag></Object><Object><Key>&#x1;</Key></Object></Delete>"),
		"GET /bucket?encoding-type=url", post("<Delete></Delete>"), post("<Delete"), post(many),
		post("<!DOCTYPE d [<!ENTITY a \"b\">]><Delete><Object><Key>&a;</Key></Object></Delete>"),
		post("<Delete><Object><Key>"+strings.Repeat("k", 1025)+"</Key></Object><Object><Key>d</Key></Object></Delete>"),
		"GET /bucket",
	)
}
