"""Writes OCI image archives without a container engine. The same input gives the same bytes: entries are sorted, owned by root, and
have time 0. Used by deploy/image/build and tests/cluster/images."""

import gzip
import hashlib
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import tempfile

# Per architecture, in the words of OCI: ELF machine, and the name of Debian's library folder and of the tools.
ARCHITECTURES = {"amd64": (62, "x86_64-linux-gnu"), "arm64": (183, "aarch64-linux-gnu")}
EPOCH = "1970-01-01T00:00:00Z"
MEDIA = "application/vnd.oci.image."


def native_architecture():
    return {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]


class Elf:
    """The parts of a 64-bit little-endian ELF file that an image needs: machine, loader, libraries, and if it has symbols."""

    PT_LOAD, PT_DYNAMIC, PT_INTERP, SHT_SYMTAB, DT_NEEDED, DT_STRTAB = 1, 2, 3, 2, 1, 5

    def __init__(self, path):
        with open(path, "rb") as file:
            data = file.read()
        if data[:6] != b"\x7fELF\x02\x01":
            raise SystemExit(f"{path} is no 64-bit little-endian ELF program")
        self.machine = struct.unpack_from("<H", data, 18)[0]
        program_headers, section_headers = struct.unpack_from("<QQ", data, 32)
        size, count, section_size, sections = struct.unpack_from("<4H", data, 54)
        types = (struct.unpack_from("<I", data, section_headers + i * section_size + 4)[0] for i in range(sections))
        self.has_symbols = self.SHT_SYMTAB in types
        segments = []  # type, offset, address, bytes
        for i in range(count):
            kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", data, program_headers + i * size)
            segments.append((kind, offset, address, length))
        text = lambda at: data[at : data.index(b"\0", at)].decode()
        self.loader = next((text(offset) for kind, offset, _, _ in segments if kind == self.PT_INTERP), None)
        entries = []
        for kind, offset, _, length in segments:
            if kind == self.PT_DYNAMIC:
                entries = [struct.unpack_from("<QQ", data, at) for at in range(offset, offset + length, 16)]
        names = next((value for tag, value in entries if tag == self.DT_STRTAB), 0)
        for kind, offset, address, length in segments:
            if kind == self.PT_LOAD and address <= names < address + length:
                names += offset - address
                break
        self.libraries = [text(names + value) for tag, value in entries if tag == self.DT_NEEDED]


class Layer:
    """The files of one layer, by their absolute paths in the image."""

    def __init__(self, architecture, sysroot="/"):
        self.machine, self.triplet = ARCHITECTURES[architecture]
        self.sysroot = sysroot
        self.entries = {}  # path: (type, mode, bytes or link target)

    def add_folder(self, path, mode=0o755):
        self.entries[path] = (tarfile.DIRTYPE, mode, b"")

    def add_link(self, path, target):
        self.entries.setdefault(path, (tarfile.SYMTYPE, 0o777, target))

    def add_text(self, path, text):
        self.entries[path] = (tarfile.REGTYPE, 0o644, text.encode())

    def add_file(self, source, path, mode=0o644):
        with open(source, "rb") as file:
            self.entries[path] = (tarfile.REGTYPE, mode, file.read())

    def add_program(self, source, path, strip=False):
        """Adds a program and everything that it is linked to. `strip` removes its symbols."""
        self.add_libraries(source)
        if strip and Elf(source).has_symbols:
            with tempfile.TemporaryDirectory() as folder:
                stripped = os.path.join(folder, "stripped")
                strip_symbols(self.triplet, source, stripped)
                return self.add_file(stripped, path, 0o755)
        return self.add_file(source, path, 0o755)

    def add_libraries(self, source):
        elf = Elf(source)
        if elf.machine != self.machine:
            raise SystemExit(f"{source} is for another architecture than {self.triplet}")
        if elf.loader:
            self.add_library(elf.loader)
        for name in elf.libraries:
            folders = (f"/lib/{self.triplet}", f"/usr/lib/{self.triplet}", "/lib64", "/lib", "/usr/lib64", "/usr/lib")
            # The loader stands at its own path, not among the libraries.
            if elf.loader and name == os.path.basename(elf.loader) or name.startswith("ld-linux"):
                continue
            found = [f"{folder}/{name}" for folder in folders if os.path.exists(self.sysroot + f"{folder}/{name}")]
            if not found:
                raise SystemExit(f"{source} needs {name}, which is not in {self.sysroot}: name another --sysroot")
            self.add_library(found[0])

    def add_library(self, path):
        if path not in self.entries:
            source = os.path.realpath(self.sysroot + path)
            self.add_file(source, path, 0o755)
            self.add_libraries(source)

    def tar(self):
        for path in list(self.entries):
            while (path := os.path.dirname(path)) != "/":
                self.entries.setdefault(path, (tarfile.DIRTYPE, 0o755, b""))
        return tar_of(self.entries)


def strip_symbols(triplet, source, target):
    native = triplet.startswith(os.uname().machine)
    for tool in ["strip"] if native else [f"{triplet}-strip", "llvm-strip"]:
        try:
            return subprocess.run([tool, "-o", target, source], check=True)
        except FileNotFoundError:
            pass
    raise SystemExit(f"{source} has symbols: strip it, or install the {triplet} binutils")


def tar_of(entries):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(entries):
            kind, mode, content = entries[path]
            info = tarfile.TarInfo(path.lstrip("/"))
            info.type, info.mode = kind, mode
            if kind == tarfile.SYMTYPE:
                info.linkname, content = content, b""
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def write_archive(output, names, architecture, layers, config, level=9):
    """Writes the image under all its names (`repository:tag`). Returns its size as a registry counts it, in bytes."""
    blobs = {}

    def blob(kind, content):
        digest = hashlib.sha256(content).hexdigest()
        blobs["blobs/sha256/" + digest] = (tarfile.REGTYPE, 0o644, content)
        return {"mediaType": MEDIA + kind, "digest": "sha256:" + digest, "size": len(content)}

    def text(value):
        return json.dumps(value, sort_keys=True).encode()

    tars = [layer.tar() for layer in layers]
    platform = {"architecture": architecture, "os": "linux"}
    diffs = ["sha256:" + hashlib.sha256(tar).hexdigest() for tar in tars]
    image = {**platform, "created": EPOCH, "config": config, "rootfs": {"type": "layers", "diff_ids": diffs}}
    parts = [blob("layer.v1.tar+gzip", gzip.compress(tar, level, mtime=0)) for tar in tars]
    manifest = {"schemaVersion": 2, "mediaType": MEDIA + "manifest.v1+json", "config": blob("config.v1+json", text(image)), "layers": parts}
    manifest = {**blob("manifest.v1+json", text(manifest)), "platform": platform}
    size = sum(len(content) for _, _, content in blobs.values())
    tags = [{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]} for name in names]
    index = [{**manifest, "annotations": tag} for tag in tags]
    blobs["index.json"] = (tarfile.REGTYPE, 0o644, text({"schemaVersion": 2, "mediaType": MEDIA + "index.v1+json", "manifests": index}))
    blobs["oci-layout"] = (tarfile.REGTYPE, 0o644, text({"imageLayoutVersion": "1.0.0"}))
    with open(output, "wb") as file:
        file.write(tar_of(blobs))
    print(f"{output}: {', '.join(names)}, {architecture}, {size / 1e6:.1f} MB compressed", file=sys.stderr)
    return size
