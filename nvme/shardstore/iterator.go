package shardstore

import "github.com/cockroachdb/pebble/v2"

// Iterator walks the engine's records in the order of their keys, as they were when Scan was
// called. It is for one goroutine. It must be closed; Store.Close waits for that.
type Iterator struct {
	s      *Store
	it     *pebble.Iterator
	key    []byte
	failed error
}

// Scan returns an iterator over the records from lo up to, not including, hi; a nil hi means up to
// the last. It is not positioned yet.
func (s *Store) Scan(lo, hi []byte) (*Iterator, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	kb := s.keys.Get().(*keyBuffer)
	defer s.keys.Put(kb)
	var opts pebble.IterOptions
	opts.LowerBound, opts.UpperBound = engineBounds(kb.key[:0], lo, hi)
	it, err := s.db.NewIter(&opts) // copies the bounds
	if err != nil {
		s.leave()
		return nil, s.metaError(err)
	}
	return &Iterator{s: s, it: it}, nil
}

// First moves to the first record; it returns Valid.
func (i *Iterator) First() bool { return i.it.First() }

// Last moves to the last record; it returns Valid.
func (i *Iterator) Last() bool { return i.it.Last() }

// Next moves to the next record; it returns Valid.
func (i *Iterator) Next() bool { return i.it.Next() }

// Prev moves to the record before; it returns Valid.
func (i *Iterator) Prev() bool { return i.it.Prev() }

// SeekGE moves to the first record whose key is not below key; it returns Valid.
func (i *Iterator) SeekGE(key []byte) bool {
	i.key = append(append(i.key[:0], prefixEngine), key...)
	return i.it.SeekGE(i.key)
}

// Valid says whether the iterator is at a record. If not, Err says whether that is the end.
func (i *Iterator) Valid() bool { return i.it.Valid() }

// Key gives the key; it holds until the iterator moves.
func (i *Iterator) Key() []byte { return i.it.Key()[1:] }

// Value reads the value; it holds until the iterator moves.
func (i *Iterator) Value() ([]byte, error) {
	value, err := i.it.ValueAndErr()
	if err != nil {
		i.failed = i.s.metaError(err)
		return nil, i.failed
	}
	return value, nil
}

// Err gives the error that ended the walk, if one did.
func (i *Iterator) Err() error {
	if i.failed == nil {
		i.failed = i.s.metaError(i.it.Error())
	}
	return i.failed
}

// Close ends the iterator, and returns Err. It must be called once.
func (i *Iterator) Close() error {
	err := i.Err()
	i.it.Close()
	i.s.leave()
	return err
}
