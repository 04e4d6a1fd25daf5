package rdma_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/millrace/millrace/verbs/iwarp"
)

const fenceHeader = "x-millrace-rdma-fence: client"

// TestClientFences: a client that signs that it counts the bytes by itself is told to, and gets them all.
func TestClientFences(t *testing.T) {
	r := newRig(t, options{})
	for _, size := range []int{0, 1, 4097, 3 << 20} {
		data := noise(size, 1)
		name := "/bucket/o" + strconv.Itoa(size)
		r.must("PUT", name, string(data))
		h := newHost(t, size+1, iwarp.Config{})
		token, b := h.bind(int64(size) + 1)
		a := r.do("GET", name, "", tokenHeader+token, fenceHeader)
		if got := a.header.Get("X-Millrace-Rdma-Fence"); a.status != 200 || (got == "client") != (size > 0) {
			t.Fatalf("GET of %d bytes = %+v; want 200, and the fence left to the client where there are bytes", size, a)
		}
		counting := b.(interface {
			Placed(ctx context.Context, n int64) error
		})
		if err := counting.Placed(t.Context(), int64(size)); err != nil {
			t.Fatalf("%d bytes don't come: %v", size, err)
		}
		same(t, "GET by RDMA", h.memory()[:size], data)
	}
}

// TestUnsignedFence: a header that somebody on the way may have put in does not count.
func TestUnsignedFence(t *testing.T) {
	r := newRig(t, options{})
	data := noise(1<<20, 1)
	r.must("PUT", "/bucket/o", string(data))
	h := newHost(t, len(data), iwarp.Config{})
	for _, tc := range []struct{ name, value string }{{"unsigned", "client"}, {"signed", "server"}} {
		req := r.request("GET", "/bucket/o", "", tokenHeader+h.window(int64(len(data))))
		if req.Header.Set("X-Millrace-Rdma-Fence", tc.value); tc.name == "signed" {
			req = r.request("GET", "/bucket/o", "", tokenHeader+h.window(int64(len(data))), "x-millrace-rdma-fence: "+tc.value)
		}
		a := r.send(req)
		if got := a.header.Get("X-Millrace-Rdma-Fence"); a.status != 200 || got != "" {
			t.Errorf("GET with %s x-millrace-rdma-fence: %s = %+v; want it fenced by the server", tc.name, tc.value, a)
		}
		same(t, "GET by RDMA", h.memory(), data)
		clear(h.memory())
	}
}
