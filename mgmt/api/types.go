package api

import "time"

// Status is how the pool stands, in a word.
type Status string

// The states of a pool: Degraded serves with drives missing or redundancy to be restored; ReadOnly and
// Unavailable have too few drives to take writes.
const (
	OK          Status = "ok"
	Degraded    Status = "degraded"
	ReadOnly    Status = "read-only"
	Unavailable Status = "unavailable"
)

// Progress is how far work has come that takes long.
type Progress struct {
	Running        bool       `json:"running"`
	Begun          *time.Time `json:"begun,omitempty"`
	DoneBytes      int64      `json:"done_bytes"`
	TotalBytes     int64      `json:"total_bytes"`
	BytesPerSecond int64      `json:"bytes_per_second"` // over the last half minute
	SecondsLeft    int64      `json:"seconds_left"`     // at that rate; 0 where it can't be told
}

// Repair makes shards anew that are missing. Bytes are those of the shards.
type Repair struct {
	Progress
	// Counting: what there is to do is being counted; the totals still grow.
	Counting bool `json:"counting"`
	// MissingShards is how many shards the segments miss that are at work; those that miss most come first.
	MissingShards  int   `json:"missing_shards"`
	Segments       int64 `json:"segments"`
	SegmentsDone   int64 `json:"segments_done"`
	SegmentsFailed int64 `json:"segments_failed"`
}

// Scrub reads all data of a drive, or of all drives, and verifies it.
type Scrub struct {
	Progress
	Finished      *time.Time `json:"finished,omitempty"` // when the last one ended; of all drives: the oldest of those
	Next          *time.Time `json:"next,omitempty"`     // when the next one is due
	Shards        uint64     `json:"shards"`             // read by the one under way, else by the last one
	DamagedShards uint64     `json:"damaged_shards"`     // of those
}

// Pool is the answer of GET /api/v1/pool.
type Pool struct {
	ID     string `json:"id"`
	Status Status `json:"status"`
	Scheme string `json:"scheme"`
	Epoch  uint64 `json:"epoch"`
	// Drives counts the slots by their states.
	Drives map[string]int `json:"drives"`
	// Raw bytes are of the drives that are in; object bytes have the parity taken off.
	RawBytes        int64  `json:"raw_bytes"`
	RawUsedBytes    int64  `json:"raw_used_bytes"`
	ObjectBytes     int64  `json:"object_bytes"`
	ObjectFreeBytes int64  `json:"object_free_bytes"`
	Repair          Repair `json:"repair"`
	Scrub           Scrub  `json:"scrub"`
	// Filling: index records are being copied to drives that lack them; so many were since the start.
	Filling       bool   `json:"filling"`
	FilledRecords uint64 `json:"filled_records"`
}

// Drive is one slot of the answer of GET /api/v1/drives.
type Drive struct {
	Slot           int        `json:"slot"`
	ID             string     `json:"id"`             // the drive's UUID
	Path           string     `json:"path,omitempty"` // where it was opened; "" where it isn't here
	State          string     `json:"state"`          // in, filling, out, lost, missing or failed
	Error          string     `json:"error,omitempty"`
	OutSince       *time.Time `json:"out_since,omitempty"`
	SizeBytes      int64      `json:"size_bytes"`
	UsedBytes      int64      `json:"used_bytes"`
	Shards         int64      `json:"shards"`
	ReadBytes      uint64     `json:"read_bytes"`    // since the start
	WrittenBytes   uint64     `json:"written_bytes"` // since the start
	ReadErrors     uint64     `json:"read_errors"`
	ChecksumErrors uint64     `json:"checksum_errors"`
	Slow           bool       `json:"slow,omitempty"` // reads use other drives as far as they can
	LateReads      uint64     `json:"late_reads"`     // not waited for, since the start
	Scrub          Scrub      `json:"scrub"`
}

// problem is the body of an answer that is an error.
type problem struct {
	Error string `json:"error"`
}
