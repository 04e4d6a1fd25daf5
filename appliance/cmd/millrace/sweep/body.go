package sweep

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
)

// bodies makes the content of the objects of one size: incompressible, and different for each
// number. A body is a window of one block of random bytes, so that making one costs next to nothing; small
// ones are copied, and get the number as their first bytes.
type bodies struct {
	random *memory
	size   int64
}

const (
	// windowSpread is how far the windows are spread; windowStep is the distance between two.
	windowSpread = 1 << 20
	windowStep   = 8
	// stampMax is the size up to which bodies are copied and stamped.
	stampMax = 256 << 10
)

func newBodies(to Endpoint, size int64) (*bodies, error) {
	m, err := newMemory(to, size+windowSpread)
	if err != nil {
		return nil, err
	}
	source := rand.NewChaCha8([32]byte{'m', 'i', 'l', 'l', 'r', 'a', 'c', 'e', byte(size), byte(size >> 8)})
	_, _ = source.Read(m.bytes) // it never fails
	return &bodies{random: m, size: size}, nil
}

func (b *bodies) close() error {
	if b == nil {
		return nil
	}
	return b.random.close()
}

func (b *bodies) window(n int64) []byte {
	shift := n * windowStep % windowSpread
	return b.random.bytes[shift : shift+b.size]
}

// body returns the content of object n, for which small ones need buf. It is valid until the next call with the
// same buffer.
func (b *bodies) body(n int64, buf []byte) []byte {
	window := b.window(n)
	if b.size > stampMax {
		return window
	}
	copy(buf, window)
	if b.size >= 8 {
		binary.LittleEndian.PutUint64(buf, uint64(n))
	}
	return buf
}

// is tells whether got is the content of object n.
func (b *bodies) is(n int64, got []byte) bool {
	window := b.window(n)
	if b.size > stampMax || b.size < 8 {
		return bytes.Equal(got, window)
	}
	return binary.LittleEndian.Uint64(got) == uint64(n) && bytes.Equal(got[8:], window[8:])
}
