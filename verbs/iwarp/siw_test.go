package iwarp

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/verbs"
)

// TestSIWTransfers has READs, WRITEs and messages go from our side to siw and from siw to ours, in all ways in which the two
// can agree on a connection, and in segments of an Ethernet and of the loopback interface.
func TestSIWTransfers(t *testing.T) {
	const rounds = 8
	for _, tc := range []struct {
		name   string
		cfg    Config
		params map[string]string
	}{
		{"CRC", Config{}, nil},
		{"no CRC", Config{NoCRC: true}, nil},
		{"CRC for siw", Config{NoCRC: true}, map[string]string{"mpa_crc_required": "1"}},
		{"revision 1", Config{}, map[string]string{"mpa_version": "1"}},
		{"peer to peer", Config{}, map[string]string{"peer_to_peer": "1"}},
		{"peer to peer, READ", Config{}, map[string]string{"peer_to_peer": "1", "rtr_type": rtrRead}},
		{"large segments", Config{NoCRC: true}, map[string]string{"try_gso": "1"}},
		{"small messages", Config{MaxMessageBytes: 3000, MaxPayloadBytes: 1000}, nil},
		{"small messages, revision 1", Config{MaxMessageBytes: 3000}, map[string]string{"mpa_version": "1"}},
	} {
		for _, mtu := range []int{1500, 65536} {
			for _, size := range []int{64, 65535} {
				name := fmt.Sprintf("%s/%d/%d", tc.name, mtu, size)
				t.Run("siw writes/"+name, func(t *testing.T) {
					s := newSIW(t, tc.params, mtu)
					p := newPinger(t, tc.cfg, size)
					s.rping("-s", "-v", "-S", fmt.Sprint(size))
					err := p.dial(s.addr)
					for i := 0; i < rounds && err == nil; i++ {
						access := verbs.RemoteWrite
						if i%2 == 1 {
							access |= verbs.Scratch
						}
						err = p.ping(i, access)
					}
					if p.conn != nil {
						_ = p.conn.Close()
					}
					if err := errors.Join(err, s.end(rounds)); err != nil {
						t.Error(err)
					}
				})
				t.Run("siw is written/"+name, func(t *testing.T) {
					s := newSIW(t, tc.params, mtu)
					p := newPinger(t, tc.cfg, size)
					err := p.listen(s.addr, func() { s.rping("-c", "-v", "-V", "-S", fmt.Sprint(size), "-C", fmt.Sprint(rounds)) })
					for i := 0; i < rounds && err == nil; i++ {
						err = p.pong()
					}
					if err := errors.Join(err, s.end(rounds)); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

// TestSIWBothWays has siw and our side READ and WRITE at the same time, in messages that are long and many.
func TestSIWBothWays(t *testing.T) {
	for _, tc := range []struct {
		name   string
		cfg    Config
		params map[string]string
		mtu    int
		size   int
		most   int64 // of a READ or WRITE of ours
		pieces int   // of siw
	}{
		{"one", Config{}, nil, 1500, 2 << 20, 2 << 20, 1},
		{"many", Config{}, nil, 1500, 2 << 20, 100_000, 32},
		{"one, no CRC", Config{NoCRC: true}, nil, 1500, 2 << 20, 2 << 20, 1},
		{"many, no CRC", Config{NoCRC: true}, nil, 1500, 2 << 20, 100_000, 32},
		{"large segments", Config{NoCRC: true}, map[string]string{"try_gso": "1"}, 65536, 8 << 20, 4 << 20, 4},
	} {
		for _, way := range []string{"listen", "dial"} {
			t.Run(way+"/"+tc.name, func(t *testing.T) {
				s := newSIW(t, tc.params, tc.mtu)
				p := newPinger(t, tc.cfg, tc.size)
				p.long = true
				info := p.dev.Info()
				info.MaxMessageBytes = tc.most
				p.req = verbs.NewRequester(info, 8)
				start := func() {
					s.start(siwPeer, way, s.addr.Addr().String(), fmt.Sprint(s.addr.Port()), fmt.Sprint(tc.size), fmt.Sprint(tc.pieces))
				}
				var err error
				if way == "listen" {
					start()
					err = p.dial(s.addr)
				} else {
					err = p.listen(s.addr, start)
				}
				if err == nil {
					err = p.bothWays(way == "listen")
				}
				if err := errors.Join(err, s.end(0)); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestSIWRefuses has siw end connections for what our side does, and looks at what our side makes of it.
func TestSIWRefuses(t *testing.T) {
	const size = 4096
	for _, tc := range []struct {
		name string
		do   func(p *pinger, w verbs.Window) error
		want error
	}{
		{"READ of an unknown key", func(p *pinger, w verbs.Window) error {
			w.RKey ^= 1 << 16
			b, _ := p.buffer(0)
			return p.req.Read(p.ctx, p.conn, w, 0, [][]byte{b})
		}, verbs.ErrAccess},
		{"READ behind", func(p *pinger, w verbs.Window) error {
			w.Addr++
			b, _ := p.buffer(0)
			return p.req.Read(p.ctx, p.conn, w, 0, [][]byte{b})
		}, verbs.ErrAccess},
		{"WRITE with an unknown key", func(p *pinger, w verbs.Window) error {
			w.RKey ^= 1 << 16
			b, _ := p.buffer(0)
			return p.req.Write(p.ctx, p.conn, w, 0, [][]byte{b}, false)
		}, verbs.ErrAccess},
		{"WRITE before", func(p *pinger, w verbs.Window) error {
			w.Addr--
			b, _ := p.buffer(0)
			return p.req.Write(p.ctx, p.conn, w, 0, [][]byte{b}, false)
		}, verbs.ErrAccess},
		{"message too long", func(p *pinger, _ verbs.Window) error {
			b, _ := p.buffer(0)
			if err := p.conn.Post(&verbs.WorkRequest{Op: verbs.OpSend, Local: [][]byte{b[:infoBytes+1]}}, p.send); err != nil {
				return err
			}
			return wait(p.ctx, p.send)
		}, verbs.ErrPeer},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSIW(t, nil, 1500)
			p := newPinger(t, Config{}, size)
			err := p.listen(s.addr, func() { s.rping("-c", "-S", fmt.Sprint(size)) })
			var w verbs.Window
			if err == nil {
				w, err = p.message()
			}
			if err != nil {
				t.Fatal(err)
			}
			err = tc.do(p, w)
			var remote *remoteError
			if !errors.Is(err, tc.want) || !errors.As(err, &remote) || remote.sent {
				t.Errorf("%v; want a refusal of the peer's that is %v", err, tc.want)
			}
			t.Log(err, s.end(0))
		})
	}
}

// TestSIWIsRefused has siw do what it may not, and looks for what it makes of our Terminate message.
func TestSIWIsRefused(t *testing.T) {
	const size = 4096
	for _, tc := range []struct {
		name   string
		change func(source, sink *verbs.Window)
		want   string // of the kernel's log, where siw shows layer and type the wrong way round
	}{
		{"READ of an unknown key", func(source, _ *verbs.Window) { source.RKey++ }, "layer 1, type 0, code 0"},
		{"READ behind", func(source, _ *verbs.Window) { source.Addr += size }, "layer 1, type 0, code 1"},
		{"WRITE with an unknown key", func(_, sink *verbs.Window) { sink.RKey++ }, "layer 1, type 1, code 0"},
		{"WRITE behind", func(_, sink *verbs.Window) { sink.Addr += size }, "layer 1, type 1, code 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSIW(t, nil, 1500)
			p := newPinger(t, Config{}, size)
			s.rping("-s", "-S", fmt.Sprint(size))
			if err := p.dial(s.addr); err != nil {
				t.Fatal(err)
			}
			from, to, err := p.bind(verbs.RemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			source, sink := from.Window(verbs.Endpoint{}), to.Window(verbs.Endpoint{})
			tc.change(&source, &sink)
			err = p.offer(source, sink)
			<-p.conn.Done()
			if !strings.Contains(fmt.Sprint(p.conn.Err()), "refused the peer's message") || p.dev.Counters().Refused != 1 {
				t.Errorf("the connection ended with %v; %v", p.conn.Err(), err)
			}
			if said := fmt.Sprint(s.end(0)); !strings.Contains(said, "got TERMINATE. "+tc.want) {
				t.Errorf("%s; want %s", said, tc.want)
			}
		})
	}
}

// TestSIWRejects: markers, and CRCs where siw is told to do without.
func TestSIWRejects(t *testing.T) {
	t.Run("markers", func(t *testing.T) {
		s := newSIW(t, nil, 1500)
		s.rping("-s")
		p := newPinger(t, Config{}, 64)
		if err := p.dial(s.addr); err != nil { // it listens
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", s.addr.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(siwTimeout))
		_, _ = c.Write(startFrame{revision: 2, enhanced: true, markers: true, ird: 1, ord: 1}.append(nil))
		if got, err := readStart(c, true); err != nil || !got.reject || got.markers {
			t.Errorf("reply %+v, %v; want a rejection", got, err)
		}
		_ = p.conn.Close()
		t.Log(s.end(0))
	})
	t.Run("CRC", func(t *testing.T) {
		s := newSIW(t, map[string]string{"mpa_crc_strict": "1"}, 1500)
		s.rping("-s")
		free, crc := newPinger(t, Config{NoCRC: true}, 64), newPinger(t, Config{}, 64)
		if err := free.dial(s.addr); err != nil {
			t.Fatal(err)
		}
		_, err := crc.dev.Dial(crc.ctx, verbs.EndpointAt(s.addr), nil)
		if !errors.Is(err, verbs.ErrUnreachable) || !strings.Contains(err.Error(), "rejects") {
			t.Errorf("Dial with CRC = %v; want a rejection", err)
		}
		_ = free.conn.Close()
		t.Log(s.end(0))
	})
}
