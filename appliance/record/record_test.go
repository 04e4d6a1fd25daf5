package record

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/store"
)

func stamp(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

func sampleObject() *Object {
	return &Object{
		Seq: 7, Size: 100 << 20, Modified: stamp(1_700_000_000_123), ETag: "d41d8cd98f00b204e9800998ecf8427e",
		Layout: Layout{Instance: Instance{1, 2, 3}, SizeBytes: 100 << 20, Segments: []Segment{
			{Scheme: erasure.Scheme{Data: 4, Parity: 2}, Slots: []uint8{5, 1, 0, 2, 4, 3}},
			{Scheme: erasure.Scheme{Data: 2, Parity: 2}, Slots: []uint8{1, 0, 2, 4}},
		}},
		Checksums:  []store.Checksum{{Algorithm: checksum.CRC64NVME, Value: []byte{1, 2, 3, 4, 5, 6, 7, 8}}},
		System:     map[string]string{"Content-Type": "text/plain"},
		User:       map[string]string{"a": "b", "c": ""},
		Attributes: map[string][]byte{"tags": {0, 255}},
	}
}

func TestObjectGolden(t *testing.T) {
	// The bytes as docs/on-disk-format.md says; they must never change for version 1.
	o := &Object{Seq: 300, Size: 5, Modified: stamp(1), ETag: "e",
		Layout: Layout{Instance: Instance{9}, SizeBytes: 5, Inline: true}, User: map[string]string{"k": "v"}}
	want := "\x01\x00\xac\x02\x05\x02\x01e\x00" + // version, flags, seq, size, modified, ETag, checksums
		"\x02\x09" + strings.Repeat("\x00", 11) + "\x05" + // layout
		"\x00" + "\x01\x01k\x01v" + "\x00" // system, user, attributes
	if got := string(AppendObject(nil, o)); got != want {
		t.Errorf("AppendObject = %q; want %q", got, want)
	}
}

func TestRoundTrips(t *testing.T) {
	o := sampleObject()
	multi := sampleObject()
	multi.Layout, multi.Upload = Layout{}, UploadID{1, 2}
	parts := []store.Part{{Number: 1, SizeBytes: 5 << 20, ETag: "x", Modified: stamp(5)},
		{Number: 10_000, ETag: "y", Modified: stamp(6), Checksums: []store.Checksum{{Algorithm: checksum.CRC32, Composite: true, Value: []byte{1}}}}}
	for _, want := range []*Object{o, multi} {
		got, err := DecodeObject(AppendObject(nil, want))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("object differs (-want +got):\n%s", d)
		}
		var listed Object
		if err := DecodeListed(AppendObject(nil, want), &listed); err != nil || listed.ETag != want.ETag || listed.Size != want.Size {
			t.Errorf("DecodeListed = %+v, %v; want ETag and size", listed, err)
		}
	}
	if got, err := DecodeManifest(AppendManifest(nil, parts)); err != nil || !reflect.DeepEqual(got, parts) {
		t.Errorf("DecodeManifest = %+v, %v; want %+v", got, err, parts)
	}
	p := &Part{Part: parts[1], Layout: o.Layout}
	if got, err := DecodePart(AppendPart(nil, p)); err != nil || !reflect.DeepEqual(got, p) {
		t.Errorf("DecodePart = %+v, %v; want %+v", got, err, p)
	}
	u := &store.Upload{Owner: "me", Initiated: stamp(8), User: map[string]string{"a": "b"}}
	var gotUpload store.Upload
	if err := DecodeUpload(AppendUpload(nil, u), &gotUpload); err != nil || !reflect.DeepEqual(&gotUpload, u) {
		t.Errorf("DecodeUpload = %+v, %v; want %+v", gotUpload, err, u)
	}
	op := &Op{Group: AllSlots, Keys: [][]byte{{1}, {}, []byte("long")}}
	if got, err := DecodeOp(AppendOp(nil, op)); err != nil || len(got.Keys) != 3 || string(got.Keys[2]) != "long" {
		t.Errorf("DecodeOp = %+v, %v; want %+v", got, err, op)
	}
	f := &Free{Group: 3, Layouts: []Layout{o.Layout}, Upload: UploadID{4}}
	if got, err := DecodeFree(AppendFree(nil, f)); err != nil || !reflect.DeepEqual(got, f) {
		t.Errorf("DecodeFree = %+v, %v; want %+v", got, err, f)
	}
	w := &Owner{Bucket: 9, Key: "k\x00", Upload: UploadID{1}, Number: 3}
	if got, err := DecodeOwner(AppendOwner(nil, w)); err != nil || *got != *w {
		t.Errorf("DecodeOwner = %+v, %v; want %+v", got, err, w)
	}
	scrub := &Scrub{Begun: stamp(7), Segment: [16]byte{1, 15: 2}, Index: 3, Shards: 4, Bytes: 1 << 40, Damaged: 1}
	if got, err := DecodeScrub(AppendScrub(nil, scrub)); err != nil || *got != *scrub {
		t.Errorf("DecodeScrub = %+v, %v; want %+v", got, err, scrub)
	}
	repair := &Repair{Epoch: 4, Begun: stamp(9), Level: 1, Most: 2, Slot: 5, Key: []byte("ok"), Segments: 8,
		SegmentsDone: 7, Bytes: 6, BytesDone: 5}
	if got, err := DecodeRepair(AppendRepair(nil, repair)); err != nil || !reflect.DeepEqual(got, repair) {
		t.Errorf("DecodeRepair = %+v, %v; want %+v", got, err, repair)
	}
	if got, err := DecodeWatermark(AppendWatermark(nil, Watermark{1 << 40, 5})); err != nil || got != (Watermark{1 << 40, 5}) {
		t.Errorf("DecodeWatermark = %v, %v; want %d and 5", got, err, 1<<40)
	}
}

func TestDamagedRecords(t *testing.T) {
	good := AppendObject(nil, sampleObject())
	for n := range good {
		if _, err := DecodeObject(good[:n]); !errors.Is(err, ErrInvalid) {
			t.Errorf("DecodeObject of the first %d bytes = %v; want ErrInvalid", n, err)
		}
	}
	if _, err := DecodeObject(append(bytes.Clone(good), 0)); !errors.Is(err, ErrInvalid) {
		t.Errorf("DecodeObject with a byte too many = %v; want ErrInvalid", err)
	}
	newer := bytes.Clone(good)
	newer[0] = version + 1
	if _, err := DecodeObject(newer); !errors.Is(err, ErrNewer) || errors.Is(err, ErrInvalid) {
		t.Errorf("DecodeObject of a newer version = %v; want ErrNewer", err)
	}
}

func TestUploadKeysSortByKeyThenID(t *testing.T) {
	keys := []string{"", "\x00", "\x00\x00", "\x00\x01", "\x00\xff", "a", "a\x00", "a\x00b", "a\x01", "aa", "b", "\xf4\x8f\xbf\xbf"}
	rng := rand.New(rand.NewPCG(1, 2))
	var encoded [][]byte
	for _, k := range keys {
		for n := range 3 {
			encoded = append(encoded, UploadKey(5, k, UploadID{byte(n), 0xff, 0, 1}))
		}
	}
	want := slices.Clone(encoded)
	rng.Shuffle(len(encoded), func(i, j int) { encoded[i], encoded[j] = encoded[j], encoded[i] })
	slices.SortFunc(encoded, bytes.Compare)
	for i := range want {
		if !bytes.Equal(encoded[i], want[i]) {
			t.Fatalf("place %d holds %q; want %q", i, encoded[i], want[i])
		}
		_, key, u, err := ParseUploadKey(want[i])
		if err != nil || key != keys[i/3] || u[0] != byte(i%3) {
			t.Errorf("ParseUploadKey(%q) = %q, %v, %v; want %q", want[i], key, u, err, keys[i/3])
		}
	}
}

func TestPrefixEnd(t *testing.T) {
	for _, tt := range []struct{ prefix, want string }{{"a", "b"}, {"a\xff", "b"}, {"a\xff\xff", "b"}, {"\xff", ""}, {"", ""}} {
		if got := string(PrefixEnd([]byte(tt.prefix))); got != tt.want {
			t.Errorf("PrefixEnd(%q) = %q; want %q", tt.prefix, got, tt.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(AppendObject(nil, sampleObject()))
	f.Add(AppendManifest(nil, []store.Part{{Number: 1}}))
	f.Add(AppendFree(nil, &Free{Layouts: []Layout{sampleObject().Layout}}))
	f.Add(AppendOp(nil, &Op{Keys: [][]byte{{1}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if o, err := DecodeObject(b); err == nil {
			again, err := DecodeObject(AppendObject(nil, o))
			if err != nil || !reflect.DeepEqual(o, again) {
				t.Errorf("object %+v comes back as %+v, %v", o, again, err)
			}
		}
		_, _ = DecodePart(b)
		_, _ = DecodeManifest(b)
		_ = DecodeUpload(b, &store.Upload{})
		_, _ = DecodeOp(b)
		_, _ = DecodeFree(b)
		_, _ = DecodeOwner(b)
		_, _ = DecodeWatermark(b)
		_, _ = DecodeScrub(b)
		_, _ = DecodeRepair(b)
		_, _, _, _ = ParseUploadKey(b)
		_, _, _ = ParseObjectKey(b)
		_, _, _, _ = NameOfKey(b)
	})
}
