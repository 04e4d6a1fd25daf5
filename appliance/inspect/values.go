package inspect

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/minio/crc64nvme"

	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/s3/store"
)

// The values of entries, as JSON shows them.

type superblockValue struct {
	Drive          string    `json:"drive"`
	Pool           string    `json:"pool"`
	Slot           int       `json:"slot"`
	Created        time.Time `json:"created"`
	FormatVersion  uint32    `json:"format_version"`
	AllocUnitBytes int       `json:"alloc_unit_bytes"`
	DataBytes      int64     `json:"data_bytes"`
}

type extentValue struct {
	OffsetBytes int64 `json:"offset_bytes"`
	LengthBytes int64 `json:"length_bytes"`
}

type shardValue struct {
	SizeBytes int64         `json:"size_bytes"`
	Extents   []extentValue `json:"extents"`
	BlockCRCs []string      `json:"block_crc64nvme"`
}

type segmentValue struct {
	Segment string `json:"segment"`
	Scheme  string `json:"scheme"`
	Slots   []int  `json:"slots"` // of its shards, in their order
}

type layoutValue struct {
	Instance  string         `json:"instance"`
	SizeBytes int64          `json:"size_bytes"`
	Inline    bool           `json:"inline,omitempty"`
	Segments  []segmentValue `json:"segments,omitempty"`
}

type objectValue struct {
	Seq        uint64            `json:"seq"`
	SizeBytes  int64             `json:"size_bytes"`
	Modified   time.Time         `json:"modified"`
	ETag       string            `json:"etag"`
	Checksums  []string          `json:"checksums,omitempty"`
	Upload     string            `json:"upload,omitempty"`
	Layout     *layoutValue      `json:"layout,omitempty"`
	System     map[string]string `json:"system,omitempty"`
	User       map[string]string `json:"user,omitempty"`
	Attributes map[string]int    `json:"attribute_bytes,omitempty"`
}

type partValue struct {
	Number    int          `json:"number"`
	SizeBytes int64        `json:"size_bytes"`
	Modified  time.Time    `json:"modified"`
	ETag      string       `json:"etag"`
	Checksums []string     `json:"checksums,omitempty"`
	Layout    *layoutValue `json:"layout,omitempty"`
}

type uploadValue struct {
	Initiated  time.Time         `json:"initiated"`
	Owner      string            `json:"owner,omitempty"`
	System     map[string]string `json:"system,omitempty"`
	User       map[string]string `json:"user,omitempty"`
	Attributes map[string]int    `json:"attribute_bytes,omitempty"`
}

type bytesValue struct {
	SizeBytes int    `json:"size_bytes"`
	CRC64NVME string `json:"crc64nvme"`
}

type bucketValue struct {
	ID         uint64         `json:"id"`
	Owner      string         `json:"owner"`
	Region     string         `json:"region,omitempty"`
	Created    time.Time      `json:"created"`
	Attributes map[string]int `json:"attribute_bytes,omitempty"`
}

type freeValue struct {
	Group   int           `json:"group"`
	Upload  string        `json:"upload,omitempty"`
	Layouts []layoutValue `json:"layouts,omitempty"`
}

type opValue struct {
	Group string   `json:"group"`
	Keys  []string `json:"keys"`
}

type ownerValue struct {
	Object string `json:"object"`
	Upload string `json:"upload,omitempty"`
	Part   int    `json:"part,omitempty"`
}

type scrubValue struct {
	Begun    *time.Time `json:"begun,omitempty"`
	Finished *time.Time `json:"finished,omitempty"`
	Last     string     `json:"last_shard"`
	Shards   uint64     `json:"shards"`
	Bytes    uint64     `json:"bytes"`
	Damaged  uint64     `json:"damaged_shards"`
}

type repairValue struct {
	Epoch        uint64    `json:"epoch"`
	Begun        time.Time `json:"begun"`
	Level        uint8     `json:"level"`
	Most         uint8     `json:"most"`
	Slot         uint8     `json:"slot"`
	Key          string    `json:"last_key"`
	Segments     uint64    `json:"segments"`
	SegmentsDone uint64    `json:"segments_done"`
	Bytes        uint64    `json:"bytes"`
	BytesDone    uint64    `json:"bytes_done"`
}

// decode makes a record and its key readable.
func (p *printer) decode(kind record.Kind, key, value []byte) (name string, shown any, err error) {
	name = p.keyName(key)
	switch kind {
	case record.ObjectRecord:
		shown, err = decodeObject(value)
	case record.PartRecord:
		shown, err = decodePart(value)
	case record.ManifestRecord:
		shown, err = decodeManifest(value)
	case record.UploadRecord:
		shown, err = decodeUpload(value)
	case record.BodyRecord:
		shown = bytesOf(value)
	case record.ConfigRecord:
		shown, err = decodeConfig(key, value)
	case record.MapRecord:
		m := &placement.Map{}
		shown, err = m, json.Unmarshal(value, m)
	case record.FreeRecord:
		shown, err = decodeFree(value)
	case record.OpLogRecord:
		shown, err = p.decodeOp(value)
	case record.WatermarkRecord:
		shown, err = record.DecodeWatermark(value)
	case record.OwnerRecord:
		shown, err = p.decodeOwner(value)
	case record.ScrubRecord:
		shown, err = decodeScrub(value)
	case record.RepairRecord:
		shown, err = p.decodeRepair(value)
	}
	return name, shown, err
}

// keyName makes a record's key readable: what it names, else its bytes.
func (p *printer) keyName(key []byte) string {
	switch kind := record.KindOf(key); kind {
	case record.MapRecord, record.WatermarkRecord, record.ScrubRecord, record.RepairRecord, 0:
		return ""
	case record.ConfigRecord:
		return record.ConfigName(key)
	case record.ObjectRecord:
		if bucket, name, err := record.ParseObjectKey(key); err == nil {
			return p.objectName(bucket, name)
		}
	case record.UploadRecord:
		if bucket, name, u, err := record.ParseUploadKey(key); err == nil {
			return p.objectName(bucket, name) + " upload " + u.String()
		}
	case record.PartRecord:
		if group, u, n, err := record.ParsePartKey(key); err == nil {
			return fmt.Sprintf("group %d upload %v part %d", group, u, n)
		}
	case record.ManifestRecord:
		if group, u, err := record.ParseManifestKey(key); err == nil {
			return fmt.Sprintf("group %d upload %v", group, u)
		}
	case record.BodyRecord:
		if group, in, err := record.ParseBodyKey(key); err == nil {
			return fmt.Sprintf("group %d instance %x", group, in)
		}
	case record.OpLogRecord:
		if seq, err := record.ParseOpLogKey(key); err == nil {
			return fmt.Sprintf("seq %d", seq)
		}
	case record.OwnerRecord:
		if segment, index, err := record.ParseOwnerKey(key); err == nil {
			return shardName(segment, index)
		}
	case record.PendingRecord:
		if segment, index, err := record.ParsePendingKey(key); err == nil {
			return shardName(segment, index)
		}
	}
	return fmt.Sprintf("%q", key)
}

func (p *printer) objectName(bucket uint64, key string) string {
	name, ok := p.names[bucket]
	if !ok {
		name = fmt.Sprintf("(bucket %d)", bucket)
	}
	return "s3://" + name + "/" + key
}

// shardName names a shard by its instance, the number of the segment in it, and its own number.
func shardName(segment [16]byte, index int) string {
	in, i := record.InstanceOf(segment)
	return fmt.Sprintf("instance %x segment %d shard %d", in, i, index)
}

func decodeObject(b []byte) (*objectValue, error) {
	o, err := record.DecodeObject(b)
	if err != nil {
		return nil, err
	}
	v := &objectValue{Seq: o.Seq, SizeBytes: o.Size, Modified: o.Modified, ETag: o.ETag, Checksums: checksumTexts(o.Checksums),
		System: o.System, User: o.User, Attributes: sizesOf(o.Attributes)}
	if o.IsMultipart() {
		v.Upload = o.Upload.String()
	} else {
		v.Layout = layoutOf(&o.Layout)
	}
	return v, nil
}

func decodePart(b []byte) (*partValue, error) {
	p, err := record.DecodePart(b)
	if err != nil {
		return nil, err
	}
	v := partOf(&p.Part)
	v.Layout = layoutOf(&p.Layout)
	return &v, nil
}

func partOf(p *store.Part) partValue {
	return partValue{Number: p.Number, SizeBytes: p.SizeBytes, Modified: p.Modified, ETag: p.ETag,
		Checksums: checksumTexts(p.Checksums)}
}

func decodeManifest(b []byte) ([]partValue, error) {
	parts, err := record.DecodeManifest(b)
	if err != nil {
		return nil, err
	}
	v := make([]partValue, len(parts))
	for i := range parts {
		v[i] = partOf(&parts[i])
	}
	return v, nil
}

func decodeUpload(b []byte) (*uploadValue, error) {
	var u store.Upload
	if err := record.DecodeUpload(b, &u); err != nil {
		return nil, err
	}
	return &uploadValue{Initiated: u.Initiated, Owner: u.Owner, System: u.System, User: u.User,
		Attributes: sizesOf(u.Attributes)}, nil
}

func decodeConfig(key, b []byte) (any, error) {
	if !strings.HasPrefix(record.ConfigName(key), bucketPrefix) {
		return bytesOf(b), nil // it may be a secret
	}
	var r struct {
		bucketValue
		Attributes map[string][]byte `json:"attributes"`
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("%w: %w", record.ErrInvalid, err)
	}
	r.bucketValue.Attributes = sizesOf(r.Attributes)
	return r.bucketValue, nil
}

func decodeFree(b []byte) (*freeValue, error) {
	f, err := record.DecodeFree(b)
	if err != nil {
		return nil, err
	}
	v := &freeValue{Group: f.Group}
	if f.Upload != (record.UploadID{}) {
		v.Upload = f.Upload.String()
	}
	for i := range f.Layouts {
		v.Layouts = append(v.Layouts, *layoutOf(&f.Layouts[i]))
	}
	return v, nil
}

func (p *printer) decodeOp(b []byte) (*opValue, error) {
	op, err := record.DecodeOp(b)
	if err != nil {
		return nil, err
	}
	v := &opValue{Group: fmt.Sprint(op.Group)}
	if op.Group == record.AllSlots {
		v.Group = "all drives"
	}
	for _, key := range op.Keys {
		v.Keys = append(v.Keys, p.recordName(key))
	}
	return v, nil
}

// recordName names a record by its kind and what it is of.
func (p *printer) recordName(key []byte) string {
	for _, k := range kinds() {
		if k.kind == record.KindOf(key) {
			return strings.TrimSpace(k.name + " " + p.keyName(key))
		}
	}
	return fmt.Sprintf("%q", key)
}

func (p *printer) decodeOwner(b []byte) (*ownerValue, error) {
	o, err := record.DecodeOwner(b)
	if err != nil {
		return nil, err
	}
	v := &ownerValue{Object: p.objectName(o.Bucket, o.Key), Part: o.Number}
	if o.Upload != (record.UploadID{}) {
		v.Upload = o.Upload.String()
	}
	return v, nil
}

func decodeScrub(b []byte) (*scrubValue, error) {
	s, err := record.DecodeScrub(b)
	if err != nil {
		return nil, err
	}
	v := &scrubValue{Last: shardName(s.Segment, int(s.Index)), Shards: s.Shards, Bytes: s.Bytes, Damaged: s.Damaged}
	if !s.Begun.IsZero() {
		v.Begun = &s.Begun
	}
	if !s.Finished.IsZero() {
		v.Finished = &s.Finished
	}
	return v, nil
}

func (p *printer) decodeRepair(b []byte) (*repairValue, error) {
	r, err := record.DecodeRepair(b)
	if err != nil {
		return nil, err
	}
	return &repairValue{Epoch: r.Epoch, Begun: r.Begun, Level: r.Level, Most: r.Most, Slot: r.Slot, Key: p.recordName(r.Key),
		Segments: r.Segments, SegmentsDone: r.SegmentsDone, Bytes: r.Bytes, BytesDone: r.BytesDone}, nil
}

func layoutOf(l *record.Layout) *layoutValue {
	v := &layoutValue{Instance: hex.EncodeToString(l.Instance[:]), SizeBytes: l.SizeBytes, Inline: l.Inline}
	for i, s := range l.Segments {
		id := l.Instance.Segment(i)
		v.Segments = append(v.Segments, segmentValue{hex.EncodeToString(id[:]), s.Scheme.String(), numbers(s.Slots)})
	}
	return v
}

// numbers keeps JSON from taking slots for a string of bytes.
func numbers(slots []uint8) []int {
	var list []int
	for _, s := range slots {
		list = append(list, int(s))
	}
	return list
}

func checksumTexts(sums []store.Checksum) []string {
	var texts []string
	for _, s := range sums {
		text := fmt.Sprintf("%v:%x", s.Algorithm, s.Value)
		if s.Composite {
			text += " (composite)"
		}
		texts = append(texts, text)
	}
	return texts
}

func sizesOf(m map[string][]byte) map[string]int {
	if len(m) == 0 {
		return nil
	}
	sizes := make(map[string]int, len(m))
	for name, value := range m {
		sizes[name] = len(value)
	}
	return sizes
}

func bytesOf(b []byte) bytesValue {
	return bytesValue{SizeBytes: len(b), CRC64NVME: fmt.Sprintf("%016x", crc64nvme.Checksum(b))}
}
