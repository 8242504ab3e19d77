package jsonpointer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/jsonpointer"
)

func TestFind(t *testing.T) {
	t.Parallel()
	d := jsonpointer.Parse([]byte(`{"code":"a","error":{"type":"b","n":9007199254740993},"errors":[{"code":"c"}],"a/b":"d","m~n":"e","ok":true,"":"f","null":null}`))
	for pointer, want := range map[string]string{
		"/code": "a", "/error/type": "b", "/error/n": "9007199254740993", "/errors/0/code": "c", "/a~1b": "d", "/m~0n": "e", "/ok": "true", "/": "f",
	} {
		value, found := d.Find(pointer)
		require.True(t, found, pointer)
		require.Equal(t, want, value, pointer)
	}
	for _, pointer := range []string{"/none", "/error", "/errors", "/errors/1/code", "/errors/-1", "/errors/x", "/code/x", "/null"} {
		_, found := d.Find(pointer)
		require.False(t, found, pointer)
	}
	for _, body := range []string{"", "<html>", "3", `"x"`, "[]", "{"} {
		_, found := jsonpointer.Parse([]byte(body)).Find("/code")
		require.False(t, found, body)
	}
}
