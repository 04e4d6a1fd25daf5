package sweep

import (
	"encoding/binary"
	"math/rand/v2"
)

// bodies makes the content of the objects of one size: incompressible, and different for each
// number. A body is a window of one block of random bytes, so that making one costs next to nothing; small
// ones are copied, and get the number as their first bytes.
type bodies struct {
	random []byte
	size   int64
}

const (
	// windowSpread is how far the windows are spread; windowStep is the distance between two.
	windowSpread = 1 << 20
	windowStep   = 8
	// stampMax is the size up to which bodies are copied and stamped.
	stampMax = 256 << 10
)

func newBodies(size int64) *bodies {
	b := &bodies{random: make([]byte, size+windowSpread), size: size}
	source := rand.NewChaCha8([32]byte{'m', 'i', 'l', 'l', 'r', 'a', 'c', 'e', byte(size), byte(size >> 8)})
	_, _ = source.Read(b.random) // it never fails
	return b
}

// buffer returns what a worker needs for body.
func (b *bodies) buffer() []byte {
	if b.size > stampMax {
		return nil
	}
	return make([]byte, b.size)
}

// body returns the content of object n. It is valid until the next call with the same buffer.
func (b *bodies) body(n int64, buf []byte) []byte {
	shift := n * windowStep % windowSpread
	window := b.random[shift : shift+b.size]
	if b.size > stampMax {
		return window
	}
	copy(buf, window)
	if b.size >= 8 {
		binary.LittleEndian.PutUint64(buf, uint64(n))
	}
	return buf
}
