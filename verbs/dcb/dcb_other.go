//go:build !linux

package dcb

// Get returns ErrUnsupported.
func Get(string) (State, error) { return State{}, ErrUnsupported }
