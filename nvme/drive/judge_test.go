package drive

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// image writes a partition table to a sparse file, and reads its ends.
func image(t testing.TB, sizeBytes int64, sectorBytes int) (string, ends) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l, err := plan(sizeBytes)
	if err := errors.Join(err, f.Truncate(sizeBytes), l.write(f, sizeBytes, sectorBytes)); err != nil {
		t.Fatal(err)
	}
	e, err := readEnds(f, sizeBytes, sectorBytes)
	if err != nil {
		t.Fatal(err)
	}
	return f.Name(), e
}

func TestPlan(t *testing.T) {
	tests := []struct{ size, meta, data int64 }{ // MiB
		{128, 64, 62},
		{1 << 10, 128, (1 << 10) - 128 - 2},
		{8 << 10, 1 << 10, (7 << 10) - 2},
		{100 << 10, 3072, (100 << 10) - 3072 - 2},
	}
	for _, tt := range tests {
		l, err := plan(tt.size << 20)
		if err != nil || l.meta.sizeBytes != tt.meta<<20 || l.data.sizeBytes != tt.data<<20 ||
			l.meta.startBytes != 1<<20 || l.data.startBytes != (1+tt.meta)<<20 {
			t.Errorf("plan(%d MiB) = %+v, %v; want %d and %d MiB", tt.size, l, err, tt.meta, tt.data)
		}
	}
	if _, err := plan(minBlockBytes - 1); err == nil {
		t.Error("plan(too small) = nil; want an error")
	}
}

func TestJudgeTable(t *testing.T) {
	for _, tt := range []struct {
		sizeBytes   int64
		sectorBytes int
	}{
		{minBlockBytes, 512}, {minBlockBytes, 4096}, {minBlockBytes + 4096*7, 512}, {10 << 40, 512}, {10 << 40, 4096},
	} {
		path, e := image(t, tt.sizeBytes, tt.sectorBytes)
		want, _ := plan(tt.sizeBytes)
		v := e.judge()
		want.meta.uuid, want.data.uuid = v.layout.meta.uuid, v.layout.data.uuid
		if v.State != Millrace || v.layout != want || len(want.meta.uuid) != 36 || want.meta.uuid == want.data.uuid {
			t.Errorf("%+v: judge() = %+v; want %+v", tt, v, want)
		}
		if _, err := exec.LookPath("sgdisk"); err == nil && tt.sectorBytes == 512 {
			out, err := exec.CommandContext(t.Context(), "sgdisk", "-v", path).Output()
			if err != nil || !strings.Contains(string(out), "No problems found") {
				t.Errorf("%+v: sgdisk -v: %v\n%s", tt, err, out)
			}
		}
	}
}

func TestJudge(t *testing.T) {
	put := func(b []byte, off int, text string) { copy(b[off:], text) }
	tests := []struct {
		name   string
		change func(e ends)
		table  bool
		want   State
		what   string
	}{
		{"blank", func(ends) {}, false, Empty, ""},
		{"erased flash", func(e ends) {
			for i := range e.head {
				e.head[i], e.tail[i] = 0xFF, 0xFF
			}
		}, false, Empty, ""},
		{"unknown", func(e ends) { e.tail[77] = 1 }, false, Foreign, "holds data of an unknown kind"},
		{"XFS", func(e ends) { put(e.head, 0, "XFSB") }, false, Foreign, "holds an XFS file system"},
		{"RAID at the end", func(e ends) { put(e.tail, marginBytes-8192, "\xfc\x4e\x2b\xa9") }, false, Foreign,
			"holds a member of an MD RAID"},
		{"MBR", func(e ends) { put(e.head, 450, "\x83"); put(e.head, 510, "\x55\xAA") }, false, Foreign,
			"holds a partition table or a boot sector"},
		{"marker alone", func(e ends) { put(e.head, markerOffset, markerText) }, false, Empty, ""},
		{"marker and more", func(e ends) { put(e.head, markerOffset, markerText); e.head[markerOffset-1] = 1 },
			false, Foreign, "holds data of an unknown kind"},
		{"marker and XFS", func(e ends) { put(e.head, markerOffset, markerText); put(e.head, 0, "XFSB") }, false,
			Foreign, "holds an XFS file system"},
		{"ours", func(ends) {}, true, Millrace, ""},
		{"ours with marker", func(e ends) { put(e.head, markerOffset, markerText) }, true, Empty, ""},
		{"ours, then XFS", func(e ends) { put(e.head, 0, "XFSB") }, true, Foreign, "holds an XFS file system"},
		{"backup table alone", func(e ends) { clear(e.head[512:1024]) }, true, Millrace, ""},
		{"first table alone", func(e ends) { clear(e.tail) }, true, Millrace, ""},
		{"no protective MBR", func(e ends) { clear(e.head[:512]) }, true, Foreign, "holds a partition table (GPT)"},
		{"both tables damaged", func(e ends) { e.head[1024] ^= 1; e.tail[marginBytes-500] ^= 1 }, true, Foreign,
			"holds a partition table or a boot sector"},
	}
	for _, tt := range tests {
		e := ends{make([]byte, marginBytes), make([]byte, marginBytes), minBlockBytes, 512}
		if tt.table {
			_, e = image(t, minBlockBytes, 512)
		}
		tt.change(e)
		if got := e.judge(); got.State != tt.want || got.What != tt.what {
			t.Errorf("%s: judge() = %s, %q; want %s, %q", tt.name, got.State, got.What, tt.want, tt.what)
		}
	}
}

func TestJudgeOtherTable(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l, _ := plan(minBlockBytes)
	table := l.table(512)
	table.Partitions[1].Type = "0FC63DAF-8483-4772-8E79-3D69D8477DE4" // Linux file system data
	err = errors.Join(f.Truncate(minBlockBytes), l.write(f, minBlockBytes, 512), table.Write(f, minBlockBytes))
	if err != nil {
		t.Fatal(err)
	}
	e, err := readEnds(f, minBlockBytes, 512)
	if err != nil {
		t.Fatal(err)
	}
	copy(e.head[markerOffset:], markerText) // what a broken-off Create left before
	if got := e.judge(); got.State != Foreign {
		t.Errorf("judge() = %+v; want foreign", got)
	}
}

// seal makes the checksums of a partition table right, so that what is in it gets looked at.
func (e ends) seal() {
	header := e.head[e.sectorBytes:][:92]
	binary.LittleEndian.PutUint32(header[88:], crc32.ChecksumIEEE(e.head[2*e.sectorBytes:][:128*128]))
	clear(header[16:20])
	binary.LittleEndian.PutUint32(header[16:], crc32.ChecksumIEEE(header))
}

// FuzzJudge changes the first bytes of both ends, where partition tables are.
func FuzzJudge(f *testing.F) {
	for _, sector := range []int{512, 4096} {
		_, e := image(f, minBlockBytes, sector)
		f.Add(e.head[:2*sector+256], e.tail[marginBytes-sector:], sector == 4096, true)
		f.Add(e.head[:2*sector+256], e.tail[marginBytes-tableBytes:], sector == 4096, false)
	}
	f.Add([]byte("XFSB"), []byte{}, false, false)
	f.Fuzz(func(t *testing.T, head, tail []byte, big, sealed bool) {
		e := ends{make([]byte, marginBytes), make([]byte, marginBytes), minBlockBytes, 512}
		if big {
			e.sectorBytes = 4096
		}
		copy(e.head, head)
		copy(e.tail[marginBytes-min(len(tail), marginBytes):], tail)
		if sealed {
			e.seal()
		}
		v := e.judge()
		if v.State != Millrace {
			return
		}
		for _, s := range []span{v.layout.meta, v.layout.data} {
			if s.startBytes < marginBytes || s.sizeBytes <= 0 || s.startBytes+s.sizeBytes > minBlockBytes-marginBytes {
				t.Errorf("span %+v outside the device", s)
			}
		}
	})
}
