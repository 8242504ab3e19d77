package main

import (
	"io"
	"net"
	"net/url"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"
)

// extraRoundTrip is by how much delay makes a round trip longer, in nanoseconds.
const extraRoundTrip = 350_000

// delay returns a connection string by which whatever a client sends arrives
// later.
func delay(dsn string) (far string, stop func(), err error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return "", nil, err
	}
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed by stop
	if err != nil {
		return "", nil, err
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "", nil, err
	}
	query := u.Query()
	query.Del("host")
	u.Host, u.RawQuery = listener.Addr().String(), query.Encode()
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go relay(client, network, address) // ends with the client or the server
		}
	}()
	return u.String(), func() { listener.Close() }, nil
}

func relay(client net.Conn, network, address string) {
	defer client.Close()
	server, err := net.Dial(network, address) //nolint:noctx // a local socket
	if err != nil {
		return
	}
	go func() {
		defer client.Close()
		_, _ = io.Copy(client, server)
	}()
	defer server.Close()
	pause, err := newTimer()
	if err != nil {
		return
	}
	defer pause.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		if err := pause.wait(); err != nil {
			return
		}
		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// timer is one of the kernel's. The runtime's own are not precise to less than a
// millisecond when nothing else runs, and a thread that sleeps takes one of the
// few processors from the clients that are measured.
type timer struct {
	*os.File
	fd int
}

func newTimer() (timer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return timer{}, err
	}
	return timer{os.NewFile(uintptr(fd), "timer"), fd}, nil
}

// wait returns after extraRoundTrip.
func (t timer) wait() error {
	end := unix.ItimerSpec{Value: unix.NsecToTimespec(extraRoundTrip)}
	if err := unix.TimerfdSettime(t.fd, 0, &end, nil); err != nil {
		return err
	}
	var expirations [8]byte
	_, err := t.Read(expirations[:])
	return err
}
