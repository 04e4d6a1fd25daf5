package libmlx5

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
)

// qpSizes are the sizes of struct ibv_qp: mutexes of pthreads differ.
func qpSizes() map[string]uintptr { return map[string]uintptr{"amd64": 160, "arm64": 168} }

// asserts writes one _Static_assert for each named field of v, which begins at base in the C structure.
func asserts(c string, base uintptr, v any, names string) string {
	var out strings.Builder
	list := strings.Fields(names)
	t := reflect.TypeOf(v)
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Name == "_" {
			continue
		}
		fmt.Fprintf(&out, "_Static_assert(offsetof(struct %s, %s) == %d, \"%s.%s\");\n", c, list[0], base+f.Offset, c, list[0])
		list = list[1:]
	}
	if len(list) > 0 {
		panic(c + ": more names than fields")
	}
	return out.String()
}

func source(qpSize uintptr) string {
	var src strings.Builder
	src.WriteString("#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <infiniband/mlx5dv.h>\n")
	src.WriteString(asserts("ibv_qp_init_attr_ex", 0, qpInitAttrEx{}, `qp_context send_cq recv_cq srq cap qp_type sq_sig_all
		comp_mask pd xrcd create_flags max_tso_header rwq_ind_tbl rx_hash_conf.rx_hash_function rx_hash_conf.rx_hash_key_len
		rx_hash_conf.rx_hash_key rx_hash_conf.rx_hash_fields_mask source_qpn send_ops_flags`))
	src.WriteString(asserts("mlx5dv_qp_init_attr", 0, dvQPInitAttr{}, `comp_mask create_flags dc_init_attr.dc_type
		dc_init_attr.dct_access_key send_ops_flags`))
	src.WriteString(asserts("ibv_qp_ex", qpSize, qpExTail{}, `wr_id wr_flags wr_rdma_read wr_rdma_write wr_set_sge_list
		wr_start wr_complete`))
	src.WriteString(asserts("mlx5dv_qp_ex", 0, dvQPExHead{}, "wr_set_dc_addr"))
	for what, want := range map[string]uint64{
		"sizeof(struct ibv_qp_init_attr_ex)": uint64(unsafe.Sizeof(qpInitAttrEx{})), "sizeof(struct ibv_sge)": uint64(unsafe.Sizeof(lib.SGE{})),
		"sizeof(struct mlx5dv_qp_init_attr)": uint64(unsafe.Sizeof(dvQPInitAttr{})), "sizeof(struct ibv_ah_attr)": uint64(unsafe.Sizeof(lib.AHAttr{})),
		"sizeof(struct ibv_qp)": uint64(qpSize), "offsetof(struct ibv_qp, qp_num)": uint64(qpNumberAt),
		"offsetof(struct ibv_context, device)": uint64(deviceAt), "offsetof(struct ibv_qp_ex, qp_base)": 0,
		"IBV_QPT_DRIVER": qpTypeDriver, "IBV_QP_INIT_ATTR_PD": initAttrPD, "IBV_QP_INIT_ATTR_SEND_OPS_FLAGS": initAttrSendOps,
		"IBV_QP_EX_WITH_RDMA_WRITE": withWrite, "IBV_QP_EX_WITH_RDMA_READ": withRead, "MLX5DV_DCTYPE_DCI": dvTypeDCI,
		"MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS": dvMaskCreateFlags, "MLX5DV_QP_INIT_ATTR_MASK_DC": dvMaskDC,
		"MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE": dvNoScatterToCQE, "IBV_SEND_SIGNALED": sendSignaled,
	} {
		fmt.Fprintf(&src, "_Static_assert(%s == %d, \"%s\");\n", what, want, what)
	}
	// The functions, with the types by which they are called here.
	src.WriteString(`
static struct ibv_qp *(*create_qp)(struct ibv_context *, struct ibv_qp_init_attr_ex *, struct mlx5dv_qp_init_attr *) = mlx5dv_create_qp;
static struct ibv_qp_ex *(*to_ex)(struct ibv_qp *) = ibv_qp_to_qp_ex;
static struct mlx5dv_qp_ex *(*to_dv)(struct ibv_qp_ex *) = mlx5dv_qp_ex_from_ibv_qp_ex;
static bool (*supported)(struct ibv_device *) = mlx5dv_is_supported;
static struct ibv_ah *(*create_ah)(struct ibv_pd *, struct ibv_ah_attr *) = ibv_create_ah;
static int (*destroy_ah)(struct ibv_ah *) = ibv_destroy_ah;
void check(struct ibv_qp_ex *q, struct mlx5dv_qp_ex *m, struct ibv_ah *a, struct ibv_sge *s) {
	void (*start)(struct ibv_qp_ex *) = q->wr_start;
	void (*write)(struct ibv_qp_ex *, uint32_t, uint64_t) = q->wr_rdma_write;
	void (*read)(struct ibv_qp_ex *, uint32_t, uint64_t) = q->wr_rdma_read;
	void (*dc)(struct mlx5dv_qp_ex *, struct ibv_ah *, uint32_t, uint64_t) = m->wr_set_dc_addr;
	void (*list)(struct ibv_qp_ex *, size_t, const struct ibv_sge *) = q->wr_set_sge_list;
	int (*complete)(struct ibv_qp_ex *) = q->wr_complete;
	start(q); write(q, 1, 2); read(q, 1, 2); dc(m, a, 3, 4); list(q, 1, s); complete(q);
	create_qp(0, 0, 0); to_ex(0); to_dv(0); supported(0); create_ah(0, 0); destroy_ah(0);
}
`)
	return src.String()
}

// compilers are those of Debian: "cc" need not be of the architecture that a test runs as.
func compilers() map[string]string {
	return map[string]string{"amd64": "x86_64-linux-gnu-gcc", "arm64": "aarch64-linux-gnu-gcc"}
}

// TestLayouts has the compilers that are there check every offset and type against the headers of this machine. Nothing is
// run, so those for other architectures do too.
func TestLayouts(t *testing.T) {
	if _, err := os.Stat("/usr/include/infiniband/mlx5dv.h"); err != nil {
		t.Skip("needs the headers of libibverbs (Debian: libibverbs-dev)")
	}
	checked := 0
	for arch, size := range qpSizes() {
		cc, err := exec.LookPath(compilers()[arch])
		if err != nil {
			t.Logf("no check for %s: %v", arch, err)
			continue
		}
		file := filepath.Join(t.TempDir(), "layout.c")
		if err := os.WriteFile(file, []byte(source(size)), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(cc, "-Wall", "-Werror", "-c", "-idirafter", "/usr/include", "-o", os.DevNull, file)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", arch, err, out)
		}
		checked++
	}
	if checked == 0 {
		t.Skip("needs a C compiler")
	}
}

func TestQPSizeHere(t *testing.T) {
	if want, ok := qpSizes()[runtime.GOARCH]; ok && qpBytes != want {
		t.Errorf("qpBytes = %d; want %d", qpBytes, want)
	}
}

// TestLoad loads the libraries where they are. Without a device nothing more can be called.
func TestLoad(t *testing.T) {
	calls, err := Load()
	if errors.Is(err, ErrNoLibrary) {
		t.Skipf("Load: %v", err)
	}
	if err != nil || calls.Post == nil || calls.CreateDCI == nil {
		t.Errorf("Load() = %+v, %v; want all calls", calls, err)
	}
}
