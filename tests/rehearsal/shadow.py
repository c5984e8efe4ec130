"""A stand-in for a GPU: tensors that say they are on `shadow:0`, and keep their numbers on the CPU.

They refuse what tensors of a GPU refuse: to be mixed with those of the CPU, to become arrays, to be drawn with
a generator of the CPU, and to be read before a copy has ended. Everything else is computed as the CPU computes
it. `install()` changes torch for the whole process; it comes before the import of what is rehearsed, in a
process of its own. What it cannot find: wrong or missing kernels, faults of NCCL between processes, rounding of
another processor, too little memory, and slowness; those are for `make gpu`, on a card. The device is made with
`torch.utils.backend_registration`, which torch has had since 2.9, as an experiment.

    REID_LAB_REHEARSAL=1 PYTHONPATH=tests/rehearsal/site python -m reid_lab run camel -p device=shadow
"""
import contextlib
import ctypes
import functools
import os
import sys
import sysconfig
import threading
from pathlib import Path

import torch
import torch.utils._device
from torch.utils._pytree import tree_leaves, tree_map

NAME = "shadow"
NEEDS = (2, 9)  # version of torch


def missing() -> str:
    "Why no rehearsal is possible with this torch; empty if it is"
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version >= NEEDS: return ""
    needed = ".".join(map(str, NEEDS))
    return f"the stand-in for a GPU needs torch {needed} or newer; here is {torch.__version__}"


# --- faults, and where they are ---

_LIBRARIES = tuple({str(Path(sysconfig.get_path(name)).resolve()) + os.sep
                    for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class DeviceFault(RuntimeError):
    "What a GPU would refuse; the message ends with the line of the code that asked for it"


def _is_own(file):
    "Whether a file is neither of this stand-in nor of Python and its libraries"
    return not (file == __file__ or file.startswith("<frozen") or file.startswith(_LIBRARIES))


def _own_line(frame):
    "The innermost line, from a frame outwards, that is of no library: `file:line in function`"
    while frame is not None:
        code = frame.f_code
        if _is_own(code.co_filename): return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
    return ""


def where() -> str:
    "The line of reid_lab, or of its user, that torch was called from"
    found = _own_line(sys._getframe(1))
    if found: return found
    # gradients are computed in a thread of their own, for which the main thread waits
    return _own_line(sys._current_frames()[threading.main_thread().ident]) or "a line that no frame shows"


def fault(message):
    "A `DeviceFault` with the place"
    return DeviceFault(f"{message}\n  at {where()}")


# Torch asks for the kind of the device also while an error leaves the computation of gradients. Python code
# that runs with an error set ends the process; so the error is put aside until the call to torch has returned.
_error = (ctypes.py_object(), ctypes.py_object(), ctypes.py_object())   # its class, itself, its traceback
_places = tuple(ctypes.byref(part) for part in _error)
_fetch = ctypes.pythonapi.PyErr_Fetch


def _guard():
    "What torch asks for the kind of a device"
    kind = torch._C._autograd.DeviceType.PrivateUse1

    class Guard(torch._C._acc.DeviceGuard):
        "Of the shadow device"
        def type_(self):
            _fetch(*_places)    # the first call here: any other fails while an error is set
            if _error[0]: _aside.append(_error[1].value if _error[1] else _error[0].value)
            return kind

    return Guard()


_aside = []


def _with_errors(gradients):
    "The function of torch that computes gradients, with the error that was put aside"
    @functools.wraps(gradients)
    def computed(*args, **kwargs):
        "The gradients"
        _aside.clear()
        try: return gradients(*args, **kwargs)
        except SystemError as error:
            found = _aside.pop() if _aside else error
            raise (found if isinstance(found, BaseException) else DeviceFault(str(found))) from None

    return computed


# --- the tensor ---

_memory = []    # the count of storages, once somebody asks for it


class Shadow(torch.Tensor):
    "A tensor of the shadow device; `host` has its numbers, on the CPU"
    @staticmethod
    def __new__(cls, host, device=None, requires_grad=False):
        made = torch.Tensor._make_wrapper_subclass(
            cls, host.size(), strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype,
            layout=host.layout, device=device or torch.device(NAME, 0), requires_grad=requires_grad)
        made.host = host
        for ledger in _memory: ledger.enter(host)
        return made

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return compute(operation, args, kwargs or {})

    def __repr__(self, **kwargs): return f"Shadow({self.host!r})"
    def numpy(self, *args, **kwargs): raise fault(_NO_ARRAY)
    def __array__(self, *args, **kwargs): raise fault(_NO_ARRAY)
    def tolist(self): return self.host.tolist()
    def is_pinned(self, *args): return False
    def new_tensor(self, data, **kwargs):
        return torch.tensor(data, **{"dtype": self.dtype, "device": self.device, **kwargs})

    def __deepcopy__(self, memo):
        copied = Shadow(self.host.detach().clone(), self.device, self.requires_grad)
        if isinstance(self, torch.nn.Parameter): copied = torch.nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol):
        # as the CPU's: `torch.load` puts it where map_location says
        host = self.host.detach().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter): host = torch.nn.Parameter(host, self.requires_grad)
        return host.__reduce_ex__(protocol)

    @property
    def data(self): return self.detach()
    @data.setter
    def data(self, value):
        torch.Tensor.data.__set__(self, value)
        self.host = value.host


_NO_ARRAY = f"a tensor of {NAME} cannot become an array; copy it to the CPU first, with .cpu()"

# --- operations ---

# Index tensors may be on the CPU where an indexed tensor is on a GPU; the values that are put there may not.
_INDEXED = {"aten::index.Tensor", "aten::_unsafe_index.Tensor"}
_PUT = {"aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index_put"}
_MOVES = ("aten::_to_copy", "aten::copy_", "aten::_copy_from")


def is_shadow(device) -> bool:
    "Whether a device, or its name, is the stand-in's"
    return str(device).partition(":")[0] == NAME


def compute(operation, args, kwargs):
    "An operation with the numbers of its tensors, after what a GPU would refuse"
    name = operation.name()
    leaves = tree_leaves((args, kwargs))
    shadows = [leaf for leaf in leaves if isinstance(leaf, Shadow)]
    target = kwargs.get("device")
    if name.startswith(_MOVES): check_copy(name, args, kwargs)
    else: check_places(name, args, leaves, shadows)
    if is_shadow(target) or shadows: check_generator(name, kwargs.get("generator"))

    on_host = dict(tree_map(_host, kwargs))
    if is_shadow(target): on_host["device"] = torch.device("cpu")
    if on_host.get("pin_memory"): on_host["pin_memory"] = False
    with torch._C._AutoDispatchBelowAutograd():
        found = operation(*tree_map(_host, args), **on_host)
    if torch.Tag.inplace_view in operation.tags: _change_shape(operation, args, kwargs)
    if name.startswith("aten::copy_"): return args[0]
    if target is None and shadows: return _wrapped(found, shadows, shadows[0].device)
    return _wrapped(found, shadows, torch.device(target)) if is_shadow(target) else found


def check_places(name, args, leaves, shadows):
    "Refuse tensors of several devices in one operation; a single number of the CPU may take part, as on a GPU"
    if not shadows: return
    if name in _INDEXED or name.rpartition(".")[0] in _PUT or name in _PUT:
        if not isinstance(args[0], Shadow):
            raise fault(f"the indices are on {NAME} and the indexed tensor is on the CPU, in {name}")
        leaves = args[2:3] if "put" in name else ()
    on_cpu = [x for x in leaves if isinstance(x, torch.Tensor) and not isinstance(x, Shadow) and x.ndim > 0]
    if on_cpu:
        shapes = ", ".join(str(tuple(x.shape)) for x in on_cpu)
        raise fault(f"tensors of {NAME} and of the CPU (of shape {shapes}) are mixed in {name}")
    devices = {str(x.device) for x in shadows if x.ndim > 0}
    if len(devices) > 1: raise fault(f"tensors of {' and '.join(sorted(devices))} are mixed in {name}")


def check_copy(name, args, kwargs):
    "Refuse a copy to the CPU that nobody waits for: what is read there may be old"
    if name.startswith("aten::copy_"):
        target, source = args[:2]
        waits = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
        to_cpu = not isinstance(target, Shadow)
    else:
        source, waits = args[0], not kwargs.get("non_blocking")
        to_cpu = kwargs.get("device") is not None and not is_shadow(kwargs["device"])
    if isinstance(source, Shadow) and to_cpu and not waits:
        raise fault("a copy to the CPU with non_blocking=True is read before it has ended; "
                    "leave non_blocking out")


def check_generator(name, generator):
    "Refuse draws on the device with a generator of the CPU"
    if generator is None or generator._cdata in _GENERATORS: return
    raise fault(f"a generator of the CPU draws numbers on {NAME}, in {name}; "
                "draw on the CPU and move the result, or make the generator with device=")


def _host(value):
    "The numbers of a tensor; other values as they are"
    return value.host if isinstance(value, Shadow) else value


def _wrapped(found, shadows, device):
    "Results as tensors of the device; those that are an argument, of an operation in place, stay that argument"
    def wrap(value):
        "One result"
        if not isinstance(value, torch.Tensor) or isinstance(value, Shadow): return value
        for shadow in shadows:
            if shadow.host is value: return shadow
        return Shadow(value, torch.device(NAME, device.index or 0))

    return tree_map(wrap, found)


def _change_shape(operation, args, kwargs):
    "Let the wrapper of a tensor follow what unsqueeze_, t_ and the like did to its numbers"
    from torch.utils._mode_utils import no_dispatch
    with no_dispatch(): operation(*args, **kwargs)


# --- generators, autocast, and the module torch.shadow ---

_GENERATORS = {}    # address -> the generators of the device, which are in truth of the CPU
_cpu_generator = torch.Generator


class _EveryGenerator(type(_cpu_generator)):
    "Those of the CPU are instances of `Generator`, too"
    def __instancecheck__(cls, value): return type(value) is _cpu_generator or type(value) is cls


class Generator(_cpu_generator, metaclass=_EveryGenerator):
    "In place of `torch.Generator`; one for the shadow device says so, and draws as one of the CPU does"
    def __new__(cls, device="cpu"):
        if not is_shadow(device): return _cpu_generator(device)
        made = super().__new__(cls)
        _GENERATORS[made._cdata] = made     # kept, so that no other gets the address
        return made

    @property
    def device(self): return torch.device(NAME, 0)


# What autocast does on CUDA: operations in 16 bits, in 32 bits, and those that take the wider type.
LOWER = """conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d prelu addmm addmv addr
matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul
scaled_dot_product_attention""".split()
FLOAT = """__rpow__ acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus
layer_norm native_layer_norm group_norm frobenius_norm nuclear_norm cosine_similarity poisson_nll_loss
cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss
margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp prod softmax log_softmax cumprod cumsum sum
norm""".split()
WIDEST = "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put tensordot scatter_add".split()


def _is_wide(value):
    "Whether autocast changes the type of a value: a tensor of floats on the device, none of 64 bits"
    return isinstance(value, Shadow) and value.is_floating_point() and value.dtype != torch.float64


def _cast(operation, dtype_of):
    "An operation under autocast: its arguments in the type that `dtype_of` finds for them"
    autocast_key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def kernel(*args, **kwargs):
        "Change the type, then compute without autocast"
        with torch._C._ExcludeDispatchKeyGuard(autocast_key):
            dtype = dtype_of([leaf for leaf in tree_leaves((args, kwargs)) if _is_wide(leaf)])
            cast = functools.partial(tree_map, lambda value: value.to(dtype) if _is_wide(value) else value)
            return operation(*cast(args), **cast(kwargs))

    return kernel


def _lower_type(tensors): return torch.get_autocast_dtype(NAME)
def _float_type(tensors): return torch.float32
def _widest_type(tensors):
    "float32 if one of the tensors has it"
    types = {tensor.dtype for tensor in tensors}
    return torch.float32 if torch.float32 in types or not types else types.pop()


_FACTORIES = """arange arange.start arange.start_step linspace logspace randperm randperm.generator eye eye.m
range range.step""".split()


def _factory(operation):
    "An operation that makes a tensor of no other: `compute` is not asked for these"
    def make(*args, **kwargs):
        "The tensor on the CPU, wrapped"
        check_generator(operation.name(), kwargs.get("generator"))
        device = kwargs.get("device") or torch.device(NAME, 0)
        known = {k: v for k, v in kwargs.items() if k != "pin_memory" and (k, v) != ("layout", None)}
        return _wrapped(operation(*args, **{**known, "device": torch.device("cpu")}), [], device)

    return make


def _overload(name):
    "`arange.start` -> torch.ops.aten.arange.start"
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def _fallback(operation, *args, **kwargs): return compute(operation, args, kwargs)


_LIBRARIES_OF_TORCH = []    # they hold what they registered as long as they are there


def _register_operations():
    "Hand every operation on the device to `compute`, and those with a rule of autocast to `_cast`"
    rest = torch.library.Library("_", "IMPL")
    aten = torch.library.Library("aten", "IMPL")
    _LIBRARIES_OF_TORCH.extend([rest, aten])
    rest.fallback(_fallback, "PrivateUse1")
    for name in _FACTORIES: aten.impl(name, _factory(_overload(name)), "PrivateUse1")
    rest.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for names, dtype_of in ((LOWER, _lower_type), (FLOAT, _float_type), (WIDEST, _widest_type)):
        for name in names:
            packet = getattr(torch.ops.aten, name, None)
            for overload in packet.overloads() if packet else ():
                if "out" in overload: continue
                operation = getattr(packet, overload)
                aten.impl(operation.name(), _cast(operation, dtype_of), "AutocastPrivateUse1")


def _backend():
    "The module `torch.shadow`"
    from torch.utils.backend_registration import _DummyBackendModule

    class Backend(_DummyBackendModule):
        "What libraries ask a kind of device; random numbers are those of the CPU, so that results are equal"
        __name__ = f"torch.{NAME}"
        def get_amp_supported_dtype(self): return [torch.bfloat16, torch.float16]
        def is_available(self): return True
        def is_initialized(self): return True
        def current_device(self): return 0
        def set_device(self, device): "There is one"
        def device_count(self): return 1
        def synchronize(self, *device): "Every operation has ended when it returns"
        def empty_cache(self): "There is no cache"
        def memory_allocated(self, *device): return sum(ledger.now for ledger in _memory)
        def max_memory_allocated(self, *device): return sum(ledger.peak for ledger in _memory)
        def reset_peak_memory_stats(self, *device):
            "What is made from here on is counted; what there is already is not"
            from reid_lab.training.step_price import StorageLedger
            _memory[:] = [StorageLedger()]
        def manual_seed(self, seed): "The CPU's is set"
        def manual_seed_all(self, seed): "The CPU's is set"
        def get_rng_state(self, *device): return torch.get_rng_state()
        def set_rng_state(self, state, *device): torch.set_rng_state(state)

    return Backend()


# --- constants, pinned memory and files ---

def _by_way_of_cpu(make):
    "`torch.tensor`, whose last step to the device is not handed to `compute`"
    @functools.wraps(make)
    def made(data, *args, device=None, **kwargs):
        "A tensor on the device"
        is_moved = isinstance(data, torch.Tensor)
        if is_moved or not is_shadow(device): return make(data, *args, device=device, **kwargs)
        moved = make(data, *args, device="cpu", **kwargs).detach().to(device)
        return moved.requires_grad_(kwargs.get("requires_grad", False))

    return made


def _pin(tensor, device=None):
    "In place of `Tensor.pin_memory`: a copy that says it is pinned"
    pinned = tensor.detach().clone()
    pinned.pinned_for_shadow = True
    return pinned


def _says_pinned(tensor, device=None): return getattr(tensor, "pinned_for_shadow", False)


def _load_there(load):
    "`torch.load` that can put tensors on the device"
    @functools.wraps(load)
    def loaded(file, map_location=None, **kwargs):
        "What the file holds"
        if not (isinstance(map_location, (str, torch.device)) and is_shadow(map_location)):
            return load(file, map_location=map_location, **kwargs)
        found = load(file, map_location="cpu", **kwargs)
        return tree_map(lambda x: x.to(map_location) if isinstance(x, torch.Tensor) else x, found)

    return loaded


def _no_gradients(mode=True):
    "In place of `torch.inference_mode`, whose tensors cannot be wrapped"
    if mode is False: return contextlib.nullcontext()
    return torch.no_grad() if mode is True else torch.no_grad()(mode)


@functools.cache
def install():
    "Give this process the shadow device, which reid_lab and Accelerate choose where they would choose a GPU"
    why_not = missing()
    if why_not: raise RuntimeError(why_not)
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
    _setup_privateuseone_for_python_backend(NAME, _backend(), device_guard=_guard())
    _register_operations()
    torch.utils._device._device_constructors()  # notes the functions that `with torch.device(...)` concerns
    torch.tensor, torch.as_tensor = _by_way_of_cpu(torch.tensor), _by_way_of_cpu(torch.as_tensor)
    torch.Generator = Generator
    torch.Tensor.pin_memory = _pin
    torch.Tensor.is_pinned = _says_pinned
    torch.load = _load_there(torch.load)
    torch.autograd.set_multithreading_enabled(False)     # in gradients, too, the frames show who called
    torch.autograd._engine_run_backward = _with_errors(torch.autograd._engine_run_backward)
    # attention in plain operations: the CPU has a fused one of its own, whose last digits are others
    torch.backends.cuda.enable_flash_sdp(False)
    torch.inference_mode = _no_gradients
    # `module.to` cannot exchange the data of wrappers
    torch.__future__.set_swap_module_params_on_conversion(True)
    from reid_lab.core import basics
    basics.DEVICES = ("cpu", NAME)
    from accelerate.state import PartialState
    PartialState.default_device = property(lambda state: torch.device(NAME, 0))
