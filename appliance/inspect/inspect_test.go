package inspect

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"github.com/minio/crc64nvme"

	"github.com/millrace/millrace/appliance/arena"
	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/nvme/blockdev"
	"github.com/millrace/millrace/nvme/drive"
	"github.com/millrace/millrace/nvme/shardstore"
	"github.com/millrace/millrace/s3/store"
)

const driveBytes = 8 << 20

// pool is a pool of three folders, 2+1, with a few objects.
type pool struct {
	t     *testing.T
	paths []string
}

func newPool(t *testing.T) *pool {
	t.Helper()
	p := &pool{t: t}
	dir, ctx := t.TempDir(), context.Background()
	id := shardstore.NewPoolID()
	for slot := range 3 {
		path := filepath.Join(dir, fmt.Sprintf("%02d", slot))
		p.paths = append(p.paths, path)
		d, err := drive.Create(ctx, path, drive.CreateOptions{SizeBytes: driveBytes})
		if err != nil {
			t.Fatal(err)
		}
		o := shardstore.Options{Data: d.Data, MetaFS: vfs.Default, MetaDir: d.MetaDir}
		label := shardstore.Label{Drive: shardstore.NewDriveID(), Pool: id, Slot: slot}
		if err := errors.Join(shardstore.Format(ctx, o, label), d.Close()); err != nil {
			t.Fatal(err)
		}
	}
	p.stores(func(stores []*shardstore.Store) {
		if err := object.Create(ctx, stores, erasure.Scheme{Data: 2, Parity: 1}); err != nil {
			t.Fatal(err)
		}
	})
	p.engine(func(e *object.Engine) {
		if _, err := e.CreateBucket(ctx, store.Bucket{Name: "b", Attributes: map[string][]byte{"policy": []byte("s3cret")}}); err != nil {
			t.Fatal(err)
		}
		for key, size := range map[string]int{"small": 100, "large": 300 << 10, "other": 64 << 10} {
			_, err := e.Put(ctx, store.PutRequest{Bucket: "b", Key: key, SizeBytes: int64(size),
				Body: bytes.NewReader(bytes.Repeat([]byte{7}, size)), Attributes: map[string][]byte{"x": []byte("s3cret")}})
			if err != nil {
				t.Fatal(err)
			}
		}
		u, err := e.CreateUpload(ctx, store.Upload{Bucket: "b", Key: "multi"})
		if err != nil {
			t.Fatal(err)
		}
		body := bytes.Repeat([]byte{8}, 40<<10)
		if _, err := e.PutPart(ctx, store.PartRequest{Bucket: "b", Key: "multi", UploadID: u.ID, Number: 1,
			SizeBytes: int64(len(body)), Body: bytes.NewReader(body)}); err != nil {
			t.Fatal(err)
		}
	})
	return p
}

// copy gives a pool of the same content.
func (p *pool) copy(t *testing.T) *pool {
	t.Helper()
	c := &pool{t: t}
	dir := t.TempDir()
	for slot, path := range p.paths {
		to := filepath.Join(dir, fmt.Sprintf("%02d", slot))
		if err := os.CopyFS(to, os.DirFS(path)); err != nil {
			t.Fatal(err)
		}
		c.paths = append(c.paths, to)
	}
	return c
}

// stores opens the stores of all drives for f, and closes them.
func (p *pool) stores(f func([]*shardstore.Store)) {
	p.t.Helper()
	var stores []*shardstore.Store
	for _, path := range p.paths {
		d, err := drive.Open(context.Background(), path, drive.Options{})
		if err != nil {
			p.t.Fatal(err)
		}
		defer d.Close()
		s, err := shardstore.Open(context.Background(), shardstore.Options{Data: d.Data, MetaFS: vfs.Default, MetaDir: d.MetaDir})
		if err != nil {
			p.t.Fatal(err)
		}
		defer s.Close()
		stores = append(stores, s)
	}
	f(stores)
}

func (p *pool) engine(f func(*object.Engine)) {
	p.t.Helper()
	a, err := arena.New(arena.Config{SizeBytes: 16 << 20})
	if err != nil {
		p.t.Fatal(err)
	}
	defer a.Close()
	p.stores(func(stores []*shardstore.Store) {
		cfg := object.Config{Arena: a}
		for _, s := range stores {
			cfg.Members = append(cfg.Members, object.Member{Store: s})
		}
		e, err := object.Open(context.Background(), cfg)
		if err != nil {
			p.t.Fatal(err)
		}
		f(e)
		if err := e.Close(); err != nil {
			p.t.Fatal(err)
		}
	})
}

// fingerprint is the content of all files of the pool.
func (p *pool) fingerprint() map[string]string {
	p.t.Helper()
	sums := map[string]string{}
	for _, path := range p.paths {
		err := filepath.WalkDir(path, func(name string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			content, err := os.ReadFile(name)
			sums[name] = fmt.Sprintf("%x", sha256.Sum256(content))
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.t.Fatal(err)
		}
	}
	return sums
}

// fsck checks the pool, and that nothing of it changes.
func (p *pool) fsck(deep bool) *Report {
	p.t.Helper()
	before := p.fingerprint()
	d := p.open()
	r, err := d.Fsck(context.Background(), deep)
	if err := errors.Join(err, d.Close()); err != nil {
		p.t.Fatal(err)
	}
	if diff := cmp.Diff(before, p.fingerprint()); diff != "" {
		p.t.Errorf("files of the drives after a check (-before +after):\n%s", diff)
	}
	return r
}

func (p *pool) open() *Drives {
	p.t.Helper()
	var there []string
	for _, path := range p.paths {
		if _, err := os.Stat(path); err == nil {
			there = append(there, path)
		}
	}
	d, err := Open(context.Background(), there, slog.New(slog.DiscardHandler))
	if err != nil {
		p.t.Fatal(err)
	}
	return d
}

// scribble overwrites shard bytes of a drive.
func (p *pool) scribble(slot int) {
	p.t.Helper()
	f, err := os.OpenFile(filepath.Join(p.paths[slot], "data"), os.O_WRONLY, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(bytes.Repeat([]byte{0xaa}, 4<<20), 2<<20); err != nil {
		p.t.Fatal(err)
	}
}

// edit changes records of a drive behind the engine's back.
func (p *pool) edit(slot int, change func(*shardstore.Store, *shardstore.Batch)) {
	p.t.Helper()
	p.stores(func(stores []*shardstore.Store) {
		b := stores[slot].NewBatch()
		change(stores[slot], b)
		if err := stores[slot].Commit(context.Background(), b, true); err != nil {
			p.t.Fatal(err)
		}
	})
}

func firstShard(t *testing.T, s *shardstore.Store) (first shardstore.ShardID) {
	t.Helper()
	found := errors.New("found")
	if err := s.Shards(shardstore.ShardID{}, func(id shardstore.ShardID, _ shardstore.ShardInfo) error {
		first = id
		return found
	}); !errors.Is(err, found) {
		t.Fatalf("no shard: %v", err)
	}
	return first
}

func TestFsck(t *testing.T) {
	p := newPool(t)
	r := p.fsck(true)
	if !r.Sound || r.Scheme != "2+1" || r.Records < 5 || r.Segments != 3 || r.Shards != 9 || r.ReadBytes < 450<<10 || len(r.Drives) != 3 {
		t.Errorf("Fsck(deep) = %+v; want sound, 3 segments, 9 shards", r)
	}
	if r := p.fsck(false); !r.Sound || r.ReadBytes != 0 {
		t.Errorf("Fsck = %+v; want sound, nothing read", r)
	}

	p.scribble(1)
	if r := p.fsck(false); !r.Sound {
		t.Errorf("Fsck without deep of damaged data = %+v; want sound", r.Faults)
	}
	r = p.fsck(true)
	if r.Sound || r.FaultCount[object.DataFault] == 0 || r.Degraded != 3 || r.FaultCount[object.LostFault] != 0 {
		t.Errorf("Fsck(deep) of damaged data = %+v; want 3 degraded segments", r)
	}
	p.scribble(2)
	r = p.fsck(true)
	if r.FaultCount[object.LostFault] != 3 || !slices.ContainsFunc(r.Faults, func(f Fault) bool {
		return f.Kind == object.LostFault && strings.Contains(f.Text, "s3://b/large: segment 0 has 1 of 3 shards left and needs 2")
	}) {
		t.Errorf("Fsck(deep) with two drives damaged = %+v; want 3 lost segments by name", r)
	}
}

// faultCase is a way to damage a pool, and what a check then says.
type faultCase struct {
	name   string
	damage func(*testing.T, *pool)
	kind   object.FaultKind // "" for sound
	text   string
	drive  DriveState // of slot 1
}

// driveCases damage whole drives.
func driveCases() []faultCase {
	return []faultCase{
		{"missing drive", func(t *testing.T, p *pool) {
			if err := os.RemoveAll(p.paths[1]); err != nil {
				t.Fatal(err)
			}
		}, "", "", Missing},
		{"two missing drives", func(t *testing.T, p *pool) {
			if err := errors.Join(os.RemoveAll(p.paths[0]), os.RemoveAll(p.paths[1])); err != nil {
				t.Fatal(err)
			}
		}, PoolFault, "too few drives", ""},
		{"superblock", func(t *testing.T, p *pool) {
			f, err := os.OpenFile(filepath.Join(p.paths[1], "data"), os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, off := range []int64{0, 1 << 20, driveBytes - 2<<20} {
				if _, err := f.WriteAt(make([]byte, 100), off+1000); err != nil {
					t.Fatal(err)
				}
				if _, err := f.WriteAt([]byte{1}, off+1000); err != nil {
					t.Fatal(err)
				}
			}
			f.Close()
		}, PoolFault, "no two superblock copies agree", Missing}, // which slot it was, it can't say
		{"metadata gone", func(t *testing.T, p *pool) {
			if err := errors.Join(os.RemoveAll(filepath.Join(p.paths[1], "meta")), os.Mkdir(filepath.Join(p.paths[1], "meta"), 0o700)); err != nil {
				t.Fatal(err)
			}
		}, PoolFault, "metadata", Unreadable},
		{"twin", func(t *testing.T, p *pool) {
			to := filepath.Join(t.TempDir(), "twin")
			if err := os.CopyFS(to, os.DirFS(p.paths[1])); err != nil {
				t.Fatal(err)
			}
			p.paths = append(p.paths, to)
		}, PoolFault, "two drives with one identity", Unreadable},
	}
}

// writeZeroes fills a shard of 4096 bytes.
func writeZeroes(w *shardstore.ShardWriter) error {
	b := blockdev.AlignedBuffer(4096)
	return w.WriteAt([][]byte{b}, 0, []uint64{crc64nvme.Checksum(b)})
}

// recordCases damage records and shards.
func recordCases() []faultCase {
	return []faultCase{
		{"missing shard", func(t *testing.T, p *pool) {
			p.edit(1, func(s *shardstore.Store, b *shardstore.Batch) { b.DeleteShard(firstShard(t, s)) })
		}, object.MissingFault, "is missing", In},
		{"replicas", func(_ *testing.T, p *pool) {
			p.edit(1, func(s *shardstore.Store, b *shardstore.Batch) { b.DeleteRange([]byte("o"), []byte("p")) })
		}, object.ReplicaFault, "has it not", In},
		{"broken-off write", func(t *testing.T, p *pool) {
			p.edit(1, func(s *shardstore.Store, b *shardstore.Batch) {
				id := shardstore.ShardID{Segment: shardstore.NewSegmentID(), Index: 1}
				w, err := s.NewShard(context.Background(), id, 4096)
				if err != nil {
					t.Fatal(err)
				}
				if err := writeZeroes(w); err != nil {
					t.Fatal(err)
				}
				b.PutShard(w)
				b.Set(record.PendingKey(id.Segment, 1), nil)
			})
		}, "", "", In},
		{"orphan", func(t *testing.T, p *pool) {
			p.edit(1, func(s *shardstore.Store, b *shardstore.Batch) {
				w, err := s.NewShard(context.Background(), shardstore.ShardID{Segment: shardstore.NewSegmentID()}, 4096)
				if err != nil {
					t.Fatal(err)
				}
				if err := writeZeroes(w); err != nil {
					t.Fatal(err)
				}
				b.PutShard(w)
			})
		}, object.OrphanFault, "nothing refers to shard", In},
	}
}

func TestFsckFindsFaults(t *testing.T) {
	whole := newPool(t)
	for _, test := range append(driveCases(), recordCases()...) {
		t.Run(test.name, func(t *testing.T) {
			p := whole.copy(t)
			test.damage(t, p)
			r := p.fsck(false)
			if test.name == "broken-off write" && r.Broken != 1 {
				t.Errorf("%d broken-off shards; want 1", r.Broken)
			}
			if r.Sound != (test.kind == "") {
				t.Errorf("sound = %v; want %v: %+v", r.Sound, test.kind == "", r.Faults)
			}
			if test.kind != "" && !slices.ContainsFunc(r.Faults, func(f Fault) bool {
				return f.Kind == test.kind && strings.Contains(f.Text, test.text)
			}) {
				t.Errorf("faults = %+v; want one of kind %q with %q", r.Faults, test.kind, test.text)
			}
			for _, d := range r.Drives {
				if test.drive != "" && d.State != test.drive && d.Slot == 1 {
					t.Errorf("drive of slot 1 = %+v; want %s", d, test.drive)
				}
			}
		})
	}
}

func TestInUse(t *testing.T) {
	p := newPool(t)
	p.stores(func([]*shardstore.Store) {
		if _, err := Open(context.Background(), p.paths, slog.New(slog.DiscardHandler)); !errors.Is(err, ErrInUse) ||
			!errors.Is(err, blockdev.ErrInUse) {
			t.Errorf("Open of served drives = %v; want ErrInUse", err)
		}
	})
}

func TestDump(t *testing.T) {
	p := newPool(t)
	d := p.open()
	defer d.Close()
	dump := func(f Filter) (entries []Entry) {
		t.Helper()
		if err := d.Dump(context.Background(), f, func(e Entry) error {
			entries = append(entries, e)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return entries
	}
	all := dump(Filter{Slot: -1})
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"kind":"superblock"`, `"kind":"map"`, `"s3://b/small"`, `"block_crc64nvme":["`, `"slots":[`,
		`"attribute_bytes":{"x":6}`, `"kind":"oplog"`, `"part":1`, `upload`} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("the dump has no %s", want)
		}
	}
	if bytes.Contains(text, []byte("s3cret")) || bytes.Contains(text, []byte("czNjcmV0")) {
		t.Error("the dump shows the value of an attribute")
	}
	for _, e := range all {
		if e.Error != "" {
			t.Errorf("entry %+v has an error", e)
		}
	}
	kinds := func(entries []Entry) (names []string) {
		for _, e := range entries {
			names = append(names, e.Kind)
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	one := dump(Filter{Slot: -1, Bucket: "b", Key: "large"})
	if diff := cmp.Diff([]string{"object", "oplog", "owner", "shard"}, kinds(one)); diff != "" {
		t.Errorf("kinds of one object (-want +got):\n%s", diff)
	}
	shards := 0
	for _, e := range one {
		if e.Kind == "shard" {
			shards++
		}
	}
	if shards != 3 {
		t.Errorf("%d shards of one object; want 3", shards)
	}
	if diff := cmp.Diff([]string{"oplog", "owner", "part", "shard", "upload"}, kinds(dump(Filter{Slot: -1, Bucket: "b", Key: "multi"}))); diff != "" {
		t.Errorf("kinds of an upload (-want +got):\n%s", diff)
	}
	limited := dump(Filter{Slot: 1, Kinds: []string{"oplog", "map"}, Limit: 2})
	if len(limited) != 3 || limited[0].Slot != 1 || limited[0].Kind != "map" {
		t.Errorf("limited dump = %+v; want the map and two op-log entries of slot 1", limited)
	}
	for _, f := range []Filter{{Kinds: []string{"mow"}}, {Key: "k"}} {
		if err := d.Dump(context.Background(), f, nil); !errors.Is(err, ErrFilter) {
			t.Errorf("Dump(%+v) = %v; want ErrFilter", f, err)
		}
	}
}
