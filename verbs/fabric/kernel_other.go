//go:build !linux

package fabric

import "os"

// host has no RDMA.
type host struct{}

// Host returns the kernel of this machine, to be used with Read.
func Host() Kernel { return host{} }

// ReadHost reads the devices of this machine: none.
func ReadHost() (*Fabric, error) { return Read(os.DirFS("/sys"), Host()) }

func (host) Devices() ([]string, error)  { return nil, ErrUnsupported }
func (host) NetnsMode() (string, error)  { return "", ErrUnsupported }
func (host) CharDevices(string) []string { return nil }
