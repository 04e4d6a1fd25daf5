package libibverbs

// QPCap is struct ibv_qp_cap.
type QPCap struct {
	MaxSendWR, MaxRecvWR, MaxSendSGE, MaxRecvSGE, MaxInlineData uint32
}

// QPInitAttr is struct ibv_qp_init_attr.
type QPInitAttr struct {
	QPContext uintptr
	SendCQ    CQ
	RecvCQ    CQ
	SRQ       uintptr
	Cap       QPCap
	QPType    uint32
	SQSigAll  int32
}

// GlobalRoute is struct ibv_global_route.
type GlobalRoute struct {
	DGID         [16]byte
	FlowLabel    uint32
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
	_            [1]byte
}

// AHAttr is struct ibv_ah_attr. A GID is aligned to 8 bytes in C: its union has a 64-bit member.
type AHAttr struct {
	_          [0]uint64
	GRH        GlobalRoute
	DLID       uint16
	SL         uint8
	SrcPath    uint8
	StaticRate uint8
	IsGlobal   uint8
	PortNum    uint8
}

// QPAttr is struct ibv_qp_attr.
type QPAttr struct {
	QPState          uint32
	CurQPState       uint32
	PathMTU          uint32
	PathMigState     uint32
	QKey             uint32
	RQPSN            uint32
	SQPSN            uint32
	DestQPNum        uint32
	QPAccessFlags    uint32
	Cap              QPCap
	AH               AHAttr
	AltAH            AHAttr
	PKeyIndex        uint16
	AltPKeyIndex     uint16
	EnSQDAsyncNotify uint8
	SQDraining       uint8
	MaxRDAtomic      uint8
	MaxDestRDAtomic  uint8
	MinRNRTimer      uint8
	PortNum          uint8
	Timeout          uint8
	RetryCnt         uint8
	RNRRetry         uint8
	AltPortNum       uint8
	AltTimeout       uint8
	RateLimit        uint32
}

// SGE is struct ibv_sge.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// SendWR is struct ibv_send_wr, with the members of its unions that RC needs.
type SendWR struct {
	WRID       uint64
	Next       uintptr // *SendWR
	SGList     uintptr // *SGE
	NumSGE     int32
	Opcode     uint32
	SendFlags  uint32
	Imm        uint32 // big-endian
	RemoteAddr uint64
	RKey       uint32
	_          [76]byte // the rest of the unions
}

// RecvWR is struct ibv_recv_wr.
type RecvWR struct {
	WRID   uint64
	Next   uintptr // *RecvWR
	SGList uintptr // *SGE
	NumSGE int32
}

// WC is struct ibv_wc.
type WC struct {
	WRID      uint64
	Status    WCStatus
	Opcode    uint32
	VendorErr uint32
	ByteLen   uint32
	Imm       uint32 // big-endian
	QPNum     uint32
	SrcQP     uint32
	WCFlags   uint32
	PKeyIndex uint16
	SLID      uint16
	SL        uint8
	DLIDPath  uint8
}

// MWBind is struct ibv_mw_bind.
type MWBind struct {
	WRID        uint64
	SendFlags   uint32
	MR          MR
	Addr        uint64
	LengthBytes uint64
	Access      uint32
}

// AsyncEvent is struct ibv_async_event.
type AsyncEvent struct {
	Element uintptr // the object it is about, or the number of the port in its low 32 bits
	Type    EventType
}

// CQEvent is what ibv_get_cq_event writes.
type CQEvent struct {
	CQ      CQ
	Context uintptr
}

// Port is the number of the port that the event is about.
func (e *AsyncEvent) Port() int { return int(uint32(e.Element)) }

// DeviceAttr is struct ibv_device_attr.
type DeviceAttr struct {
	Firmware          [64]byte
	NodeGUID          uint64 // big-endian, as the next
	SysImageGUID      uint64
	MaxMRSize         uint64
	PageSizeCap       uint64
	VendorID          uint32
	VendorPartID      uint32
	HWVersion         uint32
	MaxQP             int32
	MaxQPWR           int32
	Capabilities      uint32
	MaxSGE            int32
	MaxSGERead        int32
	MaxCQ             int32
	MaxCQE            int32
	MaxMR             int32
	MaxPD             int32
	MaxQPRDAtom       int32
	MaxEERDAtom       int32
	MaxResRDAtom      int32
	MaxQPInitRDAtom   int32
	MaxEEInitRDAtom   int32
	AtomicCap         uint32
	MaxEE             int32
	MaxRDD            int32
	MaxMW             int32
	MaxRawIPv6QP      int32
	MaxRawEthyQP      int32
	MaxMcastGrp       int32
	MaxMcastQPAttach  int32
	MaxTotalMcastQPs  int32
	MaxAH             int32
	MaxFMR            int32
	MaxMapPerFMR      int32
	MaxSRQ            int32
	MaxSRQWR          int32
	MaxSRQSGE         int32
	MaxPKeys          uint16
	LocalCAAckDelay   uint8
	PhysicalPortCount uint8
}

// PortAttr is struct ibv_port_attr.
type PortAttr struct {
	State         uint32
	MaxMTU        uint32
	ActiveMTU     uint32
	GIDTableLen   int32
	PortCapFlags  uint32
	MaxMsgSize    uint32
	BadPKeyCntr   uint32
	QKeyViolCntr  uint32
	PKeyTableLen  uint16
	LID           uint16
	SMLID         uint16
	LMC           uint8
	MaxVLNum      uint8
	SMSL          uint8
	SubnetTimeout uint8
	InitTypeReply uint8
	ActiveWidth   uint8
	ActiveSpeed   uint8
	PhysState     uint8
	LinkLayer     uint8
	Flags         uint8
	PortCapFlags2 uint16
}

// The beginnings of structures that the library hands out, as far as they are read.
type (
	contextHead struct { // struct ibv_context
		_       uintptr // the device
		ops     contextOps
		_       int32 // cmd_fd
		asyncFD int32
	}
	contextOps struct { // struct ibv_context_ops; the functions whose names have "compat" are not called
		_           [7]uintptr
		allocMW     uintptr
		bindMW      uintptr
		deallocMW   uintptr
		_           [1]uintptr
		pollCQ      uintptr
		reqNotifyCQ uintptr
		_           [12]uintptr
		postSend    uintptr
		postRecv    uintptr
		_           [5]uintptr
	}
	objectHead struct{ context uintptr } // of every object: ibv_pd, ibv_cq, ibv_qp, ibv_mw
	mrHead     struct {                  // struct ibv_mr
		_          [4]uintptr // context, pd, addr, length
		_          uint32     // handle
		lkey, rkey uint32
	}
	mwHead struct { // struct ibv_mw
		_    [2]uintptr // context, pd
		rkey uint32
		_    [2]uint32 // handle, type
	}
	qpHead struct { // struct ibv_qp
		_      [6]uintptr // context, qp_context, pd, send_cq, recv_cq, srq
		_      uint32     // handle
		number uint32
	}
	channelHead struct { // struct ibv_comp_channel
		_  uintptr // context
		fd int32
	}
)
