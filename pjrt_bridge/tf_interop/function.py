"""`function`: a TensorFlow function that runs on a plugin, and in TensorFlow where it has to."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any, Literal

import tensorflow as tf

from pjrt_bridge.errors import OptionError
from pjrt_bridge.registry import client as select_client
from pjrt_bridge.tf_interop import compat
from pjrt_bridge.tf_interop.compiled import CompiledFunction, Settings
from pjrt_bridge.tf_interop.fast_path import MISSED, FunctionPath
from pjrt_bridge.tf_interop.ledger import LEDGER


def function(
    fn: Callable[..., Any] | None = None,
    *,
    plugin: str | None = None,
    fallback: Literal["host", "error"] = "host",
    placement: Literal["auto", "device"] = "auto",
    tensor_float_32: bool = False,
    input_signature: Sequence[Any] | None = None,
) -> Any:
    """Run a function on a PJRT plugin; what that cannot do stays in TensorFlow.

    A decorator, with or without arguments. The function is traced as `tf.function` traces it: once
    for each set of types, shapes and Python values; what it does in Python happens then. Variables
    are read and updated where they are. A call under a gradient tape that was opened outside, and
    one inside another `tf.function`, run in TensorFlow: open the tape inside.

    Args:
        fn: a Python function, a `tf.function`, a concrete function or signature of a SavedModel, a
            Keras model or layer.
        plugin: name of a discovered plugin or path of a library; None: the environment's choice
            or the best that was discovered.
        fallback: what happens to operations that the plugin cannot run: `"host"` runs them in
            TensorFlow and warns once, `"error"` raises.
        placement: `"auto"` leaves to TensorFlow what it was measured to be faster at, unless
            `fallback` forbids that; `"device"` has all on the device that it can run.
        tensor_float_32: products and convolutions of float32 may be shortened, as to TF32 on GPUs,
            where `tf.config.experimental.enable_tensor_float_32_execution` allows that when they
            are compiled, as it does by default. False: they are as exact as on the host.
        input_signature: as of `tf.function`; sizes that are None are compiled as they come.

    Returns:
        A `Function`; without `fn` a decorator.

    Raises:
        OptionError: an impossible value.
        PluginNotFound: no plugin of that name, or none at all.
    """
    if fn is None:
        return functools.partial(
            function,
            plugin=plugin,
            fallback=fallback,
            placement=placement,
            tensor_float_32=tensor_float_32,
            input_signature=input_signature,
        )
    if fallback not in ("host", "error"):
        raise OptionError(f"fallback: found {fallback!r}, expected 'host' or 'error'")
    if placement not in ("auto", "device"):
        raise OptionError(f"placement: found {placement!r}, expected 'auto' or 'device'")
    if not callable(fn):
        raise OptionError(f"fn: found a {type(fn).__name__}, expected something to call")
    if type(tensor_float_32) is not bool:
        raise OptionError(f"tensor_float_32: found {tensor_float_32!r}, expected a bool")
    settings = Settings(select_client(plugin), fallback, placement, tensor_float_32)
    return Function(fn, settings, input_signature)


class Function:
    """A TensorFlow function on a plugin.

    Args:
        fn: see `function`.
        settings: plugin, fallback and placement.
        input_signature: as of `tf.function`.
    """

    # Tells AutoGraph, which converts what other functions call, that this is done already.
    autograph_info__: Mapping[str, Any] = {}

    def __init__(
        self, fn: Callable[..., Any], settings: Settings, input_signature: Sequence[Any] | None
    ) -> None:
        self._function = polymorphic(fn, input_signature)
        self._settings = settings
        self._input_signature = input_signature
        self._compiled: dict[int, CompiledFunction] = {}
        self._compiling = threading.Lock()
        # By what tells calls apart; of those in `_plain` the arguments are the flat tensors.
        self._known: dict[Any, CompiledFunction] = {}
        self._plain: set[Any] = set()
        self._fast_path: FunctionPath | None = None
        self.python_function = fn
        self.__name__ = str(getattr(fn, "__name__", None) or getattr(fn, "name", "function"))
        self.__doc__ = getattr(fn, "__doc__", None)

    def __set_name__(self, owner: type, name: str) -> None:
        self.__name__ = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The function of a method: each instance has its own traces, which go with it."""
        bind = getattr(self.python_function, "__get__", None)
        if instance is None or bind is None:
            return self
        # Keras and tf.Module track what is set on them; they must not track this.
        held = instance.__dict__
        name = f"_pjrt_bridge_{self.__name__}"
        if name not in held:
            method = bind(instance, owner)
            held[name] = Function(method, self._settings, self._input_signature)
        return held[name]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; its results.

        Raises:
            FallbackForbidden: it cannot run on the device as a whole and the host is forbidden.
            tf.errors.OpError: as TensorFlow raises it.
        """
        if not compat.executing_eagerly() or compat.runs_eagerly():
            return self._function(*args, **kwargs)
        if self._fast_path is not None and not kwargs and not compat.is_recording():
            found = self._fast_path.call(args)
            if found is not MISSED:
                return found
        key = _key(args, kwargs)
        compiled = self._compiled_for(key, args, kwargs)
        plain = key in self._plain
        tensors: Sequence[Any] = args
        if not plain:
            tensors = compat.arguments(self._function, compiled.function, args, kwargs)
        if compat.is_recording() and compat.should_record(
            compiled.function, [*tensors, *compiled.held]
        ):
            LEDGER.warn_once(
                f"function {self.__name__!r} is called under a gradient tape, so TensorFlow runs "
                "it: open the tape inside of the function to compute gradients on the device"
            )
            return self._function(*args, **kwargs)
        results = compiled.pack(compiled.run(tensors))
        if not plain and key is not None and not kwargs and _are(args, tensors):
            self._plain.add(key)
            plain = True
        self._fast_path = compiled.fast_path if plain else None
        return results

    def is_compiled(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call with these arguments compiles nothing."""
        return _key(args, kwargs) in self._known

    def compiled(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CompiledFunction:
        """The compiled function of a call with these arguments; the first one compiles it."""
        return self._compiled_for(_key(args, kwargs), args, kwargs)

    def _compiled_for(
        self, key: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> CompiledFunction:
        if key is not None and key in self._known:
            return self._known[key]
        concrete = self._function.get_concrete_function(*args, **kwargs)
        with self._compiling:
            compiled = self._compiled.get(id(concrete))
            if compiled is None:
                compiled = CompiledFunction(
                    concrete,
                    self._settings,
                    lambda: compat.for_xla(self._function).get_concrete_function(*args, **kwargs),
                )
                self._compiled[id(concrete)] = compiled
        if key is not None:
            self._known[key] = compiled
        return compiled


def _are(args: Sequence[Any], tensors: Sequence[Any]) -> bool:
    """Whether the arguments are the flat tensors: then others of their kind are, too."""
    return len(args) == len(tensors) and all(map(is_, args, tensors))


def polymorphic(fn: Callable[..., Any], input_signature: Sequence[Any] | None = None) -> Any:
    """The `tf.function` of anything that `function` takes."""
    if isinstance(fn, Function):
        return fn._function
    if isinstance(fn, compat.PolymorphicFunction) and input_signature is None:
        return fn
    if isinstance(fn, compat.ConcreteFunction):
        # It has one signature; what is called here takes any structure of arguments.
        return tf.function(functools.partial(_call, fn), input_signature, autograph=False)
    return tf.function(fn, input_signature)


def _call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return fn(*args, **kwargs)


def _key(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What tells calls of one trace from those of others; None where that is hard to say."""
    try:
        if kwargs:
            named = tuple((name, _leaf(kwargs[name])) for name in sorted(kwargs))
            found: Any = (tuple(map(_leaf, args)), named)
        else:
            found = tuple(map(_leaf, args))
        hash(found)
    except TypeError:
        return None
    return found


def _leaf(value: Any) -> Any:
    if type(value) is compat.EagerTensor:
        return value.dtype, value._shape_tuple()
    if value is None or isinstance(value, bool | int | float | str):
        return type(value), value
    if isinstance(value, tuple | list):
        return (type(value), *map(_leaf, value))
    if isinstance(value, dict):
        return (dict, *((name, _leaf(item)) for name, item in value.items()))
    raise TypeError
