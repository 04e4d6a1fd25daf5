package iwarp

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// withinHost takes pacing out of a connection that does not leave this host: nothing is lost or queued there, and congestion
// control that paces (BBR) costs it a timer interrupt for every 64 KiB. reno is in every kernel and everybody may choose it.
func withinHost(tcp *net.TCPConn, raw syscall.RawConn) {
	local, ok1 := tcp.LocalAddr().(*net.TCPAddr)
	remote, ok2 := tcp.RemoteAddr().(*net.TCPAddr)
	if !ok1 || !ok2 || !remote.IP.IsLoopback() && !remote.IP.Equal(local.IP) {
		return
	}
	_ = raw.Control(func(fd uintptr) { // without it all is as slow as it was
		_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
	})
}
