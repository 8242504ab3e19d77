// Package jsonpointer finds scalars in JSON documents by JSON pointers (RFC
// 6901).
package jsonpointer

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// Document is a parsed JSON document.
type Document struct{ root any }

// Parse parses body. Of what is not JSON nothing is found.
func Parse(body []byte) Document {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var d Document
	if decoder.Decode(&d.root) != nil {
		d.root = nil
	}
	return d
}

// Find returns the string, number or boolean at pointer, as it is spelled, and
// whether there is one.
func (d Document) Find(pointer string) (string, bool) {
	node := d.root
	for token := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		token = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
		switch parent := node.(type) {
		case map[string]any:
			node = parent[token]
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(parent) {
				return "", false
			}
			node = parent[i]
		default:
			return "", false
		}
	}
	switch value := node.(type) {
	case string:
		return value, true
	case json.Number:
		return value.String(), true
	case bool:
		return strconv.FormatBool(value), true
	}
	return "", false
}
