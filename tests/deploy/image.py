"""The files of the container image: enough for the binary to work in a root of its own, and no more than 60 MiB."""

import os
import re
import subprocess

from outside import ROOT

IMAGE_MIB_MAX = 60
CONTAINERFILE = ROOT / "deploy" / "Containerfile"


def check(binary, scratch):
    root = scratch / "image"
    subprocess.run([ROOT / "deploy" / "image-root", binary, root], check=True, timeout=120)
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    libraries = sum(path.stat().st_size for path in files if path.name != "infergate")
    if libraries > 8 << 20:
        yield f"{libraries >> 20} MiB beside the binary"
    size = sum(path.stat().st_size for path in files)
    # A debug build is larger than what is shipped.
    if binary.parent.name in ("dist", "release") and size > IMAGE_MIB_MAX << 20:
        yield f"the image has {size >> 20} MiB, more than {IMAGE_MIB_MAX}"
    text = CONTAINERFILE.read_text()
    for path in re.findall(r"(deploy/[\w-]+)", text):
        if not (ROOT / path).exists():
            yield f"{path} is not there"
    if os.geteuid() == 0:
        configuration = root / "etc" / "infergate" / "infergate.yaml"
        configuration.write_text((ROOT / "config" / "minimal.yaml").read_text())
        inside = ["chroot", "--userspec=65532:65532", root, "/usr/bin/infergate"]
        for arguments in (["--version"], ["check", "/etc/infergate/infergate.yaml"]):
            done = subprocess.run([*inside, *arguments], capture_output=True, text=True, timeout=60)
            if done.returncode != 0:
                yield f"in the image: {arguments[0]}: {done.stdout}{done.stderr}"
