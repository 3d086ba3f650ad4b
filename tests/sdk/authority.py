"""Makes an authority and a certificate for 127.0.0.1. Usage: authority.py FOLDER

Writes `ca.pem`, `certificate.pem` and `key.pem` there.
"""

import pathlib
import sys

import trustme

folder = pathlib.Path(sys.argv[1])
authority = trustme.CA()
issued = authority.issue_cert("127.0.0.1")
(folder / "ca.pem").write_bytes(authority.cert_pem.bytes())
(folder / "key.pem").write_bytes(issued.private_key_pem.bytes())
chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
(folder / "certificate.pem").write_bytes(chain)
