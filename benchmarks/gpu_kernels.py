"""`make gpu-kernels`: how many kernels the Triton backend compiles as sizes change, without a GPU.

Each takes a second or more to compile where it is first launched, so no size of an image or of a
window may make another: the limits hold for an operator and a data type.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from benchmarks import gpu_prepare, gpu_requests


def kernels_of(requests: Iterable[gpu_requests.Request]) -> int:
    """Different kernels that compute all the requests on an H200."""
    with gpu_prepare.recorded() as found:
        for request in requests:
            _, call = request.prepared()
            call()
    return len(dict.fromkeys(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="only every Nth size")
    parser.add_argument("words", nargs="*", help="families that have all these in their name")
    given = parser.parse_args()
    failed = 0
    for family in gpu_requests.families(every=given.every):
        if all(word in family.name for word in given.words):
            count = kernels_of(family.requests)
            failed += count > family.most
            mark = "TOO MANY" if count > family.most else "ok"
            print(f"{mark:8} {count:4} of at most {family.most}: {family.name}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
