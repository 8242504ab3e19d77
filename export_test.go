package idem

// Delay is the length of one wait, for tests of its arithmetic.
var Delay = delay
