"""NVIDIA's compilers from Python packages: they run without a GPU and without CuPy. ``gpu.compile`` is their user."""

import importlib.util
import re
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from refimpl.contract import UsageError, host

__all__ = ["INSTALL", "link", "need_toolkit", "nvrtc_ptx", "spilled", "toolkit_key", "toolkit_versions"]

INSTALL = 'pip install "numba-cuda[cu12]"'


@host
def need_toolkit() -> None:
    """Raise UsageError where kernels cannot be compiled."""
    for module in ("numba_cuda", "cuda.bindings.nvrtc", "cuda.bindings.nvjitlink"):
        if not _is_there(module):
            raise UsageError(f"CUDA kernels need numba-cuda and its compilers ({module} is missing): {INSTALL}")


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # the package above it is missing
        return False


@host
@cache
def toolkit_versions() -> str:
    """Return the names of the compilers and their versions."""
    need_toolkit()
    from cuda.bindings import nvjitlink, nvrtc

    packages = [f"{name} {version(name)}" for name in ("numba-cuda", "numba", "llvmlite")]
    libraries = {"NVRTC": nvrtc.nvrtcVersion()[1:], "nvJitLink": nvjitlink.version()}
    return ", ".join([*packages, *(f"{name} {major}.{minor}" for name, (major, minor) in libraries.items())])


@host
@cache
def toolkit_key() -> str:
    """Return what a compiled kernel depends on beside its source: the versions, and the libraries behind them."""
    need_toolkit()
    from cuda.pathfinder import load_nvidia_dynamic_lib

    libraries = [Path(str(load_nvidia_dynamic_lib(name).abs_path)) for name in ("nvvm", "nvrtc", "nvJitLink")]
    return " ".join([toolkit_versions(), *(f"{path.name} {path.stat().st_size}" for path in libraries)])


@host
def nvrtc_ptx(name: str, sources: dict[str, str], arch: str, options: tuple[str, ...]) -> str:
    """Compile CUDA C++ to PTX. ``sources`` has the text of file ``name`` and of what it includes."""
    need_toolkit()
    from cuda.bindings import nvrtc

    others = {file: text.encode() for file, text in sources.items() if file != name}
    flags = [f"--gpu-architecture={arch.replace('sm_', 'compute_')}", "--std=c++17", *options]
    program = _done(nvrtc.nvrtcCreateProgram(
        sources[name].encode(), name.encode(), len(others), list(others.values()), [file.encode() for file in others]))
    try:
        result, = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise UsageError(f"{name} does not compile for {arch}: {_first_error(_log(program))}")
        ptx = bytes(_done(nvrtc.nvrtcGetPTXSize(program)))
        _done(nvrtc.nvrtcGetPTX(program, ptx))
        return ptx.rstrip(b"\0").decode()
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _log(program: Any) -> str:
    from cuda.bindings import nvrtc

    log = bytes(_done(nvrtc.nvrtcGetProgramLogSize(program)))
    _done(nvrtc.nvrtcGetProgramLog(program, log))
    return log.rstrip(b"\0").decode(errors="replace")


def _done(results: tuple[Any, ...]) -> Any:
    """Return the value of an NVRTC call, which precedes it with a status."""
    if int(results[0]):
        raise UsageError(f"NVRTC failed: {results[0]!r}")
    return results[1] if len(results) > 1 else None


def _first_error(log: str) -> str:
    errors = [line for line in log.splitlines() if re.search(r"\berror\b|fatal", line)]
    return (errors or log.splitlines() or ["no message"])[0].strip()


@host
def link(name: str, ptx: str, arch: str) -> bytes:
    """Turn PTX into the machine code of one architecture, with the linker of the same toolkit."""
    return _linked(name, ptx, arch)[0]


@host
def spilled(name: str, ptx: str, arch: str) -> int:
    """Return the bytes that a thread stores and loads again because it has too few registers."""
    log = _linked(name, ptx, arch, "-Xptxas=-v", "-verbose")[1]
    return sum(int(number) for number in re.findall(r"(\d+) bytes spill (?:stores|loads)", log))


def _linked(name: str, ptx: str, arch: str, *more: str) -> tuple[bytes, str]:
    """Return machine code and what the linker says of it."""
    need_toolkit()
    from cuda.bindings import nvjitlink

    options = [f"-arch={arch}", *more]
    handle = nvjitlink.create(len(options), options)
    try:
        text = ptx.encode()
        try:
            nvjitlink.add_data(handle, nvjitlink.InputType.PTX, text, len(text), name)
            nvjitlink.complete(handle)
        except nvjitlink.nvJitLinkError as error:
            log = bytearray(nvjitlink.get_error_log_size(handle))
            nvjitlink.get_error_log(handle, log)
            message = _first_error(log.rstrip(b"\0").decode(errors="replace"))
            raise UsageError(f"{name} does not link for {arch}: {message}") from error
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
        return bytes(cubin), log.decode(errors="replace")
    finally:
        nvjitlink.destroy(handle)
