package dputest

import (
	"testing"

	"github.com/millrace/millrace/appliance/guest"
	"github.com/millrace/millrace/appliance/guest/nbd"
)

// TestBackplane lets all drives fail at once for a moment, under load, as when the PCIe switch before them is reset.
// The server is then killed or stopped, and started again on drives that work: all that was acknowledged has to be
// there.
func TestBackplane(t *testing.T) {
	openCache(t)
	j := newJBOF(t, guest.ARM64)
	j.boot()
	s, endpoint := j.serveEmpty()
	l := newLoad(t)
	for _, signal := range []string{"-KILL", "-TERM"} {
		wait := l.begin(t.Context(), endpoint)
		l.more(40)
		l.cut.Store(true)
		for _, d := range j.drives {
			d.Set(nbd.Failing)
		}
		wait() // until calls fail
		if _, err := output(t.Context(), t, j.vm, "busybox", "killall", signal, "millrace"); err != nil {
			t.Fatal(err)
		}
		t.Logf("after %s: %v", signal, <-s.ended)
		for _, d := range j.drives {
			d.Set(nbd.Healthy)
		}
		s = serve(t, j.vm, j.args()...)
		s.await("all drives are in and filled", whole)
		objects, sizeBytes := l.verify(endpoint)
		t.Logf("%d objects of %d MiB are as they were acknowledged", objects, sizeBytes>>20)
	}
	s.stop()
	fsck(t, j.vm, j.args())
}

// whole says that all drives are in, and that there is nothing to do on them.
func whole(st status) bool {
	return st.Pool.Drives["in"] == jbofDrives && !st.Pool.Filling && !st.Pool.Repair.Running && st.Pool.Status == "ok"
}
