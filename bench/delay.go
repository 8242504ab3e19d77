package main

import (
	"context"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// extraRoundTrip is by how much delay makes a round trip longer, in nanoseconds.
const extraRoundTrip = 350_000

// farAway connects such that whatever a client sends leaves later.
func farAway(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	pause, err := newTimer()
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &farConn{conn, pause}, nil
}

// farConn delays in the connection itself. A proxy would have to read and write
// everything once more, and with a few clients take more of the processors than
// they do.
type farConn struct {
	net.Conn

	pause timer
}

func (c *farConn) Write(b []byte) (int, error) {
	if err := c.pause.wait(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (c *farConn) Close() error {
	c.pause.Close()
	return c.Conn.Close()
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
