"""Functions of ours that programs call on a GPU: XLA's FFI for the platform CUDA."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pjrt_bridge.errors import PjrtError, RegistrationError
from pjrt_bridge.extensions import FFI, call_frame
from pjrt_bridge.extensions.tables import GpuCustomCall
from pjrt_bridge.runtime import Client
from tests import programs

HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
ONES = np.ones(64, np.float32)

# The structs of xla/ffi/api/c_api.h 0.3, as far as they are used. Calls of the driver need its
# headers nowhere, and the context of the stream.
SOURCE = r"""
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

typedef struct { size_t size; void *extension; size_t version_size; void *version_extension;
                 int major, minor; void *internal; void *error_create, *error_get_message,
                 *error_destroy, *handler_register, *stream_get; } Api;
typedef struct { size_t size; int type; void *next; } Extension;
typedef struct { size_t size, version_size; void *version_extension; int major, minor; } Metadata;
typedef struct { size_t size; int type; void *next; Metadata *metadata; } MetadataExtension;
typedef struct { size_t size; void *extension; int dtype; void *data; int64_t rank;
                 int64_t *dims; } Buffer;
typedef struct { size_t size; void *extension; int64_t count; void *types; void **items; } List;
typedef struct { size_t size; Extension *extension; Api *api; void *context; int stage;
                 List operands, results; } Frame;
typedef struct { size_t size; void *extension; void *context; void *stream; } StreamArgs;

static int64_t calls, failed;

int64_t count(void) { return calls; }
int64_t failure(void) { return failed; }

void *copy_handler(Frame *frame) {
  if (frame->extension && frame->extension->type == 1) {
    Metadata *asked = ((MetadataExtension *)frame->extension)->metadata;
    asked->major = frame->api->major;
    asked->minor = frame->api->minor;
    return NULL;
  }
  StreamArgs args = {sizeof args, NULL, frame->context, NULL};
  void *error = ((void *(*)(StreamArgs *))frame->api->stream_get)(&args);
  if (error) return error;
  Buffer *from = frame->operands.items[0], *to = frame->results.items[0];
  size_t bytes = 4;
  for (int64_t i = 0; i < from->rank; ++i) bytes *= from->dims[i];
  void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
  int (*context_of)(void *, void **) = dlsym(driver, "cuStreamGetCtx");
  int (*push)(void *) = dlsym(driver, "cuCtxPushCurrent_v2");
  int (*pop)(void **) = dlsym(driver, "cuCtxPopCurrent_v2");
  int (*copy)(uint64_t, uint64_t, size_t, void *) = dlsym(driver, "cuMemcpyDtoDAsync_v2");
  int status = context_of(args.stream, &context);
  if (!status) status = push(context);
  if (!status) status = copy((uint64_t)to->data, (uint64_t)from->data, bytes, args.stream);
  pop(&context);
  if (status && !failed) failed = status;
  ++calls;
  return NULL;
}
"""


def calling(target: str) -> str:
    return f"""
    func.func @main(%a: tensor<64xf32>) -> tensor<64xf32> {{
      %0 = stablehlo.add %a, %a : tensor<64xf32>
      %1 = stablehlo.custom_call @{target}(%0) {{api_version = 4 : i32, backend_config = {{}},
        operand_layouts = [dense<0> : tensor<1xindex>],
        result_layouts = [dense<0> : tensor<1xindex>]
      }} : (tensor<64xf32>) -> tensor<64xf32>
      %2 = stablehlo.add %1, %a : tensor<64xf32>
      return %2 : tensor<64xf32>
    }}
    """


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder: Path = tmp_path_factory.mktemp("handler")
    (folder / "handler.c").write_text(SOURCE)
    made = folder / "handler.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", made, folder / "handler.c", "-ldl"]
    subprocess.run(command, check=True)
    found = ctypes.CDLL(str(made))
    found.count.restype = found.failure.restype = ctypes.c_int64
    return found


def test_a_handler_in_c_works_on_the_stream_of_the_program(
    gpu: Client, library: ctypes.CDLL
) -> None:
    ffi = gpu.extension(FFI)
    assert ffi.platform == "CUDA"
    address = ctypes.cast(library.copy_handler, ctypes.c_void_p).value
    assert address is not None
    ffi.register("gpu_tests.copy", address)
    with gpu.compile(calling("gpu_tests.copy")) as executable:
        before = library.count()
        for factor in range(20):
            (result,) = executable(ONES * factor)
            assert (result.to_numpy() == 3 * factor).all(), library.failure()
        assert library.count() == before + 20


def test_a_handler_sees_shapes_and_places_and_its_error_arrives(gpu: Client) -> None:
    seen: list[Any] = []

    @HANDLER
    def handler(frame: int) -> int | None:
        if (asked := call_frame.metadata(frame)) is not None:
            asked.api_version.major_version, asked.api_version.minor_version = (
                call_frame.api_version(frame)
            )
            return None
        call = call_frame.read(frame)
        (operand,) = call.operands
        seen.append([operand.shape, operand.ctypes.data, call.attributes])
        return call_frame.failure(frame, ArithmeticError("the tortoise won"))

    gpu.extension(FFI).register("gpu_tests.failing", handler)
    with (
        gpu.compile(calling("gpu_tests.failing")) as executable,
        pytest.raises(PjrtError, match="the tortoise won"),
    ):
        executable(ONES)[0].to_numpy()
    ((shape, address, attributes),) = seen
    assert (shape, attributes) == ((64,), {})
    assert address
    with gpu.compile(programs.ADD) as executable:
        assert (executable(ONES, ONES)[0].to_numpy() == 2).all()


def test_functions_of_python_are_refused(gpu: Client) -> None:
    with pytest.raises(RegistrationError, match="Python functions need arrays in host memory"):
        gpu.extension(FFI).register("gpu_tests.python", lambda a, out: None)


def test_the_older_extension_takes_the_same_handlers(gpu: Client, library: ctypes.CDLL) -> None:
    address = ctypes.cast(library.copy_handler, ctypes.c_void_p).value
    name = b"gpu_tests.older"
    memory = ctypes.create_string_buffer(name, len(name))
    gpu.extension(GpuCustomCall).call(
        "custom_call",
        function_name=ctypes.addressof(memory),
        function_name_size=len(name),
        api_version=1,
        handler_execute=address,
    )
    with gpu.compile(calling(name.decode())) as executable:
        assert (executable(ONES)[0].to_numpy() == 3).all()
