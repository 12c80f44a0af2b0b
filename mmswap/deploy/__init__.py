"""Growing past one process: the server as replicas (`ray`), and captions of whole folders (`captions`, `captioning`).

from mmswap.deploy import ray as deploy           # pip install "mmswap[ray]"
deploy.run(model="checkpoint", replicas=2)        # the same API and page, answered by two copies, one card each

mmswap caption PICTURES --out captions.jsonl --workers 2
"""
