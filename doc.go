// Package idem makes writes over HTTP safe to retry: one key per logical
// operation, minted before the first byte is sent and the same on every attempt,
// until the server gives a final answer.
package idem
