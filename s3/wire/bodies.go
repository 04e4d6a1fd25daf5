package wire

import (
	"strconv"
	"strings"

	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/store"
)

func malformed(detail string) *Error {
	return &Error{Code: MalformedXML, Fields: []Field{{"Detail", detail}}}
}

// parseRoot parses a body whose root element must have that name.
func parseRoot(body []byte, root string) (node, error) {
	n, err := parseXML(body)
	if err == nil && n.name != root {
		err = malformed("the root element is not " + root)
	}
	return n, err
}

// ParseCreateBucket parses the body of CreateBucket, which may be empty, and returns its
// LocationConstraint.
func ParseCreateBucket(body []byte) (location string, err error) {
	if len(body) == 0 {
		return "", nil
	}
	n, err := parseRoot(body, "CreateBucketConfiguration")
	return n.get("LocationConstraint"), err
}

// DeleteKey is one object of DeleteObjects.
type DeleteKey struct {
	Key, VersionID string
	Conditions     Conditions // those that Conditions.Delete judges
}

// DeleteList is the body of DeleteObjects.
type DeleteList struct {
	Quiet bool
	Keys  []DeleteKey
}

// ParseDelete parses the body of DeleteObjects: 1 … MaxDeleteKeys keys.
func ParseDelete(body []byte) (DeleteList, error) {
	n, err := parseRoot(body, "Delete")
	if err != nil {
		return DeleteList{}, err
	}
	list := DeleteList{Quiet: n.get("Quiet") == "true"}
	for i := range n.children {
		c := &n.children[i]
		if c.name != "Object" {
			continue
		}
		if len(list.Keys) == MaxDeleteKeys {
			return DeleteList{}, malformed("more than " + itoa(MaxDeleteKeys) + " objects")
		}
		k, err := parseDeleteKey(c)
		if err != nil {
			return DeleteList{}, err
		}
		list.Keys = append(list.Keys, k)
	}
	if len(list.Keys) == 0 {
		return DeleteList{}, malformed("no objects")
	}
	return list, nil
}

func parseDeleteKey(n *node) (DeleteKey, error) {
	k := DeleteKey{VersionID: n.get("VersionId"), Conditions: Conditions{IfMatchSize: -1, IfMatch: n.get("ETag")}}
	if key := n.child("Key"); key != nil {
		k.Key = key.text // space at its ends is part of it
	}
	if k.Key == "" {
		return k, malformed("an object without a key")
	}
	if text := n.get("Size"); text != "" {
		size, err := strconv.ParseInt(text, 10, 64)
		if err != nil || size < 0 {
			return k, malformed("Size is not a number")
		}
		k.Conditions.IfMatchSize = size
	}
	if text := n.get("LastModifiedTime"); text != "" {
		t, ok := parseAnyTime(text)
		if !ok {
			return k, malformed("LastModifiedTime is not a time")
		}
		k.Conditions.IfMatchModified = t
	}
	return k, nil
}

// CompletePart is one part that CompleteMultipartUpload names. Checksum is the text of the checksum
// of Algorithm, if one was given.
type CompletePart struct {
	Number    int
	ETag      string // without quotes
	Algorithm checksum.Algorithm
	Checksum  string
}

// ParseComplete parses the body of CompleteMultipartUpload: 1 … store.MaxPartNumber parts, of which
// the numbers ascend (InvalidPartOrder).
func ParseComplete(body []byte) ([]CompletePart, error) {
	n, err := parseRoot(body, "CompleteMultipartUpload")
	if err != nil {
		return nil, err
	}
	parts := make([]CompletePart, 0, min(len(n.children), store.MaxPartNumber))
	last := 0
	for i := range n.children {
		c := &n.children[i]
		if c.name != "Part" {
			continue
		}
		p := CompletePart{ETag: Unquote(c.get("ETag"))}
		p.Number, err = strconv.Atoi(c.get("PartNumber"))
		if err != nil || p.ETag == "" {
			return nil, malformed("a part without number or ETag")
		}
		if p.Number < 1 || p.Number > store.MaxPartNumber {
			return nil, InvalidArg("partNumber", itoa(int64(p.Number)),
				"PartNumber must be between 1 and "+itoa(store.MaxPartNumber))
		}
		if p.Number <= last {
			return nil, &Error{Code: InvalidPartOrder}
		}
		last = p.Number
		for _, a := range checksum.All() {
			if text := c.get("Checksum" + a.String()); text != "" {
				p.Algorithm, p.Checksum = a, text
			}
		}
		parts = append(parts, p)
	}
	if len(parts) == 0 {
		return nil, malformed("no parts")
	}
	return parts, nil
}

// ParseTagging parses the body of PutObjectTagging and PutBucketTagging: at most limit tags, which
// come back in the order of their keys.
func ParseTagging(body []byte, limit int) ([]Tag, error) {
	n, err := parseRoot(body, "Tagging")
	if err != nil {
		return nil, err
	}
	set := n.child("TagSet")
	if set == nil {
		return nil, malformed("no TagSet")
	}
	var tags []Tag
	for i := range set.children {
		if c := &set.children[i]; c.name == "Tag" {
			key, value := c.child("Key"), c.child("Value")
			if key == nil || value == nil {
				return nil, malformed("a tag without key or value")
			}
			tags = append(tags, Tag{strings.TrimSpace(key.text), strings.TrimSpace(value.text)})
		}
	}
	return tags, CheckTags(tags, limit)
}
