package server

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/mgmt/endpoint"
	"github.com/millrace/millrace/nvme/blockdev"
	"github.com/millrace/millrace/s3/store"
)

const testDriveSize = 16 * config.MiB

// jbof is the configuration of a virtual JBOF of small drives.
func jbof(dir string, drives int) *config.Config {
	c := config.Default()
	c.Dir, c.Drives, c.DriveSize = dir, drives, testDriveSize
	c.ArenaSize = 32 * config.MiB
	return &c
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// open opens the engine of c, and closes it at the end of the test, unless close is called before.
func open(t *testing.T, c *config.Config, log *slog.Logger) (b *backend, close func()) {
	t.Helper()
	b, err := openEngine(context.Background(), c, log)
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	close = func() {
		if closed {
			return
		}
		closed = true
		if err := b.close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	t.Cleanup(close)
	return b, close
}

func put(t *testing.T, s store.Store, key string, data []byte) {
	t.Helper()
	_, err := s.Put(context.Background(), store.PutRequest{Bucket: "b", Key: key, SizeBytes: int64(len(data)),
		Body: bytes.NewReader(data)})
	if err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
}

func check(t *testing.T, s store.Store, key string, want []byte) {
	t.Helper()
	r, err := s.Open(context.Background(), "b", key)
	if err != nil {
		t.Fatalf("open %s: %v", key, err)
	}
	defer r.Close()
	var got bytes.Buffer
	if err := r.WriteRange(context.Background(), &got, 0, r.Info().SizeBytes); err != nil || !bytes.Equal(got.Bytes(), want) {
		t.Fatalf("read %s: %d bytes, %v; want %d", key, got.Len(), err, len(want))
	}
}

func TestVirtualJBOF(t *testing.T) {
	dir := t.TempDir()
	c := jbof(dir, 6)
	b, closeFirst := open(t, c, quiet())
	if _, err := b.store.CreateBucket(context.Background(), store.Bucket{Name: "b"}); err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte("millrace"), 40_000)
	put(t, b.store, "k", data)
	if h := b.health(); h.Status != endpoint.OK || h.Scheme != "4+2" || h.Drives["in"] != 6 {
		t.Errorf("health = %+v; want ok, 4+2, 6 in", h)
	}
	closeFirst()

	// Two drives are pulled, and the others change their names.
	for _, name := range []string{"01", "03"} {
		if err := os.Rename(filepath.Join(dir, "drives", name), filepath.Join(t.TempDir(), name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(filepath.Join(dir, "drives/00"), filepath.Join(dir, "drives/zz")); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	b, closeSecond := open(t, jbof(dir, 8), slog.New(slog.NewTextHandler(&log, nil)))
	check(t, b.store, "k", data)
	if h := b.health(); h.Status != endpoint.Degraded || h.Drives["in"] != 4 || h.Drives["missing"] != 2 {
		t.Errorf("health = %+v; want degraded, 4 in, 2 missing", h)
	}
	closeSecond()
	if !strings.Contains(log.String(), "option ignored") {
		t.Errorf("no message about --drives 8; log:\n%s", &log)
	}
	var names []string
	entries, err := os.ReadDir(filepath.Join(dir, "drives"))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if diff := cmp.Diff([]string{"02", "04", "05", "zz"}, names); diff != "" {
		t.Errorf("drive folders after the restart: a missing one was made anew (-want +got):\n%s", diff)
	}

	// With all gone the start fails, and makes nothing.
	for _, name := range names {
		if err := os.Rename(filepath.Join(dir, "drives", name), filepath.Join(t.TempDir(), name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := openEngine(context.Background(), c, quiet()); err == nil || !strings.Contains(err.Error(), "none of the drives") {
		t.Errorf("start without any drive: %v; want an error", err)
	}
}

func TestBrokenOffMakingIsRepeated(t *testing.T) {
	dir := t.TempDir()
	c := jbof(dir, 4)
	r, err := newRecord(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	// Two drives of four were made.
	d := newDrives(quiet())
	for slot := range 2 {
		if err := d.make(context.Background(), virtualPath(dir, slot), slot, &r); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	b, _ := open(t, c, quiet())
	if h := b.health(); h.Status != endpoint.OK || h.Drives["in"] != 4 {
		t.Errorf("health = %+v; want ok with 4 drives", h)
	}
	if got, ok, err := readRecord(dir); err != nil || !ok || !got.Made || got.Pool != r.Pool {
		t.Errorf("record = %+v, %v, %v; want made, of pool %s", got, ok, err, r.Pool)
	}
}

func TestDrivePaths(t *testing.T) {
	state, place := t.TempDir(), t.TempDir()
	c := jbof("", 0)
	c.StateDir = state
	for _, name := range []string{"a", "b", "c"} {
		c.DrivePaths = append(c.DrivePaths, filepath.Join(place, name))
	}
	if _, err := openEngine(context.Background(), c, quiet()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("new drives at paths that are not there: %v; want an error", err)
	}
	for _, path := range c.DrivePaths {
		if err := os.Mkdir(path, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	_, closeFirst := open(t, c, quiet())
	if _, err := openEngine(context.Background(), c, quiet()); !errors.Is(err, blockdev.ErrInUse) {
		t.Errorf("second start on the same drives: %v; want ErrInUse", err)
	}
	closeFirst()
	c.DrivePaths[0], c.DrivePaths[2] = c.DrivePaths[2], c.DrivePaths[0]
	b, closeSecond := open(t, c, quiet())
	if h := b.health(); h.Status != endpoint.OK || h.Scheme != "2+1" {
		t.Errorf("health in another order = %+v; want ok, 2+1", h)
	}
	closeSecond()

	// The same drives, known by another state folder: they speak for themselves.
	c.StateDir = t.TempDir()
	_, closeThird := open(t, c, quiet())
	closeThird()

	// A drive of another pool is refused.
	other := jbof(t.TempDir(), 1)
	_, closeOther := open(t, other, quiet())
	closeOther()
	c.DrivePaths[1] = virtualPath(other.Dir, 0)
	if _, err := openEngine(context.Background(), c, quiet()); !errors.Is(err, object.ErrOtherPool) {
		t.Errorf("with a drive of another pool: %v; want ErrOtherPool", err)
	}
}

func TestMetricsSources(t *testing.T) {
	b, _ := open(t, jbof(t.TempDir(), 3), quiet())
	if _, err := b.store.CreateBucket(context.Background(), store.Bucket{Name: "b"}); err != nil {
		t.Fatal(err)
	}
	put(t, b.store, "k", make([]byte, 1<<20))
	var written uint64
	for slot, d := range b.sources.Drives() {
		if d.Slot != slot || d.State != "in" || d.SizeBytes == 0 || d.FreeBytes == 0 || d.ID == "" || d.Path == "" {
			t.Errorf("drive %d = %+v", slot, d)
		}
		written += d.WrittenBytes
	}
	if written < 3<<19 {
		t.Errorf("%d bytes written for 1 MiB at 2+1; want at least 1.5 MiB", written)
	}
	if a := b.sources.Arena(); a.SizeBytes != 32<<20 {
		t.Errorf("arena = %+v; want 32 MiB", a)
	}
	if k, n := b.sources.DataShares(); k != 2 || n != 3 {
		t.Errorf("data shares = %d, %d; want 2, 3", k, n)
	}
}

func TestRecordIsStrict(t *testing.T) {
	dir := t.TempDir()
	for _, text := range []string{"made = 3", "made = true\ndrives = 4\npool = \"x\"", "made = true\ndrives = 0\n" +
		"pool = \"77f2e9df-ffca-4136-b77a-a2a50903eb07\"", "\x00"} {
		if err := os.WriteFile(filepath.Join(dir, recordFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := readRecord(dir); err == nil {
			t.Errorf("readRecord(%q): no error", text)
		}
	}
}
