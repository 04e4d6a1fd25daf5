package verbs

import "sync/atomic"

// Traffic counts operations that were done, and their bytes of payload.
type Traffic struct {
	WriteOps, WriteBytes uint64
	ReadOps, ReadBytes   uint64
	SendOps, SendBytes   uint64
}

// Counters are what a device has done since it was opened. A device in hardware can't see what peers do
// with its memory: its Served stays zero.
type Counters struct {
	Provider string
	// Initiated is what this side asked for: WRITE out of it, READ into it.
	Initiated Traffic
	// Served is what peers did with its bindings: WRITE into it, READ out of it.
	Served Traffic
	// CopiedBytes are those bytes of payload that went through a buffer in between.
	CopiedBytes uint64
	// Failed counts work requests that ended in an error, Refused what peers asked for without right.
	Failed, Refused uint64
	// Connections counts those that were made, in either direction, and Live those that live now.
	Connections uint64
	Live        int64
}

// Meter holds counters that many goroutines add to. Its zero value is ready.
type Meter struct {
	Initiated, Served TrafficMeter
	Copied            atomic.Uint64
	Failed, Refused   atomic.Uint64
	Connections       atomic.Uint64
	Live              atomic.Int64
}

// TrafficMeter is the part of a Meter for one direction.
type TrafficMeter struct{ ops, bytes [OpRecv + 1]atomic.Uint64 }

// Add counts one operation that was done. RECV is counted by its sender's side as SEND, or not at all.
func (m *TrafficMeter) Add(op Opcode, n int64) {
	if op == OpWriteImm {
		op = OpWrite
	}
	m.ops[op].Add(1)
	m.bytes[op].Add(uint64(n))
}

func (m *TrafficMeter) read() Traffic {
	return Traffic{
		WriteOps: m.ops[OpWrite].Load(), WriteBytes: m.bytes[OpWrite].Load(),
		ReadOps: m.ops[OpRead].Load(), ReadBytes: m.bytes[OpRead].Load(),
		SendOps: m.ops[OpSend].Load(), SendBytes: m.bytes[OpSend].Load(),
	}
}

// Read returns the counters as they are now.
func (m *Meter) Read(provider string) Counters {
	return Counters{
		Provider: provider, Initiated: m.Initiated.read(), Served: m.Served.read(), CopiedBytes: m.Copied.Load(),
		Failed: m.Failed.Load(), Refused: m.Refused.Load(),
		Connections: m.Connections.Load(), Live: m.Live.Load(),
	}
}
