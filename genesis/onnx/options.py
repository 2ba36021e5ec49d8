"""What programs written for onnxruntime say before they make a session."""

from __future__ import annotations

from enum import IntEnum

from genesis import manual_seed


class GraphOptimizationLevel(IntEnum):
    """How much is done to a graph before it runs: nothing, or all that `optimize` does."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Whether nodes may run beside each other; a model is one program in any case."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class _Entries:
    """Settings by name, which are kept."""

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}

    def _set(self, key: str, value: str) -> None:
        self._entries[key] = value

    def _get(self, key: str) -> str:
        if key not in self._entries:
            raise KeyError(f"there is no entry {key!r}; there are {sorted(self._entries)}")
        return self._entries[key]


class SessionOptions(_Entries):
    """How a session runs.

    `intra_op_num_threads` (0: all there are), `graph_optimization_level` and the sizes of open
    dimensions count; the rest is accepted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.intra_op_num_threads = 0
        self.inter_op_num_threads = 0
        self.log_severity_level = 2
        self.log_verbosity_level = 0
        self.logid = ""
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.enable_cpu_mem_arena = self.enable_mem_pattern = self.enable_mem_reuse = True
        self.enable_profiling = self.use_deterministic_compute = False
        self.optimized_model_filepath = ""
        self.free_dimensions: dict[str, int] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep a setting."""
        self._set(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """A setting that was kept."""
        return self._get(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Say how large an open dimension is."""
        self.free_dimensions[name] = size


class RunOptions(_Entries):
    """How one call runs; accepted."""

    def __init__(self) -> None:
        super().__init__()
        self.log_severity_level = 2
        self.log_verbosity_level = 0
        self.logid = ""
        self.terminate = self.only_execute_path_to_fetches = False

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep a setting."""
        self._set(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """A setting that was kept."""
        return self._get(key)


def get_available_providers() -> list[str]:
    """What can compute."""
    return ["CPUExecutionProvider"]


def get_all_providers() -> list[str]:
    """What can compute, and what could if it were there: the same."""
    return get_available_providers()


def get_device() -> str:
    """Where sessions compute."""
    return "CPU"


def set_default_logger_severity(severity: int) -> None:
    """Say what is logged: sessions log nothing."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Say how much is logged: sessions log nothing."""


def disable_telemetry_events() -> None:
    """Say that nothing is to be reported: nothing is."""


def set_seed(seed: int) -> None:
    """Begin the random numbers of models anew."""
    manual_seed(seed)
