package canonjson

import (
	"bytes"
	"slices"
)

// scanner checks a text. Its methods go over what they are named after and
// report whether it is there.
type scanner struct {
	src     []byte
	offset  int
	depth   int
	pending []member // of the objects that have not ended
	members []member // of the objects that have, each object's together
	objects []object // in the order in which they begin
	scratch []byte
}

func (s *scanner) text() bool {
	s.space()
	if !s.value() {
		return false
	}
	s.space()
	return s.offset == len(s.src)
}

func (s *scanner) value() bool {
	switch s.peek() {
	case '{':
		return s.nested(s.object)
	case '[':
		return s.nested(s.array)
	case '"':
		raw, ok := s.quoted()
		if ok && bytes.IndexByte(raw, '\\') >= 0 {
			s.scratch, ok = unescape(s.scratch[:0], raw)
		}
		return ok
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	}
	return s.number()
}

func (s *scanner) nested(composite func() bool) bool {
	s.depth++
	ok := s.depth <= maxDepth && composite()
	s.depth--
	return ok
}

func (s *scanner) array() bool {
	return s.list('[', s.value, ']')
}

func (s *scanner) object() bool {
	index, first := len(s.objects), len(s.pending)
	s.objects = append(s.objects, object{})
	if !s.list('{', s.member, '}') {
		return false
	}
	members := s.pending[first:]
	slices.SortFunc(members, func(a, b member) int { return compareUTF16(a.name, b.name) })
	for i := 1; i < len(members); i++ {
		if bytes.Equal(members[i-1].name, members[i].name) {
			return false
		}
	}
	start := len(s.members)
	s.members = append(s.members, members...)
	s.pending = s.pending[:first]
	s.objects[index] = object{start, len(s.members), s.cursor()}
	return true
}

func (s *scanner) member() bool {
	name, ok := s.quoted()
	if ok && bytes.IndexByte(name, '\\') >= 0 {
		name, ok = unescape(nil, name)
	}
	s.space()
	if !ok || !s.take(':') {
		return false
	}
	s.space()
	s.pending = append(s.pending, member{name, s.cursor()})
	return s.value()
}

// list goes over items that commas separate, with space around each.
func (s *scanner) list(begin byte, item func() bool, end byte) bool {
	s.take(begin)
	s.space()
	if s.take(end) {
		return true
	}
	for {
		if !item() {
			return false
		}
		s.space()
		if s.take(end) {
			return true
		}
		if !s.take(',') {
			return false
		}
		s.space()
	}
}

// quoted returns a string as it stands between its quotes. Its escapes are not
// checked.
func (s *scanner) quoted() ([]byte, bool) {
	if !s.take('"') {
		return nil, false
	}
	for start := s.offset; s.offset < len(s.src); s.offset++ {
		switch c := s.src[s.offset]; {
		case c == '"':
			s.offset++
			return s.src[start : s.offset-1], true
		case c == '\\':
			s.offset++
		case c < ' ':
			return nil, false
		}
	}
	return nil, false
}

func (s *scanner) literal(want string) bool {
	if !bytes.HasPrefix(s.src[s.offset:], []byte(want)) {
		return false
	}
	s.offset += len(want)
	return true
}

func (s *scanner) number() bool {
	s.take('-')
	if !s.take('0') && !s.digits() {
		return false
	}
	if s.take('.') && !s.digits() {
		return false
	}
	if s.take('e') || s.take('E') {
		_ = s.take('+') || s.take('-')
		return s.digits()
	}
	return true
}

func (s *scanner) digits() bool {
	start := s.offset
	for '0' <= s.peek() && s.peek() <= '9' {
		s.offset++
	}
	return s.offset > start
}

func (s *scanner) space() {
	for isSpace(s.peek()) {
		s.offset++
	}
}

// take goes over the next byte if it is c.
func (s *scanner) take(c byte) bool {
	if s.peek() != c {
		return false
	}
	s.offset++
	return true
}

// peek returns the next byte, or at the end 0, which stands nowhere in a text.
func (s *scanner) peek() byte {
	if s.offset >= len(s.src) {
		return 0
	}
	return s.src[s.offset]
}

func (s *scanner) cursor() cursor { return cursor{s.offset, len(s.objects)} }

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }
