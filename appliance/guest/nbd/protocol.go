package nbd

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"syscall"
)

const (
	magicServer   = 0x4e42444d41474943 // "NBDMAGIC"
	magicOption   = 0x49484156454f5054 // "IHAVEOPT"
	magicOptReply = 0x0003e889045565a9
	magicRequest  = 0x25609513
	magicReply    = 0x67446698

	handshakeFixed    = 1 << 0
	handshakeNoZeroes = 1 << 1

	optionExportName = 1
	optionAbort      = 2
	optionInfo       = 6
	optionGo         = 7

	replyAck         = 1
	replyInfo        = 3
	replyUnsupported = 1<<31 + 1
	infoExport       = 0

	exportHasFlags  = 1 << 0
	exportSendFlush = 1 << 2
	exportSendFUA   = 1 << 3

	commandRead       = 0
	commandWrite      = 1
	commandDisconnect = 2
	commandFlush      = 3
	flagFUA           = 1 << 0
)

// Limits on what a client may send.
const (
	maxOptions      = 64
	maxOptionBytes  = 8 << 10
	maxRequestBytes = 32 << 20
)

var errProtocol = errors.New("nbd: the client doesn't speak the protocol")

// serve answers one client until it goes. What goes wrong ends the connection.
func (d *Drive) serve(conn io.ReadWriter) error {
	r, w := bufio.NewReaderSize(conn, 64<<10), conn
	again, err := d.negotiate(r, w)
	for err == nil && again {
		again, err = d.request(r, w)
	}
	return err
}

// export is the size and the flags of the drive, as two replies hold them.
func (d *Drive) export() []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(d.sizeBytes))
	return binary.BigEndian.AppendUint16(b, exportHasFlags|exportSendFlush|exportSendFUA)
}

// negotiate gets through the handshake. It says whether requests follow.
func (d *Drive) negotiate(r io.Reader, w io.Writer) (bool, error) {
	hello := binary.BigEndian.AppendUint64(nil, magicServer)
	hello = binary.BigEndian.AppendUint64(hello, magicOption)
	hello = binary.BigEndian.AppendUint16(hello, handshakeFixed|handshakeNoZeroes)
	if _, err := w.Write(hello); err != nil {
		return false, err
	}
	var flags uint32
	if err := binary.Read(r, binary.BigEndian, &flags); err != nil {
		return false, err
	}
	for range maxOptions {
		var head struct {
			Magic          uint64
			Option, Length uint32
		}
		if err := binary.Read(r, binary.BigEndian, &head); err != nil {
			return false, err
		}
		if head.Magic != magicOption || head.Length > maxOptionBytes {
			return false, errProtocol
		}
		if _, err := io.CopyN(io.Discard, r, int64(head.Length)); err != nil { // the name of the export: there is one
			return false, err
		}
		switch head.Option {
		case optionExportName:
			b := d.export()
			if flags&handshakeNoZeroes == 0 {
				b = append(b, make([]byte, 124)...)
			}
			_, err := w.Write(b)
			return true, err
		case optionAbort:
			return false, optionReply(w, head.Option, replyAck, nil)
		case optionInfo, optionGo:
			info := append(binary.BigEndian.AppendUint16(nil, infoExport), d.export()...)
			err := errors.Join(optionReply(w, head.Option, replyInfo, info), optionReply(w, head.Option, replyAck, nil))
			if err != nil || head.Option == optionGo {
				return true, err
			}
		default:
			if err := optionReply(w, head.Option, replyUnsupported, nil); err != nil {
				return false, err
			}
		}
	}
	return false, errProtocol
}

func optionReply(w io.Writer, option, kind uint32, data []byte) error {
	b := binary.BigEndian.AppendUint64(nil, magicOptReply)
	for _, v := range []uint32{option, kind, uint32(len(data))} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	_, err := w.Write(append(b, data...))
	return err
}

// request answers one request. It says whether another may follow.
func (d *Drive) request(r io.Reader, w io.Writer) (bool, error) {
	var head struct {
		Magic         uint32
		Flags, Type   uint16
		Handle, Where uint64
		Length        uint32
	}
	if err := binary.Read(r, binary.BigEndian, &head); err != nil {
		return false, err
	}
	if head.Magic != magicRequest || head.Length > maxRequestBytes {
		return false, errProtocol
	}
	if head.Type == commandDisconnect {
		return false, nil
	}
	var data []byte
	if head.Type == commandWrite || head.Type == commandRead {
		data = make([]byte, head.Length)
	}
	if head.Type == commandWrite {
		if _, err := io.ReadFull(r, data); err != nil {
			return false, err
		}
	}
	mode, answer := d.behave()
	if !answer {
		return false, nil
	}
	code := syscall.Errno(0)
	switch {
	case mode == Failing:
		code = syscall.EIO
	case head.Type > commandFlush, head.Type != commandFlush && !d.inside(head.Where, head.Length):
		code = syscall.EINVAL
	default:
		if d.do(head.Type, head.Flags, data, int64(head.Where)) != nil {
			code = syscall.EIO
		}
	}
	reply := binary.BigEndian.AppendUint32(nil, magicReply)
	reply = binary.BigEndian.AppendUint32(reply, uint32(code))
	reply = binary.BigEndian.AppendUint64(reply, head.Handle)
	if head.Type == commandRead && code == 0 {
		reply = append(reply, data...)
	}
	_, err := w.Write(reply)
	return true, err
}

func (d *Drive) do(command, flags uint16, data []byte, offset int64) error {
	switch command {
	case commandRead:
		return d.read(data, offset)
	case commandWrite:
		return d.write(data, offset, flags&flagFUA != 0)
	}
	d.flush()
	return nil
}
