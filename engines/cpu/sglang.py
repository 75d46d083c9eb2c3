"""SGLang 0.5.23 without a GPU: its scheduler and radix cache as they are, stand-ins for what only GPUs need."""

from hitlab.servers.cpu.recipe import CpuRecipe, PipStep, ServerSpec

VERSION = "0.5.23"

# The environment that ran: what a text model's server imports, without the CUDA packages. triton must be the
# real one; it loads without a GPU.
_PINS = """
    aiohappyeyeballs==2.7.1 aiohttp==3.14.5 aiosignal==1.4.0 annotated-doc==0.0.7 annotated-types==0.8.0
    anyio==4.16.0 apache-tvm-ffi==0.1.11 asttokens==3.0.2 attrs==26.1.0 certifi==2026.10.19.post1 cffi==2.1.1
    charset-normalizer==3.5.3 click==8.5.1 cloudpickle==3.1.3 compressed-tensors==0.18.0 cryptography==50.0.2
    dill==0.4.1 distro==1.9.0 einops==0.8.2 executing==2.3.0 fastapi==0.165.0 filelock==4.3.1
    frozenlist==1.8.0 fsspec==2026.9.0 gguf==0.19.0 h11==0.16.0 hf-xet==1.8.0 httpcore==1.0.9
    httpcore2==2.16.2 httpx==0.28.1 httpx2==2.16.2 huggingface_hub==1.33.0 idna==3.20 ipython==9.18.1
    ipython_pygments_lexers==1.1.1 jedi==0.20.1 Jinja2==3.1.6 jiter==0.19.0 jsonschema==4.26.0
    jsonschema-specifications==2025.9.1 llvmlite==0.47.0 loguru==0.7.3 markdown-it-py==4.3.0 MarkupSafe==3.0.4
    matplotlib-inline==0.2.2 mdurl==0.1.2 mistral_common==1.13.1 mpmath==1.3.0 msgspec==0.23.0
    multidict==7.2.1 networkx==3.6.1 ninja==1.13.2 numba==0.65.1 numpy==2.3.5 nvidia-ml-py==13.615.71
    openai==2.8.0 openai-harmony==0.0.4 opentelemetry-api==1.45.2 orjson==3.13.0 packaging==26.4 parso==0.8.7
    partial-json-parser==0.2.1.1.post7 pexpect==4.9.0 pillow==13.0.0 prometheus_client==0.26.0
    prompt_toolkit==3.0.53 propcache==0.5.4 psutil==7.2.2 ptyprocess==0.7.0 pure_eval==0.2.4 pybase64==1.5.1
    pycountry==26.2.16 pycparser==3.12 pydantic==2.14.4 pydantic-extra-types==2.11.1 pydantic_core==2.50.5
    Pygments==2.21.0 python-multipart==0.0.34 PyYAML==6.0.4 pyzmq==27.3.0 referencing==0.37.0
    regex==2026.11.19 requests==2.34.2 rich==15.0.0 rpds-py==2026.9.1 safetensors==0.8.0 scipy==1.17.1
    sentencepiece==0.2.1 setproctitle==1.3.8 shellingham==1.5.4 sniffio==1.3.1 soundfile==0.13.1
    stack-data==0.6.3 starlette==1.10.0 sympy==1.14.0 tiktoken==0.14.0 tokenizers==0.23.2 tqdm==4.70.1
    traitlets==5.16.1 transformers==5.19.0 triton==3.9.0 truststore==0.10.5 typer==0.29.2
    typing-inspection==0.4.5 typing_extensions==4.16.0 urllib3==2.8.0 uvicorn==0.54.0 uvloop==0.23.0
    watchfiles==1.3.0 wcwidth==0.9.4 xgrammar==0.2.7 yarl==1.25.1 zstandard==0.25.0
"""

# Packages that are only imported, never used, when a text model runs on the CPU.
_ABSENT = '''"""Anything can be imported from here and nothing used: stand-ins for packages that are not installed."""


class Absent(type):
    """A name that can be imported, looked into and stored as a default, but not called."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{cls.__name__}.{name}", (), {})

    def __call__(cls, *args, **kwargs):
        raise NotImplementedError(f"{cls.__name__} is a stand-in: the package is not installed")


def names_of(module):
    """The `__getattr__` of a module that has every name."""

    def __getattr__(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{module}.{name}", (), {})

    return __getattr__
'''
_STAND_IN = "from hitlab_absent import names_of\n\n__getattr__ = names_of(__name__)\n"

# The one kernel of sgl_kernel that the CPU path calls: where each request's tokens lie in the pool.
_SGL_KERNEL = (
    _STAND_IN
    + '''

def assign_req_to_token_pool_cpu(requests, table, starts, ends, slots, _row_tokens):
    """Columns starts[i] to ends[i] of row requests[i] take the next of `slots`."""
    taken = 0
    for row, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist()):
        table[row, start:end] = slots[taken : taken + end - start].to(table.dtype)
        taken += end - start
'''
)


def _argv(spec: ServerSpec) -> tuple[str, ...]:
    return (
        "python",
        *("-m", "sglang.launch_server"),
        *("--model-path", spec.model_dir),
        *("--served-model-name", "tiny"),
        *("--device", "cpu"),
        *("--attention-backend", "torch_native"),
        *("--load-format", "dummy"),
        "--skip-tokenizer-init",
        "--skip-server-warmup",  # it answers before its own warm-up, whose tokens would then be counted as ours
        "--sleep-on-idle",  # or the scheduler keeps a core busy
        "--enable-metrics",
        *("--page-size", str(spec.block_tokens)),
        *("--max-total-tokens", str(spec.capacity_tokens)),
        *("--mem-fraction-static", "0.3"),
        *(("--dp-size", str(spec.ranks)) if spec.ranks > 1 else ()),
        *("--host", "127.0.0.1"),
        *("--port", str(spec.port)),
        *spec.extra_args,
    )


def _environment(spec: ServerSpec) -> dict[str, str]:
    environment = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "2",
    }
    if spec.ranks > 1:
        # Each rank wants CPUs of its own; with more ranks than CPUs they take turns.
        owners = (str(spec.cpus[rank % len(spec.cpus)]) for rank in range(spec.ranks))
        environment["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(owners)
    return environment


CPU = CpuRecipe(
    engine="sglang",
    title="SGLang",
    version=VERSION,
    pip_steps=(
        PipStep("torch", ("install", "--no-compile", "torch==2.13.0")),
        PipStep(f"sglang {VERSION}", ("install", "--no-compile", "--no-deps", f"sglang=={VERSION}")),
        PipStep(f"{len(_PINS.split())} packages it needs", ("install", "--no-compile", "--no-deps", *_PINS.split())),
    ),
    site_files={
        "hitlab_absent.py": _ABSENT,
        "sgl_kernel/__init__.py": _SGL_KERNEL,
        # transformers compares the version of torchvision, which this is older than anything of.
        "torchvision/__init__.py": _STAND_IN + '__version__ = "0"\n',
        "torchvision/io.py": _STAND_IN,
        "torchvision/transforms/__init__.py": _STAND_IN,
        "torchvision/transforms/functional.py": _STAND_IN,
        "torchvision/transforms/v2/__init__.py": _STAND_IN,
        "torchvision/transforms/v2/functional.py": _STAND_IN,
    },
    argv=_argv,
    environment=_environment,
    ready_path="/model_info",
    block_tokens=1,
    capacity_tokens=262_144,
    owned_args=frozenset(
        {"--host", "--port", "--page-size", "--max-total-tokens", "--dp-size", "--data-parallel-size", "--dp"}
    ),
    download_mb=700,
    installed_mb=2_800,
)
