package shardstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/nvme/blockdev"
)

// model is what a store should hold.
type model struct {
	shards  map[ShardID]testShard
	records map[string]string
}

// testShard says what the bytes of a shard are.
type testShard struct {
	sizeBytes int64
	seed      uint64
}

func newModel() *model {
	return &model{shards: make(map[ShardID]testShard), records: make(map[string]string)}
}

// step is one batch of a random workload.
type step struct {
	number  int // every step also sets the record "step" to its number
	sync    bool
	abort   bool // the writers are given up in place of a commit
	puts    map[ShardID]testShard
	deletes []ShardID
	sets    map[string]string
	dels    []string
	delLo   string // with delHi: DeleteRange
	delHi   string
}

func randomStep(rng *rand.Rand, number int) step {
	st := step{number: number, sync: rng.IntN(3) > 0, abort: rng.IntN(8) == 0}
	st.puts, st.sets = make(map[ShardID]testShard), make(map[string]string)
	for range rng.IntN(3) {
		size := int64(1+rng.IntN(40)) * AllocUnitBytes
		if rng.IntN(4) == 0 {
			size = int64(1+rng.IntN(140)) * AllocUnitBytes
		}
		st.puts[randomShard(rng)] = testShard{size, rng.Uint64()}
	}
	for range rng.IntN(3) {
		st.deletes = append(st.deletes, randomShard(rng))
	}
	for range rng.IntN(4) {
		st.sets[randomKey(rng)] = fmt.Sprint(number, bytes.Repeat([]byte{'v'}, rng.IntN(600)))
	}
	for range rng.IntN(3) {
		st.dels = append(st.dels, randomKey(rng))
	}
	if rng.IntN(10) == 0 {
		st.delLo, st.delHi = randomKey(rng), randomKey(rng)
	}
	return st
}

func randomShard(rng *rand.Rand) ShardID {
	return ShardID{SegmentID{1 + byte(rng.IntN(6))}, uint8(rng.IntN(3))}
}

func randomKey(rng *rand.Rand) string { return fmt.Sprintf("k%02d", rng.IntN(40)) }

// apply changes the model as the step, committed, changes the store.
func (m *model) apply(st step) {
	for _, id := range st.deletes {
		delete(m.shards, id)
	}
	maps.Copy(m.shards, st.puts)
	if st.delLo < st.delHi {
		maps.DeleteFunc(m.records, func(k, _ string) bool { return st.delLo <= k && k < st.delHi })
	}
	for _, k := range st.dels {
		delete(m.records, k)
	}
	maps.Copy(m.records, st.sets)
	m.records["step"] = fmt.Sprint(st.number)
}

// run does the step on the store. done says whether it was committed.
func (st step) run(s *Store, rng *rand.Rand) (done bool, err error) {
	ctx := context.Background()
	b := s.NewBatch()
	defer b.Close()
	for _, id := range slices.SortedFunc(maps.Keys(st.puts), ShardID.Compare) {
		p := st.puts[id]
		w, err := s.NewShard(ctx, id, p.sizeBytes)
		if errors.Is(err, ErrFull) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		defer w.Abort()
		if err := writeInPieces(w, shardBytes(p.sizeBytes, p.seed), rng); err != nil {
			return false, err
		}
		b.PutShard(w)
	}
	if st.abort {
		return false, nil
	}
	for _, id := range st.deletes {
		b.DeleteShard(id)
	}
	b.DeleteRange([]byte(st.delLo), []byte(st.delHi))
	for _, k := range st.dels {
		b.Delete([]byte(k))
	}
	for k, v := range st.sets {
		b.Set([]byte(k), []byte(v))
	}
	b.Set([]byte("step"), []byte(fmt.Sprint(st.number)))
	return true, s.Commit(ctx, b, st.sync)
}

// writeInPieces writes the shard in random order, from buffers cut at random.
func writeInPieces(w *ShardWriter, data []byte, rng *rand.Rand) error {
	blocks := blockCount(int64(len(data)))
	for _, i := range rng.Perm((blocks + 1) / 2) { // two blocks a piece
		off := i * 2 * BlockBytes
		piece := data[off:min(off+2*BlockBytes, len(data))]
		cut := rng.IntN(len(piece)/AllocUnitBytes+1) * AllocUnitBytes
		if err := writeAt(w, [][]byte{piece[:cut], piece[cut:]}, int64(off)); err != nil {
			return err
		}
	}
	return nil
}

// check compares the store with the model, and the store with itself.
func (m *model) check(t testing.TB, s *Store) {
	t.Helper()
	got := make(map[ShardID]testShard)
	err := s.Shards(ShardID{}, func(id ShardID, info ShardInfo) error {
		got[id] = testShard{info.SizeBytes, m.shards[id].seed}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(got, m.shards) {
		t.Fatalf("shards = %v; want %v", got, m.shards)
	}
	for id, p := range m.shards {
		b, err := readShard(s, id, 0, int(p.sizeBytes))
		if err != nil || !bytes.Equal(b, shardBytes(p.sizeBytes, p.seed)) {
			t.Fatalf("ReadShard(%s) = %v, equal %v; want the bytes written", id, err,
				bytes.Equal(b, shardBytes(p.sizeBytes, p.seed)))
		}
	}
	it, err := s.Scan(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	records := make(map[string]string)
	for ok := it.First(); ok; ok = it.Next() {
		v, _ := it.Value()
		records[string(it.Key())] = string(v)
	}
	if err := it.Close(); err != nil || !maps.Equal(records, m.records) {
		t.Fatalf("records = %v, %v; want %v", records, err, m.records)
	}
	report, err := s.Verify(context.Background(), false)
	if err != nil || len(report.Problems) > 0 || !report.SpaceChecked {
		t.Fatalf("Verify = %+v, %v; want no problems and the space checked", report, err)
	}
	if st := s.Stats(); st.Shards != int64(len(m.shards)) || st.ReservedBytes != 0 {
		t.Fatalf("Stats = %+v; want %d shards, nothing reserved", st, len(m.shards))
	}
}

func testRand(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// TestModel runs random steps and restarts, and compares with the model.
func TestModel(t *testing.T) {
	rng := testRand(t)
	d := newTestDrive(t, minDataBytes)
	d.opts.MemTableBytes = 64 << 10
	d.opts.RecordCacheBytes = 64 << 10
	s, m := d.open(t), newModel()
	for i := range 400 {
		st := randomStep(rng, i)
		done, err := st.run(s, rng)
		if err != nil {
			t.Fatal(err)
		}
		if done {
			m.apply(st)
		}
		if i%20 == 0 {
			m.check(t, s)
		}
		if i%50 == 0 {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = d.open(t)
			m.check(t, s)
		}
	}
}

// TestConcurrent lets writers, deleters and readers meet on few shards in little space. A read
// gives the bytes of some version of its shard, or says that there is none.
func TestConcurrent(t *testing.T) {
	d := newTestDrive(t, minDataBytes)
	s := d.open(t)
	const size = 2 * BlockBytes
	stop := time.Now().Add(300 * time.Millisecond)
	errs := make(chan error, 12)
	for g := range 12 {
		rng := rand.New(rand.NewPCG(uint64(g), 7))
		go func() {
			var err error
			for err == nil && time.Now().Before(stop) {
				id := ShardID{SegmentID{1}, uint8(rng.IntN(4))}
				switch g % 3 {
				case 0:
					err = tryPut(s, id, taggedShard(id, size, rng.Uint64()), rng.IntN(2) == 0)
				case 1:
					err = tryDelete(s, id, rng.IntN(2) == 0)
				default:
					err = readTagged(s, id, size)
				}
				if errors.Is(err, ErrNotFound) || errors.Is(err, ErrFull) {
					err = nil
				}
			}
			errs <- err
		}()
	}
	for range 12 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if err := s.Commit(context.Background(), s.NewBatch(), true); err != nil {
		t.Fatal(err)
	}
	report, err := s.Verify(context.Background(), true)
	if err != nil || len(report.Problems) > 0 || !report.SpaceChecked || s.Stats().PendingBytes != 0 {
		t.Errorf("Verify = %+v, %v, pending %d; want all well", report, err, s.Stats().PendingBytes)
	}
	if n := s.Stats().ChecksumErrors; n != 0 {
		t.Errorf("%d checksum errors blamed on the drive", n)
	}
}

// taggedShard starts every block with its shard's index and a version.
func taggedShard(id ShardID, n int, version uint64) []byte {
	b := blockdev.AlignedBuffer(n)
	for off := 0; off < n; off += BlockBytes {
		b[off] = id.Index
		binary.LittleEndian.PutUint64(b[off+8:], version)
	}
	return b
}

func readTagged(s *Store, id ShardID, n int) error {
	b, err := readShard(s, id, 0, n)
	if err != nil {
		return err
	}
	if want := taggedShard(id, n, binary.LittleEndian.Uint64(b[8:])); !bytes.Equal(b, want) {
		return fmt.Errorf("shard %s: bytes of another shard or version", id)
	}
	return nil
}
