package canonjson

import "bytes"

// writer writes a text that has been scanned, and so meets no error in it. Its
// methods write what they are named after and go over it.
type writer struct {
	src     []byte
	at      cursor
	members []member
	objects []object
	dst     []byte
	scratch []byte
}

func (w *writer) value() {
	switch w.src[w.at.offset] {
	case '{':
		w.object()
	case '[':
		w.array()
	case '"':
		w.quoted()
	default:
		w.scalar()
	}
}

func (w *writer) object() {
	o := w.objects[w.at.objects]
	w.dst = append(w.dst, '{')
	for i, m := range w.members[o.first:o.last] {
		if i > 0 {
			w.dst = append(w.dst, ',')
		}
		w.dst = appendQuoted(w.dst, m.name)
		w.dst = append(w.dst, ':')
		w.at = m.value
		w.value()
	}
	w.dst = append(w.dst, '}')
	w.at = o.end
}

func (w *writer) array() {
	w.copy(1)
	for {
		w.space()
		switch w.src[w.at.offset] {
		case ',':
			w.copy(1)
		case ']':
			w.copy(1)
			return
		default:
			w.value()
		}
	}
}

func (w *writer) quoted() {
	n, escaped := 1, false
	for ; w.src[w.at.offset+n] != '"'; n++ {
		if w.src[w.at.offset+n] == '\\' {
			escaped = true
			n++
		}
	}
	if !escaped { // then nothing in it needs to be
		w.copy(n + 1)
		return
	}
	w.scratch, _ = unescape(w.scratch[:0], w.src[w.at.offset+1:w.at.offset+n])
	w.dst = appendQuoted(w.dst, w.scratch)
	w.at.offset += n + 1
}

// scalar writes a number or a literal.
func (w *writer) scalar() {
	n := bytes.IndexAny(w.src[w.at.offset:], ",]} \t\n\r")
	if n < 0 {
		n = len(w.src) - w.at.offset
	}
	w.copy(n)
}

func (w *writer) space() {
	for isSpace(w.src[w.at.offset]) {
		w.at.offset++
	}
}

// copy writes the next n bytes as they are.
func (w *writer) copy(n int) {
	w.dst = append(w.dst, w.src[w.at.offset:w.at.offset+n]...)
	w.at.offset += n
}
