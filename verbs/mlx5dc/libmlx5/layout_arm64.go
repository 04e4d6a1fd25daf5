//go:build linux

package libmlx5

// qpBytes is the size of struct ibv_qp: 64 bytes, a mutex and a condition of pthreads, a counter with padding.
const qpBytes = 64 + 48 + 48 + 8
