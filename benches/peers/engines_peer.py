"""Inference engines from wheels as sides of `cargo xtask bench`: one JSON object a line, there and back.

usage: engines_peer.py PACKAGES ENGINE THREADS [GGUF]
    PACKAGES  folder that the engine was installed into
    ENGINE    ik, openvino or mistralrs
    THREADS   threads that it computes on
    GGUF      the model; without one, ik answers `products` alone

| request | answer |
|---|---|
| `{"do": "hello"}` | `{"ok": {"name": .., "instructions": ..}}`, once the model is loaded |
| `{"do": "prefill", "prompt": [ids]}` | `{"ok": {"seconds": s}}` |
| `{"do": "generate", "prompts": [[ids], ..], "tokens": n}` | `{"ok": {"seconds": s}}` |
| `{"do": "products", "format": "Q4_K", "rows": m, "inner": k, "columns": n, "bytes": b, "times": t}` | `{"ok": {"seconds": s}}` |

`generate` computes all prompts and their first tokens first; the seconds are those of the next n
tokens of each. Sampling is greedy, nothing ends a sequence, and no seconds have tokenizing in them.
`products` multiplies t times: m rows of f32 with n stored rows of k elements. The weights have b
bytes or more, and are read one copy after the other.
"""

import array
import ctypes
import importlib.metadata
import json
import os
import sys
import time

# Only JSON lines may go to the real standard output: a library that prints would break the
# protocol.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

packages, engine, threads = sys.argv[1:4]
model = sys.argv[4] if len(sys.argv) > 4 else None
threads = int(threads)
sys.path.insert(0, packages)
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["RAYON_NUM_THREADS"] = str(threads)
os.environ["OMP_NUM_THREADS"] = str(threads)

# The most sequences, and tokens of one, that any figure has.
SEQUENCES_MAX, TOKENS_MAX = 16, 1_024


def version(package):
    return importlib.metadata.version(package)


class Ik:
    """ik_llama.cpp, by the C interfaces of its libraries."""

    # `enum ggml_type`
    FORMATS = {"Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14}
    INSTRUCTIONS = ["avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "neon", "matmul_int8"]

    def __init__(self):
        from ik_llama_cpp import _ctypes_api

        self.llama = _ctypes_api
        self.ggml = Ggml(os.path.join(packages, "ik_llama_cpp", "lib"))
        self.products_of = None
        if model:
            self.load()

    def load(self):
        llama = self.llama
        llama.llama_backend_init()
        self.model = llama.llama_model_load_from_file(model.encode(), llama.llama_model_default_params())
        if not self.model:
            raise ValueError("ik_llama.cpp cannot load the model")
        settings = llama.llama_context_default_params()
        settings.n_ctx = SEQUENCES_MAX * TOKENS_MAX
        settings.n_batch = SEQUENCES_MAX * TOKENS_MAX
        settings.n_seq_max = SEQUENCES_MAX
        settings.n_threads = settings.n_threads_batch = threads
        # Built for AVX2, flash attention ends the process in an assertion (`S > 0`). The wheel's own
        # interface leaves it out for that reason.
        settings.flash_attn = False
        self.context = llama.llama_init_from_model(self.model, settings)
        if not self.context:
            raise ValueError("ik_llama.cpp cannot make a context")
        self.vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        self.batch = llama.llama_batch_init(TOKENS_MAX, 0, 1)

    def hello(self):
        has = [name for name in self.INSTRUCTIONS if getattr(self.ggml.library, f"ggml_cpu_has_{name}", int)()]
        name = f"ik_llama.cpp of ik-llama-cpp-python {version('ik-llama-cpp-python')}"
        return {"name": name, "instructions": "built for " + ", ".join(has)}

    def prefill(self, prompt):
        self.llama.llama_kv_cache_clear(self.context)
        return self.decode([(token, at, 0, at == len(prompt) - 1) for at, token in enumerate(prompt)])

    def generate(self, prompts, tokens):
        self.llama.llama_kv_cache_clear(self.context)
        last = []
        for sequence, prompt in enumerate(prompts):
            self.decode([(token, at, sequence, at == len(prompt) - 1) for at, token in enumerate(prompt)])
            last.append(self.best(len(prompt) - 1))
        seconds = 0
        for step in range(tokens):
            rows = [(last[i], len(prompt) + step, i, True) for i, prompt in enumerate(prompts)]
            seconds += self.decode(rows)
            last = [self.best(row) for row in range(len(rows))]
        return seconds

    def decode(self, rows):
        """The seconds of a step with these tokens, positions, sequences and marks of wanted logits."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for row, (token, position, sequence, is_wanted) in enumerate(rows):
            batch.token[row] = token
            batch.pos[row] = position
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = sequence
            batch.logits[row] = is_wanted
        started = time.perf_counter()
        status = self.llama.llama_decode(self.context, batch)
        seconds = time.perf_counter() - started
        if status != 0:
            raise ValueError(f"llama_decode returned {status}")
        return seconds

    def best(self, row):
        """The most likely token: Python looks for it, after the step's time."""
        logits = self.llama.llama_get_logits_ith(self.context, row)[: self.vocab_size]
        return logits.index(max(logits))

    def products(self, format, rows, inner, columns, bytes, times):
        key = (format, rows, inner, columns, bytes)
        if self.products_of != key:
            self.ggml.free()
            self.ggml.make_products(self.FORMATS[format], rows, inner, columns, bytes)
            self.products_of = key
        return self.ggml.multiply(times)


class Ggml:
    """Matrix products with the library `ggml`."""

    F32 = 0

    class Settings(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_size_t), ("memory", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]

    class Plan(ctypes.Structure):
        _fields_ = [
            ("work_bytes", ctypes.c_size_t),
            ("work", ctypes.c_void_p),
            ("threads", ctypes.c_int),
            ("abort_callback", ctypes.c_void_p),
            ("abort_callback_data", ctypes.c_void_p),
        ]

    def __init__(self, folder):
        # The library is loaded already: that of `llama` needs it.
        [name] = [name for name in os.listdir(folder) if "ggml" in name]
        self.library = library = ctypes.CDLL(os.path.join(folder, name))
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        for name, result, arguments in [
            ("ggml_init", pointer, [self.Settings]),
            ("ggml_free", None, [pointer]),
            ("ggml_new_tensor_2d", pointer, [pointer, ctypes.c_int, number, number]),
            ("ggml_get_data", pointer, [pointer]),
            ("ggml_row_size", ctypes.c_size_t, [ctypes.c_int, number]),
            ("ggml_quantize_chunk", ctypes.c_size_t, [ctypes.c_int, pointer, pointer, number, number, number, pointer]),
            ("ggml_mul_mat", pointer, [pointer, pointer, pointer]),
            ("ggml_new_graph", pointer, [pointer]),
            ("ggml_build_forward_expand", None, [pointer, pointer]),
            ("ggml_graph_plan", self.Plan, [pointer, ctypes.c_int]),
            ("ggml_graph_compute", ctypes.c_int, [pointer, ctypes.POINTER(self.Plan)]),
        ]:
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self.context = None
        self.graphs = []

    def make_products(self, format, rows, inner, columns, bytes):
        matrix_bytes = self.library.ggml_row_size(format, inner) * columns
        copies = max(1, -(-bytes // matrix_bytes))
        output_bytes = 4 * rows * columns
        memory = copies * (matrix_bytes + output_bytes) + 4 * rows * inner + (64 << 20)
        self.context = self.library.ggml_init(self.Settings(memory, None, False))
        if not self.context:
            raise MemoryError("ggml has too little memory")
        numbers = pseudo_random(inner * max(rows, columns))
        data_of = self.library.ggml_get_data
        matrices = [self.library.ggml_new_tensor_2d(self.context, format, inner, columns) for _ in range(copies)]
        self.library.ggml_quantize_chunk(format, numbers, data_of(matrices[0]), 0, columns, inner, None)
        for matrix in matrices[1:]:
            ctypes.memmove(data_of(matrix), data_of(matrices[0]), matrix_bytes)
        input = self.library.ggml_new_tensor_2d(self.context, self.F32, inner, rows)
        ctypes.memmove(data_of(input), numbers, 4 * inner * rows)
        for matrix in matrices:
            graph = self.library.ggml_new_graph(self.context)
            self.library.ggml_build_forward_expand(graph, self.library.ggml_mul_mat(self.context, matrix, input))
            self.graphs.append(graph)
        self.plan = self.library.ggml_graph_plan(self.graphs[0], threads)
        self.work = ctypes.create_string_buffer(max(1, self.plan.work_bytes))
        self.plan.work = ctypes.addressof(self.work)
        self.next = 0

    def multiply(self, times):
        started = time.perf_counter()
        for _ in range(times):
            graph = self.graphs[self.next]
            self.next = (self.next + 1) % len(self.graphs)
            status = self.library.ggml_graph_compute(graph, self.plan)
            if status != 0:
                raise ValueError(f"ggml_graph_compute returned {status}")
        return time.perf_counter() - started

    def free(self):
        if self.context:
            self.library.ggml_free(self.context)
        self.context, self.graphs = None, []


def pseudo_random(count):
    """Numbers from -1 to 1, as those of `benches/src/programs/products.rs`."""
    period = array.array("f", (i * 7919 % 1009 / 504.5 - 1 for i in range(1009)))
    numbers = period * (count // len(period) + 1)
    return (ctypes.c_float * len(numbers)).from_buffer(numbers)


class OpenVino:
    """OpenVINO GenAI's continuous batching."""

    def __init__(self):
        import numpy
        import openvino
        import openvino_genai

        self.numpy, self.openvino, self.genai = numpy, openvino, openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        # All prompts are in the first step: a step after it only decodes.
        scheduler.max_num_batched_tokens = SEQUENCES_MAX * TOKENS_MAX
        scheduler.max_num_seqs = SEQUENCES_MAX
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(
            model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
        )

    def hello(self):
        features = self.openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        return {"name": f"openvino-genai {version('openvino-genai')}", "instructions": ", ".join(features)}

    def prefill(self, prompt):
        [metrics] = self.run([prompt], 1)
        return metrics.get_ttft().mean / 1e3

    def generate(self, prompts, tokens):
        times = [metrics.raw_metrics.m_new_token_times for metrics in self.run(prompts, tokens + 1)]
        return max(each[-1] for each in times) / 1e3 - min(each[0] for each in times) / 1e3

    def run(self, prompts, tokens):
        config = self.genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = tokens, True, False
        inputs = [self.openvino.Tensor(self.numpy.array([prompt], dtype=self.numpy.int64)) for prompt in prompts]
        results = self.pipeline.generate(inputs, [config] * len(inputs))
        if any(len(result.m_generation_ids[0]) != tokens for result in results):
            raise ValueError(f"a sequence has other than {tokens} tokens")
        return [result.perf_metrics for result in results]


class MistralRs:
    """mistral.rs. It takes texts, whose tokens may be other than those asked for: times are for as many."""

    def __init__(self):
        import mistralrs

        self.package = mistralrs
        folder, name = os.path.split(model)
        which = mistralrs.Which.GGUF(quantized_model_id=folder, quantized_filename=name)
        # No prompt is found in a cache.
        self.runner = mistralrs.Runner(which=which, max_seqs=SEQUENCES_MAX, prefix_cache_n=0)

    def hello(self):
        return {"name": f"mistralrs {version('mistralrs')}", "instructions": "not told"}

    def prefill(self, prompt):
        usage = self.run(prompt, 1)
        return usage.total_prompt_time_sec / usage.prompt_tokens * len(prompt)

    def generate(self, prompts, tokens):
        [prompt] = prompts
        usage = self.run(prompt, tokens + 1)
        return usage.total_completion_time_sec / (usage.completion_tokens - 1) * tokens

    def run(self, prompt, tokens):
        text = self.runner.detokenize_text(prompt, False)
        request = self.package.CompletionRequest(
            model="default", prompt=text, max_tokens=tokens, temperature=0.0, ignore_eos=True
        )
        usage = self.runner.send_completion_request(request).usage
        if usage.completion_tokens != tokens:
            raise ValueError(f"{usage.completion_tokens} tokens, {tokens} expected")
        return usage


def main():
    try:
        peer = {"ik": Ik, "openvino": OpenVino, "mistralrs": MistralRs}[engine]()
    except Exception as error:
        sys.exit(f"{engine} does not start: {type(error).__name__}: {error}")
    for line in sys.stdin:
        request = json.loads(line)
        kind = request.pop("do")
        try:
            answer = getattr(peer, kind)(**request)
            answer = {"ok": answer if kind == "hello" else {"seconds": answer}}
        except Exception as error:  # whatever it is, the other end should hear of it
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


main()
