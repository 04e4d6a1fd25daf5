package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// memoryRoot is where the files behind the loop devices are made. They are removed as soon as
// their device is set up, so the memory comes back with the device, whatever happens.
const memoryRoot = "/dev/shm/millrace-bench-"

// backing makes drives of one kind for every server.
type backing struct {
	loop bool
	root string // loop: for the mounts; else for the folders
	o    options
	undo *cleanup
}

func (b *backing) String() string {
	if b.loop {
		return "loop devices with direct I/O over memory (tmpfs)"
	}
	return "folders in " + b.o.dir
}

func newBacking(o options, undo *cleanup) (*backing, error) {
	b := &backing{o: o, undo: undo, loop: o.dir == ""}
	if b.loop && os.Geteuid() != 0 {
		return nil, errors.New("loop devices need root; -dir FOLDER measures without")
	}
	root, err := os.MkdirTemp(o.dir, fmt.Sprintf("millrace-bench-%d-", os.Getpid()))
	if err != nil {
		return nil, err
	}
	b.root = root
	undo.add(func() error { return removeAll(root) })
	return b, nil
}

// removeAll is os.RemoveAll that never enters a mounted file system.
func removeAll(root string) error {
	for _, m := range mounts() {
		if strings.HasPrefix(m.point, root+"/") {
			return fmt.Errorf("%s is still mounted; not removed", m.point)
		}
	}
	return os.RemoveAll(root)
}

// rawDrives returns block devices, or folders that are not there yet.
func (b *backing) rawDrives(name string) ([]string, error) {
	var drives []string
	for i := range b.o.scheme.Shards() {
		if !b.loop {
			drives = append(drives, filepath.Join(b.root, name, strconv.Itoa(i)))
			continue
		}
		device, err := b.loopDevice(fmt.Sprintf("%s-%d", name, i))
		if err != nil {
			return nil, err
		}
		drives = append(drives, device)
	}
	return drives, nil
}

// mountedDrives returns folders: of XFS on block devices, or plain.
func (b *backing) mountedDrives(name string) ([]string, error) {
	drives, err := b.rawDrives(name)
	if err != nil {
		return nil, err
	}
	for i, device := range drives {
		point := filepath.Join(b.root, name, strconv.Itoa(i))
		if err := os.MkdirAll(point, 0o755); err != nil {
			return nil, err
		}
		if !b.loop {
			continue
		}
		if err := tool("mkfs.xfs", "-q", "-f", device); err != nil {
			return nil, err
		}
		if err := tool("mount", "-o", "noatime,discard", device, point); err != nil {
			return nil, err
		}
		drives[i] = point
	}
	return drives, nil
}

// loopDevice makes a block device over memory.
func (b *backing) loopDevice(name string) (string, error) {
	file := fmt.Sprintf("%s%d-%s", memoryRoot, os.Getpid(), name)
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer os.Remove(file)
	defer f.Close()
	if err := f.Truncate(int64(b.o.driveSize)); err != nil {
		return "", err
	}
	out, err := exec.Command("losetup", "--show", "--direct-io=on", "-f", file).Output()
	if err != nil {
		return "", fmt.Errorf("losetup: %w", err)
	}
	device := strings.TrimSpace(string(out))
	b.undo.add(func() error { return release(device) })
	return device, nil
}

// release unmounts whatever is mounted from the device or its partitions, and frees the device.
func release(device string) error {
	var last error
	for range 50 { // a file system that a server held is busy for a moment
		last = nil
		for _, m := range mounts() {
			if m.device == device || strings.HasPrefix(m.device, device+"p") || strings.HasSuffix(m.device, "/dev-"+filepath.Base(device)+"p1") {
				last = errors.Join(last, syscall.Unmount(m.point, 0))
			}
		}
		if last == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if last != nil {
		return fmt.Errorf("unmount %s: %w", device, last)
	}
	_ = exec.Command("partx", "-d", device).Run() // there may be none
	return tool("losetup", "-d", device)
}

type mount struct{ device, point string }

// mounts lists what is mounted, the last mounted first.
func mounts() []mount {
	content, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil
	}
	var out []mount
	for _, line := range strings.Split(string(content), "\n") {
		if fields := strings.Fields(line); len(fields) > 2 {
			out = append([]mount{{fields[0], fields[1]}}, out...)
		}
	}
	return out
}

// leftover matches the names that a run of this command gives to its files and folders.
var leftover = regexp.MustCompile(`/millrace-bench-([0-9]+)-`)

// ofDeadRun says whether a run made the file or folder that has ended since.
func ofDeadRun(name string) bool {
	m := leftover.FindStringSubmatch(name)
	if m == nil {
		return false
	}
	_, err := os.Stat("/proc/" + m[1])
	return os.IsNotExist(err)
}

// releaseLeftovers takes down the loop devices and folders of runs that were killed.
func releaseLeftovers(dir string) {
	var errs []error
	devices, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range devices {
		if content, err := os.ReadFile(file); err == nil && ofDeadRun(string(content)) {
			errs = append(errs, release("/dev/"+strings.Split(file, "/")[3]))
		}
	}
	roots, _ := filepath.Glob(filepath.Join(cmp.Or(dir, os.TempDir()), "millrace-bench-*"))
	for _, root := range roots {
		if ofDeadRun(root) {
			errs = append(errs, removeAll(root))
		}
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, "bench: what an earlier run left:", err)
	}
}

// tool runs a program of the system, and quotes what it says when it fails.
func tool(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// machine describes the processor, since the figures mean nothing without it.
func machine() string {
	content, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	model, cores := "unknown processor", 0
	for _, line := range strings.Split(string(content), "\n") {
		name, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(name) {
		case "processor":
			cores++
		case "model name":
			model = strings.TrimSpace(value)
		}
	}
	return fmt.Sprintf("%d × %s", cores, model)
}
