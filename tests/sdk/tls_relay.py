"""A relay in front of a gateway, as an operator's TLS proxy is: usage tls_relay.py PORT READY_PORT TARGET_PORT CA_FILE

Makes an authority and a certificate for `localhost`, writes the authority to CA_FILE, and relays each connection
at PORT to 127.0.0.1:TARGET_PORT. READY_PORT answers plain requests with 200 once PORT is served.
"""

import asyncio
import pathlib
import ssl
import sys

import trustme

PIECE = 64 * 1024
READY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


async def copy(reader, writer):
    try:
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def main(port, ready_port, target_port, ca_file):
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    pathlib.Path(ca_file).write_bytes(authority.cert_pem.bytes())

    async def relay(reader, writer):
        try:
            target_reader, target_writer = await asyncio.open_connection("127.0.0.1", int(target_port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, target_writer), copy(target_reader, writer))

    async def ready(reader, writer):
        await reader.readline()
        writer.write(READY)
        await writer.drain()
        writer.close()

    relaying = await asyncio.start_server(relay, "localhost", int(port), ssl=context)
    answering = await asyncio.start_server(ready, "127.0.0.1", int(ready_port))
    await asyncio.gather(relaying.serve_forever(), answering.serve_forever())


asyncio.run(main(*sys.argv[1:]))
