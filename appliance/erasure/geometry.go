package erasure

import "fmt"

// Sizes of the format, in bytes. They can't change while segments written with them exist.
const (
	// SegmentBytes is the largest logical size of a segment.
	SegmentBytes = 64 << 20
	// UnitBytes is the stripe unit: what one shard holds of a full stripe.
	UnitBytes = 256 << 10
	// BlockBytes is what one checksum guards.
	BlockBytes = 64 << 10
	// AlignBytes is what the last stripe's unit is rounded up to.
	AlignBytes = 4 << 10
)

// Geometry is the layout of one segment. Shard j holds unit j of every stripe, one after the other.
type Geometry struct {
	Scheme Scheme
	// SizeBytes is the logical size, 1 … SegmentBytes.
	SizeBytes int64
}

// NewGeometry checks its arguments; the error is ErrScheme or one about the size.
func NewGeometry(s Scheme, sizeBytes int64) (Geometry, error) {
	g := Geometry{Scheme: s, SizeBytes: sizeBytes}
	return g, g.Validate()
}

// Validate returns an error unless the scheme is valid and the size is 1 … SegmentBytes.
func (g Geometry) Validate() error {
	if err := g.Scheme.Validate(); err != nil {
		return err
	}
	if g.SizeBytes < 1 || g.SizeBytes > SegmentBytes {
		return fmt.Errorf("segment of %d bytes: not 1 … %d", g.SizeBytes, SegmentBytes)
	}
	return nil
}

// StripeBytes is the data in a full stripe.
func (g Geometry) StripeBytes() int64 { return int64(g.Scheme.Data) * UnitBytes }

// FullStripes is the number of stripes whose units are UnitBytes.
func (g Geometry) FullStripes() int { return int(g.SizeBytes / g.StripeBytes()) }

// Stripes is the number of stripes, the short last one included.
func (g Geometry) Stripes() int {
	return int((g.SizeBytes + g.StripeBytes() - 1) / g.StripeBytes())
}

// LastUnitBytes is the unit of the short last stripe: an equal part of what is left after the full
// stripes, rounded up to AlignBytes. It is 0 when there is no short stripe.
func (g Geometry) LastUnitBytes() int {
	rest := g.SizeBytes % g.StripeBytes()
	k := int64(g.Scheme.Data)
	return int(roundUp((rest+k-1)/k, AlignBytes))
}

// UnitBytes is the size of the units of one stripe.
func (g Geometry) UnitBytes(stripe int) int {
	if stripe < g.FullStripes() {
		return UnitBytes
	}
	return g.LastUnitBytes()
}

// ShardBytes is the size of each shard, a multiple of AlignBytes.
func (g Geometry) ShardBytes() int64 {
	return int64(g.FullStripes())*UnitBytes + int64(g.LastUnitBytes())
}

// Blocks is the number of checksum blocks of each shard; the last may be shorter than BlockBytes.
func (g Geometry) Blocks() int { return int((g.ShardBytes() + BlockBytes - 1) / BlockBytes) }

// Piece is a run of one data shard that holds a part of a logical range. It is widened to whole
// checksum blocks: of its Bytes, those from Head on, WantBytes of them, are in the range.
type Piece struct {
	Shard     int
	Offset    int64 // in the shard, a multiple of BlockBytes
	Bytes     int   // a multiple of BlockBytes, or up to the shard's end
	Head      int
	WantBytes int
}

// AppendPieces appends to dst the pieces of the logical range [off, off+n), in logical order. No piece
// reaches beyond a unit. The range must lie within the segment.
func (g Geometry) AppendPieces(dst []Piece, off, n int64) []Piece {
	for n > 0 {
		stripe := off / g.StripeBytes()
		unit := int64(g.UnitBytes(int(stripe)))
		inStripe := off - stripe*g.StripeBytes()
		shard, inUnit := inStripe/unit, inStripe%unit
		want := min(n, unit-inUnit)
		start := inUnit &^ (BlockBytes - 1)
		end := min(roundUp(inUnit+want, BlockBytes), unit)
		dst = append(dst, Piece{
			Shard:     int(shard),
			Offset:    stripe*UnitBytes + start,
			Bytes:     int(end - start),
			Head:      int(inUnit - start),
			WantBytes: int(want),
		})
		off += want
		n -= want
	}
	return dst
}

func roundUp(n, multiple int64) int64 { return (n + multiple - 1) / multiple * multiple }
