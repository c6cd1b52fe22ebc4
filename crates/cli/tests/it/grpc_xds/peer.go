// A stock gRPC (grpc-go) as a client and as a server, told everything over xDS: what peer.py does, with the same arguments. Built by
// tests/peers/build.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscredentials "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"
)

const method = "/voile.test.Echo/Say"

// How long a call may wait for the control plane.
func deadline() time.Duration {
	if seconds, err := strconv.Atoi(os.Getenv("PEER_DEADLINE")); err == nil {
		return time.Duration(seconds) * time.Second
	}
	return 15 * time.Second
}

// Messages are the bytes that they are.
type raw struct{}

func (raw) Name() string                  { return "raw" }
func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func call(target string) {
	creds, err := xdscredentials.NewClientCredentials(xdscredentials.ClientOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		fail(err)
	}
	if !strings.HasPrefix(target, "xds:") {
		creds = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds))
	if err != nil {
		fail(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		path := method
		if strings.HasPrefix(lines.Text(), "/") {
			path = lines.Text()
		}
		in, out := []byte(lines.Text()), []byte(nil)
		ctx, cancel := context.WithTimeout(context.Background(), deadline())
		if user, ok := strings.CutPrefix(lines.Text(), "@"); ok {
			ctx = metadata.AppendToOutgoingContext(ctx, "user", user)
		}
		err := conn.Invoke(ctx, path, &in, &out, grpc.ForceCodec(raw{}), grpc.WaitForReady(true))
		cancel()
		if err != nil {
			said, _ := status.FromError(err)
			fmt.Printf("error %v: %s\n", said.Code(), strings.Join(strings.Fields(said.Message()), " "))
			continue
		}
		fmt.Println(string(out))
	}
}

func caller(ctx context.Context) string {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return "nobody"
	}
	switch info := from.AuthInfo.(type) {
	case credentials.TLSInfo:
		if len(info.State.PeerCertificates) > 0 && len(info.State.PeerCertificates[0].URIs) > 0 {
			return info.State.PeerCertificates[0].URIs[0].String()
		}
	}
	return "nobody"
}

func serve(address, name string, told bool) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		fail(err)
	}
	handle := func(_ any, stream grpc.ServerStream) error {
		var in []byte
		if err := stream.RecvMsg(&in); err != nil {
			return err
		}
		out := []byte(name + " to " + caller(stream.Context()))
		return stream.SendMsg(&out)
	}
	options := []grpc.ServerOption{grpc.UnknownServiceHandler(handle), grpc.ForceServerCodec(raw{})}
	if !told {
		fail(grpc.NewServer(options...).Serve(listener))
	}
	creds, err := xdscredentials.NewServerCredentials(xdscredentials.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		fail(err)
	}
	mode := xds.ServingModeCallback(func(address net.Addr, mode xds.ServingModeChangeArgs) {
		fmt.Fprintln(os.Stderr, address, mode.Mode, mode.Err)
	})
	server, err := xds.NewGRPCServer(append(options, grpc.Creds(creds), mode)...)
	if err != nil {
		fail(err)
	}
	fail(server.Serve(listener))
}

func main() {
	switch {
	case len(os.Args) == 3 && os.Args[1] == "call":
		call(os.Args[2])
	case len(os.Args) == 4:
		serve(os.Args[2], os.Args[3], os.Args[1] == "serve")
	default:
		fail(errors.New("peer call TARGET | serve ADDRESS NAME | plain ADDRESS NAME"))
	}
}
