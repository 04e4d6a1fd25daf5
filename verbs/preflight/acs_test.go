package preflight

import (
	"encoding/binary"
	"errors"
	"testing"
)

func TestACSControl(t *testing.T) {
	circle := make([]byte, configBytes)
	binary.LittleEndian.PutUint32(circle[0x100:], 0x0001|1<<16|0x100<<20)
	low := make([]byte, configBytes)
	binary.LittleEndian.PutUint32(low[0x100:], 0x0001|1<<16|0x040<<20)
	none := make([]byte, configBytes)
	binary.LittleEndian.PutUint32(none[0x100:], 0x0001|1<<16)
	tests := []struct {
		name   string
		config []byte
		want   uint16
		err    error
	}{
		{"redirects", configSpace(0x1f, 0x1d), 0x1d, nil},
		{"off", configSpace(0x1f, 0), 0, nil},
		{"no such capability", none, 0, errNoACS},
		{"no capabilities", make([]byte, configBytes), 0, errNoACS},
		{"no function", []byte(string(make([]byte, 256)) + "\xff\xff\xff\xff"), 0, errNoACS},
		{"conventional PCI", make([]byte, 256), 0, errNoACS},
		{"reader without privilege", make([]byte, 64), 0, errConfig},
		{"nothing", nil, 0, errConfig},
		{"cut off in the capability", configSpace(0x1f, 0x1d)[:0x14e], 0, errConfig},
		{"cut off before the capability", configSpace(0x1f, 0x1d)[:0x148], 0, errConfig},
		{"in a circle", circle, 0, errConfig},
		{"back into the first 256 bytes", low, 0, errConfig},
	}
	for _, tt := range tests {
		if got, err := acsControl(tt.config); got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("acsControl(%s) = %#x, %v; want %#x, %v", tt.name, got, err, tt.want, tt.err)
		}
	}
}

func FuzzACSControl(f *testing.F) {
	f.Add(configSpace(0x1f, 0x1d))
	f.Add(make([]byte, 64))
	f.Fuzz(func(t *testing.T, config []byte) {
		if v, err := acsControl(config); err != nil && (v != 0 || (!errors.Is(err, errNoACS) && !errors.Is(err, errConfig))) {
			t.Errorf("acsControl = %#x, %v", v, err)
		}
	})
}
