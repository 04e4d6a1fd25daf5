package ibverbs

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// offHeap returns memory for n values without pointers, which Go's runtime knows nothing of.
func offHeap[T any](n int) ([]T, error) {
	var v T
	mem, err := unix.Mmap(-1, 0, n*int(unsafe.Sizeof(v)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&mem[0])), n), nil
}

func freeOffHeap[T any](s []T) {
	if len(s) == 0 {
		return
	}
	_ = unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0]))))
}
