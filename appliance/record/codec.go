package record

import (
	"encoding/binary"
	"fmt"
	"sort"

	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/store"
)

// Limits on what a decoder believes.
const (
	maxString = 1 << 20
	maxMap    = 4096
	maxParts  = store.MaxPartNumber
	maxSums   = 8
)

type encoder struct{ b []byte }

func (e *encoder) uvarint(v uint64) { e.b = binary.AppendUvarint(e.b, v) }
func (e *encoder) varint(v int64)   { e.b = binary.AppendVarint(e.b, v) }
func (e *encoder) byte(v byte)      { e.b = append(e.b, v) }
func (e *encoder) raw(v []byte)     { e.b = append(e.b, v...) }

func (e *encoder) string(s string) {
	e.uvarint(uint64(len(s)))
	e.b = append(e.b, s...)
}

func (e *encoder) stringMap(m map[string]string) {
	e.uvarint(uint64(len(m)))
	for _, k := range sortedKeys(m) {
		e.string(k)
		e.string(m[k])
	}
}

func (e *encoder) bytesMap(m map[string][]byte) {
	e.uvarint(uint64(len(m)))
	for _, k := range sortedKeys(m) {
		e.string(k)
		e.string(string(m[k]))
	}
}

func (e *encoder) checksums(sums []store.Checksum) {
	e.uvarint(uint64(len(sums)))
	for _, s := range sums {
		composite := byte(0)
		if s.Composite {
			composite = 1
		}
		e.byte(byte(s.Algorithm))
		e.byte(composite)
		e.string(string(s.Value))
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// decoder reads what encoder wrote. The first fault sticks: later calls return zero values.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", ErrInvalid, what)
	}
	d.b = nil
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail("uvarint")
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail("varint")
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail("byte")
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

// count reads a number of things, each of at least one byte.
func (d *decoder) count(limit int) int {
	v := d.uvarint()
	if v > uint64(limit) || v > uint64(len(d.b)) {
		d.fail("count")
		return 0
	}
	return int(v)
}

// bytes returns n bytes of the input, not copied.
func (d *decoder) bytes(n int) []byte {
	if n < 0 || n > len(d.b) {
		d.fail("length")
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) slice() []byte { return d.bytes(d.count(maxString)) }

func (d *decoder) string() string { return string(d.slice()) }

func (d *decoder) stringMap() map[string]string {
	n := d.count(maxMap)
	if n == 0 {
		return nil
	}
	m := make(map[string]string, n)
	for range n {
		k := d.string()
		m[k] = d.string()
	}
	return m
}

func (d *decoder) bytesMap() map[string][]byte {
	n := d.count(maxMap)
	if n == 0 {
		return nil
	}
	m := make(map[string][]byte, n)
	for range n {
		k := d.string()
		m[k] = append([]byte(nil), d.slice()...)
	}
	return m
}

func (d *decoder) checksums() []store.Checksum {
	n := d.count(maxSums)
	if n == 0 {
		return nil
	}
	sums := make([]store.Checksum, n)
	for i := range sums {
		sums[i].Algorithm = checksum.Algorithm(d.byte())
		sums[i].Composite = d.byte() == 1
		sums[i].Value = append([]byte(nil), d.slice()...)
	}
	return sums
}

// end returns the first fault, or one for bytes left over.
func (d *decoder) end() error {
	if d.err == nil && len(d.b) != 0 {
		d.fail("trailing bytes")
	}
	return d.err
}
