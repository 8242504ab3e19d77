package main

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/idemhttp/idem/server"
)

// newChi needs no adapter: a [server.Middleware] is a middleware as chi has them.
// Put on a route by With it knows the route's pattern; Use would put it outside of
// all routes.
func newChi(guard *server.Middleware, place placeOrder) http.Handler {
	router := chi.NewRouter()
	router.Use(middleware.Recoverer) // outside of the guard, as authentication is
	router.With(guard.Handler).Post("/shops/{shop}/orders", func(w http.ResponseWriter, r *http.Request) {
		var request orderRequest
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		reply, err := place(r.Context(), chi.URLParam(r, "shop"), request.Amount)
		switch {
		case errors.Is(err, errRefused): // final: it is kept and replayed
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		case err != nil: // not kept: when the client tries again, so does this handler
			http.Error(w, "try again", http.StatusServiceUnavailable)
		default:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			_ = json.NewEncoder(w).Encode(reply)
		}
	})
	return router
}
