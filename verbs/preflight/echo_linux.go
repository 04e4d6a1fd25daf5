package preflight

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// echoWait is how long an answer is waited for, of two tries.
const echoWait = 500 * time.Millisecond

// Echo sends an ICMP echo request as an IP packet of that size which must not be fragmented, and waits for the answer. The
// error is ErrNoProbe if the process may not: it needs to be in net.ipv4.ping_group_range, or to have CAP_NET_RAW.
func Echo(ctx context.Context, addr netip.Addr, packetBytes int) error {
	addr = addr.Unmap()
	e, err := openEcho(addr)
	if err != nil {
		return err
	}
	defer unix.Close(e.fd)
	for try := range uint16(2) {
		if err = ctx.Err(); err != nil {
			return err
		}
		if err = e.exchange(try, packetBytes-e.headerBytes); err == nil {
			return nil
		}
	}
	return err
}

// echo is a socket for echo requests to one address.
type echo struct {
	fd            int
	raw           bool // the kernel neither fills in checksums nor strips headers
	request, want byte // the types of messages
	headerBytes   int  // of IP
}

func openEcho(addr netip.Addr) (*echo, error) {
	e := &echo{request: 8, want: 0, headerBytes: 20}
	family, protocol := unix.AF_INET, unix.IPPROTO_ICMP
	level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE
	if addr.Is6() {
		e.request, e.want, e.headerBytes = 128, 129, 40
		family, protocol = unix.AF_INET6, unix.IPPROTO_ICMPV6
		level, option, value = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE
	}
	var err error
	if e.fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, protocol); err != nil {
		e.raw = true
		e.fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoProbe, err)
	}
	wait := unix.NsecToTimeval(echoWait.Nanoseconds())
	err = errors.Join(unix.SetsockoptInt(e.fd, level, option, value),
		unix.SetsockoptTimeval(e.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait), unix.Connect(e.fd, socketAddress(addr)))
	if err != nil {
		_ = unix.Close(e.fd)
		return nil, err
	}
	return e, nil
}

// exchange sends one message and waits for its answer. A raw socket gets all messages of the peer, so others are passed over.
func (e *echo) exchange(sequence uint16, messageBytes int) error {
	m := make([]byte, max(messageBytes, 8))
	m[0] = e.request
	binary.BigEndian.PutUint16(m[4:], uint16(os.Getpid()))
	binary.BigEndian.PutUint16(m[6:], sequence)
	if e.raw && e.request == 8 {
		binary.BigEndian.PutUint16(m[2:], onesComplement(m))
	}
	if _, err := unix.Write(e.fd, m); err != nil {
		return err
	}
	answer := make([]byte, len(m)+e.headerBytes+1)
	for deadline := time.Now().Add(echoWait); time.Now().Before(deadline); {
		n, err := unix.Read(e.fd, answer)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			return err
		}
		got := answer[:n]
		if e.raw && e.request == 8 {
			got = got[min(n, e.headerBytes):]
		}
		if len(got) == len(m) && got[0] == e.want && bytes.Equal(got[6:], m[6:]) && (!e.raw || bytes.Equal(got[4:6], m[4:6])) {
			return nil
		}
	}
	return fmt.Errorf("no answer within %v", echoWait)
}

// onesComplement is the checksum of the Internet protocols (RFC 1071) of an even number of bytes, or an odd one.
func onesComplement(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func socketAddress(addr netip.Addr) unix.Sockaddr {
	if addr.Is4() {
		return &unix.SockaddrInet4{Addr: addr.As4()}
	}
	a := &unix.SockaddrInet6{Addr: addr.As16()}
	if ifi, err := net.InterfaceByName(addr.Zone()); err == nil {
		a.ZoneId = uint32(ifi.Index)
	}
	return a
}
