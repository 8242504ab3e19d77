package pgtest

import (
	"net/url"
	"path/filepath"

	"github.com/idemhttp/idem/internal/childproc"
)

// Options say what kind of server to start.
type Options struct {
	Mode Mode
	// Settings are command line options of postgres, which come after those of
	// the mode.
	Settings string
	// Preload is the path of a shared library that all processes of the server
	// load, "" for none. Everybody must be able to read it.
	Preload string
}

// Server is a PostgreSQL server that nobody else uses.
type Server struct {
	// URL is the connection string of its database postgres.
	URL string

	service *childproc.Service
}

// Start starts a server. It ends with this process, if not by Stop before.
func Start(o Options) (*Server, error) {
	initdb, err := find("initdb", install)
	if err != nil {
		return nil, err
	}
	s, err := supervise(postgresFunctions, filepath.Dir(initdb), settings[o.Mode]+" "+o.Settings, o.Preload)
	if err != nil {
		return nil, err
	}
	u := url.URL{Scheme: "postgres", Path: "/postgres", RawQuery: url.Values{
		"host": {s.Folder}, "user": {"postgres"}, "sslmode": {"disable"},
	}.Encode()}
	return &Server{URL: u.String(), service: s}, nil
}

// Stop ends the server and removes all of it.
func (s *Server) Stop() { s.service.Stop() }
