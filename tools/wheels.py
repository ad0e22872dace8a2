"""Wheels that are handed out: build them with zig into dist/, and check what is in them.

``python tools/wheels.py`` builds those of all platforms, ``--own`` that of this machine alone. Each
is built from the source distribution, in a folder of its own.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import compilers
import lief

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
LARGEST = 1_449_999  # bytes
NEEDED = {
    "manylinux": r"(lib(c|m|dl|pthread|rt)|ld-linux-\w+(-\w+)?)\.so\.\d",
    "win": r"KERNEL32\.dll|api-ms-win-crt-[\w-]+\.dll",
    "macosx": r"/usr/lib/libSystem\.B\.dylib",
}
"""What a system has itself: a library may need nothing else."""
USUAL = re.compile(r"torch_dmlpool/([\w/]+\.py|py\.typed)|torch_dmlpool-[^/]+\.dist-info/.+")
"""The files of a wheel that are not compiled."""
ON_A_MAC = r"_(Zn[aw]|Zd[al])\w+|_mh_dylib_header|__dso_handle"
"""What zig's libraries export there, too: C++'s operators new and delete, and the system's own."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--own", action="store_true", help="this machine's platform alone")
    options = parser.parse_args()
    own = [tag for tag, name in compilers.TARGETS.items() if name == compilers.own_target()]
    wrong = 0
    for wheel in built(own if options.own else list(compilers.TARGETS)):
        found = list(complaints(wheel))
        wrong += len(found)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB, {found or 'as it should be'}")
    return min(wrong, 1)


def built(platforms: list[str]) -> list[Path]:
    """The wheels of these platforms."""
    shutil.rmtree(DIST, ignore_errors=True)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(DIST)]
    subprocess.run([*build, "--sdist", str(ROOT)], check=True, stdout=subprocess.DEVNULL)
    (source,) = DIST.glob("*.tar.gz")
    caches = dict.fromkeys(compilers.CACHES, str(ROOT / "build" / "zig"))
    for platform in platforms:
        print(f"building {platform}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(source) as archive:
                archive.extractall(folder, filter="data")
            (unpacked,) = Path(folder).iterdir()
            environment = {**caches, **os.environ, "TORCH_DMLPOOL_PLATFORM": platform}
            environment.pop("CXX", None)
            command = [*build, "--wheel", str(unpacked)]
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return sorted(DIST.glob("*.whl"))


def complaints(wheel: Path) -> Iterator[str]:
    """What keeps a wheel from being handed out, in words."""
    if wheel.stat().st_size > LARGEST:
        yield f"larger than {LARGEST / 1e6} MB"
    platform = wheel.stem.split("-")[-1]
    system = re.match("[a-z]+", platform).group()
    level = ["avx2", "avx512"] if platform.endswith(("x86_64", "amd64")) else ["default"]
    ending = "dll" if system == "win" else "so"
    wanted = {f"torch_dmlpool/kernels/cpu_{name}.{ending}" for name in level}
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        for name in sorted(wanted - names):
            yield f"{name} is missing"
        for name in sorted(names - wanted):
            if not USUAL.fullmatch(name):
                yield f"{name} does not belong there"
        for name in sorted(names & wanted):
            path = archive.extract(name, folder)
            yield from (f"{name} {what}" for what in complaints_of_library(path, system, platform))
    # The symbols' versions decide which systems a wheel for Linux runs on.
    shown = asked("auditwheel", "show", str(wheel)).stdout if system == "manylinux" else ""
    tag = re.search(r'platform\s+tag:\s+"(\w+)"', shown)
    if system == "manylinux" and (tag is None or tag[1] != platform):
        yield f"by auditwheel: {' '.join(shown.split())}"
    checked = asked("twine", "check", "--strict", str(wheel))
    if checked.returncode:
        yield checked.stdout


def asked(*command: str) -> subprocess.CompletedProcess[str]:
    """What a Python program prints, and its exit status."""
    called = [sys.executable, "-m", *command]
    return subprocess.run(called, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def complaints_of_library(path: str, system: str, platform: str) -> Iterator[str]:
    library = lief.parse(path)
    if system == "win":
        exported = {entry.name for entry in library.get_export().entries}
        needed = set(library.libraries)
    elif system == "macosx":
        symbols = {symbol.name.removeprefix("_") for symbol in library.exported_symbols}
        exported = {name for name in symbols if not re.fullmatch(ON_A_MAC, name)}
        # The first is the library's own name.
        needed = {one.name for one in library.libraries} - {library.libraries[0].name}
        # Libraries for systems before 10.14 have the older load command.
        is_older = library.has_version_min
        version = library.version_min.version if is_older else library.build_version.minos
        oldest = ".".join(map(str, version[:2]))
        asked = ".".join(platform.split("_")[1:3])
        if oldest != asked:
            yield f"asks for macOS {oldest}, not {asked}"
    else:
        exported = {symbol.name for symbol in library.exported_symbols}
        needed = set(library.libraries)
        for name in {"memcpy", "memset"} - {symbol.name for symbol in library.imported_symbols}:
            yield f"does not call the system's {name}"
    wanted = compilers.exported_by((ROOT / "kernels").rglob("*.cpp"))
    if exported != wanted:
        yield f"exports {sorted(exported ^ wanted)} too much or too little"
    for name in sorted(needed):
        if not re.fullmatch(NEEDED[system], name):
            yield f"needs {name}"


if __name__ == "__main__":
    sys.exit(main())
