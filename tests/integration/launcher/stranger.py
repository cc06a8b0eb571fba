"""A client of the coordinator that does what an agent would not: gRPC by hand (HTTP/2, RFC 9113 and 7541)."""

import base64
import hashlib
import hmac
import socket
import ssl

from events import patience

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
SETTINGS_ACK = b"\0\0\0\4\1\0\0\0\0"
DATA, HEADERS, RST_STREAM, GOAWAY = 0, 1, 3, 7


def proof(token, run_id):
    mac = hmac.new(token.encode(), b"fsdprun job token\0" + run_id.encode(), hashlib.sha256)
    return {"fsdprun-proof": mac.hexdigest(), "fsdprun-run-id-bin": base64.b64encode(run_id.encode()).decode().rstrip("=")}


def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def literal(name, value):
    """A header field without Huffman coding and without a table; lengths below 127."""
    return b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


def connect(port, ca=None, pair=None):
    """A connection that has been let in, as far as TLS goes."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=patience())
    if ca is None:
        return plain
    context = ssl.create_default_context(cafile=str(ca))
    context.set_alpn_protocols(["h2"])
    if pair is not None:
        context.load_cert_chain(*map(str, pair))
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def heartbeat(run_id, incarnation, generation):
    """An AgentMessage; numbers below 128."""
    return (b"\x0a" + bytes((len(run_id),)) + run_id.encode() + b"\x11" + incarnation.to_bytes(8, "little")
            + b"\x18" + bytes((generation,)) + b"\x5a\0")


def too_long(run_id, size):
    """An AgentMessage of about so many bytes, in a field that nobody knows."""
    number, rest = b"", size
    while rest > 127:
        number, rest = number + bytes((rest & 127 | 128,)), rest >> 7
    return b"\x0a" + bytes((len(run_id),)) + run_id.encode() + b"\xfa\x0f" + number + bytes((rest,)) + bytes(size)


def call(connection, metadata=(), message=b"", until=None):
    """Attaches as an agent would, with this metadata and message. Everything that is answered until the call ends, or
    until this has been heard."""
    fields = {":method": "POST", ":scheme": "http", ":path": "/fsdprun.v1.Coordinator/Attach", ":authority": "stranger",
              "content-type": "application/grpc", "te": "trailers", **dict(metadata)}
    connection.sendall(PREFACE)
    heard = connection.recv(65536)  # The server's settings: with their acknowledgement its larger windows hold.
    connection.sendall(SETTINGS_ACK + frame(HEADERS, 4, 1, b"".join(literal(*field) for field in fields.items())))
    body = b"\0" + len(message).to_bytes(4, "big") + message if message else b""
    try:
        for at in range(0, len(body), 16384):
            connection.sendall(frame(DATA, 0, 1, body[at:at + 16384]))
        while not ends(heard) and not (until and until in heard) and (data := connection.recv(65536)):
            heard += data
    except ConnectionError:
        pass
    return heard


def ends(heard):
    """Whether whole frames end the call: trailers, a reset, or the end of the connection."""
    at = 0
    while at + 9 <= len(heard):
        end = at + 9 + int.from_bytes(heard[at:at + 3], "big")
        kind, flags = heard[at + 3], heard[at + 4]
        if end <= len(heard) and (kind in (RST_STREAM, GOAWAY) or (kind == HEADERS and flags & 1)):
            return True
        at = end
    return False
