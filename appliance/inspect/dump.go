package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/nvme/shardstore"
)

// The kinds of entries that are not records of the engine.
const (
	kindSuperblock = "superblock"
	kindShard      = "shard"
)

// kindName is a kind of record with the name that it has in a dump.
type kindName struct {
	kind record.Kind
	name string
}

// kinds lists the engine's records in the order of a dump: what the pool is, what is stored, and the bookkeeping.
func kinds() []kindName {
	return []kindName{
		{record.MapRecord, "map"}, {record.ConfigRecord, "config"}, {record.ObjectRecord, "object"},
		{record.BodyRecord, "body"}, {record.ManifestRecord, "manifest"}, {record.PartRecord, "part"},
		{record.UploadRecord, "upload"}, {record.FreeRecord, "free"}, {record.OpLogRecord, "oplog"},
		{record.WatermarkRecord, "watermark"}, {record.OwnerRecord, "owner"}, {record.PendingRecord, "pending"},
		{record.ScrubRecord, "scrub"}, {record.RepairRecord, "repair"},
	}
}

// Kinds lists the kinds of entries that a dump has, in its order.
func Kinds() []string {
	names := []string{kindSuperblock}
	for _, k := range kinds() {
		names = append(names, k.name)
	}
	return append(names, kindShard)
}

// ErrFilter: a filter asks for what can't be.
var ErrFilter = errors.New("filter")

// Filter says which entries of a dump to show. The zero value means all.
type Filter struct {
	Kinds  []string
	Slot   int // -1: all
	Bucket string
	// Key, with Bucket, chooses what belongs to one S3 key: its object, its uploads, their parts, bodies and shards.
	Key string
	// Limit is the most entries of one kind from one drive; 0 means no limit.
	Limit int
}

func (f *Filter) validate() error {
	for _, name := range f.Kinds {
		if !slices.Contains(Kinds(), name) {
			return fmt.Errorf("%w: no kind %q; there are %v", ErrFilter, name, Kinds())
		}
	}
	if f.Key != "" && f.Bucket == "" {
		return fmt.Errorf("%w: a key without its bucket", ErrFilter)
	}
	return nil
}

func (f *Filter) wants(kind string) bool { return len(f.Kinds) == 0 || slices.Contains(f.Kinds, kind) }

// Entry is one thing that is on a drive.
type Entry struct {
	Slot  int    `json:"slot"` // -1 if the drive doesn't say
	Path  string `json:"path"`
	Kind  string `json:"kind"`
	Key   string `json:"key,omitempty"`
	Value any    `json:"value,omitempty"`
	Error string `json:"error,omitempty"` // why there is no value
}

// errLimit ends a walk.
var errLimit = errors.New("limit reached")

// Dump calls show with each entry that the filter wants, drive by drive. The bytes of objects are not shown, nor
// is anything that may be a secret: only sizes of attributes, and of configuration other than buckets.
func (d *Drives) Dump(ctx context.Context, f Filter, show func(Entry) error) error {
	if err := f.validate(); err != nil {
		return err
	}
	chosen, err := d.choose(&f)
	if err != nil {
		return err
	}
	for _, dr := range d.List {
		if f.Slot >= 0 && (dr.Label == nil || dr.Label.Slot != f.Slot) {
			continue
		}
		p := &printer{drive: dr, filter: &f, chosen: chosen, names: chosen.buckets, show: show}
		if err := p.all(ctx); err != nil {
			return fmt.Errorf("%s: %w", dr.Path, err)
		}
	}
	return nil
}

// printer shows the entries of one drive.
type printer struct {
	drive  *Drive
	filter *Filter
	chosen *choice
	names  map[uint64]string
	show   func(Entry) error
}

func (p *printer) all(ctx context.Context) error {
	if p.filter.wants(kindSuperblock) && p.filter.Bucket == "" {
		if err := p.superblock(); err != nil {
			return err
		}
	}
	if p.drive.store == nil {
		return nil
	}
	for _, k := range kinds() {
		if p.filter.wants(k.name) {
			if err := p.records(ctx, k); err != nil {
				return err
			}
		}
	}
	if p.filter.wants(kindShard) {
		return p.shards(ctx)
	}
	return nil
}

func (p *printer) entry(kind, key string, value any, err error) error {
	e := Entry{Slot: -1, Path: p.drive.Path, Kind: kind, Key: key, Value: value}
	if p.drive.Label != nil {
		e.Slot = p.drive.Label.Slot
	}
	if err != nil {
		e.Value, e.Error = nil, err.Error()
	}
	return p.show(e)
}

func (p *printer) superblock() error {
	l := p.drive.Label
	if l == nil {
		return p.entry(kindSuperblock, "", nil, p.drive.Err)
	}
	err := p.entry(kindSuperblock, "", superblockValue{Drive: l.Drive.String(), Pool: l.Pool.String(), Slot: l.Slot,
		Created: l.Created, FormatVersion: l.FormatVersion, AllocUnitBytes: l.AllocUnitBytes, DataBytes: l.DataBytes}, nil)
	if err == nil && p.drive.Err != nil {
		err = p.entry("drive", "", nil, p.drive.Err)
	}
	return err
}

// records shows the records of one kind.
func (p *printer) records(ctx context.Context, k kindName) error {
	r := record.RangeOf(k.kind)
	it, err := p.drive.store.Scan(r.Lower, r.Upper)
	if err != nil {
		return err
	}
	defer it.Close()
	shown := 0
	for it.First(); it.Valid() && (p.filter.Limit == 0 || shown < p.filter.Limit); it.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		value, err := it.Value()
		if err != nil {
			return err
		}
		if p.filter.Bucket != "" && !p.chosen.has(k.kind, it.Key(), value) {
			continue
		}
		key, decoded, err := p.decode(k.kind, it.Key(), value)
		if err := p.entry(k.name, key, decoded, err); err != nil {
			return err
		}
		shown++
	}
	return it.Err()
}

// shards shows the shard records, with where their bytes are and the checksum of each 64 KiB.
func (p *printer) shards(ctx context.Context) error {
	shown := 0
	err := p.drive.store.Shards(shardstore.ShardID{}, func(id shardstore.ShardID, info shardstore.ShardInfo) error {
		if p.filter.Limit > 0 && shown == p.filter.Limit {
			return errLimit
		}
		instance, _ := record.InstanceOf(id.Segment)
		if p.filter.Bucket != "" && !p.chosen.instances[instance] {
			return nil
		}
		shown++
		v := shardValue{SizeBytes: info.SizeBytes}
		for _, e := range info.Extents {
			v.Extents = append(v.Extents, extentValue{e.OffsetBytes, e.LengthBytes})
		}
		for _, crc := range info.BlockCRCs {
			v.BlockCRCs = append(v.BlockCRCs, fmt.Sprintf("%016x", crc))
		}
		return errors.Join(ctx.Err(), p.entry(kindShard, shardName(id.Segment, int(id.Index)), v, nil))
	})
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}
