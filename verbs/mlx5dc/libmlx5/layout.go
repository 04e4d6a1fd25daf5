package libmlx5

import lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"

// The constants of verbs.h and mlx5dv.h.
const (
	qpTypeDriver              = 0xff   // IBV_QPT_DRIVER
	initAttrPD                = 1 << 0 // IBV_QP_INIT_ATTR_PD
	initAttrSendOps           = 1 << 6 // IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
	withWrite                 = 1 << 0 // IBV_QP_EX_WITH_RDMA_WRITE
	withRead                  = 1 << 4 // IBV_QP_EX_WITH_RDMA_READ
	dvMaskCreateFlags         = 1 << 0 // MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS
	dvMaskDC                  = 1 << 1 // MLX5DV_QP_INIT_ATTR_MASK_DC
	dvNoScatterToCQE          = 1 << 3 // MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE
	dvTypeDCI                 = 2      // MLX5DV_DCTYPE_DCI
	sendSignaled              = 1 << 1 // IBV_SEND_SIGNALED
	qpNumberAt        uintptr = 52     // of struct ibv_qp
	deviceAt          uintptr = 0      // of struct ibv_context: the device
)

// qpInitAttrEx is struct ibv_qp_init_attr_ex.
type qpInitAttrEx struct {
	qpContext        uintptr
	sendCQ, recvCQ   lib.CQ
	srq              uintptr
	limits           lib.QPCap
	qpType           uint32
	sqSigAll         int32
	compMask         uint32
	pd               lib.PD
	xrcd             uintptr
	createFlags      uint32
	maxTSOHeader     uint16
	rwqIndTable      uintptr
	rxHashFunction   uint8
	rxHashKeyLen     uint8
	rxHashKey        uintptr
	rxHashFieldsMask uint64
	sourceQPN        uint32
	sendOpsFlags     uint64
}

// dvQPInitAttr is struct mlx5dv_qp_init_attr.
type dvQPInitAttr struct {
	compMask     uint64
	createFlags  uint32
	_            uint32
	dcType       uint32 // of dc_init_attr, which is aligned to 8 bytes
	_            uint32
	dcAccessKey  uint64
	sendOpsFlags uint64
}

// qpExTail is what struct ibv_qp_ex has behind its struct ibv_qp, whose size depends on the architecture (qpBytes).
type qpExTail struct {
	_            uint64 // comp_mask
	wrID         uint64
	wrFlags      uint32
	_            [4]uintptr // atomics, bind, invalidate
	wrRead       uintptr
	wrWrite      uintptr
	_            [10]uintptr // with immediate data, SEND, UD, XRC, inline, one element
	wrSetSGEList uintptr
	wrStart      uintptr
	wrComplete   uintptr
}

// dvQPExHead is the beginning of struct mlx5dv_qp_ex.
type dvQPExHead struct {
	_           uint64 // comp_mask
	wrSetDCAddr uintptr
}
