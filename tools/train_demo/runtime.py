"""Process settings that make PyTorch on a CPU fast. Import before torch."""
import ctypes
import os
import pathlib

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h


def tune(threads: int = 1) -> None:
    """One thread beats two at these matrix sizes; OpenBLAS misjudges virtual CPUs; malloc keeps its pages."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(threads))
    cpu = pathlib.Path("/proc/cpuinfo")
    if cpu.exists() and "avx512bw" in cpu.read_text():
        os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


tune()
