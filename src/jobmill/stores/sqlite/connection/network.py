"""Network file systems: their locks and shared memory do not hold, so a SQLite file is not safe there."""

from __future__ import annotations

import os
import re
from pathlib import Path

from jobmill.errors import UnsafeStore

_NETWORK = {
    *("nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "9p", "afs", "ncpfs", "coda", "ceph", "glusterfs"),
    *("lustre", "gpfs", "beegfs", "orangefs", "pvfs2", "ocfs2", "gfs2", "davfs", "webdav", "acfs", "panfs"),
}
_NETWORK_FUSE = {
    *("sshfs", "s3fs", "goofys", "rclone", "gcsfuse", "blobfuse", "glusterfs", "ceph", "davfs2", "curlftpfs", "mfs"),
    *("juicefs", "s3ql", "smbnetfs", "ossfs", "cephfs", "moosefs", "seaweedfs"),
}
_OCTAL = re.compile(r"\\([0-7]{3})")


def network_file_system(mountinfo: str, path: str) -> str | None:
    """The type of the network file system that this absolute path lies on, by the text of /proc/self/mountinfo."""
    best, kind = "", None
    for line in mountinfo.splitlines():
        before, separator, behind = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5:
            continue
        # A space is written as \040.
        point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4])
        inside = point == "/" or path == point or path.startswith(point + "/")
        # Of two mounts on one point, the later one hides the other.
        if inside and len(point) >= len(best):
            best, kind = point, behind.split(" ")[0]
    return kind if kind is not None and _is_network(kind) else None


def _is_network(kind: str) -> bool:
    if kind.startswith(("fuse.", "fuseblk.")):
        return kind.partition(".")[2] in _NETWORK_FUSE
    return kind in _NETWORK


def refuse_network(path: Path) -> None:
    """Raise UnsafeStore where the file would lie on a network file system; only Linux can tell."""
    try:
        mountinfo = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        return
    kind = network_file_system(mountinfo, os.path.realpath(path))
    if kind is not None:
        raise UnsafeStore(
            f"{path} lies on a network file system ({kind}), where SQLite's locks do not hold and files get damaged; "
            "put it on a local disk, or use a store that is a server"
        )
