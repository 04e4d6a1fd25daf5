package iwarp_test

import (
	"net/netip"
	"testing"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/iwarp"
	"github.com/millrace/millrace/verbs/verbstest"
)

func suite(cfg iwarp.Config, addr string) verbstest.Suite {
	return verbstest.Suite{
		Listen: netip.AddrPortFrom(netip.MustParseAddr(addr), 0),
		Open: func(_ testing.TB, o verbstest.Options) verbs.Device {
			cfg.MaxMessageBytes, cfg.StallTimeout = o.MaxMessageBytes, o.StallTimeout
			return iwarp.Open(cfg)
		},
	}
}

func TestConformance(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  iwarp.Config
		addr string
	}{
		{"v4", iwarp.Config{}, "127.0.0.1"},
		{"v4 no CRC", iwarp.Config{NoCRC: true}, "127.0.0.1"},
		{"v6", iwarp.Config{}, "::1"},
		{"small", iwarp.Config{MaxPayloadBytes: 1444, OutboundReads: 1, InboundReads: 1, SendBufferBytes: 64 << 10}, "127.0.0.1"},
	} {
		if testing.Short() && tc.name != "v4" {
			continue
		}
		t.Run(tc.name, func(t *testing.T) { suite(tc.cfg, tc.addr).Run(t) })
	}
}
