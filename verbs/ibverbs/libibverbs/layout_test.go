package libibverbs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

// layout is one C structure, and for each of its members that is used the offset here.
type layout struct {
	c       string // struct ibv_…
	size    uintptr
	offsets []member
}

type member struct {
	c  string
	at uintptr
}

// of lists the members of a Go structure in the order of names, one for each field but blank ones; "-" is a
// field that C doesn't have under one name.
func of(c string, v any, names string) layout {
	t := reflect.TypeOf(v)
	l := layout{c: c, size: t.Size()}
	list := strings.Fields(names)
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Name == "_" {
			continue
		}
		if list[0] != "-" {
			l.offsets = append(l.offsets, member{list[0], f.Offset})
		}
		list = list[1:]
	}
	if len(list) > 0 {
		panic(c + ": more names than fields")
	}
	return l
}

// head is of, for the beginning of a structure whose size is not known here.
func head(c string, v any, names string) layout {
	l := of(c, v, names)
	l.size = 0
	return l
}

func layouts() []layout {
	return []layout{
		of("ibv_qp_cap", QPCap{}, "max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data"),
		of("ibv_qp_init_attr", QPInitAttr{}, "qp_context send_cq recv_cq srq cap qp_type sq_sig_all"),
		of("ibv_global_route", GlobalRoute{}, "dgid flow_label sgid_index hop_limit traffic_class"),
		of("ibv_ah_attr", AHAttr{}, "grh dlid sl src_path_bits static_rate is_global port_num"),
		of("ibv_qp_attr", QPAttr{}, `qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num
			qp_access_flags cap ah_attr alt_ah_attr pkey_index alt_pkey_index en_sqd_async_notify sq_draining
			max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt rnr_retry alt_port_num
			alt_timeout rate_limit`),
		of("ibv_sge", SGE{}, "addr length lkey"),
		of("ibv_send_wr", SendWR{}, `wr_id next sg_list num_sge opcode send_flags imm_data wr.rdma.remote_addr
			wr.rdma.rkey`),
		of("ibv_recv_wr", RecvWR{}, "wr_id next sg_list num_sge"),
		of("ibv_wc", WC{}, `wr_id status opcode vendor_err byte_len imm_data qp_num src_qp wc_flags pkey_index slid sl
			dlid_path_bits`),
		of("ibv_mw_bind", MWBind{}, `wr_id send_flags bind_info.mr bind_info.addr bind_info.length
			bind_info.mw_access_flags`),
		of("ibv_async_event", AsyncEvent{}, "element event_type"),
		of("ibv_device_attr", DeviceAttr{}, `fw_ver node_guid sys_image_guid max_mr_size page_size_cap vendor_id
			vendor_part_id hw_ver max_qp max_qp_wr device_cap_flags max_sge max_sge_rd max_cq max_cqe max_mr max_pd
			max_qp_rd_atom max_ee_rd_atom max_res_rd_atom max_qp_init_rd_atom max_ee_init_rd_atom atomic_cap max_ee
			max_rdd max_mw max_raw_ipv6_qp max_raw_ethy_qp max_mcast_grp max_mcast_qp_attach
			max_total_mcast_qp_attach max_ah max_fmr max_map_per_fmr max_srq max_srq_wr max_srq_sge max_pkeys
			local_ca_ack_delay phys_port_cnt`),
		of("ibv_port_attr", PortAttr{}, `state max_mtu active_mtu gid_tbl_len port_cap_flags max_msg_sz bad_pkey_cntr
			qkey_viol_cntr pkey_tbl_len lid sm_lid lmc max_vl_num sm_sl subnet_timeout init_type_reply active_width
			active_speed phys_state link_layer flags port_cap_flags2`),
		head("ibv_context", contextHead{}, "ops async_fd"),
		of("ibv_context_ops", contextOps{}, "alloc_mw bind_mw dealloc_mw poll_cq req_notify_cq post_send post_recv"),
		head("ibv_pd", objectHead{}, "context"),
		head("ibv_cq", objectHead{}, "context"),
		of("ibv_mr", mrHead{}, "lkey rkey"),
		of("ibv_mw", mwHead{}, "rkey"),
		head("ibv_qp", qpHead{}, "qp_num"),
		head("ibv_comp_channel", channelHead{}, "fd"),
	}
}

// TestLayouts compiles a program with the headers of this machine, which prints sizes and offsets.
func TestLayouts(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("needs a C compiler")
	}
	if _, err := os.Stat("/usr/include/infiniband/verbs.h"); err != nil {
		t.Skip("needs the headers of libibverbs (Debian: libibverbs-dev)")
	}
	var src, want strings.Builder
	src.WriteString("#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\nint main(void) {\n")
	for _, l := range layouts() {
		if l.size > 0 {
			fmt.Fprintf(&src, "printf(\"%s %%zu\\n\", sizeof(struct %s));\n", l.c, l.c)
			fmt.Fprintf(&want, "%s %d\n", l.c, l.size)
		}
		for _, m := range l.offsets {
			fmt.Fprintf(&src, "printf(\"%s.%s %%zu\\n\", offsetof(struct %s, %s));\n", l.c, m.c, l.c, m.c)
			fmt.Fprintf(&want, "%s.%s %d\n", l.c, m.c, m.at)
		}
	}
	for name, v := range values() {
		fmt.Fprintf(&src, "printf(\"%s %%lu\\n\", (unsigned long)%s);\n", name, name)
		fmt.Fprintf(&want, "%s %d\n", name, v)
	}
	src.WriteString("return 0; }\n")
	program := filepath.Join(t.TempDir(), "layout")
	if err := os.WriteFile(program+".c", []byte(src.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-o", program, program+".c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got, err := exec.Command(program).Output()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.String(), string(got)); diff != "" {
		t.Errorf("layout here (-) and in C (+):\n%s", diff)
	}
}

// values are the constants that must be those of the headers.
func values() map[string]uint64 {
	return map[string]uint64{
		"IBV_ACCESS_LOCAL_WRITE": AccessLocalWrite, "IBV_ACCESS_REMOTE_WRITE": AccessRemoteWrite,
		"IBV_ACCESS_REMOTE_READ": AccessRemoteRead, "IBV_ACCESS_MW_BIND": AccessMWBind,
		"IBV_DEVICE_MEM_WINDOW": CapMemoryWindow, "IBV_QPT_RC": QPTypeRC, "IBV_MW_TYPE_1": MWType1,
		"IBV_QPS_INIT": StateInit, "IBV_QPS_RTR": StateRTR, "IBV_QPS_RTS": StateRTS, "IBV_QPS_ERR": StateErr,
		"IBV_QP_STATE": MaskState, "IBV_QP_ACCESS_FLAGS": MaskAccessFlags, "IBV_QP_PKEY_INDEX": MaskPKeyIndex,
		"IBV_QP_PORT": MaskPort, "IBV_QP_AV": MaskAV, "IBV_QP_PATH_MTU": MaskPathMTU, "IBV_QP_TIMEOUT": MaskTimeout,
		"IBV_QP_RETRY_CNT": MaskRetryCnt, "IBV_QP_RNR_RETRY": MaskRNRRetry, "IBV_QP_RQ_PSN": MaskRQPSN,
		"IBV_QP_MAX_QP_RD_ATOMIC": MaskMaxRDAtomic, "IBV_QP_MIN_RNR_TIMER": MaskMinRNRTimer,
		"IBV_QP_SQ_PSN": MaskSQPSN, "IBV_QP_MAX_DEST_RD_ATOMIC": MaskMaxDestRDAtomic,
		"IBV_QP_DEST_QPN": MaskDestQPN, "IBV_WR_RDMA_WRITE": WRWrite, "IBV_WR_RDMA_WRITE_WITH_IMM": WRWriteImm,
		"IBV_WR_SEND": WRSend, "IBV_WR_RDMA_READ": WRRead, "IBV_SEND_SIGNALED": SendSignaled,
		"IBV_WC_WITH_IMM": WCWithImm, "IBV_WC_RECV_RDMA_WITH_IMM": WCRecvWriteImm, "IBV_PORT_ACTIVE": PortActive,
		"IBV_WC_WR_FLUSH_ERR": uint64(WCWRFlushErr), "IBV_WC_REM_ACCESS_ERR": uint64(WCRemAccessErr),
		"IBV_WC_RNR_RETRY_EXC_ERR": uint64(WCRNRRetryExcErr), "IBV_WC_GENERAL_ERR": uint64(WCGeneralErr),
		"IBV_EVENT_DEVICE_FATAL": uint64(EventDeviceFatal), "IBV_EVENT_PORT_ERR": uint64(EventPortErr),
		"IBV_EVENT_WQ_FATAL": uint64(EventWQFatal),
	}
}

// TestLayoutsHere needs no compiler: the sizes that C has on every 64-bit machine.
func TestLayoutsHere(t *testing.T) {
	for _, tc := range []struct {
		name      string
		got, want uintptr
	}{
		{"ibv_send_wr", unsafe.Sizeof(SendWR{}), 128}, {"ibv_recv_wr", unsafe.Sizeof(RecvWR{}), 32},
		{"ibv_wc", unsafe.Sizeof(WC{}), 48}, {"ibv_sge", unsafe.Sizeof(SGE{}), 16},
		{"ibv_qp_attr", unsafe.Sizeof(QPAttr{}), 144}, {"ibv_device_attr", unsafe.Sizeof(DeviceAttr{}), 232},
	} {
		if tc.got != tc.want {
			t.Errorf("sizeof(%s) = %d; want %d", tc.name, tc.got, tc.want)
		}
	}
}
