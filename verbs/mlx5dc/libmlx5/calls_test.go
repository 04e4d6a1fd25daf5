//go:build linux && (amd64 || arm64)

package libmlx5

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/google/go-cmp/cmp"

	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
)

// recorder is a library in C, compiled with the real headers, that has the functions which are called here and writes down with
// what they were called.
const recorder = `
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <infiniband/verbs.h>
#include <infiniband/mlx5dv.h>

static char text[4096];
static void note(const char *format, ...) {
	va_list args;
	va_start(args, format);
	size_t n = strlen(text);
	vsnprintf(text + n, sizeof text - n, format, args);
	va_end(args);
}
const char *recorded(void) { return text; }

static struct ibv_device device;
static struct ibv_context context = { .device = &device };
static struct ibv_qp_ex ex;
static struct mlx5dv_qp_ex dv;
static struct ibv_ah handle;
void *a_context(void) { return &context; }

static void start(struct ibv_qp_ex *q) { note("start %d\n", q == &ex); }
static void do_write(struct ibv_qp_ex *q, uint32_t rkey, uint64_t addr) {
	note("write %d id %llx flags %x rkey %x addr %llx\n", q == &ex, (unsigned long long)q->wr_id, q->wr_flags, rkey, (unsigned long long)addr);
}
static void do_read(struct ibv_qp_ex *q, uint32_t rkey, uint64_t addr) {
	note("read %d id %llx flags %x rkey %x addr %llx\n", q == &ex, (unsigned long long)q->wr_id, q->wr_flags, rkey, (unsigned long long)addr);
}
static void set_dc(struct mlx5dv_qp_ex *m, struct ibv_ah *a, uint32_t dctn, uint64_t key) {
	note("dc %d %d dctn %x key %llx\n", m == &dv, a == &handle, dctn, (unsigned long long)key);
}
static void set_list(struct ibv_qp_ex *q, size_t n, const struct ibv_sge *s) {
	note("list %d %zu", q == &ex, n);
	for (size_t i = 0; i < n; i++)
		note(" %llx+%x:%x", (unsigned long long)s[i].addr, s[i].length, s[i].lkey);
	note("\n");
}
static int complete_result;
static int done(struct ibv_qp_ex *q) { note("complete %d\n", q == &ex); return complete_result; }
void refuse(int result) { complete_result = result; }

bool mlx5dv_is_supported(struct ibv_device *d) { return d == &device; }
struct ibv_qp *mlx5dv_create_qp(struct ibv_context *c, struct ibv_qp_init_attr_ex *a, struct mlx5dv_qp_init_attr *m) {
	if (c != &context) { errno = EINVAL; return NULL; }
	note("create pd %lx cq %lx %lx wr %u sge %u recv %u type %x mask %x ops %llx; dv mask %llx flags %x dc %x ops %llx\n",
		(long)a->pd, (long)a->send_cq, (long)a->recv_cq, a->cap.max_send_wr, a->cap.max_send_sge, a->cap.max_recv_wr, a->qp_type,
		a->comp_mask, (unsigned long long)a->send_ops_flags, (unsigned long long)m->comp_mask, m->create_flags,
		m->dc_init_attr.dc_type, (unsigned long long)m->send_ops_flags);
	ex.qp_base.qp_num = 0x1234;
	ex.wr_start = start; ex.wr_rdma_write = do_write; ex.wr_rdma_read = do_read; ex.wr_set_sge_list = set_list;
	ex.wr_complete = done;
	dv.wr_set_dc_addr = set_dc;
	return &ex.qp_base;
}
struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *q) { return q == &ex.qp_base ? &ex : NULL; }
struct mlx5dv_qp_ex *mlx5dv_qp_ex_from_ibv_qp_ex(struct ibv_qp_ex *q) { return q == &ex ? &dv : NULL; }
#undef ibv_create_ah
struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *a) {
	if (a->port_num == 0) { errno = EINVAL; return NULL; }
	note("ah pd %lx gid %02x..%02x index %u hop %u class %u dlid %x global %u port %u\n", (long)pd, a->grh.dgid.raw[0],
		a->grh.dgid.raw[15], a->grh.sgid_index, a->grh.hop_limit, a->grh.traffic_class, a->dlid, a->is_global, a->port_num);
	return &handle;
}
int ibv_destroy_ah(struct ibv_ah *a) { return a == &handle ? 0 : EINVAL; }
`

// compiled loads the recorder, and returns what calls its own functions.
func compiled(t *testing.T) (calls *Calls, call func(name string, args ...uintptr) uintptr) {
	t.Helper()
	if _, err := os.Stat("/usr/include/infiniband/mlx5dv.h"); err != nil {
		t.Skip("needs the headers of libibverbs (Debian: libibverbs-dev)")
	}
	cc, err := exec.LookPath(compilers()[runtime.GOARCH])
	if err != nil {
		t.Skipf("needs a C compiler for %s", runtime.GOARCH)
	}
	dir := t.TempDir()
	source, library := filepath.Join(dir, "recorder.c"), filepath.Join(dir, "librecorder.so")
	if err := os.WriteFile(source, []byte(recorder), 0o600); err != nil {
		t.Fatal(err)
	}
	// Its own functions go before those of libibverbs, which other tests have loaded.
	cmd := exec.Command(cc, "-shared", "-fPIC", "-Wl,-Bsymbolic", "-idirafter", "/usr/include", "-o", library, source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	calls, err = load(library, library)
	if err != nil {
		t.Fatal(err)
	}
	handle, err := purego.Dlopen(library, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		t.Fatal(err)
	}
	return calls, func(name string, args ...uintptr) uintptr {
		fn, err := purego.Dlsym(handle, name)
		if err != nil {
			t.Fatal(err)
		}
		r, _, _ := purego.SyscallN(fn, args...)
		return r
	}
}

// TestCalls calls real C by everything that is in Calls.
func TestCalls(t *testing.T) {
	calls, call := compiled(t)
	c := lib.Context(call("a_context"))
	if !calls.Supported(c) {
		t.Error("the device is not supported")
	}
	dci, err := calls.CreateDCI(c, 0x77, 0x88, lib.QPCap{MaxSendWR: 64, MaxSendSGE: 16})
	if err != nil || dci.Number != 0x1234 {
		t.Fatalf("CreateDCI = %+v, %v; want number 0x1234", dci, err)
	}
	ah, err := calls.CreateAH(0x77, &lib.AHAttr{
		GRH:  lib.GlobalRoute{DGID: [16]byte{0xfe, 15: 0xcd}, SGIDIndex: 3, HopLimit: 64, TrafficClass: 96},
		DLID: 0x1c, IsGlobal: 1, PortNum: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	work := Work{ID: 0xffff_0001_0000_0002, Addr: 0x7fff_1234_5678_9abc, RKey: 0xfedcba98, Target: ah, DCTN: 0xabcdef, DCKey: 0xffeeddcc,
		SGEs: []lib.SGE{{Addr: 0x1111_2222_3333, Length: 0x4000_0000, LKey: 0x99}, {Addr: 0x5, Length: 6, LKey: 7}}}
	read := Work{ID: 1, Read: true, Addr: 2, RKey: 3, Target: ah, DCTN: 4, DCKey: 5}
	if err := errors.Join(calls.Post(&dci, &work), calls.Post(&dci, &read), calls.DestroyAH(ah)); err != nil {
		t.Fatal(err)
	}
	want := strings.TrimPrefix(`
create pd 77 cq 88 88 wr 64 sge 16 recv 0 type ff mask 41 ops 11; dv mask 3 flags 8 dc 2 ops 0
ah pd 77 gid fe..cd index 3 hop 64 class 96 dlid 1c global 1 port 2
start 1
write 1 id ffff000100000002 flags 2 rkey fedcba98 addr 7fff123456789abc
dc 1 1 dctn abcdef key ffeeddcc
list 1 2 111122223333+40000000:99 5+6:7
complete 1
start 1
read 1 id 1 flags 2 rkey 3 addr 2
dc 1 1 dctn 4 key 5
list 1 0
complete 1
`, "\n")
	got := call("recorded")
	if diff := cmp.Diff(want, unsafe.String(*(**byte)(unsafe.Pointer(&got)), len(want))); diff != "" {
		t.Errorf("what C was called with (-want +got):\n%s", diff)
	}
	runtime.KeepAlive(work)

	if n := testing.AllocsPerRun(100, func() { _ = calls.Post(&dci, &work) }); n != 0 && !raced {
		t.Errorf("%v allocations for a Post; want none", n)
	}
	if err := calls.DestroyAH(ah + 8); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("DestroyAH of another: %v; want EINVAL", err)
	}
	if _, err := calls.CreateAH(0x77, &lib.AHAttr{}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("CreateAH without a port: %v; want EINVAL by errno", err)
	}
	for _, result := range []int{int(syscall.ENOMEM), -int(syscall.ENOMEM)} { // drivers do both
		call("refuse", uintptr(result))
		if err := calls.Post(&dci, &read); !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("Post: %v; want ENOMEM", err)
		}
	}
}

func TestLoadFails(t *testing.T) {
	for _, files := range [][2]string{{"no-such-library.so.9", Name}, {"libc.so.6", "libc.so.6"}} {
		if _, err := load(files[0], files[1]); !errors.Is(err, ErrNoLibrary) || strings.Contains(err.Error(), "\n") {
			t.Errorf("load(%q): %v; want ErrNoLibrary in one line", files, err)
		}
	}
}
