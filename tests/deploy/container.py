"""The container image as `deploy/Containerfile` makes it, by buildah and with nothing fetched: the binary is built already."""

import json
import os
import subprocess

from outside import ROOT, Unfit

CONTAINERFILE = ROOT / "deploy" / "Containerfile"
# The stage that makes the image, and where it gets its files from.
STAGE, COPIED = "FROM scratch\n", "COPY --from=build /image/ /"


def buildah(scratch, *arguments):
    """Its output. Images and containers stand below the folder, and need no privileges of the kernel's."""
    store = ["--storage-driver", "vfs", "--root", scratch / "store", "--runroot", scratch / "run"]
    done = subprocess.run(["buildah", *store, *arguments], cwd=scratch, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise OSError(f"buildah {arguments[0]}: {done.stdout}{done.stderr}")
    return done.stdout


def check(binary, scratch):
    if os.geteuid() != 0:
        raise Unfit("containers are made as root here")
    subprocess.run([ROOT / "deploy" / "image-root", binary, scratch / "image"], check=True, timeout=120)
    text = CONTAINERFILE.read_text()
    stage = text[text.index(STAGE):]
    if COPIED not in stage:
        yield f"the image is not made by `{COPIED}`"
        return
    (scratch / "Containerfile").write_text(stage.replace(COPIED, "COPY image/ /"))
    buildah(scratch, "bud", "--isolation=chroot", "--pull-never", "-t", "infergate", ".")
    settings = json.loads(json.loads(buildah(scratch, "inspect", "--type", "image", "infergate"))["Config"])["config"]
    for key, wanted in (("User", "65532:65532"), ("Entrypoint", ["/usr/bin/infergate"]), ("StopSignal", "SIGTERM")):
        if settings.get(key) != wanted:
            yield f"{key} of the image is {settings.get(key)}"
    configuration = scratch / "infergate.yaml"
    configuration.write_text((ROOT / "config" / "minimal.yaml").read_text())
    configuration.chmod(0o644)
    container = buildah(scratch, "from", "--pull-never", "infergate").strip()
    buildah(scratch, "copy", container, "infergate.yaml", "/etc/infergate/infergate.yaml")
    for command in (["--version"], ["check", *settings["Cmd"][-1:]]):
        try:
            buildah(scratch, "run", "--isolation=chroot", container, "--", "/usr/bin/infergate", *command)
        except OSError as error:
            yield f"in a container: {error}"
