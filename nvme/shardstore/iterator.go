package shardstore

import (
	"maps"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// Iterator walks the engine's records in the order of their keys, as they were when Scan was called. It keeps files that
// were replaced since, so where space for metadata is scarce it is made to let go of them: from there on it sees
// records as they are later. What is there during the whole walk is seen once.
//
// It is for one goroutine. It must be closed; Store.Close waits for that. Past either end it stays there until First, Last
// or SeekGE.
type Iterator struct {
	s      *Store
	bounds pebble.IterOptions
	target []byte // of SeekGE

	mu     sync.Mutex // against letGo
	it     *pebble.Iterator
	valid  bool
	key    []byte // as Pebble has it, of the record where it is, if keyed
	value  []byte // the same, if valued
	keyed  bool
	valued bool
	failed error
}

// Scan returns an iterator over the records from lo up to, not including, hi; a nil hi means up to
// the last. It is not positioned yet.
func (s *Store) Scan(lo, hi []byte) (*Iterator, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	i := &Iterator{s: s}
	i.bounds.LowerBound, i.bounds.UpperBound = engineBounds(nil, lo, hi)
	if err := i.open(); err != nil {
		s.leave()
		return nil, err
	}
	s.scans.add(i)
	return i, nil
}

func (i *Iterator) open() (err error) {
	if i.it, err = i.s.db.NewIter(&i.bounds); err != nil {
		return i.s.metaError(err)
	}
	return nil
}

// First moves to the first record; it returns Valid.
func (i *Iterator) First() bool { return i.move((*pebble.Iterator).First, (*pebble.Iterator).First) }

// Last moves to the last record; it returns Valid.
func (i *Iterator) Last() bool { return i.move((*pebble.Iterator).Last, (*pebble.Iterator).Last) }

// Next moves to the next record; it returns Valid.
func (i *Iterator) Next() bool {
	return i.valid && i.move((*pebble.Iterator).Next, func(it *pebble.Iterator) bool {
		return it.SeekGE(append(i.key, 0))
	})
}

// Prev moves to the record before; it returns Valid.
func (i *Iterator) Prev() bool {
	return i.valid && i.move((*pebble.Iterator).Prev, func(it *pebble.Iterator) bool {
		return it.SeekLT(i.key)
	})
}

// SeekGE moves to the first record whose key is not below key; it returns Valid.
func (i *Iterator) SeekGE(key []byte) bool {
	i.target = append(append(i.target[:0], prefixEngine), key...)
	seek := func(it *pebble.Iterator) bool { return it.SeekGE(i.target) }
	return i.move(seek, seek)
}

// move moves to another record; how again says, if it let go of the one where it was.
func (i *Iterator) move(how, again func(*pebble.Iterator) bool) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.valid = false
	if i.it == nil {
		if i.failed != nil {
			return false
		}
		if i.failed = i.open(); i.failed != nil {
			return false
		}
		how = again
	}
	i.valid = how(i.it)
	i.keyed, i.valued = false, false
	return i.valid
}

// Valid says whether the iterator is at a record. If not, Err says whether that is the end.
func (i *Iterator) Valid() bool { return i.valid }

// Key gives the key; it holds until the iterator moves.
func (i *Iterator) Key() []byte {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.takeKey()
	return i.key[1:]
}

func (i *Iterator) takeKey() {
	if !i.keyed {
		i.key, i.keyed = append(i.key[:0], i.it.Key()...), true
	}
}

// Value reads the value; it holds until the iterator moves.
func (i *Iterator) Value() ([]byte, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.takeValue(); err != nil {
		return nil, err
	}
	return i.value, nil
}

func (i *Iterator) takeValue() error {
	if i.valued {
		return nil
	}
	if i.it == nil {
		return i.failed
	}
	value, err := i.it.ValueAndErr()
	if err != nil {
		i.failed = i.s.metaError(err)
		return i.failed
	}
	i.value, i.valued = append(i.value[:0], value...), true
	return nil
}

// letGo gives up all files, and keeps the record where the iterator is.
func (i *Iterator) letGo() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.it == nil {
		return
	}
	if i.valid {
		i.takeKey()
		_ = i.takeValue() // the error is kept
	}
	i.shut()
}

// shut closes Pebble's iterator, if there is one, and keeps its error.
func (i *Iterator) shut() {
	if i.it == nil {
		return
	}
	if err := i.it.Error(); err != nil && i.failed == nil {
		i.failed = i.s.metaError(err)
	}
	i.it.Close()
	i.it = nil
}

// Err gives the error that ended the walk, if one did.
func (i *Iterator) Err() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.failed == nil && i.it != nil {
		i.failed = i.s.metaError(i.it.Error())
	}
	return i.failed
}

// Close ends the iterator, and returns Err. It must be called once.
func (i *Iterator) Close() error {
	i.s.scans.remove(i)
	i.mu.Lock()
	i.shut()
	i.mu.Unlock()
	i.s.leave()
	return i.failed
}

// scans are the open iterators of a store.
type scans struct {
	mu   sync.Mutex
	open map[*Iterator]struct{}
}

func (s *scans) add(i *Iterator) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = make(map[*Iterator]struct{})
	}
	s.open[i] = struct{}{}
}

func (s *scans) remove(i *Iterator) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, i)
}

// letGo makes all iterators give up their files.
func (s *scans) letGo() {
	s.mu.Lock()
	open := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	for _, i := range open {
		i.letGo()
	}
}
