// Package token reads and writes the two tokens by which a client names a window of its memory: the
// descriptor of 81 characters that travels in x-amz-rdma-token (and x-rdma-info), and the 88 hexadecimal
// digits of hipobj-rc-v2.
//
// It is not a check of rights: a token says where a window is and what key opens it, and whoever holds one
// can name any address. What may be reached is decided by its users.
//
// Invariant: both formats are exact. Parse accepts only what Format writes, so a token that was read and
// written again is the same bytes.
package token

import (
	"encoding/hex"
	"errors"
	"fmt"
)

// Size is the length of a descriptor in characters.
const Size = 81

// MaxDCTN is the largest number of a DC target or queue pair: 24 bits.
const MaxDCTN = 1<<24 - 1

// ErrMalformed marks a token that is not in its format.
var ErrMalformed = errors.New("malformed RDMA token")

// oldSize is the length of the descriptor with the start and the size of a range behind it, as clients of
// before August 2026 sent it.
const oldSize = Size + 1 + 16 + 1 + 16

// Token is a descriptor:
//
//	addr(16) : size(8) : rkey(8) : lid(4) : dctn(6) : gid present(1) : gid(32)
//
// each a number in lower-case hexadecimal digits, of the width given, with a colon between two.
type Token struct {
	Addr       uint64   // address of the window, as the client's device knows it
	SizeBytes  uint32   // size of the window from Addr; a window is smaller than 4 GiB
	RKey       uint32   // remote key, or steering tag
	LID        uint16   // local identifier of the client's port; 0 on RoCE
	DCTN       uint32   // number of the client's DC target, 24 bits
	GIDPresent bool     // whether GID is the address of a port
	GID        [16]byte // IPv6, or IPv4-mapped, address of the client's port, as its bytes are
}

// Parse reads a descriptor. Its errors wrap ErrMalformed and say what is wrong.
func Parse(s string) (Token, error) {
	var t Token
	if len(s) != Size {
		return t, fmt.Errorf("%w: %s", ErrMalformed, lengthProblem(s))
	}
	p := parser{s: s}
	t.Addr = p.number(16, ':')
	t.SizeBytes = uint32(p.number(8, ':'))
	t.RKey = uint32(p.number(8, ':'))
	t.LID = uint16(p.number(4, ':'))
	t.DCTN = uint32(p.number(6, ':'))
	switch p.number(1, ':') {
	case 0:
	case 1:
		t.GIDPresent = true
	default:
		p.fail("the mark of the GID is neither 0 nor 1")
	}
	putUint64(t.GID[:8], p.number(16, 0))
	putUint64(t.GID[8:], p.number(16, 0))
	if p.problem != "" {
		return Token{}, fmt.Errorf("%w: %s", ErrMalformed, p.problem)
	}
	return t, nil
}

func lengthProblem(s string) string {
	switch {
	case len(s) == Size+1 && s[Size] == ';':
		return "82 characters, the last a semicolon; this server takes exactly 81 without it"
	case (len(s) == oldSize || len(s) == oldSize+1 && s[oldSize] == ';') && s[Size] == ':':
		return fmt.Sprintf("%d characters: the old form with the address and size of a range behind the "+
			"descriptor; this server takes exactly 81, so update the client's RDMA library", len(s))
	default:
		return fmt.Sprintf("%d characters; a token has exactly 81", len(s))
	}
}

type parser struct {
	s       string
	at      int
	problem string // of the first thing that was wrong
}

func (p *parser) fail(problem string) {
	if p.problem == "" {
		p.problem = problem
	}
}

// number reads digits hexadecimal digits, and the character behind them unless it is 0.
func (p *parser) number(digits int, end byte) uint64 {
	var v uint64
	for range digits {
		d, ok := digit(p.s[p.at])
		if !ok {
			p.fail(fmt.Sprintf("character %d is not a lower-case hexadecimal digit", p.at+1))
		}
		v = v<<4 | uint64(d)
		p.at++
	}
	if end != 0 {
		if p.s[p.at] != end {
			p.fail(fmt.Sprintf("character %d is not a colon", p.at+1))
		}
		p.at++
	}
	return v
}

func digit(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	}
	return 0, false
}

// String writes the descriptor. A DCTN above MaxDCTN is cut to its 24 bits.
func (t Token) String() string {
	var buf [Size]byte
	return string(t.Append(buf[:0]))
}

// Append adds the descriptor to b and returns the longer slice.
func (t Token) Append(b []byte) []byte {
	b = append(number(b, t.Addr, 16), ':')
	b = append(number(b, uint64(t.SizeBytes), 8), ':')
	b = append(number(b, uint64(t.RKey), 8), ':')
	b = append(number(b, uint64(t.LID), 4), ':')
	b = append(number(b, uint64(t.DCTN), 6), ':')
	present := byte('0')
	if t.GIDPresent {
		present = '1'
	}
	b = append(b, present, ':')
	return hex.AppendEncode(b, t.GID[:])
}

func number(b []byte, v uint64, digits int) []byte {
	const alphabet = "0123456789abcdef"
	for shift := 4 * (digits - 1); shift >= 0; shift -= 4 {
		b = append(b, alphabet[v>>shift&15])
	}
	return b
}

func putUint64(b []byte, v uint64) {
	for i := range 8 {
		b[i] = byte(v >> (56 - 8*i))
	}
}
