package wire

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// node is an element of a parsed body: its local name, and its text or its children.
type node struct {
	name     string
	text     string
	children []node
}

// child returns the first child of that name, or nil.
func (n *node) child(name string) *node {
	for i := range n.children {
		if n.children[i].name == name {
			return &n.children[i]
		}
	}
	return nil
}

// get returns the text of the first child of that name, without space around it; or "".
func (n *node) get(name string) string {
	if c := n.child(name); c != nil {
		return strings.TrimSpace(c.text)
	}
	return ""
}

// parseXML parses a body into elements. It takes the part of XML 1.0 that S3's clients write:
// elements, text, CDATA, comments, processing instructions, character references and the
// predefined entities. Attributes are passed over and prefixes of names are dropped. A document
// type, any other entity, and text after the root are refused, so nothing in a body can grow.
// Control characters are allowed, raw or as a reference, since keys may hold them.
func parseXML(body []byte) (node, error) {
	p := xmlParser{s: strings.TrimPrefix(string(body), "\ufeff")}
	root := node{}
	ok := utf8.ValidString(p.s) && p.misc() && p.element(&root, 1) && p.misc() && p.s == ""
	if !ok {
		return node{}, &Error{Code: MalformedXML}
	}
	return root, nil
}

type xmlParser struct{ s string }

func (p *xmlParser) space() { p.s = strings.TrimLeft(p.s, " \t\r\n") }

func (p *xmlParser) skip(prefix string) bool {
	rest, ok := strings.CutPrefix(p.s, prefix)
	p.s = rest
	return ok
}

// through skips all up to and with the next end.
func (p *xmlParser) through(end string) bool {
	_, rest, ok := strings.Cut(p.s, end)
	p.s = rest
	return ok
}

// misc skips what may stand before and after the root: space, comments, instructions.
func (p *xmlParser) misc() bool {
	for {
		p.space()
		switch {
		case p.skip("<?"):
			if !p.through("?>") {
				return false
			}
		case p.skip("<!--"):
			if !p.through("-->") {
				return false
			}
		default:
			return true
		}
	}
}

// name reads a name and returns its local part.
func (p *xmlParser) name() (full, local string, ok bool) {
	n := 0
	for n < len(p.s) {
		c := p.s[n]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' || c == ':' || c >= utf8.RuneSelf
		if !letter && (n == 0 || c != '-' && c != '.' && (c < '0' || c > '9')) {
			break
		}
		n++
	}
	full, p.s = p.s[:n], p.s[n:]
	return full, full[strings.IndexByte(full, ':')+1:], n > 0
}

// element reads an element, with its tags.
func (p *xmlParser) element(n *node, depth int) bool {
	if depth > MaxXMLDepth || !p.skip("<") {
		return false
	}
	full, local, ok := p.name()
	if !ok || local == "" || !p.attributes() {
		return false
	}
	n.name = local
	if p.skip("/>") {
		return true
	}
	if !p.skip(">") || !p.content(n, depth) {
		return false
	}
	end, _, _ := p.name() // content has read "</"
	p.space()
	return end == full && p.skip(">")
}

// attributes skips attributes, up to the end of the tag.
func (p *xmlParser) attributes() bool {
	for {
		before := len(p.s)
		p.space()
		if strings.HasPrefix(p.s, ">") || strings.HasPrefix(p.s, "/>") {
			return true
		}
		spaced := len(p.s) < before
		if _, _, ok := p.name(); !ok || !spaced {
			return false
		}
		p.space()
		if !p.skip("=") {
			return false
		}
		p.space()
		quote := ""
		if p.s != "" {
			quote = p.s[:1]
		}
		if quote != `"` && quote != "'" {
			return false
		}
		p.s = p.s[1:]
		value, rest, ok := strings.Cut(p.s, quote)
		if !ok || strings.ContainsRune(value, '<') {
			return false
		}
		p.s = rest
	}
}

// content reads what is between the tags of an element, and the "</" after it.
func (p *xmlParser) content(n *node, depth int) bool {
	var text strings.Builder
	for {
		i := strings.IndexAny(p.s, "<&")
		if i < 0 {
			return false
		}
		appendText(&text, p.s[:i])
		p.s = p.s[i:]
		switch {
		case p.skip("</"):
			n.text = text.String()
			return true
		case p.skip("<!--"):
			if !p.through("-->") {
				return false
			}
		case p.skip("<?"):
			if !p.through("?>") {
				return false
			}
		case p.skip("<![CDATA["):
			data, rest, ok := strings.Cut(p.s, "]]>")
			if !ok {
				return false
			}
			appendText(&text, data)
			p.s = rest
		case p.s[0] == '&':
			if !p.reference(&text) {
				return false
			}
		default:
			n.children = append(n.children, node{})
			if !p.element(&n.children[len(n.children)-1], depth+1) {
				return false
			}
		}
	}
}

// appendText appends text with its line ends as XML 1.0 section 2.11 has them.
func appendText(dst *strings.Builder, text string) {
	for {
		before, after, ok := strings.Cut(text, "\r")
		dst.WriteString(before)
		if !ok {
			return
		}
		dst.WriteByte('\n')
		text = strings.TrimPrefix(after, "\n")
	}
}

// reference reads a character reference or a predefined entity.
func (p *xmlParser) reference(dst *strings.Builder) bool {
	const longest = len("&#x0010ffff;")
	end := strings.IndexByte(p.s[:min(len(p.s), longest)], ';')
	if end < 0 {
		return false
	}
	name := p.s[1:end]
	p.s = p.s[end+1:]
	switch name {
	case "amp":
		dst.WriteByte('&')
	case "lt":
		dst.WriteByte('<')
	case "gt":
		dst.WriteByte('>')
	case "quot":
		dst.WriteByte('"')
	case "apos":
		dst.WriteByte('\'')
	default:
		digits, numeric := strings.CutPrefix(name, "#")
		base := 10
		if hex, ok := strings.CutPrefix(digits, "x"); ok {
			digits, base = hex, 16
		}
		r, err := strconv.ParseUint(digits, base, 21)
		if !numeric || err != nil || !utf8.ValidRune(rune(r)) {
			return false
		}
		dst.WriteRune(rune(r))
	}
	return true
}
