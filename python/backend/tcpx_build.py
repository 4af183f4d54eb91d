"""Builds the wheel and the source archive of tcpx for pip and build (PEP 517), with nothing but make.

The wheel is for CPython 3.11 and all newer versions; its platform tag is what its files really need.
"""

import base64
import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = ("build", "dist", ".git")
SOME_TIME = 1767225600  # of all files in what is made, 2026-01-01, so that it is the same for everybody


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def version():
    header = (ROOT / "include/tcpx.h").read_text()
    return ".".join(
        re.search(rf"#define TCPX_VERSION_{part} (\d+)", header)[1]
        for part in ("MAJOR", "MINOR", "PATCH")
    )


def metadata():
    about = project()
    return (
        f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {version()}\n"
        f"Summary: {about['description']}\nLicense: {about['license']['text']}\n"
        f"Requires-Python: {about['requires-python']}\n"
        "Description-Content-Type: text/markdown\n\n" + (ROOT / about["readme"]).read_text()
    )


# --- the wheel ------------------------------------------------------------------------------------


def make(folder):
    """The package as make puts it together in its build folder."""
    jobs = len(os.sched_getaffinity(0))
    settings = [f"BUILD={folder}", f"PYTHON={sys.executable}"]
    # An outer make and its jobs are not this one's.
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL")}
    subprocess.run(
        ["make", f"-j{jobs}", *settings, "python"], cwd=ROOT, check=True, env=environment,
        stdout=sys.stderr,
    )
    return ROOT / folder / "python"


def strip(file):
    """Without what only a debugger reads."""
    subprocess.run(["strip", "--strip-unneeded", "-o", f"{file}.stripped", file], check=True)
    return Path(f"{file}.stripped")


def platform_tag(files):
    """manylinux of the newest glibc that a symbol asks for; plain linux with another libc."""
    machine = os.uname().machine
    newest = (0, 0)
    for file in files:
        needed = subprocess.run(
            ["readelf", "--version-info", "--wide", file], check=True, capture_output=True, text=True
        ).stdout
        found = [(int(a), int(b)) for a, b in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", needed)]
        newest = max([newest, *found])
    return f"manylinux_{newest[0]}_{newest[1]}_{machine}" if newest > (0, 0) else f"linux_{machine}"


class Wheel:
    """A zip with the list of its files and their hashes."""

    def __init__(self, path, records):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.records = records
        self.lines = []

    def add(self, name, data, mode=0o644):
        info = zipfile.ZipInfo(name, time.gmtime(SOME_TIME)[:6])
        info.external_attr = (0o100000 | mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.lines.append(f"{name},sha256={digest},{len(data)}\n")

    def close(self):
        name = f"{self.records}/RECORD"
        self.zip.writestr(zipfile.ZipInfo(name, time.gmtime(SOME_TIME)[:6]),
                          "".join(self.lines) + f"{name},,\n")
        self.zip.close()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """`-C build=FOLDER` takes another build folder, such as one where most is compiled already."""
    folder = make((config_settings or {}).get("build", "build/wheel"))
    compiled = ["tcpx/_tcpx.abi3.so", "tcpx/bin/tcpx", "tcpx/nixl/libplugin_TCPX.so"]
    binaries = {name: strip(folder / name) for name in compiled if (folder / name).exists()}
    tag = f"cp311-abi3-{platform_tag(binaries.values())}"
    name = f"tcpx-{version()}-{tag}.whl"
    wheel = Wheel(Path(wheel_directory) / name, f"tcpx-{version()}.dist-info")
    for source in sorted((ROOT / "python/tcpx").rglob("*")):
        if source.is_file() and "__pycache__" not in source.parts:
            wheel.add(source.relative_to(ROOT / "python").as_posix(), source.read_bytes())
    for name_inside, file in binaries.items():
        wheel.add(name_inside, file.read_bytes(), 0o755)
    wheel.add(f"{wheel.records}/METADATA", metadata().encode())
    wheel.add(f"{wheel.records}/LICENSE.txt", (ROOT / "LICENSE.txt").read_bytes())
    wheel.add(
        f"{wheel.records}/WHEEL",
        f"Wheel-Version: 1.0\nGenerator: tcpx\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
    )
    wheel.close()
    return name


# --- the source archive ---------------------------------------------------------------------------


def sources():
    """What git tracks; all there is in an archive that was unpacked, but for links, which make makes."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True
        ).stdout
        return sorted(ROOT / os.fsdecode(name) for name in listed.split(b"\0") if name)
    return sorted(
        path for path in ROOT.rglob("*")
        if path.is_file() and not path.is_symlink() and path.relative_to(ROOT).parts[0] not in SKIPPED
    )


def same_for_all(info):
    """Leaves out who builds the archive, and when."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = SOME_TIME
    info.mode = 0o755 if info.mode & 0o100 else 0o644
    return info


def build_sdist(sdist_directory, config_settings=None):
    name = f"tcpx-{version()}"
    with (
        open(Path(sdist_directory) / f"{name}.tar.gz", "wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=SOME_TIME) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for path in sources():
            if path.is_file() and path.name != "PKG-INFO":
                archive.add(path, f"{name}/{path.relative_to(ROOT)}", recursive=False, filter=same_for_all)
        data = metadata().encode()
        info = tarfile.TarInfo(f"{name}/PKG-INFO")
        info.size = len(data)
        archive.addfile(same_for_all(info), io.BytesIO(data))
    return f"{name}.tar.gz"
