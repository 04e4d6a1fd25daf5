//go:build race

package libmlx5

// raced tells of the race detector, which has sync.Pool forget things at random, so that calls allocate.
const raced = true
