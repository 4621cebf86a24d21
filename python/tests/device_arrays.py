"""Arrays in the memory of a GPU, over the driver alone: a small producer of DLPack for tests on the fake driver."""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint64, c_void_p

import numpy

#: True if this process uses the fake driver.
HAS_FAKE_GPU = "fake-cuda" in os.environ.get("LD_LIBRARY_PATH", "")
# The driver does work that nothing waits for after 250 ms to 1 s, so that a missing wait shows.
os.environ.setdefault("HEXAGRAM_FAKE_CUDA", "delay=1000000")

#: Number of GPUs in DLPack.
CUDA = 2


class Tensor(ctypes.Structure):
    """`DLManagedTensor`, whose first fields are those of `DLTensor`."""

    _fields_ = [
        ("data", c_void_p),
        ("device_kind", c_int32),
        ("device", c_int32),
        ("dimensions", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("offset", c_uint64),
        ("context", c_void_p),
        ("deleter", c_void_p),
    ]


def call(name: str, *arguments: object) -> None:
    """Calls a function of the driver, with the primary context of the first GPU."""
    library, context = driver()
    library.cuCtxSetCurrent(context)
    status = getattr(library, name)(*arguments)
    assert status == 0, f"{name} returned {status}"


def delay_longer() -> None:
    """Delays work that nothing waits for by 15 to 60 s from now on: a missing wait shows on a busy machine, too."""
    driver()[0].hexagramFakeSet(b"delay=60000000")


@functools.cache
def driver() -> tuple[ctypes.CDLL, c_void_p]:
    """Returns the driver, and the primary context of the first GPU."""
    library, context = ctypes.CDLL("libcuda.so.1"), c_void_p()
    assert library.cuInit(0) == 0
    assert library.cuDevicePrimaryCtxRetain(byref(context), c_int(0)) == 0
    return library, context


def show(address: int, size: int) -> None:
    """Gives the host access to memory of the fake GPU, which has no order with the work of streams."""
    driver()[0].hexagramFakeShow(c_uint64(address), c_size_t(size))


class Stream:
    """A stream of the first GPU."""

    def __init__(self) -> None:
        self.handle = c_void_p()
        call("cuStreamCreate", byref(self.handle), 1)

    @property
    def cuda_stream(self) -> int:
        return self.handle.value

    def synchronize(self) -> None:
        call("cuStreamSynchronize", self.handle)


def wait(source: c_void_p, target: c_void_p) -> None:
    event = c_void_p()
    call("cuEventCreate", byref(event), 2)
    call("cuEventRecord", event, source)
    call("cuStreamWaitEvent", target, event, 0)


class DeviceArray:
    """Numbers in the memory of the first GPU, written and read by a stream of their own."""

    def __init__(self, values: numpy.ndarray, stream: Stream | None = None):
        self.stream = stream or Stream()
        self.address = c_uint64()
        self.host = numpy.ascontiguousarray(values)
        self.shape = (c_int64 * self.host.ndim)(*self.host.shape)
        self.copy = c_uint64()
        size = c_size_t(max(self.host.nbytes, 1))
        for address in (self.address, self.copy):
            call("cuMemAlloc_v2", byref(address), size)
        source = c_void_p(self.host.ctypes.data)
        # The driver copies pageable memory at once, but the copy that follows when the stream comes to it.
        call("cuMemcpyHtoDAsync_v2", self.copy, source, size, self.stream.handle)
        call("cuMemcpyDtoDAsync_v2", self.address, self.copy, size, self.stream.handle)

    def numbers(self) -> numpy.ndarray:
        """Copies the numbers to the host, behind the work of the stream."""
        result = numpy.empty_like(self.host)
        target = c_void_p(result.ctypes.data)
        call("cuMemcpyDtoHAsync_v2", target, self.address, c_size_t(result.nbytes), self.stream.handle)
        self.stream.synchronize()
        return result

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0

    def __dlpack__(self, *, stream: int | None = None, max_version: object = None, **_: object) -> object:
        assert stream not in (None, 0), "the consumer names its stream"
        wait(self.stream.handle, c_void_p(stream))
        code = {"f": 2, "i": 0, "u": 1}[self.host.dtype.kind]
        self.tensor = Tensor(
            self.address.value,
            CUDA,
            0,
            self.host.ndim,
            code,
            self.host.itemsize * 8,
            1,
            self.shape,
            None,
            0,
            None,
            None,
        )
        LENT.append(self)
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype, capsule.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]
        return capsule(ctypes.addressof(self.tensor), b"dltensor", ctypes.cast(give_back, c_void_p))

    def __del__(self) -> None:
        self.stream.synchronize()
        for address in (self.address, self.copy):
            call("cuMemFree_v2", address)


def tensor_of(capsule: object) -> Tensor:
    """Returns the tensor in a capsule, which stays its owner."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]
    return Tensor.from_address(pointer(capsule, b"dltensor"))


#: Arrays whose capsules exist.
LENT: list[DeviceArray] = []


@ctypes.PYFUNCTYPE(None, c_void_p)
def give_back(capsule: int) -> None:
    """Releases an array when its capsule is destroyed."""
    prototype = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)
    address = prototype(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, b"dltensor")
    LENT[:] = [array for array in LENT if ctypes.addressof(array.tensor) != address]
