package iwarp

// ring is a first-in, first-out queue that grows to its peak and then allocates no more.
type ring[T any] struct {
	items []T
	head  int
	count int
}

func (r *ring[T]) len() int { return r.count }

func (r *ring[T]) push(v T) {
	if r.count == len(r.items) {
		grown := make([]T, max(8, 2*len(r.items)))
		for i := range r.count {
			grown[i] = *r.at(i)
		}
		r.items, r.head = grown, 0
	}
	r.items[(r.head+r.count)%len(r.items)] = v
	r.count++
}

func (r *ring[T]) at(i int) *T { return &r.items[(r.head+i)%len(r.items)] }

// front is the oldest item; there must be one.
func (r *ring[T]) front() *T { return r.at(0) }

func (r *ring[T]) pop() T {
	var zero T
	v := r.items[r.head]
	r.items[r.head] = zero
	r.head = (r.head + 1) % len(r.items)
	r.count--
	return v
}
