#!/usr/bin/env python3
"""A collector that prints each trace as a tree: OTLP over HTTP, with Python's own library alone."""

import http.server
import os
import threading
import time
from collections import defaultdict

PORT = 4318
# A trace is printed when no span of it came for so many seconds.
QUIET_SECONDS = 3
KINDS = {2: "server", 3: "client"}


def fields(message):
    """Numbers and values of the fields of a protobuf message."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        length = varint() if key & 7 == 2 else {1: 8, 5: 4}[key & 7]
        value = message[at : at + length]
        at += length
        yield key >> 3, value if key & 7 == 2 else int.from_bytes(value, "little")


def each(message, number):
    return (value for field, value in fields(message) if field == number)


def attributes(message, number):
    """Texts by their keys."""
    pairs = (dict(fields(pair)) for pair in each(message, number))
    texts = ((pair[1].decode(), dict(fields(pair[2])).get(1, b"")) for pair in pairs)
    return {key: text.decode() for key, text in texts if isinstance(text, bytes)}


def spans(request):
    for of_resource in each(request, 1):
        resource = next(each(of_resource, 1))
        service = attributes(resource, 1).get("service.name", "?")
        for scope in each(of_resource, 2):
            for message in each(scope, 2):
                yield service, dict(fields(message)), attributes(message, 9)


lock = threading.Lock()
traces = defaultdict(list)
latest = {}


class Collector(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = self.rfile.read(int(self.headers["content-length"]))
        with lock:
            for service, span, tags in spans(request):
                trace = span[1].hex()
                traces[trace].append((service, span, tags))
                latest[trace] = time.monotonic()
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def show(trace):
    """Prints the spans of a trace, each below the one that caused it."""
    known = {span[2] for _, span, _ in trace}
    first = min(span[7] for _, span, _ in trace)

    def below(parent, depth):
        children = [one for one in trace if parent(one[1].get(4))]
        for service, span, tags in sorted(children, key=lambda one: one[1][7]):
            name = f"{'  ' * depth}{service} {KINDS.get(span[6], '')}"
            begin, took = (span[7] - first) / 1e6, (span[8] - span[7]) / 1e6
            status = tags.get("http.status_code", "")
            print(f"  {name:40} {begin:8.2f} ms + {took:7.2f} ms  {status} {tags.get('http.url', '')}")
            below(lambda found: found == span[2], depth + 1)

    below(lambda parent: parent not in known, 0)


def print_quiet_ones():
    while True:
        time.sleep(0.5)
        with lock:
            quiet = [one for one, at in latest.items() if time.monotonic() - at > QUIET_SECONDS]
            done = [(one, traces.pop(one), latest.pop(one)) for one in quiet]
        for name, trace, _ in done:
            print(f"trace {name}")
            show(trace)
            print(flush=True)


threading.Thread(target=print_quiet_ones, daemon=True).start()
http.server.ThreadingHTTPServer((os.environ["POD_IP"], PORT), Collector).serve_forever()
