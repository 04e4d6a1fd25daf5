package rdma_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/s3/gateway"
	"github.com/millrace/millrace/verbs/iwarp"
)

const tokenHeader = "x-amz-rdma-token: "

func TestPutAndGet(t *testing.T) {
	r := newRig(t, options{})
	for _, size := range []int{0, 1, 4097, 300_000, 5 << 20} {
		h := newHost(t, size+1, iwarp.Config{})
		data := noise(size, 1)
		copy(h.memory(), data)
		name := "/bucket/o" + strconv.Itoa(size)
		a := r.do("PUT", name, "", tokenHeader+h.window(int64(size)))
		if a.status != 200 || a.header.Get("X-Amz-Rdma-Reply") != "200" || a.header.Get("Etag") == "" || a.body != "" ||
			a.header.Get("X-Amz-Rdma-Bytes-Transferred") != strconv.Itoa(size) ||
			a.header.Get("X-Amz-Checksum-Crc64nvme") == "" {
			t.Fatalf("PUT of %d bytes = %+v", size, a)
		}
		if tag := a.header.Get("Etag"); !strings.HasSuffix(tag, fmt.Sprintf(`%016x-1"`, size)) {
			t.Errorf("PUT of %d bytes: ETag %s; want no MD5", size, tag)
		}
		if e := r.last(); e.Transport != gateway.TransportRDMA || e.BytesIn != int64(size) {
			t.Errorf("PUT of %d bytes: event %+v", size, e)
		}
		if got := r.must("GET", name, ""); got.body != string(data) {
			t.Errorf("GET of %d bytes by HTTP: other bytes", size)
		}
		clear(h.memory())
		a = r.do("GET", name, "", tokenHeader+h.window(int64(size)+1))
		if a.status != 200 || a.header.Get("X-Amz-Rdma-Reply") != "200" || a.body != "" ||
			a.header.Get("X-Amz-Rdma-Bytes-Transferred") != strconv.Itoa(size) || a.header.Get("Content-Length") != "0" {
			t.Fatalf("GET of %d bytes = %+v", size, a)
		}
		same(t, "GET by RDMA", h.memory()[:size], data)
		if h.memory()[size] != 0 {
			t.Errorf("GET of %d bytes wrote behind them", size)
		}
	}
	if a := r.do("HEAD", "/bucket/o1", "", tokenHeader+"x"); a.status != http.StatusBadRequest {
		t.Errorf("HEAD with a token = %d; want 400", a.status)
	}
}
