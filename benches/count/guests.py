"""A copy of the binary whose guests and model processes run under valgrind.

Not for use beside it. Two functions of the copy return at once: `check_elf_base` of rustix, which looks for the
kernel's vDSO where valgrind hides it, and `infer_native_flags` of cranelift. Without the second, guests are
compiled for the least processor of the architecture, so that valgrind's runs what the real one has compiled: a
child of a process under valgrind cannot compile. And a process that starts its own file, as the keepers of models are
started, would start valgrind: the copy starts a file of its working directory in place of it.
"""

import pathlib
import platform
import shutil
import subprocess

SELF = b"/proc/self/exe"
# As long as the path whose place it takes.
OWN_BINARY = b"./keeper-of-it"
FUNCTIONS = ("check_elf_base", "infer_native_flags")
# xor eax, eax; ret: `None` of the first function, `Ok` of the second.
RETURN_ZERO = b"\x31\xc0\xc3"


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def why_not():
    """Why no copy can be made here, or None."""
    if platform.machine() != "x86_64":
        return "the binary is patched on x86_64 only"
    missing = next((name for name in ("nm", "readelf") if shutil.which(name) is None), None)
    return missing and f"{missing} not installed"


def patched(binary, folder):
    """The path of a copy in `folder`."""
    copy = pathlib.Path(folder) / "infergate"
    shutil.copy(binary, copy)
    segments = [
        [int(field, 16) for field in (words[1], words[2], words[4])]
        for words in map(str.split, output("readelf", "-lW", str(binary)))
        if words[:1] == ["LOAD"]
    ]
    symbols = output("nm", str(binary))
    with open(copy, "r+b") as file:
        for function in FUNCTIONS:
            addresses = [int(line.split()[0], 16) for line in symbols if function in line]
            if not addresses:
                raise RuntimeError(f"{binary} has no symbol with {function} in its name")
            for address in addresses:
                offset, start, _ = next(
                    part for part in segments if part[1] <= address < part[1] + part[2]
                )
                file.seek(address - start + offset)
                file.write(RETURN_ZERO)
    copy.write_bytes(copy.read_bytes().replace(SELF, OWN_BINARY))
    return copy
