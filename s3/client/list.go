package client

import (
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

type listXML struct {
	IsTruncated           bool
	NextContinuationToken string
	EncodingType          string
	Contents              []struct {
		Key          string
		Size         int64
		ETag         string
		LastModified time.Time
	}
	CommonPrefixes []struct{ Prefix string }
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
	var answer listXML
	_, err := c.decode(ctx, call{op: "ListObjectsV2", method: http.MethodGet, bucket: bucket, query: query}, &answer)
	if err != nil {
		return listPage{}, err
	}
	return answer.page()
}

// page merges keys and common prefixes, each of them in order, into one sorted listing.
func (x *listXML) page() (listPage, error) {
	decode := func(s string) (string, error) { return s, nil }
	if x.EncodingType == "url" {
		decode = url.QueryUnescape
	}
	page := listPage{truncated: x.IsTruncated, token: x.NextContinuationToken}
	for _, o := range x.Contents {
		key, err := decode(o.Key)
		if err != nil {
			return listPage{}, fmt.Errorf("malformed key in a listing: %w", err)
		}
		page.entries = append(page.entries,
			Entry{Key: key, SizeBytes: o.Size, ETag: strings.Trim(o.ETag, `"`), Modified: o.LastModified})
	}
	if len(x.CommonPrefixes) == 0 {
		return page, nil
	}
	for _, p := range x.CommonPrefixes {
		prefix, err := decode(p.Prefix)
		if err != nil {
			return listPage{}, fmt.Errorf("malformed prefix in a listing: %w", err)
		}
		page.entries = append(page.entries, Entry{Key: prefix, IsPrefix: true})
	}
	slices.SortFunc(page.entries, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
	return page, nil
}
