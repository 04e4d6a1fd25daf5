package server

import (
	"os"
	"runtime/debug"

	"github.com/millrace/millrace/appliance/config"
)

// gcPercent lets garbage grow to three times what is live before a collection. Object bytes are in
// the arena, so what is live is small, and fewer collections are worth more than the memory.
const gcPercent = 200

// setMemory sets the pace of garbage collection, unless GOGC or GOMEMLIMIT do. The limit is soft:
// near it collections get more frequent, and nothing fails. The arena is outside of it.
func setMemory(c *config.Config) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(c.MemoryLimit))
	}
}
