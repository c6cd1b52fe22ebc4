# A stock gRPC (C-core) as a client and as a server, told everything over xDS: see ../grpc_xds.rs.
#
#   peer.py call TARGET            one call for each line of stdin (`/service/method`, `@user` in its metadata, or anything); its
#                                  answer, or `error CODE: WHY`, is a line of stdout
#   peer.py serve ADDRESS NAME     answers `NAME to CALLER`, with what security the control plane says
#   peer.py plain ADDRESS NAME     the same without any
import os
import signal
import sys
import threading
from concurrent import futures

import grpc

METHOD = "/voile.test.Echo/Say"
# How long a call may wait for the control plane, in seconds.
DEADLINE = float(os.environ.get("PEER_DEADLINE", "15"))


def call(target):
    credentials = grpc.xds_channel_credentials(grpc.local_channel_credentials())
    if not target.startswith("xds:"):
        credentials = None
    channel = grpc.secure_channel(target, credentials) if credentials else grpc.insecure_channel(target)
    say = channel.unary_unary(METHOD)
    for line in sys.stdin:
        path = line.strip()
        method = channel.unary_unary(path) if path.startswith("/") else say
        metadata = [("user", path[1:])] if path.startswith("@") else None
        try:
            said = method(path.encode(), timeout=DEADLINE, metadata=metadata, wait_for_ready=True)
            print(said.decode(), flush=True)
        except grpc.RpcError as error:
            details = " ".join((error.details() or "").split())
            print(f"error {error.code().name}: {details}", flush=True)


class Everything(grpc.GenericRpcHandler):
    def __init__(self, name):
        self.name = name

    def service(self, details):
        def say(request, context):
            shown = context.auth_context()
            names = shown.get("x509_uri") or shown.get("x509_subject_alternative_name") or [b"nobody"]
            return f"{self.name} to {names[0].decode()}".encode()

        return grpc.unary_unary_rpc_method_handler(say)


def serve(address, name, xds):
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Everything(name)], xds=xds)
    if xds:
        credentials = grpc.xds_server_credentials(grpc.insecure_server_credentials())
        bound = server.add_secure_port(address, credentials)
    else:
        bound = server.add_insecure_port(address)
    if not bound:
        sys.exit(f"cannot listen on {address}")
    server.start()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ended.wait()
    server.stop(0)


if sys.argv[1] == "call":
    call(sys.argv[2])
else:
    serve(sys.argv[2], sys.argv[3], sys.argv[1] == "serve")
