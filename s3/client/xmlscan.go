package client

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"
)

// errXML is returned for a document that is not well-formed, or uses what S3's answers never have.
var errXML = errors.New("malformed XML")

// maxXMLDepth limits the nesting of elements.
const maxXMLDepth = 16

// scanXML walks through a document and calls leave at the end of each element, with the path of
// local names from the root down and the element's own text (white space kept, entities decoded); both
// are valid during the call only. It is several times as fast as encoding/xml, which matters for listings.
// Attributes, comments and processing instructions are skipped; a DOCTYPE, and so any entity of one, is refused.
func scanXML(doc []byte, leave func(path []string, text []byte) error) error {
	s := xmlScanner{rest: doc, leave: leave}
	for len(s.rest) > 0 {
		open := bytes.IndexByte(s.rest, '<')
		if open < 0 {
			open = len(s.rest)
		}
		if err := s.addText(s.rest[:open]); err != nil {
			return err
		}
		s.rest = s.rest[open:]
		if len(s.rest) == 0 {
			break
		}
		if err := s.markup(); err != nil {
			return err
		}
	}
	if len(s.path) > 0 || !s.rooted {
		return errXML
	}
	return nil
}

type xmlScanner struct {
	rest   []byte
	path   []string
	text   []byte // of the element at the end of path, since its last child
	rooted bool   // there was a root element
	leave  func(path []string, text []byte) error
	names  map[string]string // element names, so that each is made once
}

// addText takes text up to the next markup.
func (s *xmlScanner) addText(raw []byte) error {
	if len(s.path) == 0 {
		if len(bytes.TrimSpace(raw)) > 0 {
			return errXML
		}
		return nil
	}
	for len(raw) > 0 {
		amp := bytes.IndexByte(raw, '&')
		if amp < 0 {
			s.text = append(s.text, raw...)
			return nil
		}
		s.text = append(s.text, raw[:amp]...)
		end := bytes.IndexByte(raw[amp:], ';')
		if end < 0 {
			return errXML
		}
		var ok bool
		if s.text, ok = appendEntity(s.text, string(raw[amp+1:amp+end])); !ok {
			return errXML
		}
		raw = raw[amp+end+1:]
	}
	return nil
}

func appendEntity(to []byte, name string) ([]byte, bool) {
	switch name {
	case "lt":
		return append(to, '<'), true
	case "gt":
		return append(to, '>'), true
	case "amp":
		return append(to, '&'), true
	case "quot":
		return append(to, '"'), true
	case "apos":
		return append(to, '\''), true
	}
	digits, base := strings.TrimPrefix(name, "#"), 10
	if hex, ok := strings.CutPrefix(digits, "x"); ok {
		digits, base = hex, 16
	}
	n, err := strconv.ParseUint(digits, base, 32)
	if err != nil || len(digits) == len(name) || n > utf8.MaxRune || !utf8.ValidRune(rune(n)) {
		return to, false
	}
	return utf8.AppendRune(to, rune(n)), true
}

// markup takes what starts with "<".
func (s *xmlScanner) markup() error {
	switch {
	case bytes.HasPrefix(s.rest, []byte("<!--")):
		return s.skipPast("-->", len("<!--"))
	case bytes.HasPrefix(s.rest, []byte("<?")):
		return s.skipPast("?>", len("<?"))
	case bytes.HasPrefix(s.rest, []byte("<![CDATA[")):
		body := s.rest[len("<![CDATA["):]
		end := bytes.Index(body, []byte("]]>"))
		if end < 0 || len(s.path) == 0 {
			return errXML
		}
		s.text = append(s.text, body[:end]...)
		s.rest = body[end+len("]]>"):]
		return nil
	case bytes.HasPrefix(s.rest, []byte("<!")):
		return errXML
	case bytes.HasPrefix(s.rest, []byte("</")):
		return s.end()
	}
	return s.start()
}

func (s *xmlScanner) skipPast(mark string, from int) error {
	end := bytes.Index(s.rest[from:], []byte(mark))
	if end < 0 {
		return errXML
	}
	s.rest = s.rest[from+end+len(mark):]
	return nil
}

// start takes a start tag.
func (s *xmlScanner) start() error {
	tag, ok := cutTag(s.rest[1:])
	if !ok {
		return errXML
	}
	s.rest = s.rest[1+len(tag)+1:]
	closed := false
	if n := len(tag); n > 0 && tag[n-1] == '/' {
		tag, closed = tag[:n-1], true
	}
	name := tag
	if space := bytes.IndexAny(tag, " \t\r\n"); space >= 0 {
		name = tag[:space]
	}
	local := s.local(name)
	if local == "" || len(s.path) == maxXMLDepth || len(s.path) == 0 && s.rooted {
		return errXML
	}
	s.path, s.text, s.rooted = append(s.path, local), s.text[:0], true
	if closed {
		return s.pop()
	}
	return nil
}

// cutTag returns the tag up to its ">", which attribute values may contain too.
func cutTag(b []byte) ([]byte, bool) {
	quote := byte(0)
	for i, ch := range b {
		switch {
		case quote != 0:
			if ch == quote {
				quote = 0
			}
		case ch == '"' || ch == '\'':
			quote = ch
		case ch == '>':
			return b[:i], true
		case ch == '<':
			return nil, false
		}
	}
	return nil, false
}

// local returns an element's name without its namespace prefix.
func (s *xmlScanner) local(name []byte) string {
	if colon := bytes.IndexByte(name, ':'); colon >= 0 {
		name = name[colon+1:]
	}
	if known, ok := s.names[string(name)]; ok {
		return known
	}
	if s.names == nil {
		s.names = make(map[string]string)
	}
	made := string(name)
	s.names[made] = made
	return made
}

// end takes an end tag.
func (s *xmlScanner) end() error {
	stop := bytes.IndexByte(s.rest, '>')
	if stop < 0 || len(s.path) == 0 {
		return errXML
	}
	name := bytes.TrimRight(s.rest[2:stop], " \t\r\n")
	if s.local(name) != s.path[len(s.path)-1] {
		return errXML
	}
	s.rest = s.rest[stop+1:]
	return s.pop()
}

func (s *xmlScanner) pop() error {
	err := s.leave(s.path, s.text)
	s.path, s.text = s.path[:len(s.path)-1], s.text[:0]
	return err
}
