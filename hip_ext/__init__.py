"""Native kernels for AMD cards, and NVIDIA's from the same source: built by any clang, by hipcc, nvcc or hiprtc.

`backend.py` is what `mmswap.llm.ops` asks; `csrc/` are the kernels; `build.py` compiles; `docs/hip.md` says what ran.
"""
