package dputest

import (
	"testing"

	"github.com/millrace/millrace/appliance/guest"
)

// TestReplug pulls a drive under load and puts it back, while the server runs and has it mounted. The server is
// stopped and started, and has to take the drive back.
func TestReplug(t *testing.T) {
	t.Parallel() // with TestHangingDrive, which waits most of the time
	openCache(t)
	j := newJBOF(t, guest.ARM64)
	j.boot()
	s := serve(t, j.vm, j.args()...)
	endpoint := j.vm.Forwarded(s3Port)
	if err := connect(t, endpoint).CreateBucket(t.Context(), bucket); err != nil {
		t.Fatal(err)
	}
	l := newLoad(t)
	wait := l.begin(t.Context(), endpoint)
	l.more(30)
	if err := j.vm.PullDrive(t.Context(), pulledDrive); err != nil {
		t.Fatal(err)
	}
	s.await("the pulled drive is out", func(st status) bool { return st.Pool.Drives["in"] == jbofDrives-1 })
	l.more(30)
	if err := j.vm.PlugDrive(t.Context(), pulledDrive, j.config.Drives[pulledDrive]); err != nil {
		t.Fatal(err)
	}
	l.more(30)
	l.cut.Store(true)
	s.stop()
	wait()
	j.awaitDrives(jbofDrives)
	t.Log(j.args())
	s = serve(t, j.vm, j.args()...)
	s.await("all drives are in and filled", whole)
	objects, sizeBytes := l.verify(endpoint)
	t.Logf("%d objects of %d MiB are as they were acknowledged", objects, sizeBytes>>20)
	s.stop()
	fsck(t, j.vm, j.args())
}
