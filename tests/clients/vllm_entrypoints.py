"""vLLM's own tests of its OpenAI server, unmodified, against Quire with the model that ships.

    python vllm_entrypoints.py QUIRE TOKENIZER FOLDER [pytest arguments]

FOLDER gets vLLM's source package. As a plugin of pytest this file stands in for what those tests take from vLLM: the
server that they start, and its tokenizer; whatever else they import is empty. Tests without a server are left out: they
test vLLM's own functions.
"""

import importlib.abc
import importlib.machinery
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import types
import urllib.request
from collections import Counter
from unittest.mock import MagicMock

VERSION = "0.33.0"
FILES = [
    "entrypoints/openai/chat_completion/test_chat.py",
    "entrypoints/openai/chat_completion/test_chat_completion.py",
    "entrypoints/openai/chat_completion/test_chat_echo.py",
    "entrypoints/openai/chat_completion/test_chat_logit_bias_validation.py",
    "entrypoints/openai/chat_completion/test_completion_with_function_calling.py",
    "entrypoints/openai/chat_completion/test_enable_force_include_usage.py",
    "entrypoints/openai/chat_completion/test_include_reasoning.py",
    "entrypoints/openai/chat_completion/test_logprob_token_ids.py",
    "entrypoints/openai/chat_completion/test_root_path.py",
    "entrypoints/openai/chat_completion/test_thinking_token_budget.py",
    "entrypoints/openai/completion/test_completion.py",
    "entrypoints/openai/completion/test_prompt_validation.py",
    "entrypoints/openai/completion/test_token_in_token_out.py",
    "entrypoints/openai/responses/test_simple.py",
    "entrypoints/openai/test_chunked_prompt.py",
    "entrypoints/openai/test_return_token_ids.py",
    "entrypoints/openai/test_return_tokens_as_ids.py",
    "tool_use/test_chat_completions.py",
    "tool_use/test_parallel_tool_calls.py",
    "tool_use/test_tool_calls.py",
]
# Flags that Quire refuses by name, or that ask for what the model that ships lacks: templates of other models, a longer
# context; with the number of their values.
WITHOUT = {
    "--chat-template": 1,
    "--max-model-len": 1,
    "--reasoning-config": 1,
    "--structured-outputs-config.backend": 1,
    "--watermark-config": 1,
}


def fetch(folder):
    """Puts vLLM's tests into a folder. pip would build the package for its metadata, so its index is asked."""
    if (folder / "tests").is_dir():
        return
    from pip._internal.models.index import PyPI

    asked = urllib.request.Request(
        PyPI.simple_url + "/vllm/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        files = json.load(answer)["files"]
    url = next(file["url"] for file in files if file["filename"] == f"vllm-{VERSION}.tar.gz")
    with urllib.request.urlopen(url, timeout=300) as answer, tarfile.open(fileobj=io.BytesIO(answer.read())) as archive:
        for member in archive:
            path = pathlib.PurePosixPath(*pathlib.PurePosixPath(member.name).parts[1:])
            wanted = path.parts[:2] in [("tests", "entrypoints"), ("tests", "tool_use")]
            if member.isfile() and wanted and ".." not in path.parts:
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.extractfile(member).read())


class RemoteOpenAIServer:
    """`quire serve` where vLLM's tests start `vllm serve`."""

    def __init__(self, model, vllm_serve_args, *, env_dict=None, **_):
        import socket

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.host = "127.0.0.1"
        args, rest = [], iter(vllm_serve_args)
        for word in rest:
            flag = word.replace("_", "-")
            if flag in WITHOUT:
                for _ in range(WITHOUT[flag]):
                    next(rest)
            elif flag == "--lora-modules":
                # The adapter that ships stands in for theirs, under its name.
                name = next(rest).partition("=")[0]
                adapter = pathlib.Path(os.environ["QUIRE_TOKENIZER"]).parent / "lora-pirate"
                args += [word, f"{name}={adapter}"]
            else:
                args.append(word)
        command = [os.environ["QUIRE"], "serve", "--served-model-name", model, "--port", str(self.port), *args]
        self.log = open(os.path.join(os.environ["QUIRE_LOGS"], f"{self.port}.log"), "w+")
        self.child = subprocess.Popen(
            command, env={**os.environ, **(env_dict or {})}, stdout=self.log, stderr=self.log
        )
        deadline = time.monotonic() + 120
        while not self.is_healthy():
            if self.child.poll() is not None or time.monotonic() > deadline:
                self.log.seek(0)
                raise RuntimeError(self.log.read()[-600:])
            time.sleep(0.05)

    def is_healthy(self):
        try:
            with urllib.request.urlopen(self.url_for("health"), timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.send_signal(signal.SIGTERM)
        self.child.wait(60)

    @property
    def url_root(self):
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts):
        return "/".join([self.url_root, *(part.strip("/") for part in parts if part)])

    def get_client(self, **kwargs):
        import openai

        return openai.OpenAI(base_url=self.url_for("v1"), api_key="none", max_retries=0, timeout=60, **kwargs)

    def get_async_client(self, **kwargs):
        import openai

        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key="none", max_retries=0, timeout=60, **kwargs)


class Empty(types.ModuleType):
    """A module that has whatever is asked of it."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of vLLM and torch, all empty but for what tests need of them."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("vllm", "torch"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        if module.__name__ == "torch":
            module.iinfo = lambda _: types.SimpleNamespace(min=-(2**63), max=2**63 - 1)
        if module.__name__ == "vllm.config":
            module.ModelConfig = lambda *_, **__: types.SimpleNamespace(get_vocab_size=lambda: len(tokenizer()))
        if module.__name__ == "vllm.platforms":
            module.current_platform = MagicMock(is_rocm=lambda: False, is_xpu=lambda: False, is_cuda=lambda: True)
        if module.__name__ in ("vllm.tokenizers", "vllm.transformers_utils.tokenizer"):
            module.get_tokenizer = lambda *_, **__: tokenizer()


def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(os.environ["QUIRE_TOKENIZER"])


def stand_in():
    """Before any file of the tests is read."""
    sys.meta_path.insert(0, StandIn())
    utils = Empty("tests.utils")
    utils.RemoteOpenAIServer = RemoteOpenAIServer
    utils.ROCM_EXTRA_ARGS, utils.ROCM_ENV_OVERRIDES = [], {}
    utils.VLLM_PATH = pathlib.Path("vllm")
    utils.create_new_process_for_each_test = lambda *_: lambda test: test
    sys.modules["tests.utils"] = utils


def needs_server(item):
    return {"client", "server"} & set(item.fixturenames) or "RemoteOpenAIServer(" in inspect_source(item)


def inspect_source(item):
    import inspect

    return inspect.getsource(item.function)


def pytest_collection_modifyitems(config, items):
    chosen = [item for item in items if needs_server(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


outcomes = {}


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        text = ""
        if report.failed:
            lines = [line[1:].strip() for line in str(report.longrepr).splitlines() if line.startswith("E ")]
            text = (lines or [str(report.longrepr)[-200:]])[0]
        outcomes[report.nodeid] = (report.outcome, text)


def pytest_terminal_summary(terminalreporter):
    by_file = {}
    for test, (outcome, _) in outcomes.items():
        by_file.setdefault(test.split("::")[0], Counter())[outcome] += 1
    for file, counts in sorted(by_file.items()):
        terminalreporter.write_line(f"{file}: {counts['passed']} of {counts['passed'] + counts['failed']} passed")
    for test, (outcome, text) in outcomes.items():
        if outcome == "failed":
            terminalreporter.write_line(f"FAILED {re.sub('.*/', '', test)}: {text[:300]}")
    total = Counter(outcome for outcome, _ in outcomes.values())
    counted = total["passed"] + total["failed"]
    passed, skipped = total["passed"], total["skipped"]
    terminalreporter.write_line(f"vLLM {VERSION}: {passed} of {counted} tests passed, {skipped} skipped")


def main():
    quire, model, folder, *more = sys.argv[1:]
    folder = pathlib.Path(folder).absolute()
    fetch(folder)
    logs = folder / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir()
    # Options of the tests' own, and packages' beginnings.
    for package in "tests", "tests/entrypoints", "tests/tool_use":
        (folder / package / "__init__.py").touch()
    environment = {
        **os.environ,
        "QUIRE": quire,
        "QUIRE_TOKENIZER": model,
        "QUIRE_LOGS": str(logs),
        "PYTHONPATH": os.pathsep.join([str(pathlib.Path(__file__).parent), str(folder)]),
    }
    files = [f"tests/{file}" for file in FILES if (folder / "tests" / file).is_file()]
    arguments = ["-p", "vllm_entrypoints", "-q", "--no-header", "--tb=short", "-W", "ignore"]
    command = [sys.executable, "-m", "pytest", *arguments, "--rootdir", str(folder), *(more or files)]
    return subprocess.run(command, env=environment, cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main())
stand_in()
