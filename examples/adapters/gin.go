package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/idemhttp/idem/server"
)

// forGin guards a handler of gin.
//
// It is no middleware of gin's own kind, which goes on with Next: that works once
// in a request, and the guard runs a handler again if its transaction could not
// be committed.
func forGin(guard *server.Middleware, handler gin.HandlerFunc) gin.HandlerFunc {
	guarded := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _ := r.Context().Value(ginContext{}).(*gin.Context) // put there below
		answer := &ginWriter{ResponseWriter: c.Writer, guard: w, status: http.StatusOK}
		outer := c.Writer
		defer func() { c.Writer = outer }() // whatever is outside has what it had, after a panic too
		c.Request, c.Writer = r, answer
		handler(c)
		answer.WriteHeaderNow() // gin does it for its own writer only
	}))
	return func(c *gin.Context) {
		request := c.Request
		defer func() { c.Request = request }()
		r := request.WithContext(context.WithValue(request.Context(), ginContext{}, c))
		r.Pattern = c.FullPath() // for metrics
		guarded.ServeHTTP(c.Writer, r)
	}
}

// ginContext is the key of gin's context in that of a request.
type ginContext struct{}

// ginWriter is the guard's writer as gin wants it, which sends a status only
// when it has to.
type ginWriter struct {
	gin.ResponseWriter // the one outside

	guard   http.ResponseWriter
	status  int
	size    int
	written bool
}

func (w *ginWriter) Unwrap() http.ResponseWriter { return w.guard }
func (w *ginWriter) Header() http.Header         { return w.guard.Header() }
func (w *ginWriter) Status() int                 { return w.status }
func (w *ginWriter) Written() bool               { return w.written }

func (w *ginWriter) Size() int {
	if !w.written {
		return -1 // as gin counts
	}
	return w.size
}

func (w *ginWriter) WriteHeader(status int) {
	if !w.written && status > 0 {
		w.status = status
	}
}

func (w *ginWriter) WriteHeaderNow() {
	if !w.written {
		w.written = true
		w.guard.WriteHeader(w.status)
	}
}

func (w *ginWriter) Write(p []byte) (int, error) {
	w.WriteHeaderNow()
	n, err := w.guard.Write(p)
	w.size += n
	return n, err
}

func (w *ginWriter) WriteString(s string) (int, error) {
	w.WriteHeaderNow()
	n, err := io.WriteString(w.guard, s)
	w.size += n
	return n, err
}

func (w *ginWriter) Flush() {
	w.WriteHeaderNow()
	_ = http.NewResponseController(w.guard).Flush()
}

func (w *ginWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.guard).Hijack()
}

func newGin(guard *server.Middleware, place placeOrder) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	engine.Use(gin.Recovery()) // outside of the guard, as authentication is
	engine.POST("/shops/:shop/orders", forGin(guard, func(c *gin.Context) {
		var request orderRequest
		if err := c.ShouldBindJSON(&request); err != nil {
			c.String(http.StatusBadRequest, err.Error())
			return
		}
		reply, err := place(c.Request.Context(), c.Param("shop"), request.Amount)
		switch {
		case errors.Is(err, errRefused): // final: it is kept and replayed
			c.String(http.StatusUnprocessableEntity, err.Error())
		case err != nil: // not kept: when the client tries again, so does this handler
			c.String(http.StatusServiceUnavailable, "try again")
		default:
			c.JSON(http.StatusCreated, reply)
		}
	}))
	return engine
}
