package preflight

import (
	"encoding/binary"
	"errors"
)

// The configuration space of a PCI Express function (PCI Express Base Specification, 7.9): 4096 bytes, the extended
// capabilities from 256 on, each with its number, a version, and where the next one is.
const (
	configBytes   = 4096
	extendedStart = 256
	capACS        = 0x000d
	// acsRedirect are the bits of the control register that send traffic between devices upwards: P2P request redirect, P2P
	// completion redirect, upstream forwarding.
	acsRedirect = 1<<2 | 1<<3 | 1<<4
)

var (
	errNoACS = errors.New("no ACS capability")
	// errConfig: fewer bytes than a header (readers without privilege get 64), or a list that runs in circles.
	errConfig = errors.New("configuration space can't be read")
)

// acsControl returns the control register of Access Control Services.
func acsControl(config []byte) (uint16, error) {
	if len(config) == extendedStart {
		return 0, errNoACS // a function of conventional PCI
	}
	config = config[:min(len(config), configBytes)]
	at := extendedStart
	for range (configBytes - extendedStart) / 4 {
		if at+4 > len(config) {
			return 0, errConfig
		}
		header := binary.LittleEndian.Uint32(config[at:])
		if header == 0 || header == 0xffffffff {
			return 0, errNoACS
		}
		if header&0xffff == capACS {
			if at+8 > len(config) {
				return 0, errConfig
			}
			return binary.LittleEndian.Uint16(config[at+6:]), nil
		}
		at = int(header >> 20 &^ 3)
		if at == 0 {
			return 0, errNoACS
		}
		if at < extendedStart {
			return 0, errConfig
		}
	}
	return 0, errConfig
}
