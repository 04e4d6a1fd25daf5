package torture

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/millrace/millrace/s3/sigv4"
)

const maxAnswerBytes = 1 << 20

// answer is what came back of a request that succeeded.
type answer struct {
	header http.Header
	body   []byte
}

// request sends a signed request that the client has no call for. Any answer but a success is an error.
func (w *worker) request(method, key string, query url.Values, body *sized, header http.Header) (answer, error) {
	u := w.endpoint + "/" + bucket + "/" + key
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	r, err := http.NewRequestWithContext(context.Background(), method, u, nil)
	if err != nil {
		return answer{}, err
	}
	if header != nil {
		r.Header = header.Clone()
	}
	if body != nil {
		r.Body, r.ContentLength = io.NopCloser(body), body.n
		if body.n == 0 {
			r.Body = http.NoBody // else the length counts as unknown
		}
	}
	signer := sigv4.Signer{Credential: credential, Region: "us-east-1"}
	if _, err := signer.Sign(r, sigv4.UnsignedPayload, time.Now()); err != nil {
		return answer{}, err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
	if err == nil && response.StatusCode/100 != 2 || bytes.Contains(text, []byte("<Error>")) {
		err = fmt.Errorf("status %d: %s", response.StatusCode, text)
	}
	return answer{response.Header, text}, err
}

var errAborted = errors.New("aborted")

// upload stores c by a multipart upload of one part, or aborts that upload, or leaves it as it is.
func (w *worker) upload(key string, e *entry, c content) error {
	err := w.uploadSteps(key, c, w.rng.IntN(5))
	switch {
	case errors.Is(err, errAborted):
		return nil
	case errors.Is(err, errUndone):
		return w.failed("upload of "+key, err)
	}
	e.did(c, err)
	if err != nil {
		return w.failed("completion of "+key, err)
	}
	return nil
}

// errUndone marks the failure of an upload that can't have changed its key.
var errUndone = errors.New("upload not completed")

func (w *worker) uploadSteps(key string, c content, fate int) error {
	header := http.Header{"X-Amz-Meta-Seed": {c.metadata()["seed"]}}
	made, err := w.request(http.MethodPost, key, url.Values{"uploads": {""}}, nil, header)
	if err != nil {
		return fmt.Errorf("%w: create: %w", errUndone, err)
	}
	var upload struct {
		ID string `xml:"UploadId"`
	}
	if err := xml.Unmarshal(made.body, &upload); err != nil {
		return fmt.Errorf("%w: create: %w", errUndone, err)
	}
	id := url.Values{"uploadId": {upload.ID}}
	var etag string
	for _, data := range [][]byte{w.fresh().bytes(), c.bytes()} { // the second replaces the first
		query := url.Values{"uploadId": id["uploadId"], "partNumber": {"1"}}
		part, err := w.request(http.MethodPut, key, query, &sized{bytes.NewReader(data), int64(len(data))}, nil)
		if err != nil {
			return fmt.Errorf("%w: part: %w", errUndone, err)
		}
		etag = part.header.Get("Etag")
	}
	switch fate {
	case 0:
		return errAborted // by nobody
	case 1:
		if _, err := w.request(http.MethodDelete, key, id, nil, nil); err != nil {
			return fmt.Errorf("%w: abort: %w", errUndone, err)
		}
		return errAborted
	}
	list := fmt.Sprintf("<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>%s</ETag></Part>"+
		"</CompleteMultipartUpload>", etag)
	_, err = w.request(http.MethodPost, key, id, &sized{bytes.NewReader([]byte(list)), int64(len(list))}, nil)
	return err
}
