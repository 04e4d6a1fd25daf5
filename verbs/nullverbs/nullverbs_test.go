package nullverbs_test

import (
	"context"
	"errors"
	"testing"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/nullverbs"
)

func TestMovesNothing(t *testing.T) {
	dev := nullverbs.Open()
	if info := dev.Info(); info.Moves || info.Provider != "null" {
		t.Errorf("Info() = %+v; want no moves, and the name", info)
	}
	r, err := dev.Register([]byte("unchanged"))
	if err != nil {
		t.Fatal(err)
	}
	w := verbs.Window{Endpoint: verbs.Endpoint{GID: [16]byte{1}, QPN: 7}, SizeBytes: 9}
	c, err := dev.Dial(context.Background(), w.Endpoint, nil)
	if err != nil {
		t.Fatal(err)
	}
	req := verbs.NewRequester(dev.Info(), 4)
	err = errors.Join(
		req.Read(context.Background(), c, w, 0, [][]byte{r.Bytes()}),
		req.Write(context.Background(), c, w, 0, [][]byte{r.Bytes()}, false))
	if err != nil || string(r.Bytes()) != "unchanged" {
		t.Errorf("Read and Write: %v, memory %q", err, r.Bytes())
	}
	want := verbs.Traffic{WriteOps: 1, WriteBytes: 9, ReadOps: 1, ReadBytes: 9}
	if got := dev.Counters(); got.Initiated != want || got.Provider != "null" {
		t.Errorf("Counters() = %+v; want %+v", got, want)
	}
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	if err := req.Read(context.Background(), c, w, 0, nil); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Read on a closed device = %v; want ErrClosed", err)
	}
}

func BenchmarkWrite(b *testing.B) {
	dev := nullverbs.Open()
	defer dev.Close()
	c, err := dev.Dial(context.Background(), verbs.Endpoint{QPN: 1}, nil)
	if err != nil {
		b.Fatal(err)
	}
	req, local := verbs.NewRequester(dev.Info(), 4), [][]byte{make([]byte, 1<<20)}
	b.ReportAllocs()
	for b.Loop() {
		if err := req.Write(context.Background(), c, verbs.Window{SizeBytes: 1 << 20}, 0, local, false); err != nil {
			b.Fatal(err)
		}
	}
}
