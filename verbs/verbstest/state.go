package verbstest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace/verbs"
)

func testQueues(t *testing.T, s Suite) {
	p := newPair(t, s)
	q := verbs.NewQueue(2)
	recv := verbs.WorkRequest{Op: verbs.OpRecv, Local: [][]byte{p.local.Bytes()[:1]}}
	post(t, p.conn, recv, q)
	post(t, p.conn, recv, q)
	wantErr(t, "third in a queue of two", p.conn.Post(&recv, q), verbs.ErrQueueFull)
	big := verbs.NewQueue(p.active.Info().RecvDepth + 1)
	for range p.active.Info().RecvDepth - 2 {
		post(t, p.conn, recv, big)
	}
	wantErr(t, "more RECVs than the connection holds", p.conn.Post(&recv, big), verbs.ErrQueueFull)
	if _, ok := q.Poll(); ok {
		t.Error("a RECV has completed; nothing was sent")
	}
	if err := p.conn.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		wantErr(t, "RECV of a closed connection", take(t, q).Err, verbs.ErrClosed)
	}
}

// testCancel: a transfer ends with its context, and its memory is free at once.
func testCancel(t *testing.T, s Suite) {
	p := newPair(t, s)
	_, w := p.bind(t, 0, memoryBytes, both)
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(3*time.Millisecond, cancel)
	var err error
	for err == nil {
		err = p.req.Write(ctx, p.conn, w, 0, [][]byte{p.local.Bytes()}, false)
	}
	wantErr(t, "Write", err, context.Canceled)
	if err := p.local.Deregister(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "connection", p.conn.Err(), verbs.ErrClosed)
}

func testCounters(t *testing.T, s Suite) {
	p := newPair(t, s)
	_, w := p.bind(t, 0, memoryBytes, both)
	for n := range 5 {
		list := [][]byte{p.local.Bytes()[:n*1000]}
		err := p.req.Write(context.Background(), p.conn, w, 0, list, n%2 == 0)
		if err := errors.Join(err, p.req.Read(context.Background(), p.conn, w, 0, list[:n/3])); err != nil {
			t.Fatal(err)
		}
	}
	want := verbs.Traffic{WriteOps: 5, WriteBytes: 10_000, ReadOps: 5, ReadBytes: 7_000}
	got := p.active.Counters()
	if got.Initiated != want || got.Served != (verbs.Traffic{}) || got.Provider != p.active.Info().Provider {
		t.Errorf("Counters() = %+v; want Initiated %+v", got, want)
	}
	// READs of no bytes are what a provider may use among itself: they are not counted where they are served.
	want.ReadOps = 2
	if there := p.passive.Counters().Served; there != (verbs.Traffic{}) && there != want {
		t.Errorf("Served = %+v; want nothing, or %+v", there, want)
	}
	if got.Live != 1 || got.Connections != 1 || got.Failed != 0 {
		t.Errorf("Counters() = %+v; want one connection and nothing failed", got)
	}
	_ = p.conn.Close()
	if got := p.active.Counters().Live; got != 0 {
		t.Errorf("Live = %d after Close; want 0", got)
	}
}

// testSession has the passive side make the connection, and the active side find it in its cache.
func testSession(t *testing.T, s Suite) {
	o := Options{MaxMessageBytes: maxMessage, StallTimeout: 10 * time.Second}
	server, client := s.Open(t, o), s.Open(t, o)
	cache := verbs.NewCache(verbs.CacheConfig{Dial: func(ctx context.Context, e verbs.Endpoint) (verbs.Conn, error) {
		return nil, errors.New("dialled")
	}})
	t.Cleanup(func() { _ = cache.Close(); _ = server.Close(); _ = client.Close() })
	joined := make(chan error, 1)
	ep := listen(t, server, s.Listen, func(c verbs.Conn) {
		id, ok := verbs.SessionOf(c.Peer().Private)
		if !ok {
			joined <- fmt.Errorf("private data %x names no session", c.Peer().Private)
			return
		}
		joined <- cache.Add(id, c)
	})
	id := verbs.Session{1, 2, 3, 15: 9}
	_, err := cache.Get(context.Background(), id.Endpoint())
	wantErr(t, "Get before the client has joined", err, verbs.ErrUnreachable)
	dial(t, client, ep, id.Private())
	if err := <-joined; err != nil {
		t.Fatal(err)
	}
	remote, local := register(t, client, 1<<20), register(t, server, 1<<20)
	fill(local.Bytes(), newSeed(t))
	b, err := remote.Bind(0, 1<<20, verbs.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := b.Window(id.Endpoint()).Token()
	if err != nil {
		t.Fatal(err)
	}
	w := verbs.WindowOf(tok)
	lease, err := cache.Get(context.Background(), w.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	req := verbs.NewRequester(server.Info(), 2)
	if err := req.Write(context.Background(), lease, w, 0, [][]byte{local.Bytes()}, false); err != nil {
		t.Fatal(err)
	}
	closed(t, b)
	if string(remote.Bytes()) != string(local.Bytes()) {
		t.Error("wrong bytes")
	}
	cache.Put(lease)
}
