package erasure

import (
	"errors"
	"fmt"
	"sync"

	"github.com/klauspost/reedsolomon"
)

// ErrTooFewShards is returned when fewer than Data shards are there.
var ErrTooFewShards = errors.New("too few shards")

// Coders makes the Coder of each scheme once and keeps it. There are at most MaxData × (MaxParity+1) of
// them. The zero value is ready; it may be used from many goroutines at once.
type Coders struct {
	mu     sync.Mutex
	coders [MaxData + 1][MaxParity + 1]*Coder
}

// Coder returns the coder of a scheme; the error is ErrScheme.
func (c *Coders) Coder(s Scheme) (*Coder, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if have := c.coders[s.Data][s.Parity]; have != nil {
		return have, nil
	}
	coder, err := newCoder(s)
	if err == nil {
		c.coders[s.Data][s.Parity] = coder
	}
	return coder, err
}

// Coder codes for one scheme. It may be used from many goroutines at once.
type Coder struct {
	scheme Scheme
	rs     reedsolomon.Encoder // nil for 1+m and k+0, which need no arithmetic
}

func newCoder(s Scheme) (*Coder, error) {
	c := &Coder{scheme: s}
	if s.Data == 1 || s.Parity == 0 {
		return c, nil
	}
	// One goroutine: requests are what runs in parallel, and a split unit leaves the cache.
	rs, err := reedsolomon.New(s.Data, s.Parity, reedsolomon.WithMaxGoroutines(1),
		reedsolomon.WithInversionCache(true))
	if err != nil {
		return nil, fmt.Errorf("make coder %v: %w", s, err)
	}
	c.rs = rs
	return c, nil
}

// Encode fills the parity shards (the last Parity of shards) from the data shards (the first Data). All
// have the same length. For one data shard it copies; a caller that can use the data in place of a copy
// need not call it.
func (c *Coder) Encode(shards [][]byte) error {
	if len(shards) != c.scheme.Shards() {
		return fmt.Errorf("encode %v: %d shards", c.scheme, len(shards))
	}
	if c.rs != nil {
		return c.rs.Encode(shards)
	}
	for j := c.scheme.Data; j < len(shards); j++ {
		copy(shards[j], shards[0])
	}
	return nil
}

// Reconstruct fills the shards marked in required (one mark a shard) from those that are there. A shard that
// is not there has length 0; one to be filled has the capacity for its bytes, and gets its length. At least
// Data shards must be there, else ErrTooFewShards.
func (c *Coder) Reconstruct(shards [][]byte, required []bool) error {
	if len(shards) != c.scheme.Shards() || len(required) != len(shards) {
		return fmt.Errorf("reconstruct %v: %d shards, %d marks", c.scheme, len(shards), len(required))
	}
	if c.rs == nil {
		return c.reconstructCopies(shards, required)
	}
	err := c.rs.ReconstructSome(shards, required)
	if errors.Is(err, reedsolomon.ErrTooFewShards) || errors.Is(err, reedsolomon.ErrShardNoData) {
		return ErrTooFewShards
	}
	return err
}

func (c *Coder) reconstructCopies(shards [][]byte, required []bool) error {
	var source []byte
	if c.scheme.Data == 1 {
		for _, s := range shards {
			if len(s) > 0 {
				source = s
				break
			}
		}
	}
	for j := range shards {
		if !required[j] || len(shards[j]) > 0 {
			continue
		}
		if source == nil {
			return ErrTooFewShards
		}
		shards[j] = append(shards[j], source...)
	}
	return nil
}
