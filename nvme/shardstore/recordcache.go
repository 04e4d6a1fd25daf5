package shardstore

import "sync"

// recordCache keeps decoded shard records, least recently used out first. It never gives a record
// that was replaced before the call.
type recordCache struct {
	parts [recordCacheParts]recordCachePart
}

const recordCacheParts = 16

type recordCachePart struct {
	mu         sync.Mutex
	limitBytes int64
	usedBytes  int64
	entries    map[ShardID]*recordEntry
	ring       recordEntry // next is the newest, prev the oldest
	epoch      uint64      // counts invalidations
}

type recordEntry struct {
	id         ShardID
	rec        *shardRecord
	prev, next *recordEntry
}

// newRecordCache makes a cache of limitBytes; nothing is kept if that is negative.
func newRecordCache(limitBytes int64) *recordCache {
	c := new(recordCache)
	for i := range c.parts {
		p := &c.parts[i]
		p.limitBytes = limitBytes / recordCacheParts
		p.entries = make(map[ShardID]*recordEntry)
		p.ring.prev, p.ring.next = &p.ring, &p.ring
	}
	return c
}

// part spreads by the segment's bytes, which are random.
func (c *recordCache) part(id ShardID) *recordCachePart {
	return &c.parts[(id.Segment[15]^id.Segment[0]^id.Index)%recordCacheParts]
}

// get gives the record, or nil and the epoch that put wants.
func (c *recordCache) get(id ShardID) (*shardRecord, uint64) {
	p := c.part(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.entries[id]
	if e == nil {
		return nil, p.epoch
	}
	e.unlink()
	e.linkAfter(&p.ring)
	return e.rec, p.epoch
}

// put keeps a record that was read after get gave the epoch, unless some record of the part was
// replaced in between: then it may be an old one.
func (c *recordCache) put(id ShardID, rec *shardRecord, epoch uint64) {
	p := c.part(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.epoch != epoch || p.entries[id] != nil || rec.footprintBytes() > p.limitBytes {
		return
	}
	e := &recordEntry{id: id, rec: rec}
	p.entries[id] = e
	p.usedBytes += rec.footprintBytes()
	e.linkAfter(&p.ring)
	for p.usedBytes > p.limitBytes {
		p.drop(p.ring.prev)
	}
}

// invalidate forgets a record that was replaced or deleted.
func (c *recordCache) invalidate(id ShardID) {
	p := c.part(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.epoch++
	if e := p.entries[id]; e != nil {
		p.drop(e)
	}
}

func (p *recordCachePart) drop(e *recordEntry) {
	e.unlink()
	delete(p.entries, e.id)
	p.usedBytes -= e.rec.footprintBytes()
}

func (e *recordEntry) unlink() {
	e.prev.next, e.next.prev = e.next, e.prev
}

func (e *recordEntry) linkAfter(at *recordEntry) {
	e.prev, e.next = at, at.next
	at.next.prev = e
	at.next = e
}
