// Command forward carries TCP connections from a listening socket that it inherits to a target.
//
// A socket belongs to the network namespace in which it was made: the listener comes from the
// user's namespace as a file descriptor, the connections to the target are made here, inside the
// cluster. A target's name is asked of the cluster's DNS for every connection, so that a Service
// that was deleted and made again is found under its new address.
//
//	forward FD HOST:PORT DNS:PORT
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: forward FD HOST:PORT DNS:PORT")
		os.Exit(2)
	}
	descriptor, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fmt.Fprintf(os.Stderr, "forward: FD must be a number, not %q\n", os.Args[1])
		os.Exit(2)
	}
	listener, err := net.FileListener(os.NewFile(uintptr(descriptor), "listener"))
	if err != nil {
		fmt.Fprintf(os.Stderr, "forward: descriptor %d is no listening socket: %v\n", descriptor, err)
		os.Exit(2)
	}
	dialer := &net.Dialer{Timeout: 5 * time.Second, Resolver: &net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: time.Second}).DialContext(ctx, network, os.Args[3])
		},
	}}
	for {
		connection, err := listener.Accept()
		if err != nil {
			fmt.Fprintf(os.Stderr, "forward: %v\n", err)
			os.Exit(1)
		}
		go carry(connection.(*net.TCPConn), dialer, os.Args[2])
	}
}

func carry(client *net.TCPConn, dialer *net.Dialer, target string) {
	defer client.Close()
	opened, err := dialer.Dial("tcp", target)
	if err != nil {
		fmt.Fprintf(os.Stderr, "forward: %s: %v\n", target, err)
		client.SetLinger(0) // the user sees a reset, as without a forwarder, not an empty answer
		return
	}
	server := opened.(*net.TCPConn)
	defer server.Close()
	done := make(chan struct{})
	go func() {
		io.Copy(server, client)
		server.CloseWrite() // a half-closed connection stays one: the answer may still come
		close(done)
	}()
	io.Copy(client, server)
	client.CloseWrite()
	client.CloseRead()
	<-done
}
