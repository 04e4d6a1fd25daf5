package server

import (
	"errors"
	"testing"
	"time"
)

// TestCloseAll closes one that fails and one that hangs among others.
func TestCloseAll(t *testing.T) {
	failure := errors.New("failure")
	release := make(chan struct{})
	defer close(release)
	closed := make([]bool, 4)
	done := func(i int, err error) func() error {
		return func() error {
			closed[i] = true
			return err
		}
	}
	hang := func() error {
		<-release
		return nil
	}
	got := closeAll([]func() error{done(0, nil), hang, done(2, failure), done(3, nil)}, 100*time.Millisecond)
	for i, want := range []error{nil, errStuck, failure, nil} {
		if !errors.Is(got[i], want) || closed[i] != (i != 1) {
			t.Errorf("closer %d: %v, closed is %v; want %v", i, got[i], closed[i], want)
		}
	}
}
