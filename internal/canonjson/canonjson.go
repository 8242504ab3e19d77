// Package canonjson brings JSON texts into a canonical form. Two texts have
// the same form if and only if they are the same value: members may be
// reordered and strings written with other escapes, but numbers are the same
// only if they are spelled the same.
//
// The form is that of RFC 8785 except for numbers, which keep their spelling:
// read as float64, as the RFC wants them, 9007199254740993 and
// 9007199254740992 would be one.
package canonjson

import (
	"slices"
	"unicode/utf8"
)

// maxDepth is how deep arrays and objects may be nested in one another.
const maxDepth = 1000

// Append appends the canonical form of the JSON text src to dst. It reports
// false, and returns dst as it was, if src is not one JSON text (RFC 8259) or
// not the same to every reader: if it is not UTF-8, names a member of an
// object twice, escapes half of a surrogate pair, or is nested deeper than
// 1,000 levels.
//
// Time is linear in the length of src but for sorting the members.
func Append(dst, src []byte) ([]byte, bool) {
	s := scanner{src: src}
	if !utf8.Valid(src) || !s.text() {
		return dst, false
	}
	w := writer{src: src, members: s.members, objects: s.objects, dst: slices.Grow(dst, len(src))}
	w.space()
	w.value()
	return w.dst, true
}

// A text is read twice. The scanner checks it and sorts the members of every
// object; the writer then follows the text again, but takes the members in
// their new order. So each byte is copied once, however deep it is nested.

// cursor is a place in a text.
type cursor struct {
	offset  int
	objects int // that begin before it, and so the index of the next one
}

// member is a member of an object that has been scanned.
type member struct {
	name  []byte // unescaped
	value cursor
}

// object is an object that has been scanned.
type object struct {
	first, last int    // its members, as a range of all members
	end         cursor // behind it
}
