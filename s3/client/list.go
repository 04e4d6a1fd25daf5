package client

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ListOptions say which keys. The zero value is all of them.
type ListOptions struct {
	Prefix    string
	Delimiter string // "" for none; else keys are grouped up to it
	After     string // exclusive
	// PageKeys is the number of entries asked for at a time; 0 is 1000, the most there is.
	PageKeys int
}

// Entry is one line of a listing: a key, or, with a delimiter, a common prefix.
type Entry struct {
	Key       string
	IsPrefix  bool // the fields below are then zero
	SizeBytes int64
	ETag      string
	Modified  time.Time
}

// List yields the entries in order, page by page. After an error nothing more is yielded.
func (c *Client) List(ctx context.Context, bucket string, o ListOptions) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		token := ""
		for {
			page, err := c.listPage(ctx, bucket, o, token)
			if err != nil {
				yield(Entry{}, err)
				return
			}
			for _, entry := range page.entries {
				if !yield(entry, nil) {
					return
				}
			}
			if !page.truncated {
				return
			}
			if page.token == "" || page.token == token {
				yield(Entry{}, fmt.Errorf("ListObjectsV2 %s: the answer has no new continuation token", bucket))
				return
			}
			token = page.token
		}
	}
}

type listPage struct {
	entries   []Entry
	truncated bool
	token     string
}

func (c *Client) listPage(ctx context.Context, bucket string, o ListOptions, token string) (listPage, error) {
	// Encoded keys: XML can't hold every byte that a key may have.
	query := url.Values{"list-type": {"2"}, "encoding-type": {"url"}}
	for name, value := range map[string]string{
		"prefix": o.Prefix, "delimiter": o.Delimiter, "start-after": o.After, "continuation-token": token,
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if o.PageKeys > 0 {
		query.Set("max-keys", strconv.Itoa(o.PageKeys))
	}
	body, err := c.document(ctx, call{op: "ListObjectsV2", method: http.MethodGet, bucket: bucket, query: query})
	if err != nil {
		return listPage{}, err
	}
	page, err := parseListing(body)
	if err != nil {
		return listPage{}, fmt.Errorf("ListObjectsV2 %s: malformed answer: %w", bucket, err)
	}
	return page, nil
}

// parseListing reads a ListBucketResult, and puts keys and common prefixes, which are each in order,
// into one sorted listing.
func parseListing(doc []byte) (listPage, error) {
	var page listPage
	var entry Entry
	encoded, prefixes := false, 0
	err := scanXML(doc, func(path []string, text []byte) (err error) {
		if path[0] != "ListBucketResult" {
			return errXML
		}
		switch len(path) {
		case 2:
			switch path[1] {
			case "IsTruncated":
				page.truncated = string(text) == "true"
			case "NextContinuationToken":
				page.token = string(text)
			case "EncodingType":
				encoded = string(text) == "url"
			case "Contents":
				page.entries = append(page.entries, entry)
				entry = Entry{}
			case "CommonPrefixes":
				page.entries = append(page.entries, Entry{Key: entry.Key, IsPrefix: true})
				entry = Entry{}
				prefixes++
			}
		case 3:
			err = entry.set(path[1], path[2], text)
		}
		return err
	})
	if err != nil {
		return listPage{}, err
	}
	// EncodingType may stand after the keys.
	for i := range page.entries {
		if e := &page.entries[i]; encoded && strings.ContainsAny(e.Key, "%+") {
			if e.Key, err = url.QueryUnescape(e.Key); err != nil {
				return listPage{}, err
			}
		}
	}
	if prefixes > 0 {
		slices.SortFunc(page.entries, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
	}
	return page, nil
}

// set takes one element of Contents or CommonPrefixes.
func (e *Entry) set(parent, name string, text []byte) (err error) {
	switch {
	case parent == "Contents" && name == "Key", parent == "CommonPrefixes" && name == "Prefix":
		e.Key = string(text)
	case parent != "Contents":
	case name == "Size":
		e.SizeBytes, err = strconv.ParseInt(string(text), 10, 64)
	case name == "ETag":
		e.ETag = string(bytes.Trim(text, `"`))
	case name == "LastModified":
		e.Modified, err = time.Parse(time.RFC3339, string(text))
	}
	return err
}
