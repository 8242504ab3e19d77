package main

import (
	"context"
	"errors"
	"net/http"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/idemhttp/idem/server"
)

// forEcho makes guard a middleware of echo.
//
// Do not use echo.WrapMiddleware: it hands an error of the handler to echo after
// the guard is done, which has then kept an empty 200 as the answer.
func forEcho(guard *server.Middleware) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		guarded := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, _ := r.Context().Value(echoContext{}).(*echo.Context) // put there below
			c.SetRequest(r)
			c.SetResponse(echo.NewResponse(w, c.Logger()))
			if err := next(c); err != nil {
				c.Echo().HTTPErrorHandler(c, err) // an error is an answer too
			}
		}))
		return func(c *echo.Context) error {
			request, response := c.Request(), c.Response()
			defer func() { // whatever is outside has what it had, after a panic too
				c.SetRequest(request)
				c.SetResponse(response)
			}()
			r := request.WithContext(context.WithValue(request.Context(), echoContext{}, c))
			r.Pattern = c.Path() // for metrics
			guarded.ServeHTTP(response, r)
			return nil
		}
	}
}

// echoContext is the key of echo's context in that of a request.
type echoContext struct{}

func newEcho(guard *server.Middleware, place placeOrder) http.Handler {
	e := echo.New()
	e.Use(middleware.Recover()) // outside of the guard, as authentication is
	e.POST("/shops/:shop/orders", func(c *echo.Context) error {
		var request orderRequest
		if err := c.Bind(&request); err != nil {
			return err
		}
		reply, err := place(c.Request().Context(), c.Param("shop"), request.Amount)
		switch {
		case errors.Is(err, errRefused): // final: it is kept and replayed
			return echo.NewHTTPError(http.StatusUnprocessableEntity, err.Error())
		case err != nil: // not kept: when the client tries again, so does this handler
			return echo.NewHTTPError(http.StatusServiceUnavailable, "try again")
		}
		return c.JSON(http.StatusCreated, reply)
	}, forEcho(guard))
	return e
}
