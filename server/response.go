package server

// Response is an answer as it is stored and replayed.
type Response struct {
	StatusCode int
	Fields     []Field // in the order of the first answer; repeated names stay repeated
	Body       []byte
	// NotKept says that the operation is done but that its body was too large
	// to keep. StatusCode is then the original status, Fields and Body are
	// empty, and nothing is ever executed or replayed for the key again.
	NotKept bool
}

// Field is one line of a header section.
type Field struct{ Name, Value string }
