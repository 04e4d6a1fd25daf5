package dputest

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/millrace/millrace/appliance/guest"
)

var cuts = flag.Int("cuts", 2, "how often TestPowerCut cuts the power")

// TestPowerCut cuts the power under load again and again, now and then while the server starts. A random half of what
// was not flushed is lost each time. All that was acknowledged has to be there.
func TestPowerCut(t *testing.T) {
	openCache(t)
	j := newJBOF(t, guest.ARM64)
	l := newLoad(t)
	j.boot()
	s, _ := j.serveEmpty()
	for cut := range *cuts {
		wait := l.begin(t.Context(), j.vm.Forwarded(s3Port))
		l.more(20 + rand.Int64N(60))
		l.cut.Store(true)
		j.cutPower()
		wait()
		j.boot()
		if cut%2 == 1 { // this start is broken off
			go func(vm *guest.VM, args []string) {
				_, _ = output(t.Context(), t, vm, append([]string{millrace, "serve", "--state-dir", stateDir}, args...)...)
			}(j.vm, j.args())
			time.Sleep(rand.N(2 * time.Second))
			j.cutPower()
			j.boot()
		}
		s = serve(t, j.vm, j.args()...)
		objects, sizeBytes := l.verify(j.vm.Forwarded(s3Port))
		t.Logf("cut %d: %d objects of %d MiB are as they were acknowledged", cut+1, objects, sizeBytes>>20)
		if t.Failed() {
			return
		}
		s.await("all drives are in and filled", whole)
	}
	s.stop()
	fsck(t, j.vm, j.args())
}
