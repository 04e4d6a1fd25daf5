package libibverbs

import "fmt"

// enum ibv_access_flags.
const (
	AccessLocalWrite  = 1
	AccessRemoteWrite = 1 << 1
	AccessRemoteRead  = 1 << 2
	AccessMWBind      = 1 << 4
)

// CapMemoryWindow is IBV_DEVICE_MEM_WINDOW of enum ibv_device_cap_flags.
const CapMemoryWindow = 1 << 17

// QPTypeRC is IBV_QPT_RC of enum ibv_qp_type.
const QPTypeRC = 2

// MWType1 is IBV_MW_TYPE_1 of enum ibv_mw_type.
const MWType1 = 1

// enum ibv_qp_state.
const (
	StateReset = iota
	StateInit
	StateRTR
	StateRTS
	StateSQD
	StateSQE
	StateErr
)

// enum ibv_qp_attr_mask.
const (
	MaskState           = 1 << 0
	MaskAccessFlags     = 1 << 3
	MaskPKeyIndex       = 1 << 4
	MaskPort            = 1 << 5
	MaskAV              = 1 << 7
	MaskPathMTU         = 1 << 8
	MaskTimeout         = 1 << 9
	MaskRetryCnt        = 1 << 10
	MaskRNRRetry        = 1 << 11
	MaskRQPSN           = 1 << 12
	MaskMaxRDAtomic     = 1 << 13
	MaskMinRNRTimer     = 1 << 15
	MaskSQPSN           = 1 << 16
	MaskMaxDestRDAtomic = 1 << 17
	MaskDestQPN         = 1 << 20
)

// enum ibv_wr_opcode.
const (
	WRWrite    = 0
	WRWriteImm = 1
	WRSend     = 2
	WRRead     = 4
)

// SendSignaled is IBV_SEND_SIGNALED of enum ibv_send_flags.
const SendSignaled = 1 << 1

// WCWithImm is IBV_WC_WITH_IMM of enum ibv_wc_flags; WCRecvWriteImm is IBV_WC_RECV_RDMA_WITH_IMM of enum ibv_wc_opcode.
const (
	WCWithImm      = 1 << 1
	WCRecvWriteImm = 1<<7 + 1
)

// PortActive is IBV_PORT_ACTIVE of enum ibv_port_state.
const PortActive = 4

// WCStatus is enum ibv_wc_status.
type WCStatus uint32

// The values of WCStatus.
const (
	WCSuccess WCStatus = iota
	WCLocLenErr
	WCLocQPOpErr
	WCLocEECOpErr
	WCLocProtErr
	WCWRFlushErr
	WCMWBindErr
	WCBadRespErr
	WCLocAccessErr
	WCRemInvReqErr
	WCRemAccessErr
	WCRemOpErr
	WCRetryExcErr
	WCRNRRetryExcErr
	WCLocRDDViolErr
	WCRemInvRDReqErr
	WCRemAbortErr
	WCInvEECNErr
	WCInvEECStateErr
	WCFatalErr
	WCRespTimeoutErr
	WCGeneralErr
)

// String returns what ibv_wc_status_str(3) has for it.
func (s WCStatus) String() string {
	names := [...]string{
		"success", "local length error", "local QP operation error", "local EE context operation error",
		"local protection error", "work request flushed", "memory window bind error", "bad response",
		"local access error", "remote invalid request", "remote access error", "remote operation error",
		"transport retry counter exceeded", "RNR retry counter exceeded", "local RDD violation",
		"remote invalid RD request", "aborted by the remote side", "invalid EE context number",
		"invalid EE context state", "fatal error", "response timeout", "general error",
	}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("status %d", uint32(s))
}

// EventType is enum ibv_event_type.
type EventType uint32

// The values of EventType.
const (
	EventCQErr EventType = iota
	EventQPFatal
	EventQPReqErr
	EventQPAccessErr
	EventCommEst
	EventSQDrained
	EventPathMig
	EventPathMigErr
	EventDeviceFatal
	EventPortActive
	EventPortErr
	EventLIDChange
	EventPKeyChange
	EventSMChange
	EventSRQErr
	EventSRQLimitReached
	EventQPLastWQEReached
	EventClientReregister
	EventGIDChange
	EventWQFatal
)

// String returns what ibv_event_type_str(3) has for it.
func (t EventType) String() string {
	names := [...]string{
		"CQ error", "local work queue catastrophic error", "invalid request local work queue error",
		"local access violation work queue error", "communication established", "send queue drained",
		"path migrated", "path migration request error", "local catastrophic error", "port active", "port error",
		"LID change", "P_Key change", "SM change", "SRQ catastrophic error", "SRQ limit reached",
		"last WQE reached", "client reregistration", "GID table change", "WQ fatal",
	}
	if int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("event %d", uint32(t))
}
