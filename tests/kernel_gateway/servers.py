"""Servers for tests of ports, as code of a session starts them: well-behaved ones and hostile ones."""

from __future__ import annotations

#: a server that behaves as the path says, on the port of its argument
RAW = r"""
import asyncio, json, sys

async def body_of(reader, headers):
    size, count = headers.get("content-length"), 0
    if size is not None:
        while count < int(size):
            piece = await reader.read(min(65536, int(size) - count))
            if not piece:
                break
            count += len(piece)
    elif headers.get("transfer-encoding") == "chunked":
        while length := int(await reader.readline(), 16):
            count += len(await reader.readexactly(length))
            await reader.readline()
        await reader.readline()
    return count

async def serve(reader, writer):
    try:
        await answer(reader, writer)
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()

async def answer(reader, writer):
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1")
    line, *fields = head.rstrip().split("\r\n")
    method, target, _ = line.split(" ")
    headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
    path = target.partition("?")[0]

    async def say(*pieces, forever=False):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        while forever:
            writer.write(pieces[-1])
            await writer.drain()

    ok = b"HTTP/1.1 200 OK\r\n"
    if path == "/seen":
        told = {"method": method, "target": target, "headers": headers, "body": await body_of(reader, headers)}
        text = json.dumps(told).encode()
        await say(ok + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
    elif path == "/events":
        await say(ok + b"Content-Type: text/event-stream\r\n\r\n")
        for number in range(3):
            await say(b"data: %d\n\n" % number)
            await asyncio.sleep(0.3)
    elif path == "/large":
        await say(ok + b"Content-Length: %d\r\n\r\n" % (50 * 1024**2), *[bytes(1024**2)] * 50)
    elif path == "/early":
        await say(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
    elif path == "/redirect":
        await say(b"HTTP/1.1 302 Found\r\nLocation: /v1/sessions\r\nContent-Length: 0\r\n\r\n")
    elif path == "/cookies":
        own = b"Set-Cookie: a=1; Domain=gw.test\r\nService-Worker-Allowed: /\r\nX-Own: 1\r\n"
        await say(ok + own + b"Content-Length: 2\r\n\r\nhi")
    elif path == "/endless-headers":
        await say(ok, b"X: " + b"a" * 1000 + b"\r\n", forever=True)
    elif path == "/endless-body":
        await say(ok + b"\r\n", bytes(65536), forever=True)
    elif path == "/garbage":
        await say(b"\x16\x03\x01\x00\xa5" * 1000)
    elif path == "/preliminary":
        await say(b"HTTP/1.1 103 Early Hints\r\n\r\n", forever=True)
    elif path == "/chunk":
        await say(ok + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffffffffff\r\nabc")
    elif path == "/short":
        await say(ok + b"Content-Length: 1000\r\n\r\nabc")
    elif path == "/two-answers":
        await say(ok + b"Content-Length: 3\r\n\r\nabc" + ok + b"Content-Length: 6\r\n\r\nforged")
    elif path == "/upgrade":
        await say(b"HTTP/1.1 101 Go\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        await say(ok + b"Content-Length: 6\r\n\r\nforged")
    elif path == "/silent":
        await asyncio.sleep(60)

async def main(host, port):
    async with await asyncio.start_server(serve, host, port):
        await asyncio.Event().wait()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""

#: a server of WebSockets that echoes, on a port of its argument
ECHO = r"""
import asyncio, sys
import tornado.web, tornado.websocket

class Echo(tornado.websocket.WebSocketHandler):
    def check_origin(self, origin):
        return True
    def on_message(self, message):
        self.write_message(message, binary=isinstance(message, bytes))

async def main(port):
    tornado.web.Application([("/ws", Echo)]).listen(port, "127.0.0.1")
    await asyncio.Event().wait()

asyncio.run(main(int(sys.argv[1])))
"""

#: code that starts all servers: `RAW` on 8000 of loopback, `ECHO` on 8001, and Python's own on two addresses
START = f"""
import pathlib, subprocess, sys
pathlib.Path('raw.py').write_text({RAW!r})
pathlib.Path('echo.py').write_text({ECHO!r})
pathlib.Path('index.html').write_text('<h1>hi</h1>')
servers = [subprocess.Popen([sys.executable, *words.split()]) for words in (
    'raw.py 127.0.0.1 8000',
    'echo.py 8001',
    '-m http.server 8002 --bind 127.0.0.1',
    '-m http.server 8003 --bind 0.0.0.0',
)]
"""
