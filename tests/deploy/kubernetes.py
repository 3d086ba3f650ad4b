"""The Kustomize base as kubectl renders it: ports, probes, names and times that fit each other."""

import json
import os
import pathlib
import re
import subprocess

from outside import ROOT

BASE = ROOT / "deploy" / "kustomize"


def render(folder, scratch):
    """The objects by kind and name. A function of kustomize turns them into JSON, so that no YAML is read here."""
    text = subprocess.run(
        ["kubectl", "kustomize", folder], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    objects = {}
    for document in text.split("\n---\n"):
        file = scratch / "object.yaml"
        file.write_text(document)
        made = subprocess.run(
            ["kubectl", "patch", "--local", "-f", file, "-p", "{}", "-o", "json"],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        found = json.loads(made.stdout)
        objects[found["kind"], found["metadata"]["name"]] = found
    return objects


def check(binary, scratch):
    objects = render(BASE, scratch)
    pod = objects["StatefulSet", "infergate"]["spec"]["template"]
    spec = pod["spec"]
    (container,) = spec["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe, path in (("startupProbe", "/healthz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")):
        asked = container[probe]["httpGet"]
        if asked["path"] != path or asked["port"] != "admin":
            yield f"{probe} asks {asked}"
    labels = pod["metadata"]["labels"].items()
    for name in ("infergate", "infergate-admin"):
        service = objects["Service", name]["spec"]
        if not service["selector"].items() <= labels:
            yield f"service {name} selects {service['selector']}"
        yield from (f"service {name}: no port {port}" for port in service["ports"] if port["targetPort"] not in ports)
    if ("Service", objects["StatefulSet", "infergate"]["spec"]["serviceName"]) not in objects:
        yield "the service of the StatefulSet is missing"
    if ("ServiceAccount", spec["serviceAccountName"]) not in objects:
        yield "the service account is missing"
    binding = objects["RoleBinding", "infergate-discovery"]
    if ("Role", binding["roleRef"]["name"]) not in objects:
        yield "the role is missing"
    volumes = {volume["name"] for volume in spec["volumes"]} | {
        claim["metadata"]["name"] for claim in objects["StatefulSet", "infergate"]["spec"]["volumeClaimTemplates"]
    }
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    if volumes != mounts:
        yield f"volumes {sorted(volumes)}, mounts {sorted(mounts)}"
    yield from check_configuration(binary, scratch, objects, spec, container, ports)
    yield from check_overlay(scratch)


def check_overlay(scratch):
    """A kustomization above, as the page says it, with a namespace, a configuration and an image."""
    folder = scratch / "overlay"
    folder.mkdir()
    (folder / "infergate.yaml").write_text("anonymous: deny\n")
    base = pathlib.Path(os.path.relpath(BASE, folder.resolve()))
    (folder / "kustomization.yaml").write_text(
        f"resources: [{base}]\n"
        "namespace: inference\n"
        "configMapGenerator: [{ name: infergate, behavior: replace, files: [infergate.yaml] }]\n"
        "images: [{ name: infergate, newName: registry.example/infergate, newTag: '1' }]\n"
    )
    objects = render(folder, scratch)
    outside = [name for name, made in objects.items() if made["metadata"].get("namespace") != "inference"]
    if outside:
        yield f"not in the namespace: {outside}"
    (subject,) = objects["RoleBinding", "infergate-discovery"]["subjects"]
    if subject["namespace"] != "inference":
        yield f"the right is given to {subject}"
    if objects["ConfigMap", "infergate"]["data"]["infergate.yaml"] != "anonymous: deny\n":
        yield "the configuration is not replaced"
    (container,) = objects["StatefulSet", "infergate"]["spec"]["template"]["spec"]["containers"]
    if container["image"] != "registry.example/infergate:1":
        yield f"the image is {container['image']}"


def check_configuration(binary, scratch, objects, spec, container, ports):
    """The configuration is good, and listens and drains as the pod expects."""
    text = objects["ConfigMap", "infergate"]["data"]["infergate.yaml"]
    file = scratch / "infergate.yaml"
    file.write_text(text)
    done = subprocess.run([binary, "check", file], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        yield done.stdout
    for name in ports.values():
        if f"0.0.0.0:{name}" not in text:
            yield f"nothing listens on port {name}"
    drain = sum(int(secs) for secs in re.findall(r"drain_\w+_secs: (\d+)", text))
    before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    if before + drain >= spec["terminationGracePeriodSeconds"]:
        yield f"a drain takes up to {before + drain} s, and the pod is killed before"
    named = container["args"][-1]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "config"]
    if str(pathlib.PurePath(named).parent) != mount["mountPath"]:
        yield f"{named} is not below {mount['mountPath']}"
