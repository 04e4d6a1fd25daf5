//go:build !race

package libmlx5

const raced = false
